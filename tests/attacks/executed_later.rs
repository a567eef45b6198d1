//! What a run leaves that programs execute later, under names that no list has: the report knows it by the links that lead to it and
//! by its shape.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::git::{assert_reported, exec, exec_at, git, repository};
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

/// A place in memory, where a mapped file is written without a new time of change.
fn in_memory() -> Option<(Place, tempfile::TempDir)> {
    let memory = tempfile::tempdir_in("/dev/shm").ok()?;
    let kind = Command::new("stat").args(["-f", "-c", "%T"]).arg(memory.path()).output().ok()?;
    (kind.stdout == b"tmpfs\n").then(|| (Place::new(), memory))
}

/// Overwrites the first byte of each file that is named, by a page that was mapped by reading it.
const WRITE_BY_MAPPING: &str = "import mmap, sys\nfor name in sys.argv[1:]:\n    file = open(name, 'r+b')\n    \
    pages = mmap.mmap(file.fileno(), 0)\n    pages[0]\n    pages[0:1] = b'X'\n";

#[test]
fn files_in_memory_that_are_written_by_mapping_are_reported() {
    let Some((place, memory)) = in_memory() else { return };
    let work = memory.path().join("work").canonicalize().unwrap_or_else(|_| memory.path().join("work"));
    for name in ["pkg/package.json", "pkg/tsconfig.json", ".config/mise/config.toml", "conf/tasks.json"] {
        write(&work.join(name), "{\"mine\": 1}");
    }
    symlink("conf", work.join(".vscode")).unwrap();
    repository(&work);
    exec_at(&place, &work, "true").expect_code(0);
    assert!(reported(&place).is_empty());
    let script = format!("/usr/bin/python3 -c \"$0\" {}", "pkg/package.json conf/tasks.json file");
    let args = ["exec", "-C", work.to_str().unwrap(), "--", "sh", "-c", &script, WRITE_BY_MAPPING];
    place.run(&args).expect_code(0);
    assert_eq!(reported(&place), ["conf/tasks.json", "pkg/package.json"]);
    // Each run is compared with what was there before it.
    exec_at(&place, &work, "true").expect_code(0);
    assert!(reported(&place).is_empty());
    // Git's own configuration, where a run can write it.
    let policy = place.home().join("direct.json");
    fs::write(&policy, r#"{"extends": "standard", "files": {"git": "direct", "protect": []}}"#).unwrap();
    let (policy, at) = (policy.to_str().unwrap(), work.to_str().unwrap());
    let direct = ["exec", "-C", at, "--policy", policy, "--", "/usr/bin/python3", "-c", WRITE_BY_MAPPING];
    place.run(&direct).expect_code(0);
    assert!(reported(&place).is_empty());
    place.run(&[&direct[..], &[".git/config"]].concat()).expect_code(0);
    assert_reported(&place, ".git/config");
}

#[test]
fn changes_within_one_tick_of_a_coarse_clock_are_reported() {
    let place = Place::new();
    let (image, root) = (place.home().join("image"), place.home().join("mounted"));
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    fs::create_dir(&root).unwrap();
    let run = |program: &str, args: &[&str], path: &Path| {
        Command::new(program).args(args).arg(path).output().is_ok_and(|output| output.status.success())
    };
    // Small inodes have times in seconds.
    if !run("mkfs.ext4", &["-q", "-I", "128"], &image)
        || !run("mount", &["-o", "loop", image.to_str().unwrap()], &root)
    {
        return;
    }
    let work = root.join("work");
    for name in ["package.json", "bare/config", "b/HEAD"] {
        write(&work.join(name), "{\"mine\": 1}");
    }
    // Several, so that some begin late in a second.
    let found: Vec<_> = (0..4)
        .map(|number| {
            let script = format!("echo {number} > package.json; mkdir -p b/{number}; cd b/{number}; mkdir objects refs; touch HEAD");
            exec_at(&place, &work, &script).expect_code(0);
            reported(&place)
        })
        .collect();
    assert!(run("umount", &[], &root));
    for (number, found) in found.iter().enumerate() {
        assert!(found.iter().any(|path| path == "package.json"), "{number}: {found:?}");
        assert!(found.contains(&format!("b/{number}/HEAD")), "{number}: {found:?}");
    }
}

#[test]
fn programs_of_environments_with_any_name_and_unknown_directories_are_reported() {
    let place = Place::new();
    for name in ["env/pyvenv.cfg", "env/bin/ls", "node_modules/.bin/eslint", ".ctags.d/x.ctags", "bin/ls"] {
        write(&place.work().join(name), "mine");
    }
    for (file, expected) in [
        ("env/bin/python", &["env"][..]),
        ("env/bin/ls", &["env"]),
        ("node_modules/.bin/eslint", &["node_modules"]),
        (".ctags.d/x.ctags", &[".ctags.d"]),
        (".newtool/deep/x", &[".newtool"]),
        ("pip/__main__.py", &["pip/__main__.py"]),
        ("sub/pyproject.toml", &["sub/pyproject.toml"]),
        (".env.leave", &[".env.leave"]),
        ("bin/ls", &[]),
        (".pytest_cache/v/x", &[]),
    ] {
        exec(&place, &format!("mkdir -p $(dirname {file}); echo evil > {file}")).expect_code(0);
        assert_eq!(reported(&place), expected, "{file}");
    }
    // One line for many.
    exec(&place, "for n in 1 2 3 4 5 6 7 8 9; do echo x > .ctags.d/$n.ctags; echo x > env/bin/$n; done")
        .expect_code(0);
    assert_eq!(reported(&place), ["env", ".ctags.d"]);
    // In commits too.
    repository(&place.work());
    exec(&place, "for n in 1 2 3; do echo y > .ctags.d/$n.ctags; done; git add .ctags.d; git -c user.name=a -c user.email=a@b commit -qm x")
        .expect_code(0);
    assert_eq!(reported(&place), [".ctags.d"]);
}
