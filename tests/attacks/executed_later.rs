//! What a run leaves that programs execute later, under names that no list has: the report knows it by the links that lead to it and
//! by its shape.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::git::{assert_reported, exec, git, repository};
use crate::support::Place;

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// The paths that the last run reports.
fn reported(place: &Place) -> Vec<String> {
    let shown = place.run(&["runs", "show", "last", "--json"]).json();
    let files = shown["result"]["executed_later"].as_array().cloned().unwrap_or_default();
    files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn targets_of_links_that_programs_follow_are_reported() {
    let place = Place::new();
    let work = place.work().canonicalize().unwrap();
    let files = [
        (".vscode", "conf/vscode", "conf/vscode/tasks.json"),
        (".claude", "conf/claude", "conf/claude/settings.json"),
        (".envrc", "conf/envrc", "conf/envrc"),
        (".mcp.json", "conf/mcp", "conf/mcp"),
    ];
    for (link, target, file) in files {
        write(&work.join(file), "{\"mine\": 1}");
        // One of them by its whole path.
        let target = if link == ".envrc" { work.join(target) } else { target.into() };
        symlink(target, work.join(link)).unwrap();
    }
    repository(&work);
    assert!(git(&work, &["add", "-A"]).0);
    exec(&place, "true").expect_code(0);
    assert!(reported(&place).is_empty());
    for (.., file) in files {
        let ran = exec(&place, &format!("echo evil > {file}")).expect_code(0);
        assert_reported(&place, file);
        assert!(ran.stderr.contains(file), "{}", ran.stderr);
    }
}

#[test]
fn change_behind_a_link_of_an_earlier_run_is_reported() {
    let place = Place::new();
    write(&place.work().join("conf/pj"), "{\"scripts\": {}}");
    exec(&place, "ln -s conf/pj package.json").expect_code(0);
    assert_eq!(reported(&place), ["package.json"]);
    exec(&place, "echo evil > conf/pj").expect_code(0);
    assert_eq!(reported(&place), ["conf/pj"]);
    // One that leads out of the workspace is not followed.
    exec(&place, "ln -s ../home .zed; ln -s /etc .helix; ln -s . .fleet").expect_code(0);
    assert!(reported(&place).iter().all(|path| !path.contains("home") && !path.contains("etc")));
}

#[test]
fn files_of_direnv_environments_and_unknown_tools_are_reported() {
    let place = Place::new();
    write(&place.work().join(".venv/bin/activate"), "mine");
    write(&place.work().join(".venv/lib/python3/site-packages/x.pth"), "mine");
    for (file, expected) in [
        (".direnv/flake-profile-a.rc", ".direnv"),
        ("npm-shrinkwrap.json", "npm-shrinkwrap.json"),
        (".venv/bin/activate", ".venv"),
        (".venv/lib/python3/site-packages/x.pth", ".venv"),
        ("rust-project.json", "rust-project.json"),
        ("sub/.newtoolrc", "sub/.newtoolrc"),
        ("newtool.config.mjs", "newtool.config.mjs"),
    ] {
        exec(&place, &format!("mkdir -p $(dirname {file}); echo evil > {file}")).expect_code(0);
        assert_eq!(reported(&place), [expected]);
    }
    exec(&place, "echo x > .gitignore; mkdir src; echo x > src/main.rs; echo x > Cargo.lock").expect_code(0);
    assert!(reported(&place).is_empty());
}
