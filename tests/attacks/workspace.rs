//! A run in a directory above puts something else in the place of a directory where other work waits.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use serde_json::Value;

use crate::support::Place;

/// The parts of the path `a/b/c` that can be replaced.
const PARTS: [&str; 3] = ["a", "a/b", "a/b/c"];

/// A place with a directory for each attack, all in one workspace.
struct Attacked {
    place: Place,
    attacks: Vec<Attack>,
}

struct Attack {
    /// The directory of the attack, in the workspace.
    top: PathBuf,
    /// The shell command that replaces a part of the path.
    replace: String,
    /// What the refusal says.
    sentence: &'static str,
}

const LINK: &str = "leads through a symbolic link";
const OTHER: &str = "is not the directory that it was when the work was accepted";

impl Attacked {
    fn new(settings: &str) -> Self {
        let place = Place::new().settings(settings);
        fs::create_dir_all(place.home().join("private/b/c/c")).unwrap();
        fs::create_dir_all(place.home().join("private/c")).unwrap();
        let private = place.home().join("private").display().to_string();
        let mut attacks = Vec::new();
        for (number, part) in PARTS.iter().enumerate() {
            let whole = |name: &str| place.work().join(format!("{name}{number}"));
            let rest = "a/b/c".strip_prefix(part).unwrap();
            // A link to elsewhere, a link to the very same directory, and another directory.
            let ways = [
                ("out", format!("ln -s {private} {part}"), LINK),
                ("back", format!("ln -s {}.old {part}", part.rsplit('/').next().unwrap()), LINK),
                ("other", format!("mkdir -p {part}{rest}"), OTHER),
            ];
            for (name, replace, sentence) in ways {
                let top = whole(name);
                fs::create_dir_all(top.join("a/b/c")).unwrap();
                let replace = format!("cd {name}{number} && mv {part} {part}.old && {replace}");
                attacks.push(Attack { top, replace, sentence });
            }
        }
        Self { place, attacks }
    }

    /// One run in the workspace above carries out all attacks.
    fn replace_all(&self) {
        let script: Vec<String> = self.attacks.iter().map(|attack| format!("({})", attack.replace)).collect();
        let mut words = vec!["exec", "--mode", "native", "--", "sh", "-ec"];
        let script = script.join("\n");
        words.push(&script);
        self.place.run(&words).expect_code(0);
    }

    fn assert_untouched(&self) {
        let files: Vec<PathBuf> = walk(self.place.home().join("private"));
        assert!(files.is_empty(), "{files:?}");
        for attack in &self.attacks {
            assert_eq!(walk(attack.top.clone()), Vec::<PathBuf>::new());
        }
    }
}

impl Drop for Attacked {
    fn drop(&mut self) {
        let _ = self.place.command(&["stop"]).output();
    }
}

/// The regular files below a directory.
fn walk(directory: PathBuf) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut pending = vec![directory];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => pending.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files
}

const SETTINGS: &str =
    r#"{"sandbox": {"mode": "native"}, "queue": {"retry_seconds": 1, "retry_max_seconds": 1}}"#;

fn show(place: &Place, id: &str) -> Value {
    place.run(&["task", "show", id, "--json"]).expect_code(0).json()["task"].clone()
}

fn add(place: &Place, directory: &str, more: &[&str]) -> String {
    let words = ["task", "add", "--json", "--command", "sh -c 'echo written > written'", "-C", directory];
    let added = place.run(&[&words, more].concat()).expect_code(0).json();
    added[0]["task"].as_str().unwrap().to_owned()
}

#[test]
fn queued_tasks_refuse_a_replaced_directory_at_every_part_of_the_path() {
    let attacked = Attacked::new(SETTINGS);
    let place = &attacked.place;
    let directories: Vec<String> =
        attacked.attacks.iter().map(|attack| attack.top.join("a/b/c").display().to_string()).collect();
    let tasks: Vec<String> = directories.iter().map(|directory| add(place, directory, &[])).collect();
    attacked.replace_all();
    place.run(&["start"]).expect_code(0);
    for ((id, attack), directory) in tasks.iter().zip(&attacked.attacks).zip(&directories) {
        place.run(&["task", "wait", id, "--timeout", "60"]);
        let task = show(place, id);
        assert_eq!(task["state"], "dead", "{task}");
        let failure = &task["failures"][0];
        assert_eq!(failure["class"], "refused", "{failure}");
        let message = failure["message"].as_str().unwrap();
        assert!(message.contains(directory.as_str()) && message.contains(attack.sentence), "{message}");
        assert!(failure["remedy"].as_str().unwrap().starts_with("put the directory back"), "{failure}");
        assert_eq!(task["attempts"], 1, "trying again cannot help");
    }
    attacked.assert_untouched();
    // Only an explicit retry accepts another directory, and none accepts a link.
    for (id, attack) in tasks.iter().zip(&attacked.attacks) {
        let retried = place.run(&["task", "retry", id]);
        if attack.sentence == LINK {
            assert!(retried.code() != 0 && retried.stderr.contains(LINK), "{retried:?}");
            continue;
        }
        retried.expect_code(0);
        place.run(&["task", "wait", id, "--timeout", "60"]).expect_code(0);
        assert_eq!(fs::read_to_string(attack.top.join("a/b/c/written")).unwrap(), "written\n");
    }
    assert!(walk(place.home().join("private")).is_empty());
}

