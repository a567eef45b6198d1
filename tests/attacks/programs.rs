//! A run that leaves programs in its workspace, where the user's `PATH` leads: Ringfence itself starts none of them on the host.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::git::{git, repository};
use crate::site::Site;
use crate::support::{Place, Ran, wait_for};

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

/// A run in the project, or in a directory of it, may have left them.
#[test]
fn programs_of_the_working_tree_are_not_started_from_a_directory_below() {
    let place = place(&["/work/bin"]);
    let started = place.home().join("started");
    leave_programs(&place.work().join("bin"), &started);
    let below = place.work().join("sub/deep");
    fs::create_dir_all(&below).unwrap();
    let run = |command: &[&str]| place.command(command).current_dir(&below).output().unwrap();
    // Outside of a working tree they are the user's own.
    run(&["sandbox", "doctor"]);
    assert!(started.exists());
    // The pointer of a linked working tree is a file.
    for is_pointer in [false, true] {
        fs::remove_file(&started).unwrap_or_default();
        let pointer = place.work().join(".git");
        if is_pointer {
            fs::remove_dir(&pointer).unwrap();
            fs::write(&pointer, "gitdir: /nowhere").unwrap();
        } else {
            fs::create_dir(&pointer).unwrap();
        }
        for command in &COMMANDS[..2] {
            let ran = run(command);
            assert!(!started.exists(), "{is_pointer}: {command:?}: {ran:?}");
        }
    }
}

/// A run in another directory may have left them, at any time.
#[test]
fn programs_where_another_run_has_worked_are_not_started() {
    let place = place(&["/work/bin"]);
    let started = place.home().join("started");
    let elsewhere = place.home().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let ran = place.command(&["exec", "--", "/bin/true"]).env("GH_TOKEN", "x").output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    leave_programs(&place.work().join("bin"), &started);
    for command in COMMANDS {
        let ran = place.command(command).current_dir(&elsewhere).output().unwrap();
        assert!(!started.exists(), "{command:?}: {ran:?}");
    }
}

/// The daemon stands nowhere: it gets only what the command that started it may start.
#[test]
fn daemon_starts_no_programs_of_the_workspace_where_it_was_started() {
    for first in ["/work/bin", "/home/bin"] {
        let site = Site::of(place(&[first]));
        let started = site.place.home().join("started");
        leave_programs(&site.place.work().parent().unwrap().join(&first[1..]), &started);
        for cli in ["claude", "codex"] {
            site.get(&format!("/system/{cli}/auth?environment=host"));
        }
        assert_eq!(started.exists(), first == "/home/bin", "{first}");
    }
}

/// Such scripts look for the browser by its name.
#[test]
fn opener_of_addresses_does_not_search_the_workspace() {
    let place = place(&["/work/bin"]).env("DISPLAY", ":0");
    let searched = place.home().join("searched");
    let opener = place.work().parent().unwrap().join("tools/xdg-open");
    fs::write(&opener, format!("#!/bin/sh\necho \"$PATH\" > {}\n", searched.display())).unwrap();
    fs::set_permissions(&opener, Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(place.work().join("bin")).unwrap();
    let site = Site::of(place);
    site.ok(&["open"]);
    let path =
        wait_for("the opener", || fs::read_to_string(&searched).ok().filter(|path| path.ends_with('\n')));
    assert_eq!(Path::new(path.trim()), opener.parent().unwrap());
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

/// One run in the home does not hide the workspaces below it.
#[test]
fn programs_of_a_workspace_below_a_home_where_a_run_worked_are_not_started() {
    let place = place(&["/home/project/bin"]).env("GH_TOKEN", "x".to_owned());
    let started = place.home().join("started");
    let (home, project) = (place.home().display().to_string(), place.home().join("project"));
    leave_programs(&project.join("bin"), &started);
    place.run(&["exec", "--home-workspace", "-C", &home, "--", "/bin/true"]).expect_code(0);
    fs::remove_file(&started).ok();
    place.run(&["exec", "-C", project.to_str().unwrap(), "--", "/bin/true"]).expect_code(0);
    fs::remove_file(&started).ok();
    for command in COMMANDS {
        place.run(command);
        assert!(!started.exists(), "{command:?}: {}", fs::read_to_string(&started).unwrap_or_default());
    }
}

/// Interpreters load what lies in the current directory.
#[test]
fn helpers_for_credentials_do_not_stand_in_the_workspace() {
    let place = Place::new();
    let (home, started) = (place.home().display().to_string(), place.home().join("started"));
    fs::write(place.home().join("where.sh"), format!("pwd > {home}/where; echo secret\n")).unwrap();
    let place = place.settings(&format!(
        r#"{{"sandbox": {{"mode": "native"}},
            "broker": {{"credentials": ["a.example x-key: {{command:sh {home}/where.sh}}",
                                        "b.example x-key: {{command:python3 -m ringfence_left_this}}"]}}}}"#
    ));
    let left = format!("open('{}', 'w').write('x'); print('secret')\n", started.display());
    fs::write(place.work().join("ringfence_left_this.py"), left).unwrap();
    let ran = place.run(&["exec", "--allow", "a.example", "--allow", "b.example", "--", "true"]);
    assert!(!started.exists(), "{ran:?}");
    assert_eq!(fs::read_to_string(place.home().join("where")).unwrap(), "/\n", "{ran:?}");
}

