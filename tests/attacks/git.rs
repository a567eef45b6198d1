//! What git on the host executes after a run, and what the host reads of a repository before one.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Place, Ran};

fn exec(place: &Place, script: &str) -> Ran {
    place.run(&["exec", "--mode", "native", "--", "sh", "-c", script])
}

fn exec_at(place: &Place, at: &Path, script: &str) -> Ran {
    place.run(&["exec", "--mode", "native", "-C", at.to_str().unwrap(), "--", "sh", "-c", script])
}

/// Git on the host, as the user would call it.
fn git(at: &Path, args: &[&str]) -> (bool, String) {
    let mut command = Command::new("git");
    for (name, value) in [
        ("AUTHOR_NAME", "u"),
        ("AUTHOR_EMAIL", "u@localhost"),
        ("COMMITTER_NAME", "u"),
        ("COMMITTER_EMAIL", "u@localhost"),
    ] {
        command.env(format!("GIT_{name}"), value);
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.args(args).current_dir(at).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn repository(at: &Path) {
    fs::create_dir_all(at).unwrap();
    assert!(git(at, &["init", "-q", "-b", "main"]).0);
    fs::write(at.join("file"), "1\n").unwrap();
    assert!(git(at, &["add", "-A"]).0);
    assert!(git(at, &["commit", "-qm", "one"]).0);
}

/// Runs to the end, in so many bytes of address space.
fn limited(place: &Place, args: &[&str], bytes: u64) -> Ran {
    let plain = place.command(args);
    let mut command = Command::new("prlimit");
    command.arg(format!("--as={bytes}")).arg(plain.get_program()).args(plain.get_args()).env_clear();
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(place.work());
    Ran::from(command.stdin(std::process::Stdio::null()).output().unwrap())
}

/// A script that shows that it was executed.
fn trap(place: &Place) -> (String, PathBuf) {
    let (script, mark) = (place.home().join("trap"), place.home().join("executed"));
    fs::write(&script, format!("#!/bin/sh\ntouch '{}'\n", mark.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    (script.display().to_string(), mark)
}

fn assert_reported(place: &Place, path: &str) {
    let shown = place.run(&["runs", "show", "last", "--json"]).json();
    let files = shown["result"]["executed_later"].as_array().cloned().unwrap_or_default();
    assert!(files.iter().any(|file| file["path"] == path), "{path} is not reported: {shown}");
}

#[test]
fn files_of_the_user_do_not_reach_a_run_by_links_in_its_git_directory() {
    let place = Place::new().env("ANTHROPIC_API_KEY", "sk-canary-in-the-environment");
    repository(&place.work());
    fs::create_dir(place.home().join(".ssh")).unwrap();
    let key = place.home().join(".ssh/id_ed25519");
    fs::write(&key, "canary-private-key\n").unwrap();
    // What the host reads of a git directory when a run begins.
    let names = [
        "info/exclude",
        "info/attributes",
        "info/sparse-checkout",
        "config",
        "config.worktree",
        "HEAD",
        "ORIG_HEAD",
        "FETCH_HEAD",
        "MERGE_HEAD",
        "MERGE_MSG",
        "packed-refs",
        "shallow",
        "description",
        "index",
        "logs/HEAD",
        "logs/refs/heads/main",
        "logs/refs/stash",
        "refs/heads/x",
        "sharedindex.0123456789012345678901234567890123456789",
        "objects/info/alternates",
        "hooks",
        "modules",
        "lfs",
    ];
    for target in ["/proc/self/environ", key.to_str().unwrap()] {
        for name in names {
            // By a run, which writes its private git directory alone.
            let link =
                format!("rm -rf .git/{name}; mkdir -p $(dirname .git/{name}); ln -s {target} .git/{name}");
            exec(&place, &link);
            // And as a repository that came so, from an archive or from a run above.
            let real = place.work().join(".git").join(name);
            let kept = real.symlink_metadata().is_ok().then(|| place.home().join("kept"));
            if let Some(kept) = &kept {
                fs::rename(&real, kept).unwrap();
            }
            symlink(target, &real).unwrap();
            let ran = exec(
                &place,
                "cat $(find -L .git -type f) .git/hooks .git/modules .git/lfs 2>/dev/null; git status; true",
            );
            fs::remove_file(&real).unwrap();
            if let Some(kept) = &kept {
                fs::rename(kept, &real).unwrap();
            }
            assert!(!ran.stdout.contains("canary"), "{name} -> {target}: {}", ran.stdout);
            assert_ne!(ran.code(), 125, "{name}: {}", ran.stderr);
        }
    }
}

#[test]
fn a_huge_file_in_a_git_directory_costs_no_memory() {
    for name in ["info/exclude", "HEAD", "config", "packed-refs", "index", "logs/HEAD", "MERGE_MSG"] {
        let place = Place::new();
        repository(&place.work());
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(place.work().join(".git").join(name))
            .unwrap();
        file.set_len(3 << 30).unwrap();
        // Far less than the file.
        let ran = limited(&place, &["exec", "--mode", "native", "--", "true"], 1 << 30);
        assert!(
            ran.code() == 0 || (ran.code() == 125 && !ran.stderr.contains("panicked")),
            "{name}: {} {}",
            ran.code(),
            ran.stderr
        );
    }
}

#[test]
fn git_status_executes_nothing_after_a_run_moved_head_away() {
    let place = Place::new();
    repository(&place.work());
    let (script, mark) = trap(&place);
    exec(
        &place,
        &format!(
            "mv .git/HEAD .git/gone; mkdir -p objects refs; echo 'ref: refs/heads/main' > HEAD; \
             printf '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = {script}\\n\\tworktree = .\\n' > config"
        ),
    );
    let (found, said) = git(&place.work(), &["status"]);
    assert!(found && !mark.exists(), "{said}");
    assert_reported(&place, "HEAD");
}

#[test]
fn a_gitlink_and_a_new_repository_are_reported() {
    let place = Place::new();
    repository(&place.work());
    let (script, _) = trap(&place);
    exec(
        &place,
        &format!(
            "git init -q hidden && git -C hidden config core.fsmonitor {script}; mkdir sub; \
             echo 'gitdir: ../hidden/.git' > sub/.git; mkdir bare; git init -q --bare bare/x.git"
        ),
    );
    for path in ["hidden/.git", "sub/.git", "bare/x.git/HEAD"] {
        assert_reported(&place, path);
    }
    // People see it without asking for JSON.
    let shown = place.run(&["runs", "show", "last", "--log"]);
    assert!(shown.stderr.contains("sub/.git (git executes"), "{}", shown.stderr);
}

#[test]
fn a_repository_below_the_workspace_is_protected_and_takes_commits() {
    let place = Place::new();
    repository(&place.work());
    let nested = place.work().join("a/b/nested");
    repository(&nested);
    let (script, mark) = trap(&place);
    let before = fs::read(nested.join(".git/config")).unwrap();
    let ran = exec(
        &place,
        &format!(
            "cd a/b/nested; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m inside && \
             git config core.fsmonitor {script}; echo evil > .git/hooks/pre-commit; rm -f .git/hooks; mkdir -p .git/hooks; \
             cp {script} .git/hooks/post-checkout; mv .git .gone"
        ),
    );
    assert_ne!(ran.code(), 0, "the git directory can be moved away");
    assert_eq!(fs::read(nested.join(".git/config")).unwrap(), before);
    assert_eq!(git(&nested, &["log", "-1", "--format=%s"]).1, "inside\n");
    git(&nested, &["status"]);
    git(&nested, &["checkout", "-q", "-b", "x"]);
    assert!(!mark.exists());
}

#[test]
fn directories_of_hooks_are_protected() {
    for (hooks, file) in [
        (".husky/_", ".husky/pre-commit"),
        (".githooks", ".githooks/pre-commit"),
        ("tools/hooks", "tools/hooks/pre-commit"),
    ] {
        for exists in [true, false] {
            let place = Place::new();
            repository(&place.work());
            assert!(git(&place.work(), &["config", "core.hooksPath", hooks]).0);
            if exists {
                fs::create_dir_all(place.work().join(hooks)).unwrap();
            }
            let (_, mark) = trap(&place);
            let ran = exec(
                &place,
                &format!(
                    "mkdir -p {hooks}; printf '#!/bin/sh\\ntouch {}\\n' > {file} && chmod +x {file}",
                    mark.display()
                ),
            );
            assert_ne!(ran.code(), 0, "{hooks} {exists}");
            git(&place.work(), &["commit", "-q", "--allow-empty", "-m", "two"]);
            assert!(!mark.exists() && !place.work().join(file).exists(), "{hooks} {exists}");
        }
    }
}

#[test]
fn stub_files_of_a_run_below_are_not_carried_into_other_projects() {
    let place = Place::new();
    let (mono, other) = (place.work().join("mono"), place.work().join("other"));
    fs::create_dir_all(mono.join("sub")).unwrap();
    fs::create_dir(&other).unwrap();
    // A run above opens what a run below reserves, and writes when that one is over.
    let script = "import os, time
names = ['sub/opencode.json', 'sub/.mcp.json', 'sub/.envrc']
open('ready', 'w').close()
held = {}
while len(held) < len(names):
    for name in names:
        try: held.setdefault(name, os.open(name, os.O_RDWR))
        except OSError: pass
open('opened', 'w').close()
while not os.path.exists('over'): time.sleep(0.01)
for descriptor in held.values(): os.write(descriptor, b'evil')
";
    let above = place.spawn(&[
        "exec",
        "--mode",
        "native",
        "-C",
        mono.to_str().unwrap(),
        "--",
        "/usr/bin/python3",
        "-c",
        script,
    ]);
    crate::support::wait_for("the run above", || mono.join("ready").exists().then_some(()));
    let wait = "while [ ! -e go ]; do sleep 0.01; done";
    let below = place.spawn(&[
        "exec",
        "--mode",
        "native",
        "-C",
        mono.join("sub").to_str().unwrap(),
        "--",
        "sh",
        "-c",
        wait,
    ]);
    crate::support::wait_for("its descriptors", || mono.join("opened").exists().then_some(()));
    fs::write(mono.join("sub/go"), "").unwrap();
    assert!(below.wait_with_output().unwrap().status.success());
    fs::write(mono.join("over"), "").unwrap();
    assert!(above.wait_with_output().unwrap().status.success());
    exec_at(&place, &other, "cat .envrc .mcp.json opencode.json | grep evil && exit 9; true").expect_code(0);
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0, "nothing is left");
}

#[test]
fn commits_of_a_killed_run_are_imported_by_the_next() {
    let place = Place::new();
    repository(&place.work());
    let script =
        "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m lost; echo > committed; sleep 1000";
    let mut child = place.spawn(&["exec", "--mode", "native", "--", "sh", "-c", script]);
    crate::support::wait_for("the commit", || place.work().join("committed").exists().then_some(()));
    crate::support::signal(child.id(), "-KILL");
    child.wait().unwrap();
    assert_eq!(git(&place.work(), &["log", "-1", "--format=%s"]).1, "one\n");
    crate::support::wait_for("the import", || {
        let ran = exec(&place, "true");
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
        (git(&place.work(), &["log", "-1", "--format=%s"]).1 == "lost\n").then_some(())
    });
}
