//! Directories in which the user may not write any more, for a run has taken the right.

use std::fs;

use crate::git::{exec, exec_at};
use crate::support::Place;

/// A user whose rights count.
const USER: u32 = 65533;

fn notices(place: &Place) -> String {
    place.run(&["runs", "show", "last", "--json"]).json()["record"]["notices"].to_string()
}

#[test]
fn configured_paths_in_unwritable_directories_refuse_no_run() {
    for (leave, named) in [
        ("mkdir n/ro; git -C n config core.hooksPath ro/hooks; chmod 555 n/ro", "n/ro/hooks"),
        ("mkdir n/ro; git -C n config include.path ../ro/file; chmod 555 n/ro", "n/ro/file"),
        ("mkdir n/ro; git -C n config core.hooksPath ro/hooks; chmod 555 n/ro n", "n/ro/hooks"),
        ("git -C n config core.hooksPath hooks; chmod 555 n", "n/hooks"),
    ] {
        let place = Place::new().of_user(USER);
        exec(&place, &format!("git init -q n; {leave}")).expect_code(0);
        let script = &format!("chmod 755 n n/ro; mkdir {named}; touch {named}; mv n/ro n/gone; echo ran");
        let ran = exec(&place, script);
        assert_eq!(ran.stdout, "ran\n", "{leave}: {}", ran.stderr);
        for name in [named, "n/gone"] {
            assert!(!place.work().join(name).exists(), "{leave}: {name}: {}", ran.stderr);
        }
        assert!(notices(&place).contains("read-only as a whole"), "{leave}: {}", notices(&place));
        let ran =
            place.run(&["exec", "--mode", "native", "--workspace", "overlay", "--", "sh", "-c", "echo ran"]);
        assert_eq!(ran.stdout, "ran\n", "{leave}: {}", ran.stderr);
    }
}

#[test]
fn protected_names_in_unwritable_directories_refuse_no_run() {
    for leave in [
        "mkdir sub/.claude; chmod 555 sub/.claude",
        "mkdir sub/.claude; chmod 0 sub/.claude",
        "chmod 500 sub",
    ] {
        let place = Place::new();
        let sub = place.work().join("sub");
        fs::create_dir(&sub).unwrap();
        let place = place.of_user(USER);
        exec(&place, leave).expect_code(0);
        let script =
            "chmod 755 . .claude; mkdir .claude; echo '{}' > .claude/settings.json; echo > .envrc; echo ran";
        let ran = exec_at(&place, &sub, script);
        assert_eq!(ran.stdout, "ran\n", "{leave}: {}", ran.stderr);
        for name in [".claude/settings.json", ".envrc"] {
            assert!(!sub.join(name).exists(), "{leave}: {name}: {}", ran.stderr);
        }
        assert!(notices(&place).contains("read-only as a whole"), "{leave}: {}", notices(&place));
    }
}

/// A directory that can be listed and not searched hides what is in it from the host as one that cannot be listed does.
#[test]
fn what_unsearchable_directories_hold_stays_protected() {
    for mode in ["0444", "0644", "0111", "0"] {
        let place = Place::new();
        let work = place.work().canonicalize().unwrap();
        for (name, text) in [
            ("x/pol.json", r#"{"extends": "standard"}"#),
            ("x/wh", "canary"),
            ("x/.envrc", "mine"),
            ("x/.env", "canary"),
        ] {
            fs::create_dir_all(work.join("x")).unwrap();
            fs::write(work.join(name), text).unwrap();
        }
        let settings = format!(
            r#"{{"agents": {{"ci": {{"cli": "demo", "policy": "{0}/x/pol.json"}}}}, "queue": {{"webhook_secret_file": "{0}/x/wh"}}}}"#,
            work.display()
        );
        let place = place.settings(&settings).of_user(USER);
        exec(&place, &format!("chmod {mode} x")).expect_code(0);
        let script =
            "chmod 755 x; cat x/wh x/.env; echo evil > x/pol.json; echo evil > x/.envrc; mv x gone; echo ran";
        let ran = exec(&place, script);
        assert!(ran.stdout.ends_with("ran\n") && !ran.stdout.contains("canary"), "{mode}: {ran:?}");
        let read = |name: &str| fs::read_to_string(work.join(name)).unwrap();
        assert_eq!(
            (read("x/pol.json").as_str(), read("x/.envrc").as_str()),
            (r#"{"extends": "standard"}"#, "mine"),
            "{mode}"
        );
        assert!(notices(&place).contains("what cannot be searched is hidden"), "{mode}: {}", notices(&place));
    }
}

/// The daemon is started again by the path of its program.
#[test]
fn program_in_an_unsearchable_directory_is_not_replaced() {
    let place = Place::new();
    let bin = place.work().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::copy(crate::support::BINARY, bin.join("ringfence")).unwrap();
    let place = place.of_user(USER);
    exec(&place, "true").expect_code(0);
    fs::write(place.home().join(".ringfence/daemon.program"), bin.join("ringfence").to_str().unwrap())
        .unwrap();
    exec(&place, "chmod 0444 bin").expect_code(0);
    exec(&place, "chmod 755 bin; rm -f bin/ringfence; mv bin gone; mkdir bin; echo evil > bin/ringfence");
    assert!(fs::read(bin.join("ringfence")).unwrap().len() > 1000);
}
