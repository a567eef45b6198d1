//! What a run leaves in git directories that it may write (`files.git: direct`) and that git on the host executes later.

use std::fs;
use std::path::Path;

use crate::git::{git, repository};
use crate::support::{Place, Ran};

/// Runs a script where it may write the git directory.
fn exec_direct(place: &Place, at: &Path, script: &str) -> Ran {
    let policy = place.home().join("direct.json");
    fs::write(&policy, r#"{"extends": "standard", "files": {"git": "direct", "protect": []}}"#).unwrap();
    let (policy, at) = (policy.to_str().unwrap(), at.to_str().unwrap());
    place
        .run(&["exec", "--mode", "native", "--policy", policy, "-C", at, "--", "sh", "-c", script])
        .expect_code(0)
}

/// The paths that the last run reports.
fn reported(place: &Place) -> Vec<String> {
    let shown = place.run(&["runs", "show", "last", "--json"]).json();
    let files = shown["result"]["executed_later"].as_array().cloned().unwrap_or_default();
    files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
}

fn assert_reports(place: &Place, at: &Path, script: &str, expected: &[&str]) {
    exec_direct(place, at, script);
    let mut found = reported(place);
    found.sort();
    assert_eq!(found, expected, "{script}");
}

fn with_submodule(place: &Place) {
    let library = place.home().join("library");
    repository(&library);
    repository(&place.work());
    let add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add"];
    let add = [&add[..], &[library.to_str().unwrap(), "libs/foo"]].concat();
    assert!(git(&place.work(), &add).0);
}

#[test]
fn submodules_below_what_looks_like_a_git_directory_are_reported() {
    let place = Place::new();
    with_submodule(&place);
    assert_reports(
        &place,
        &place.work(),
        "cd .git/modules/libs; mkdir objects refs; echo 'ref: refs/heads/x' > HEAD; echo '[core] fsmonitor=x' >> foo/config",
        &[".git/modules/libs/HEAD", ".git/modules/libs/foo/config"],
    );
}

#[test]
fn files_in_git_directories_that_configurations_name_are_reported() {
    let place = Place::new();
    with_submodule(&place);
    let work = place.work();
    for (name, value) in [("include.path", "extra.conf"), ("core.hooksPath", ".git/myhooks")] {
        assert!(git(&work, &["config", name, value]).0);
    }
    let module = work.join(".git/modules/libs/foo");
    assert!(git(&work.join("libs/foo"), &["config", "include.path", "own.conf"]).0);
    assert!(git(&work.join("libs/foo"), &["config", "core.hooksPath", "../hk"]).0);
    repository(&work.join("nested"));
    assert!(git(&work.join("nested"), &["config", "core.hooksPath", "tools/hooks"]).0);
    fs::write(work.join(".git/extra.conf"), "[include]\n\tpath = second.conf\n").unwrap();
    for directory in [".git/myhooks", ".git/own", "libs/hk", "nested/tools/hooks"] {
        fs::create_dir_all(work.join(directory)).unwrap();
    }
    fs::write(work.join(".git/own/pre-commit"), "#!/bin/sh\n").unwrap();
    assert!(module.is_dir());
    assert_reports(&place, &work, "git status; echo 1 > .git/MERGE_MSG; echo 1 > file", &[]);
    for (script, found) in [
        ("echo '[user] name=x' >> .git/extra.conf", ".git/extra.conf"),
        ("echo '[user] name=x' > .git/second.conf", ".git/second.conf"),
        ("echo x > .git/myhooks/pre-commit", ".git/myhooks/pre-commit"),
        ("rm -r .git/myhooks; mv .git/own .git/myhooks", ".git/myhooks/pre-commit"),
        ("echo '[user] name=x' > .git/modules/libs/foo/own.conf", ".git/modules/libs/foo/own.conf"),
        ("echo x > libs/hk/post-checkout", "libs/hk/post-checkout"),
        ("echo x > nested/tools/hooks/pre-commit", "nested/tools/hooks/pre-commit"),
    ] {
        assert_reports(&place, &work, script, &[found]);
    }
}

#[test]
fn configuration_of_the_user_and_of_repositories_above_is_followed() {
    let place = Place::new();
    let above = place.work();
    repository(&above);
    let package = above.join("pkg");
    fs::create_dir(&package).unwrap();
    assert!(git(&above, &["config", "core.hooksPath", "pkg/hooks"]).0);
    fs::write(place.home().join(".gitconfig"), format!("[include]\npath = {}/inc\n", package.display()))
        .unwrap();
    assert_reports(&place, &package, "mkdir hooks; echo x > hooks/pre-commit", &["hooks/pre-commit"]);
    assert_reports(&place, &package, "echo '[user] name=x' > inc", &["inc"]);
}

#[test]
fn the_main_repository_of_a_linked_worktree_is_searched() {
    let place = Place::new();
    let main = place.home().join("main");
    repository(&main);
    assert!(git(&main, &["worktree", "add", "-q", place.work().join("tree").to_str().unwrap()]).0);
    assert!(git(&main, &["config", "core.hooksPath", ".git/mine"]).0);
    let tree = place.work().join("tree").canonicalize().unwrap();
    let common = main.canonicalize().unwrap().join(".git");
    let name = |path: &str| common.join(path).display().to_string();
    assert_reports(&place, &tree, "echo 2 > file; git status", &[]);
    for (script, found) in [
        ("echo x > COMMON/hooks/pre-commit", &["hooks", "hooks/pre-commit"][..]),
        ("echo '[user] name=x' >> COMMON/config", &["config"]),
        ("mkdir COMMON/mine; echo x > COMMON/mine/pre-commit", &["mine/pre-commit"]),
        ("echo '[user] name=x' > COMMON/worktrees/tree/config.worktree", &["worktrees/tree/config.worktree"]),
    ] {
        let found: Vec<String> = found.iter().map(|path| name(path)).collect();
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        assert_reports(&place, &tree, &script.replace("COMMON", common.to_str().unwrap()), &found);
    }
}

#[test]
fn the_git_directory_of_a_submodule_is_searched() {
    let place = Place::new();
    with_submodule(&place);
    let module = place.work().canonicalize().unwrap().join(".git/modules/libs/foo");
    let at = place.work().join("libs/foo");
    assert_reports(&place, &at, "echo 2 > file; git status", &[]);
    let directory = "d=$(git rev-parse --git-dir)";
    let script = format!("{directory}; mkdir -p $d/hooks; echo x > $d/hooks/pre-commit");
    let found = ["hooks", "hooks/pre-commit"].map(|path| module.join(path).display().to_string());
    assert_reports(&place, &at, &script, &found.each_ref().map(String::as_str));
    let config = module.join("config").display().to_string();
    assert_reports(&place, &at, &format!("{directory}; echo '[user] name=x' >> $d/config"), &[&config]);
}

#[test]
fn forged_index_and_begun_rebase_are_reported() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    let forge = "import hashlib, struct, subprocess
blob = subprocess.run(['git', 'hash-object', '-w', '--stdin'], input=b'#!/bin/sh\\ntouch executed\\n', capture_output=True).stdout
entry = bytes(24) + struct.pack('>IIII', 0o100755, 0, 0, 0) + bytes.fromhex(blob.decode().strip())
name = b'.git/hooks/post-checkout'
entry += struct.pack('>H', len(name)) + name
entry += bytes(8 - len(entry) % 8)
index = b'DIRC' + struct.pack('>II', 2, 1) + entry
open('.git/index', 'wb').write(index + hashlib.sha1(index).digest())";
    assert_reports(&place, &work, &format!("/usr/bin/python3 -c \"{forge}\""), &[".git/index"]);
    assert!(git(&work, &["reset", "-q", "--hard"]).0);
    let rebase = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m two; git checkout -q --detach; \
        GIT_SEQUENCE_EDITOR='sed -i 1ibreak' git -c user.name=a -c user.email=a@b rebase -q -i HEAD~1; echo 'exec touch x' > .git/rebase-merge/git-rebase-todo";
    assert_reports(&place, &work, rebase, &[".git/rebase-merge"]);
    fs::remove_dir_all(work.join(".git/rebase-merge")).unwrap();
    let ordinary = "git checkout -q main; echo 3 > file; git add file; git -c user.name=a -c user.email=a@b commit -qm three; git stash list; git branch x; git tag y";
    assert_reports(&place, &work, ordinary, &[]);
}
