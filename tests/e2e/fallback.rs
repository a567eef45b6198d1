//! Where the kernel gives no user namespaces: Landlock and seccomp alone, for policies that they can keep, and a refusal
//! for all others. A user namespace in which no more can be made is such a place.

use std::fs;

use crate::support::{Place, Ran};

const LESS: &str = r#"{"extends": "standard", "files": {"git": "direct", "protect": [], "deny": []}}"#;
const READ_ONLY: &str = r#"{"extends": "standard", "files": {"workspace": "read-only", "deny": []}}"#;

/// Runs a script as a normal user in a place without namespaces, where `ringfence` is a command.
fn without_namespaces(script: &str) -> Option<Ran> {
    let place = Place::new();
    fs::write(place.work().join("less.json"), LESS).unwrap();
    fs::write(place.work().join("read-only.json"), READ_ONLY).unwrap();
    let apart = "unshare --user --map-current-user --keep-caps --pid --fork --mount-proc sh -c";
    let apart: Vec<&str> = apart.split(' ').collect();
    // Secrets of the machine that a normal user can read could not be hidden there.
    let inside = "if [ -d /etc/ssh ]; then mount -t tmpfs none /etc/ssh; fi; \
                  echo 0 > /proc/sys/user/max_user_namespaces && \
                  exec setpriv --ambient-caps -all --inh-caps -all sh -c \"$1\"";
    place.program_as_nobody(&[&apart[..], &[inside, "sh", script]].concat(), &[])
}

/// Policies must not lie in the workspace.
const SAME_PATH: &str = "cp *.json ~/; ringfence config set sandbox.path_mapping_mode same-path";

#[test]
fn a_policy_that_it_cannot_keep_is_refused_with_what_to_change() {
    let Some(ran) = without_namespaces("ringfence exec -- true") else { return };
    assert_eq!(ran.code(), 125);
    for words in
        ["protected paths stay as they are", "user namespaces are refused", "user.max_user_namespaces"]
    {
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    }
    let ran = without_namespaces("mkdir sub; cd sub; ringfence exec --policy ../less.json -- true").unwrap();
    assert!(ran.code() == 125 && ran.stderr.contains("path_mapping_mode"), "{}", ran.stderr);
    let ran =
        without_namespaces(&format!("{SAME_PATH}; ringfence exec --policy ~/less.json --pids 5 -- true"))
            .unwrap();
    assert!(ran.code() == 125 && ran.stderr.contains("processes are bounded"), "{}", ran.stderr);
    let doctor = without_namespaces("ringfence sandbox doctor; true").unwrap();
    assert!(doctor.stdout.contains("✗ user namespaces"), "{}", doctor.stdout);
}

#[test]
fn a_policy_that_it_can_keep_is_kept_and_the_record_says_by_what() {
    let work = "echo made > file; cat file; echo 1 > $HOME/f; ls /proc/1 2>&1; cat /etc/shadow 2>&1";
    let script = format!(
        "{SAME_PATH}; ringfence exec --policy ~/less.json -- sh -c '{work}'; ringfence runs show last"
    );
    let Some(ran) = without_namespaces(&script) else { return };
    for words in ["made", "cannot open directory '/proc/1'", "landlock abi", "seccomp: no sockets"] {
        assert!(ran.stdout.contains(words), "{words}: {}{}", ran.stdout, ran.stderr);
    }
    assert!(!ran.stdout.contains("mount namespace"), "{}", ran.stdout);
    let read_only = format!(
        "{SAME_PATH}; ringfence exec --policy ~/read-only.json -- sh -c 'cat less.json; echo 1 > new'"
    );
    let ran = without_namespaces(&read_only).unwrap();
    assert!(ran.stdout.contains("extends") && ran.stderr.contains("cannot create new"), "{}", ran.stderr);
}

#[test]
fn nothing_that_it_promises_is_broken() {
    for policy in ["less.json", "read-only.json"] {
        let Some(ran) =
            without_namespaces(&format!("{SAME_PATH}; ringfence probe --json --policy ./{policy}"))
        else {
            return;
        };
        let report = ran.json();
        assert_eq!(report["broken_claims"], 0, "{policy}: {report}");
        assert!(report["held"].as_u64().unwrap() > 90);
    }
}

#[test]
fn everything_ends_with_it_there_too() {
    let script = format!(
        "{SAME_PATH}; ringfence exec --policy ~/less.json --timeout 1 -- sh -c 'setsid sleep 77 & setsid sleep 77 & sleep 88'; echo code $?; pgrep -cx sleep; find ~/.ringfence/private -mindepth 1"
    );
    let Some(ran) = without_namespaces(&script) else { return };
    assert_eq!(
        ran.stdout.lines().skip(ran.stdout.lines().count() - 2).collect::<Vec<_>>(),
        ["code 124", "0"],
        "{}",
        ran.stderr
    );
}
