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