#[test]
fn the_directory_of_an_agent_is_identified_when_its_task_is_added() {
    let place = Place::new();
    let sub = place.work().join("sub");
    fs::create_dir(&sub).unwrap();
    let settings = format!(
        r#"{{"sandbox": {{"mode": "native"}}, "agents": {{"builder": {{"cli": "command", "working_directory": "{}"}}}}}}"#,
        sub.display()
    );
    let place = place.settings(&settings);
    let added =
        place.run(&["task", "add", "--json", "--agent", "builder", "--command", "sh -c 'echo x > x'"]);
    let id = added.expect_code(0).json()[0]["task"].as_str().unwrap().to_owned();
    let swap = "rmdir sub && ln -s .. sub";
    place.run(&["exec", "--mode", "native", "--", "sh", "-ec", swap]).expect_code(0);
    place.run(&["start"]).expect_code(0);
    place.run(&["task", "wait", &id, "--timeout", "60"]);
    let task = show(&place, &id);
    place.run(&["stop"]).expect_code(0);
    assert_eq!(
        (&task["state"], &task["failures"][0]["class"]),
        (&"dead".into(), &"refused".into()),
        "{task}"
    );
    assert!(!place.work().parent().unwrap().join("x").exists());
}

#[test]
fn overlays_refuse_a_replaced_workspace_at_every_part_of_the_path() {
    let attacked = Attacked::new(SETTINGS);
    let place = &attacked.place;
    let mut runs = Vec::new();
    for attack in &attacked.attacks {
        let directory = attack.top.join("a/b/c").display().to_string();
        let words = [
            "exec",
            "--mode",
            "native",
            "--workspace",
            "overlay",
            "-C",
            &directory,
            "--",
            "sh",
            "-c",
            "echo evil > written",
        ];
        place.run(&words).expect_code(0);
        let newest = place.run(&["runs", "list", "--json"]).expect_code(0).json();
        runs.push(newest[0]["run"].as_str().unwrap().to_owned());
    }
    attacked.replace_all();
    for (run, attack) in runs.iter().zip(&attacked.attacks) {
        for verb in ["apply", "diff"] {
            let refused = place.run(&[verb, run]).expect_code(125);
            assert!(refused.stderr.contains(attack.sentence), "{verb}: {}", refused.stderr);
            assert!(refused.stderr.contains("put the directory back"), "{verb}: {}", refused.stderr);
        }
    }
    attacked.assert_untouched();
    // The user names the directory that is meant, or gives the changes up.
    let (last, others) = runs.split_last().unwrap();
    let moved = attacked.attacks.last().unwrap().top.join("a/b/c.old").display().to_string();
    place.run(&["diff", last, "-C", &moved]).expect_code(0);
    place.run(&["apply", last, "-C", &moved]).expect_code(0);
    assert_eq!(fs::read_to_string(format!("{moved}/written")).unwrap(), "evil\n");
    for run in others {
        place.run(&["discard", run]).expect_code(0);
        assert!(!place.state().join("runs").join(run).join("layer").exists());
    }
}

/// What a link in a project leads to is neither read as settings nor shown in an error.
#[test]
fn settings_of_a_project_are_not_read_through_links() {
    for is_directory in [false, true] {
        let place = Place::new();
        let secret = place.home().join("secret");
        fs::create_dir(&secret).unwrap();
        fs::write(secret.join("settings.json"), "-----BEGIN PRIVATE KEY-----").unwrap();
        if is_directory {
            symlink(&secret, place.work().join(".ringfence")).unwrap();
        } else {
            fs::create_dir(place.work().join(".ringfence")).unwrap();
            symlink(secret.join("settings.json"), place.work().join(".ringfence/settings.json")).unwrap();
        }
        let refused = place.run(&["exec", "--mode", "host", "--", "true"]).expect_code(125);
        assert!(refused.stderr.contains("is a symbolic link, or in one"), "{}", refused.stderr);
        assert!(!refused.stderr.contains("PRIVATE"), "{}", refused.stderr);
    }
}

