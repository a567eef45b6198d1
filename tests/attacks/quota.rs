//! A run prints what looks like a limit of its provider, so that its task waits and waits.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::support::Place;

const FORGED: &str = r#"#!/bin/sh
reset=$(($(date +%s) + ${RESET_IN:-1}))
echo '{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":'$reset'}}'
echo '{"type":"result","subtype":"success","is_error":true,"result":"Claude AI usage limit reached"}'
exit 1
"#;

/// A queue with a `claude` that reports a limit whatever it is asked.
struct Forged {
    place: Place,
}

impl Forged {
    fn new(queue: &str) -> Self {
        let place = Place::new();
        let bin = place.home().join("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("claude"), FORGED).unwrap();
        fs::set_permissions(bin.join("claude"), fs::Permissions::from_mode(0o755)).unwrap();
        let settings = format!(
            r#"{{"sandbox": {{"mode": "native"}}, "queue": {{"retry_seconds": 1, "retry_max_seconds": 1{queue}}}}}"#
        );
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        Self { place: place.settings(&settings).env("PATH", path) }
    }

    /// The task at its end.
    fn task(&self, args: &[&str]) -> Value {
        self.place.run(&["start"]).expect_code(0);
        let words = ["task", "add", "work", "--agent", "claude", "--json"];
        let added = self.place.run(&[&words, args].concat()).expect_code(0).json();
        let id = added[0]["task"].as_str().unwrap().to_owned();
        self.place.run(&["task", "wait", &id, "--timeout", "60"]);
        self.place.run(&["task", "show", &id, "--json"]).expect_code(0).json()
    }
}

impl Drop for Forged {
    fn drop(&mut self) {
        let _ = self.place.command(&["stop"]).output();
    }
}

/// Without a credential of the broker's, nothing but the agent CLI tells of a limit. It is believed so often.
#[test]
fn claimed_limits_block_a_task_a_bounded_number_of_times() {
    let forged = Forged::new(r#", "max_quota_waits": 2"#);
    let shown = forged.task(&[]);
    let task = &shown["task"];
    assert_eq!((&task["state"], &task["blocks"]), (&"dead".into(), &2.into()), "{task}");
    assert_eq!(shown["runs"].as_array().unwrap().len(), 3, "two waits, three runs");
    let last = task["failures"].as_array().unwrap().last().unwrap();
    assert_eq!(last["class"], "quota", "{last}");
    assert!(
        last["message"].as_str().unwrap().starts_with("the provider's limit stopped it again after 2 waits")
    );
}

/// A reset in a year is cut to what a task may wait in all.
#[test]
fn a_claimed_reset_is_bounded() {
    let forged = Forged::new(r#", "max_quota_wait_seconds": 2"#);
    let place = &forged.place;
    let path = place.home().join("bin/claude");
    fs::write(&path, FORGED.replace("RESET_IN:-1", "RESET_IN:-30000000")).unwrap();
    let shown = forged.task(&[]);
    let task = &shown["task"];
    assert_eq!((&task["state"], &task["blocked_seconds"]), (&"dead".into(), &2.into()), "{task}");
}

/// Where the broker adds the credential it sees every answer of the model. There was none that speaks of a limit.
#[test]
fn a_limit_that_the_broker_has_not_seen_costs_an_attempt() {
    let mut forged = Forged::new("");
    let place = std::mem::replace(&mut forged.place, Place::new());
    forged.place = place.env("ANTHROPIC_API_KEY", "sk-ant-api03-not-real");
    let shown = forged.task(&["--max-attempts", "2"]);
    let task = &shown["task"];
    assert_eq!((&task["state"], &task["blocks"]), (&"dead".into(), &0.into()), "{task}");
    assert_eq!(task["attempts"], 2);
    let failure = &task["failures"][0];
    assert_eq!(failure["class"], "agent_error", "{failure}");
    let message = failure["message"].as_str().unwrap();
    assert!(
        message.starts_with("the agent CLI reports a limit, but no answer of the model's server did"),
        "{message}"
    );
}
