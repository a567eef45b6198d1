//! The house rules that a compiler does not know.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ringfence_core::mode::Mode;
use serde_json::Value;

use crate::shell::{read, root};

/// Which crates a crate may depend on, tests aside. What is not here is not allowed.
const ARROWS: [(&str, &[&str]); 17] = [
    ("ringfence-core", &[]),
    ("ringfence-gate", &[]),
    ("ringfence-linux", &["ringfence-core", "ringfence-gate"]),
    ("ringfence-workspace", &["ringfence-core"]),
    ("ringfence-agents", &["ringfence-core"]),
    ("ringfence-store", &["ringfence-core", "ringfence-workspace"]),
    ("ringfence-backends", &["ringfence-core", "ringfence-gate", "ringfence-linux", "ringfence-workspace"]),
    ("ringfence-egress", &["ringfence-core", "ringfence-workspace"]),
    (
        "ringfence-engine",
        &["ringfence-core", "ringfence-agents", "ringfence-egress", "ringfence-store", "ringfence-workspace"],
    ),
    ("ringfence-server", &["ringfence-core", "ringfence-egress", "ringfence-store"]),
    (
        "ringfence",
        &[
            "ringfence-core",
            "ringfence-gate",
            "ringfence-linux",
            "ringfence-agents",
            "ringfence-egress",
            "ringfence-store",
            "ringfence-backends",
            "ringfence-engine",
            "ringfence-server",
            "ringfence-workspace",
        ],
    ),
    ("egress-bench", &["ringfence-core", "ringfence-egress"]),
    ("queue-bench", &["ringfence-core", "ringfence-store"]),
    ("server-bench", &[]),
    ("scripted-model", &[]),
    ("torture", &["ringfence-core", "ringfence-engine", "ringfence-store"]),
    ("xtask", &["ringfence-agents", "ringfence-backends", "ringfence-core", "ringfence-server"]),
];

/// What must not be in the vocabulary: anything that does IO or brings a runtime.
const NOT_IN_CORE: [&str; 5] = ["tokio", "rustix", "libc", "tempfile", "signal-hook"];

/// The rooms for unsafe; every other crate has the workspace's lints, which deny it.
const UNSAFE_ROOMS: [&str; 2] = ["ringfence-linux", "ringfence-gate"];

pub(crate) fn tidy() -> anyhow::Result<()> {
    let mut findings = Vec::new();
    arrows(&mut findings)?;
    dependencies(&mut findings)?;
    for file in sources() {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let name = file.strip_prefix(root()).unwrap_or(&file).to_owned();
        header(&name, &text, &mut findings);
        mode_names(&name, &text, &mut findings);
    }
    if findings.is_empty() {
        eprintln!("tidy: the house is in order");
        return Ok(());
    }
    bail!("tidy found:\n  {}", findings.join("\n  "))
}

fn metadata(extra: &[&str]) -> anyhow::Result<Value> {
    let command = [&["cargo", "metadata", "--format-version", "1", "--locked"], extra].concat();
    Ok(serde_json::from_str(&read(&command).context("cargo metadata failed; is Cargo.lock up to date?")?)?)
}

fn texts<'a>(values: &'a Value, field: &'a str) -> impl Iterator<Item = (&'a Value, &'a str)> {
    values.as_array().into_iter().flatten().filter_map(move |value| Some((value, value[field].as_str()?)))
}

fn arrows(findings: &mut Vec<String>) -> anyhow::Result<()> {
    let metadata = metadata(&["--no-deps"])?;
    let ours: BTreeSet<&str> = texts(&metadata["packages"], "name").map(|(_, name)| name).collect();
    for (package, name) in texts(&metadata["packages"], "name") {
        let Some((_, allowed)) = ARROWS.iter().find(|(krate, _)| *krate == name) else {
            findings.push(format!("crate {name} has no arrows in xtask/src/tidy.rs"));
            continue;
        };
        for (dependency, target) in texts(&package["dependencies"], "name") {
            if dependency["kind"] == "dev" {
                continue;
            }
            if ours.contains(target) && !allowed.contains(&target) {
                findings.push(format!("{name} must not depend on {target}"));
            }
            if name == "ringfence-core" && NOT_IN_CORE.contains(&target) {
                findings.push(format!("{name} must not know {target}: it does no IO"));
            }
        }
        let manifest = fs::read_to_string(package["manifest_path"].as_str().unwrap_or_default())?;
        if !UNSAFE_ROOMS.contains(&name) && !manifest.contains("[lints]\nworkspace = true") {
            findings.push(format!("{name} does not take the workspace's lints, which deny unsafe"));
        }
    }
    Ok(())
}