/// A FIFO, a device and an endless file in the place of a file that is read do not hold the host.
#[test]
fn files_that_the_user_names_are_read_without_blocking_and_bounded() {
    let place = Place::new();
    assert!(std::process::Command::new("mkfifo").arg(place.work().join("fifo")).status().unwrap().success());
    fs::File::create(place.work().join("large")).unwrap().set_len(10 << 30).unwrap();
    let outside = place.home();
    symlink("/dev/zero", outside.join("zero")).unwrap();
    for (name, sentence) in
        [("fifo", "is not a file"), ("zero", "is not a file"), ("large", "is longer than 4 MiB")]
    {
        for flag in ["--policy", "--env-file"] {
            let directory = if name == "zero" { &outside } else { &place.work() };
            let path = directory.join(name).display().to_string();
            let refused = place.run(&["exec", "--mode", "host", flag, &path, "--", "true"]).expect_code(125);
            assert!(refused.stderr.contains(sentence), "{flag} {name}: {}", refused.stderr);
        }
    }
}

/// A run that works in the state directory could read the daemon's token and change the settings.
#[test]
fn workspace_in_the_state_directory_is_refused() {
    let place = Place::new();
    let runs = place.state().join("runs");
    fs::create_dir_all(&runs).unwrap();
    let linked = place.home().join("linked");
    symlink(&runs, &linked).unwrap();
    let relative = format!("{}/../home/.ringfence", place.home().display());
    for directory in [place.state(), runs, linked, relative.into()] {
        let directory = directory.display().to_string();
        for args in [
            &["exec", "--cwd", &directory, "--", "true"][..],
            &["exec", "--mode", "host", "--cwd", &directory, "--", "true"],
            &["run", "--agent", "demo", "--cwd", &directory, "x"],
            &["task", "add", "--agent", "demo", "--cwd", &directory, "x"],
        ] {
            let ran = place.run(args);
            assert_eq!(ran.code(), 125, "{args:?}: {ran:?}");
            assert!(
                ran.stderr.contains("is in the state directory") && ran.stderr.contains("RINGFENCE_HOME"),
                "{args:?}: {ran:?}"
            );
        }
    }
    let ran = place.command(&["exec", "--", "true"]).current_dir(place.state()).output().unwrap();
    assert_eq!(ran.status.code(), Some(125), "{ran:?}");
    // A directory whose name only begins the same is another one.
    let beside = place.home().join(".ringfence-work");
    fs::create_dir(&beside).unwrap();
    place.run(&["exec", "--cwd", beside.to_str().unwrap(), "--", "true"]).expect_code(0);
}

/// A link that a run has made is no workspace, however it is named.
#[test]
fn workspace_over_a_link_of_a_run_is_refused() {
    let place = Place::new();
    let private = place.home().join("private");
    fs::create_dir_all(private.join("deep")).unwrap();
    let sub = place.work().join("sub");
    fs::create_dir(&sub).unwrap();
    let place = place.settings(&format!(
        r#"{{"sandbox": {{"mode": "native"}}, "agents": {{"a": {{"cli": "demo", "working_directory": "{}"}}}}}}"#,
        sub.display()
    ));
    place.run(&["exec", "--", "sh", "-ec", "rmdir sub; ln -s ../home/private sub"]).expect_code(0);
    let deep = sub.join("deep").display().to_string();
    let sub = sub.display().to_string();
    let make = ["--", "sh", "-c", "echo x > written"];
    let mut refused = Vec::new();
    for named in ["sub", "./sub/deep/..", &sub, &deep] {
        refused.push(place.run(&[&["exec", "-C", named], &make[..]].concat()));
        refused.push(place.run(&[
            "exec",
            "--mode",
            "host",
            "-C",
            named,
            "--",
            "sh",
            "-c",
            "echo x > written",
        ]));
        refused.push(place.run(&["task", "add", "--agent", "demo", "-C", named, "x"]));
    }
    refused.push(place.run(&["run", "--agent", "a", "x"]));
    refused.push(place.run(&["task", "add", "--agent", "a", "x"]));
    for options in ["", "-C .", "-C deep"] {
        let binary = crate::support::BINARY;
        refused.push(place.shell(&format!("cd sub && exec {binary} task add --agent demo {options} x")));
        refused.push(
            place.shell(&format!("cd sub && exec {binary} exec {options} -- sh -c 'echo x > written'")),
        );
    }
    for ran in refused {
        assert_eq!(ran.code(), 125, "{ran:?}");
        assert!(ran.stderr.contains("/work/sub, which a run could have made"), "{ran:?}");
    }
    assert!(!private.join("written").exists() && !private.join("deep/written").exists());
    // Where it leads can be named.
    place.run(&["exec", "-C", private.to_str().unwrap(), "--", "true"]).expect_code(0);
    // A link of the user is followed.
    let own = place.home().join("own");
    symlink(&private, &own).unwrap();
    place.run(&["exec", "-C", own.to_str().unwrap(), "--", "true"]).expect_code(0);
}

