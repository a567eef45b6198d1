//! Whom figures stand beside. What is missing is installed: packages of the system where they belong, as root, all else below
//! `.tools/peers`. Who cannot be had is left out of a table, and the table says so.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::shell::{is_in, is_root, root, run};

/// Programs and the Debian packages that bring them. `srt` starts nothing without the second and the third.
const SANDBOXES: [(&str, &str); 3] = [("bwrap", "bubblewrap"), ("rg", "ripgrep"), ("socat", "socat")];
const QUEUES: [(&str, &str); 1] = [("redis-server", "redis-server")];

const SRT: &str = "@anthropic-ai/sandbox-runtime@0.0.78";
const HAKONIWA: &str = "hakoniwa-cli@1.8.0";
const MITMPROXY: &str = "mitmproxy==11.0.2";

fn home() -> PathBuf {
    root().join(".tools/peers")
}

/// Where programs of Python's packages find what belongs to them.
pub(crate) fn python() -> PathBuf {
    home().join("python")
}

/// Where peers are looked for: where they were installed for this project, then where everybody looks. Tests do not look there: some
/// of them need that there is no agent CLI.
pub(crate) fn path() -> OsString {
    let node = "node_modules/.bin";
    let own = [root().join(".tools").join(node), home().join(node), home().join("bin"), python().join("bin")];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = own.into_iter().chain(std::env::split_paths(&path));
    // A directory whose name cannot be part of a path is not looked into.
    std::env::join_paths(all).unwrap_or(path)
}

/// The same, as a word for `env`.
pub(crate) fn path_word() -> String {
    format!("PATH={}", path().display())
}

/// Whether a peer is here.
pub(crate) fn has(program: &str) -> bool {
    is_in(&path(), program)
}

pub(crate) fn sandboxes() {
    system(&SANDBOXES);
    srt();
    let home = home().display().to_string();
    if !has("hakoniwa") {
        packages(&["libseccomp-dev"]);
    }
    unless_there("hakoniwa", &["cargo", "install", "--quiet", "--locked", "--root", &home, HAKONIWA]);
}

pub(crate) fn proxies() {
    srt();
    let python = python().display().to_string();
    let install = ["python3", "-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--target"];
    unless_there("mitmdump", &[&install[..], &[&python, MITMPROXY]].concat());
}

pub(crate) fn queues() {
    system(&QUEUES);
}

fn srt() {
    let home = home().display().to_string();
    unless_there("srt", &["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", &home, SRT]);
}

fn system(programs: &[(&str, &str)]) {
    let missing = programs.iter().filter(|(program, _)| !has(program)).map(|(_, package)| *package);
    packages(&missing.collect::<Vec<_>>());
}

fn packages(names: &[&str]) {
    if names.is_empty() || !is_root() {
        return;
    }
    let install = ["apt-get", "install", "--yes", "-qq", "--no-install-recommends"];
    told(run(&["apt-get", "update", "-qq"]).and_then(|()| run(&[&install[..], names].concat())));
}

fn unless_there(program: &str, install: &[&str]) {
    if !has(program) {
        told(run(install));
    }
}

/// A peer that cannot be had is no reason to measure nobody.
fn told(installed: anyhow::Result<()>) {
    if let Err(error) = installed {
        eprintln!("{error:#}");
    }
}
