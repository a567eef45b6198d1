//! Running other programs, loudly.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// How the variables begin by which cargo tells a program what it is.
const OWN: [&[u8]; 2] = [b"CARGO_PKG_", b"CARGO_MANIFEST_"];

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Runs a command in the root of the repository, showing it and what it prints.
pub(crate) fn run(words: &[&str]) -> anyhow::Result<()> {
    eprintln!("\n$ {}", words.join(" "));
    let status = command(words)?.status().with_context(|| format!("{} cannot be started", words[0]))?;
    if !status.success() {
        bail!("`{}` failed: {status}", words.join(" "));
    }
    Ok(())
}

/// What a command prints, or nothing if it fails.
pub(crate) fn read(words: &[&str]) -> Option<String> {
    let output = command(words).ok()?.stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn command(words: &[&str]) -> anyhow::Result<Command> {
    let (program, args) = words.split_first().context("no command")?;
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    // What cargo tells this program about itself is nobody else's concern: some crates are built anew when it changes.
    let told = std::env::vars_os().map(|(name, _)| name);
    for name in told.filter(|name| OWN.iter().any(|own| name.as_encoded_bytes().starts_with(own))) {
        command.env_remove(name);
    }
    Ok(command)
}

/// Whether a program is in the path.
pub(crate) fn has(program: &str) -> bool {
    is_in(&std::env::var_os("PATH").unwrap_or_default(), program)
}

/// Whether a program is in such a path.
pub(crate) fn is_in(path: &OsStr, program: &str) -> bool {
    std::env::split_paths(path).any(|directory| directory.join(program).is_file())
}

/// Where cargo puts a program.
pub(crate) fn built(profile: &str, program: &str) -> anyhow::Result<PathBuf> {
    let target = read(&["rustc", "--print", "host-tuple"]).context("rustc does not tell its target")?;
    let directory = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    Ok(directory.join(target).join(profile).join(program))
}

/// Whether this is root.
pub(crate) fn is_root() -> bool {
    read(&["id", "-u"]).as_deref() == Some("0")
}
