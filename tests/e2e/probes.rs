//! `ringfence probe`: nothing that is promised is broken, and without a boundary most is.

use std::fs;

use serde_json::Value;

use crate::support::Place;

fn broken(report: &Value) -> Vec<&str> {
    let attempts = report["attempts"].as_array().unwrap();
    let broken = attempts.iter().filter(|attempt| attempt["outcome"] == "broken");
    broken.map(|attempt| attempt["what"].as_str().unwrap()).collect()
}

#[test]
fn native_holds_everything() {
    for policy in ["standard", "locked"] {
        let ran = Place::new().run(&["probe", "--mode", "native", "--policy", policy, "--json"]);
        let report = ran.json();
        assert_eq!(broken(&report), Vec::<&str>::new(), "{policy}");
        assert_eq!(ran.code(), 0);
        assert!(report["held"].as_u64().unwrap() >= 60);
        let groups: std::collections::BTreeSet<&str> = report["attempts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|attempt| attempt["group"].as_str().unwrap())
            .collect();
        for group in [
            "files",
            "secrets",
            "processes",
            "namespaces",
            "syscalls",
            "devices",
            "network",
            "dns",
            "sockets",
            "terminal",
            "environment",
            "descriptors",
            "proc",
            "resources",
        ] {
            assert!(groups.contains(group), "{group}");
        }
    }
}

#[test]
fn native_holds_everything_for_a_normal_user() {
    let Some(ran) = Place::new().as_nobody(&["probe", "--mode", "native", "--json"], &[]) else { return };
    assert_eq!(broken(&ran.json()), Vec::<&str>::new());
    assert_eq!(ran.code(), 0);
}

/// That is how one knows that the attempts are real.
#[test]
fn without_a_boundary_most_is_broken_and_nothing_of_it_was_promised() {
    let ran = Place::new().run(&["probe", "--mode", "host", "--json"]).expect_code(0);
    let report = ran.json();
    let (held, broken) = (report["held"].as_u64().unwrap(), report["broken"].as_u64().unwrap());
    assert!(broken > held, "{broken} broken, {held} held");
    assert_eq!(report["broken_claims"], 0);
    let people = Place::new().run(&["probe", "--mode", "host"]).expect_code(0).stdout;
    assert!(
        people.contains("not promised") && people.contains("None of what was broken was promised"),
        "{people}"
    );
    for place in ["/", "/usr", "/etc"] {
        let names = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> =
            names.filter(|name| name.to_string_lossy().starts_with("ringfence-probe")).collect();
        assert!(left.is_empty(), "{place}: {left:?}");
    }
}

/// A mode that promises what it does not keep is found out.
#[test]
fn a_promise_that_is_broken_is_an_error() {
    let place = Place::new();
    fs::write(place.work().join("p.json"), r#"{"extends": "standard", "network": {"mode": "open"}}"#)
        .unwrap();
    let ran = place.run(&["probe", "--mode", "native", "--policy", "./p.json", "--json"]).expect_code(0);
    let report = ran.json();
    assert!(
        broken(&report).contains(&"reach a service of the host on 127.0.0.1"),
        "nobody promised a closed network"
    );
    place.run(&["probe", "--mode", "sbx"]).expect_code(125);
}