#[test]
fn workspace_in_a_git_directory_is_refused() {
    let place = Place::new();
    let work = place.work();
    assert!(std::process::Command::new("git").args(["init", "-q"]).arg(&work).status().unwrap().success());
    let bare = work.join("bare.git");
    let made = std::process::Command::new("git").args(["init", "-q", "--bare"]).arg(&bare).status();
    assert!(made.unwrap().success());
    fs::create_dir_all(work.join(".git/hooks")).unwrap();
    fs::create_dir_all(bare.join("hooks")).unwrap();
    for directory in [".git", ".git/hooks", "bare.git/hooks"] {
        let ran = place.run(&["exec", "-C", directory, "--", "true"]);
        assert!(ran.code() == 125 && ran.stderr.contains("is in the git directory"), "{directory}: {ran:?}");
    }
    for directory in [".git", ".git/hooks", "bare.git/hooks"] {
        let directory = work.join(directory).display().to_string();
        let ran = place.run(&["exec", "--write", &directory, "--", "true"]);
        assert!(ran.code() == 125 && ran.stderr.contains("is in the git directory"), "{directory}: {ran:?}");
    }
    // A working tree beside the parts of a bare repository has a pointer of its own.
    fs::create_dir(bare.join("main")).unwrap();
    fs::write(bare.join("main/.git"), "gitdir: ../worktrees/main\n").unwrap();
    place.run(&["exec", "-C", "bare.git/main", "--", "true"]).expect_code(0);
}

#[test]
fn directory_of_hooks_that_a_run_may_write_is_refused() {
    let place = Place::new();
    let hooks = place.home().join("hooks");
    fs::create_dir_all(hooks.join("more")).unwrap();
    fs::write(place.home().join(".gitconfig"), "[core]\n\thooksPath = ~/hooks\n").unwrap();
    for directory in [hooks.clone(), hooks.join("more")] {
        let ran = place.run(&["exec", "--write", directory.to_str().unwrap(), "--", "true"]);
        assert!(ran.code() == 125 && ran.stderr.contains("git executes the hooks in"), "{ran:?}");
    }
    fs::create_dir(place.home().join("other")).unwrap();
    place
        .run(&["exec", "--write", place.home().join("other").to_str().unwrap(), "--", "true"])
        .expect_code(0);
}

/// Another installation of the same user keeps its state below what every run sees of the system.
#[test]
fn state_of_another_installation_below_the_system_is_hidden() {
    let Ok(other) = tempfile::tempdir_in("/opt") else { return };
    let place = Place::new();
    let state = other.path().join("state");
    fs::create_dir(&state).unwrap();
    fs::write(state.join("api.token"), "canary").unwrap();
    let first = place.command(&["exec", "--", "true"]).env("RINGFENCE_HOME", &state).output().unwrap();
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let script = format!("cat {0}/api.token; ls -A {0}", state.display());
    let ran = place.run(&["exec", "--policy", "open", "--", "sh", "-c", &script]);
    assert_eq!(ran.stdout, "", "{}", ran.stderr);
    let ran = place.run(&["exec", "--", "sh", "-c", &script]);
    assert_eq!(ran.stdout, "", "{}", ran.stderr);
}

/// In `/tmp`, say, another user can make what looks like a repository above every workspace.
#[test]
fn repository_of_another_user_above_a_workspace_changes_nothing() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    let above = place.work().parent().unwrap().to_owned();
    for (names, file) in
        [(&["objects", "refs"][..], "HEAD"), (&[".git", ".git/objects", ".git/refs"], ".git/HEAD")]
    {
        for name in names {
            fs::create_dir(above.join(name)).unwrap();
            std::os::unix::fs::chown(above.join(name), Some(12345), None).unwrap();
        }
        fs::write(above.join(file), "ref: refs/heads/main\n").unwrap();
        std::os::unix::fs::chown(above.join(file), Some(12345), None).unwrap();
        place.run(&["exec", "--mode", "native", "--", "true"]).expect_code(0);
    }
    // It names the workspace's files as hooks.
    fs::create_dir(place.work().join("hooks")).unwrap();
    fs::write(above.join(".git/config"), format!("[core]\n\thooksPath = {}/hooks\n", place.work().display()))
        .unwrap();
    place.run(&["exec", "--mode", "native", "--", "touch", "hooks/file"]).expect_code(0);
}