/// Makes a program that prints a file beside it.
fn leave_tool(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    fs::write(directory.join("tool"), "#!/bin/sh\ncat \"${0%/*}\"/.env \"${0%/*}\"/notes\n").unwrap();
    fs::set_permissions(directory.join("tool"), Permissions::from_mode(0o755)).unwrap();
    for name in [".env", "notes"] {
        fs::write(directory.join(name), format!("canary of {name}\n")).unwrap();
    }
}

/// The user's `PATH` has the directory of a project in which another run has worked.
#[test]
fn link_of_an_earlier_run_shows_no_other_project() {
    let place = Place::new();
    let private = place.home().join("private/node_modules/tool");
    leave_tool(&private);
    let project = place.home().join("mono");
    fs::create_dir(&project).unwrap();
    let make = ["exec", "-C", project.to_str().unwrap(), "--", "sh", "-c"];
    let script =
        format!("mkdir bin; ln -s {}/tool bin/tool; ln -s {} pass", private.display(), private.display());
    place.run(&[&make[..], &[&script]].concat()).expect_code(0);
    let usual = std::env::var("PATH").unwrap();
    for entry in ["bin", "pass", "pass/../tool"] {
        let path = format!("{}/{entry}:{usual}", project.display());
        let ran = place.command(&["exec", "--", "tool"]).env("PATH", &path).output().unwrap();
        let ran = crate::support::Ran::from(ran);
        assert!(ran.code() == 125 && ran.stderr.contains("which a run could have made"), "{entry}: {ran:?}");
        assert!(!ran.stdout.contains("canary"), "{entry}: {ran:?}");
    }
    // One of the user leads there.
    fs::create_dir(place.home().join("bin")).unwrap();
    std::os::unix::fs::symlink(private.join("tool"), place.home().join("bin/tool")).unwrap();
    let ran = place.run(&["exec", "--", place.home().join("bin/tool").to_str().unwrap()]);
    assert!(ran.stdout.contains("canary of notes"), "{ran:?}");
    // What is denied everywhere is denied beside a program too.
    assert!(!ran.stdout.contains("canary of .env"), "{ran:?}");
}

#[test]
fn program_in_a_directory_of_secrets_is_refused() {
    let place = Place::new();
    let plugins = place.home().join(".docker/cli-plugins");
    leave_tool(&plugins);
    fs::create_dir(place.home().join("bin")).unwrap();
    std::os::unix::fs::symlink(plugins.join("tool"), place.home().join("bin/tool")).unwrap();
    for program in [plugins.join("tool"), place.home().join("bin/tool")] {
        let ran = place.run(&["exec", "--", program.to_str().unwrap()]);
        assert!(ran.code() == 125 && ran.stderr.contains("is a secret"), "{ran:?}");
        assert!(!ran.stdout.contains("canary"), "{ran:?}");
    }
}

/// Runs the binary where the directories of the system have no git, with a directory at the end of `PATH`.
fn run_without_git(place: &Place, at: &Path, last: &Path, args: &[&str]) -> Option<Ran> {
    let hide = "for d in /usr/bin /usr/local/bin /bin; do [ ! -e $d/git ] || mount --bind /dev/null $d/git || exit 99; done; exec \"$@\"";
    let binary = place.command(args);
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "sh", "-c", hide, "sh"]).arg(binary.get_program()).args(args).env_clear();
    command.envs(binary.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("PATH", format!("/usr/bin:/bin:{}", last.display())).current_dir(at);
    let ran = Ran::from(command.stdin(std::process::Stdio::null()).output().unwrap());
    // Only root can hide it.
    (ran.code() != 99 && !ran.stderr.contains("unshare")).then_some(ran)
}

/// Where the system has no git, the import and `prune` look for it on `PATH`, which may lead where another run has worked.
#[test]
fn git_where_another_run_has_worked_is_not_started() {
    let place = Place::new().settings(r#"{"sandbox": {"mode": "native"}}"#);
    let (started, project) = (place.home().join("started"), place.home().join("project"));
    let planted = place.home().join("tools/node_modules/.bin");
    fs::create_dir_all(place.home().join("tools")).unwrap();
    repository(&project);
    assert!(git(&project, &["branch", "gone"]).0);
    // Its result names refs that `prune` removes with the run.
    let delete = ["exec", "-C", project.to_str().unwrap(), "--", "git", "branch", "-D", "gone"];
    place.run(&delete).expect_code(0);
    place.run(&["exec", "-C", place.home().join("tools").to_str().unwrap(), "--", "true"]).expect_code(0);
    leave_programs(&planted, &started);
    // It may write only in git directories.
    let mark = project.join(".git/started");
    fs::write(planted.join("git"), format!("#!/bin/sh\n: > {}\n: > \"$GIT_DIR/started\"\n", mark.display()))
        .unwrap();
    let program = project.join("own-git");
    fs::copy("/usr/bin/git", &program).unwrap();
    let commit = [
        "exec",
        "--",
        "./own-git",
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "two",
    ];
    for args in [&commit[..], &["apply", "last"], &["prune", "--size", "1b"]] {
        let Some(ran) = run_without_git(&place, &project, &planted, args) else { return };
        let names = fs::read_to_string(&started).unwrap_or_default();
        assert!(names.is_empty() && !mark.exists(), "{args:?}: {names} {ran:?}");
        assert_eq!(ran.stderr.contains("git is not installed"), args[0] != "prune", "{ran:?}");
    }
}