/// What `deny.toml` says of licences, banned crates and sources.
fn dependencies(findings: &mut Vec<String>) -> anyhow::Result<()> {
    let rules: toml::Table = fs::read_to_string(root().join("deny.toml"))?.parse()?;
    let allowed: Vec<&str> = list(&rules, "licenses", "allow").filter_map(toml::Value::as_str).collect();
    let banned: Vec<&str> =
        list(&rules, "bans", "deny").filter_map(|ban| ban.get("name")?.as_str()).collect();
    let metadata = metadata(&[])?;
    for (package, name) in texts(&metadata["packages"], "name") {
        let licence = package["license"].as_str().unwrap_or("none");
        if !accepted(licence, &allowed) {
            findings.push(format!("{name} has the licence {licence}, which nobody has agreed to"));
        }
        if banned.contains(&name) {
            findings.push(format!("{name} is banned in deny.toml"));
        }
        if package["source"].as_str().is_some_and(|source| !source.starts_with("registry+")) {
            findings.push(format!("{name} does not come from the registry"));
        }
    }
    Ok(())
}

fn list<'a>(rules: &'a toml::Table, section: &str, key: &str) -> impl Iterator<Item = &'a toml::Value> {
    rules.get(section).and_then(|section| section.get(key)?.as_array()).into_iter().flatten()
}

/// One of the alternatives has to be agreed to in full.
fn accepted(licence: &str, allowed: &[&str]) -> bool {
    licence
        .replace('/', " OR ")
        .split(" OR ")
        .any(|choice| choice.split(" AND ").all(|part| allowed.contains(&part.trim_matches(['(', ')', ' ']))))
}

fn sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for directory in ["crates", "fuzz/fuzz_targets", "fuzz/src", "tests", "xtask"] {
        collect(&root().join(directory), &mut files);
    }
    files.sort();
    files
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn header(file: &Path, text: &str, findings: &mut Vec<String>) {
    if !text.starts_with("//! ") {
        findings.push(format!("{} has no header that says what the room is for", file.display()));
    }
}

/// A mode is known to its own folder and to the tables; everyone else asks the table.
fn mode_names(file: &Path, text: &str, findings: &mut Vec<String>) {
    let name = file.display().to_string();
    let is_table =
        name.ends_with("ringfence-core/src/mode.rs") || name.ends_with("ringfence-backends/src/lib.rs");
    let is_test = name.contains("/tests/") || name.starts_with("tests/") || name.ends_with("_tests.rs");
    if is_table || is_test || !name.starts_with("crates/") {
        return;
    }
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    for mode in Mode::ALL {
        if name.contains(&format!("ringfence-backends/src/{mode}/")) {
            continue;
        }
        let variant = format!("Mode::{mode:?}");
        // `host` is also a word for the machine outside, so only the variant tells.
        let quoted = format!("\"{mode}\"");
        let says = |line: &str| {
            let line = line.split("//").next().unwrap_or_default();
            line.contains(&variant) || (mode.isolates() && line.contains(&quoted))
        };
        for (number, _) in code.lines().enumerate().filter(|(_, line)| says(line)) {
            findings.push(format!("{name}:{} names the mode {mode}; ask the table", number + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{accepted, header, mode_names};

    fn found(check: fn(&Path, &str, &mut Vec<String>), file: &str, text: &str) -> usize {
        let mut findings = Vec::new();
        check(Path::new(file), text, &mut findings);
        findings.len()
    }

    #[test]
    fn a_file_without_a_header_is_found() {
        assert_eq!(found(header, "a.rs", "use x;\n"), 1);
        assert_eq!(found(header, "a.rs", "//! A room.\n"), 0);
    }

    #[test]
    fn a_mode_is_named_only_at_home() {
        let text = "//! x\nlet a = Mode::Docker;\nlet b = \"podman\"; // \"fly\" in a comment is fine\n";
        assert_eq!(found(mode_names, "crates/ringfence-engine/src/run.rs", text), 2);
        assert_eq!(found(mode_names, "crates/ringfence-backends/src/docker/plan.rs", text), 1);
        assert_eq!(found(mode_names, "crates/ringfence-core/src/mode.rs", text), 0);
        assert_eq!(found(mode_names, "crates/x/src/y.rs", "//! x\n#[cfg(test)]\nMode::Fly"), 0);
    }

    #[test]
    fn a_licence_is_accepted_only_where_somebody_agreed() {
        let allowed = ["MIT", "ISC"];
        assert!(accepted("MIT OR GPL-3.0", &allowed) && accepted("MIT/Apache-2.0", &allowed));
        assert!(accepted("(MIT AND ISC)", &allowed) && !accepted("MIT AND GPL-3.0", &allowed));
        assert!(!accepted("none", &allowed));
    }
}
