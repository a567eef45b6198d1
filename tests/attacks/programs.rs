//! A run that leaves programs in its workspace, where the user's `PATH` leads: Ringfence itself starts none of them on the host.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::Place;

/// What Ringfence starts on the host by its name.
const NAMES: [&str; 13] = [
    "claude",
    "codex",
    "opencode",
    "git",
    "gh",
    "podman",
    "docker",
    "secret-tool",
    "systemd-run",
    "node",
    "npm",
    "mmdebstrap",
    "sleep",
];

/// Puts programs into a directory that tell that they were started.
fn leave_programs(directory: &Path, started: &Path) {
    fs::create_dir_all(directory).unwrap();
    for name in NAMES {
        let path = directory.join(name);
        fs::write(&path, format!("#!/bin/sh\necho {name} >> {}\necho 1.0\n", started.display())).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }
}

/// A place whose `PATH` begins with these directories, with a helper for a credential. What follows has no container engine, so
/// that none is started.
fn place(first: &[&str]) -> Place {
    let place = Place::new().settings(
        r#"{"sandbox": {"mode": "native"}, "broker": {"credentials": ["github"]},
            "agents": {"a": {"cli": "claude"}}}"#,
    );
    let tools = place.work().parent().unwrap().join("tools");
    fs::create_dir(&tools).unwrap();
    for name in ["sh", "sleep"] {
        std::os::unix::fs::symlink(Path::new("/bin").join(name), tools.join(name)).unwrap();
    }
    let first: Vec<String> = first
        .iter()
        .map(|entry| match entry.strip_prefix('/') {
            Some(below) => place.work().parent().unwrap().join(below).display().to_string(),
            None => (*entry).to_owned(),
        })
        .collect();
    place.env("PATH", format!("{}:{}", first.join(":"), tools.display()))
}

/// Everything that looks for a program of the host.
const COMMANDS: [&[&str]; 6] = [
    &["sandbox", "doctor"],
    &["auth", "check", "claude", "--environment", "host"],
    &["exec", "--allow", "github.com", "--", "/bin/true"],
    &["exec", "--mode", "podman", "--", "/bin/true"],
    &["sandbox", "list"],
    &["probe", "--mode", "host"],
];

#[test]
fn programs_of_a_workspace_are_not_started_on_the_host() {
    for first in [&["."][..], &["bin"], &[""], &["/work/bin"], &["/work/../work/bin"], &["/linked"]] {
        let place = place(first);
        let started = place.home().join("started");
        leave_programs(&place.work(), &started);
        leave_programs(&place.work().join("bin"), &started);
        std::os::unix::fs::symlink(place.work().join("bin"), place.work().parent().unwrap().join("linked"))
            .unwrap();
        for command in COMMANDS {
            place.run(command);
            let names = fs::read_to_string(&started).unwrap_or_default();
            assert_eq!(names, "", "{first:?}: {command:?}");
        }
        // The workspace of a command need not be where the user stands.
        let other = place.home().join("elsewhere");
        fs::create_dir_all(&other).unwrap();
        let work = place.work().display().to_string();
        let args = ["exec", "--cwd", &work, "--allow", "github.com", "--", "/bin/true"];
        let ran = place.command(&args).current_dir(&other).output().unwrap();
        assert!(!started.exists(), "{first:?}: {ran:?}");
    }
}

/// The same programs in a directory that is no workspace: so they would have been started.
#[test]
fn programs_of_a_directory_of_the_user_are_started() {
    let place = place(&["/home/bin"]);
    let started = place.home().join("started");
    leave_programs(&place.home().join("bin"), &started);
    for command in COMMANDS {
        place.run(command);
    }
    let names = fs::read_to_string(&started).unwrap_or_default();
    for name in ["claude", "codex", "opencode", "gh", "sleep"] {
        assert!(names.lines().any(|line| line == name), "{name}: {names}");
    }
}
