//! Settings that a hostile repository brings along. None may give a run more than the user has given.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::process::Command;

use crate::support::{Place, Ran};

const USER: &str = r#"{"sandbox": {"mode": "native", "timeout_seconds": 100}}"#;

/// What a repository may not say, each with a word of the answer.
const REFUSED: [(&str, &str); 21] = [
    (r#"{"sandbox": {"mode": "host"}}"#, "may only tighten"),
    (r#"{"sandbox": {"timeout_seconds": 101}}"#, "may only tighten"),
    (r#"{"sandbox": {"max_attempts": 99}}"#, "may only tighten"),
    (r#"{"sandbox": {"env_allowlist": ["AWS_SECRET_ACCESS_KEY"]}}"#, "may only tighten"),
    (r#"{"sandbox": {"policy": "open"}}"#, "may only tighten"),
    (r#"{"sandbox": {"policy": "/etc/policy.json"}}"#, "may only tighten"),
    (r#"{"sandbox": {"policy": "./policy.json"}}"#, "sandbox.policy"),
    (r#"{"sandbox": {"docker": {"image": "evil:latest"}}}"#, "may only tighten"),
    (r#"{"sandbox": {"docker": {"network": "host"}}}"#, "may only tighten"),
    (r#"{"sandbox": {"docker": {"memory": "900g"}}}"#, "may only tighten"),
    (r#"{"sandbox": {"apple": {"runtime_command": "/tmp/evil"}}}"#, "may only tighten"),
    (r#"{"agents": {"x": {"command": "sh -c evil"}}}"#, "may only tighten"),
    (r#"{"trusted_projects": ["/"]}"#, "may only tighten"),
    (r#"{"server": {"listen": "0.0.0.0:1"}}"#, "may only tighten"),
    (r#"{"broker": {"credentials": {"x": {"host": "evil.test", "env": "HOME"}}}}"#, ""),
    (r#"{"sandbox": {"timeout_seconds": -1}}"#, "timeout_seconds"),
    (r#"{"sandbox": {"timeout_seconds": 1e400}}"#, ""),
    (r#"{"sandbox": {"Mode": "host"}}"#, "Mode"),
    (r#"{"sandbox.mode": "host"}"#, ""),
    (r#"[{"sandbox": {"mode": "host"}}]"#, ""),
    (r#"{"sandbox": {"mode": "docker"}, "sandbox": {"mode": "host"}}"#, ""),
];

fn project(directory: &str, text: &[u8]) -> Place {
    let place = Place::new().settings(USER);
    let directory = place.work().join(directory).join(".ringfence");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("settings.json"), text).unwrap();
    place
}

fn run(place: &Place) -> Ran {
    place.run(&["exec", "--", "sh", "-c", "echo ran"])
}

#[track_caller]
fn refused(place: &Place, what: &str) -> Ran {
    let ran = run(place);
    assert_eq!((ran.code(), ran.stdout.as_str()), (125, ""), "{what}: {ran:?}");
    assert!(ran.stderr.contains("settings.json"), "{what}: the file is not named: {}", ran.stderr);
    ran
}

#[test]
fn more_than_the_user_has_given() {
    for (text, word) in REFUSED {
        let ran = refused(&project(".", text.as_bytes()), text);
        assert!(ran.stderr.contains(word), "{text}: {}", ran.stderr);
    }
}

/// A run in a subdirectory is bound by the settings above it, and a file there cannot loosen them.
#[test]
fn a_subdirectory_of_the_repository() {
    for (text, _) in REFUSED {
        let place = project("a/b", text.as_bytes());
        let ran = place.run(&["exec", "-C", "a/b", "--", "true"]);
        assert_eq!(ran.code(), 125, "{text}: {ran:?}");
    }
}

#[test]
fn text_that_is_none_and_text_without_end() {
    let deep = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    for (what, text) in [
        ("no text", &b"\xff\xfe{}"[..]),
        ("an unfinished object", b"{\"sandbox\": {"),
        ("a zero", b"{}\0"),
        ("deep objects", deep.as_bytes()),
        ("deep lists", "[".repeat(1_000_000).as_bytes()),
    ] {
        let ran = run(&project(".", text));
        assert_eq!((ran.code(), ran.stdout.as_str()), (125, ""), "{what}: {:?}", ran.stderr.get(..300));
    }
}

/// Whatever the file is, it is not waited for, what it leads to is not shown, and it loosens nothing.
#[test]
fn files_that_are_none() {
    let secret = r#"{"private-words": 1}"#;
    for (what, make) in [
        ("a FIFO", "mkfifo .ringfence/settings.json"),
        ("a directory", "mkdir .ringfence/settings.json"),
        ("an endless device", "ln -s /dev/zero .ringfence/settings.json"),
        ("a link out", "ln -s ../../home/private .ringfence/settings.json"),
        ("a link to itself", "ln -s settings.json .ringfence/settings.json"),
    ] {
        let place = Place::new().settings(USER);
        fs::write(place.home().join("private"), secret).unwrap();
        fs::create_dir(place.work().join(".ringfence")).unwrap();
        assert_eq!(place.shell(make).code(), 0);
        let ran =
            place.run(&["exec", "--", "sh", "-c", "cat /proc/1/comm; test -d /workspace && echo isolated"]);
        assert!(ran.code() == 125 || ran.stdout.ends_with("isolated\n"), "{what}: {ran:?}");
        assert!(!ran.stderr.contains("private-words"), "{what}: {ran:?}");
    }
}

#[test]
fn the_directory_is_a_link_to_the_users_own() {
    let place = Place::new().settings(USER);
    symlink(place.state(), place.work().join(".ringfence")).unwrap();
    let ran = run(&place);
    // The user's own settings say no less than themselves; nothing is loosened and nothing is written.
    assert!(ran.code() == 125 || ran.stdout == "ran\n", "{ran:?}");
    let settings = fs::read_to_string(place.state().join("settings.json")).unwrap();
    assert_eq!(settings, USER);
}

/// A run cannot write the settings of the next one.
#[test]
fn settings_that_a_run_writes() {
    let place = Place::new().settings(USER);
    let script = "mkdir -p .ringfence; echo '{\"sandbox\": {\"timeout_seconds\": 1}}' > .ringfence/settings.json; mkdir -p sub/.ringfence; mv sub/.ringfence .ringfence";
    place.run(&["exec", "--", "sh", "-c", script]);
    assert!(!place.work().join(".ringfence").exists());
    assert_eq!(run(&place).stdout, "ran\n");
}

/// In a directory such as `/tmp` every user can make settings for all who work below it.
#[test]
fn settings_of_another_user_are_ignored_and_named() {
    if Command::new("id").arg("-u").output().unwrap().stdout != b"0\n" {
        return;
    }
    for directory in [".", "a"] {
        for text in ["{bad", r#"{"sandbox": {"mode": "host"}}"#] {
            let place = project(directory, text.as_bytes());
            let file = place.work().join(directory).join(".ringfence/settings.json");
            let exec = || place.run(&["exec", "-C", directory, "--", "echo", "ran"]);
            exec().expect_code(125);
            for foreign in [file.clone(), file.parent().unwrap().to_owned()] {
                chown(&foreign, Some(65534), None).unwrap();
                let ran = exec().expect_code(0);
                assert_eq!(ran.stdout, "ran\n");
                let named = ran.stderr.contains(".ringfence/settings.json is ignored");
                assert!(named && ran.stderr.contains("user 65534"), "{ran:?}");
                assert_eq!(ran.stderr.matches("is ignored").count(), 1, "{ran:?}");
                chown(&foreign, Some(0), None).unwrap();
            }
        }
    }
}

/// Settings that a run leaves in a subdirectory are reported after it, and what refuses a run there says what to do.
#[test]
fn settings_that_a_run_leaves_in_a_subdirectory_are_reported() {
    for text in ["{bad", r#"{"sandbox": {"mode": "host"}}"#] {
        let place = Place::new().settings(USER);
        let script = format!("mkdir -p sub/.ringfence; echo '{text}' > sub/.ringfence/settings.json");
        let left = place.run(&["exec", "--", "sh", "-c", &script]).expect_code(0);
        assert!(left.stderr.contains("sub/.ringfence/settings.json"), "{left:?}");
        let ran = place.run(&["exec", "-C", "sub", "--", "true"]).expect_code(125);
        let file = place.work().join("sub/.ringfence/settings.json").display().to_string();
        assert!(ran.stderr.contains(&format!("correct or remove {file}")), "{ran:?}");
    }
}
