//! The checker: reads what happened to tasks, and finds what must never happen.
//!
//! It knows nothing of how the queue works. What it knows is in the log: `task.added`, `task.leased` with its fence, and
//! what ended a lease or a task.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde_json::Value;

/// A line of `ringfence events --json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Line {
    /// Grows.
    pub id: u64,
    /// What happened.
    pub kind: String,
    /// To which task.
    #[serde(default)]
    pub task: Option<String>,
    /// In which run.
    #[serde(default)]
    pub run: Option<String>,
    /// More of it.
    #[serde(default)]
    pub data: Value,
}

/// Something that must never happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// To which task.
    pub task: String,
    /// Where in the log; 0 for its end.
    pub at: u64,
    /// What.
    pub what: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}, event {}: {}", self.task, self.at, self.what)
    }
}

/// How a task stands, as far as the log tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stand {
    Waiting,
    Running { fence: u64 },
    Failed,
    Final,
}

/// What comes of a log, to its end.
pub fn check(lines: &[Line]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut stands: BTreeMap<&str, (Stand, u64)> = BTreeMap::new();
    let mut runs: BTreeSet<&str> = BTreeSet::new();
    let mut last = 0;
    for line in lines {
        let Some(task) = line.task.as_deref() else { continue };
        let mut found = |what| findings.push(Finding { task: task.to_owned(), at: line.id, what });
        if line.id <= last {
            found("the log is not in order");
        }
        last = line.id;
        let Some(kind) = line.kind.strip_prefix("task.") else { continue };
        if kind == "added" {
            if stands.insert(task, (Stand::Waiting, 0)).is_some() {
                found("it was added twice");
            }
            continue;
        }
        let Some((stand, newest)) = stands.get_mut(task) else {
            found("it was never added");
            continue;
        };
        let fence = line.data["fence"].as_u64();
        if kind == "leased" && line.run.as_deref().is_none_or(|run| !runs.insert(run)) {
            found("a run has no name of its own");
        }
        match step(*stand, kind, fence, *newest) {
            Ok(next) => *stand = next,
            Err(what) => found(what),
        }
        *newest = (*newest).max(fence.unwrap_or(0));
    }
    for (task, (stand, _)) in stands {
        if stand != Stand::Final {
            findings.push(Finding { task: task.to_owned(), at: 0, what: "it has no end" });
        }
    }
    findings
}

fn step(stand: Stand, kind: &str, fence: Option<u64>, newest: u64) -> Result<Stand, &'static str> {
    match (stand, kind) {
        (Stand::Waiting, "leased") if fence.is_some_and(|fence| fence > newest) => {
            Ok(Stand::Running { fence: fence.unwrap_or(0) })
        }
        (Stand::Waiting, "leased") => Err("a lease has an old number"),
        (Stand::Running { .. }, "leased") => Err("it ran twice at once"),
        (Stand::Final | Stand::Failed, "leased") => Err("it ran after its end"),
        (
            Stand::Running { fence: own },
            "done" | "failed" | "retrying" | "blocked" | "runner_lost" | "released",
        ) => {
            if fence != Some(own) {
                return Err("who had lost its lease was heard");
            }
            Ok(match kind {
                "done" => Stand::Final,
                "failed" => Stand::Failed,
                _ => Stand::Waiting,
            })
        }
        // A runner that runner_lost too often: the task falls with it.
        (Stand::Waiting | Stand::Failed, "dead") => Ok(Stand::Final),
        (Stand::Waiting, "dependency_failed") => Ok(Stand::Failed),
        (Stand::Waiting, "unblocked" | "rescheduled") => Ok(Stand::Waiting),
        (Stand::Waiting | Stand::Running { .. }, "cancelled") => Ok(Stand::Final),
        (Stand::Final, "retried") => Ok(Stand::Waiting),
        (Stand::Final, _) => Err("its end was overwritten"),
        (Stand::Waiting | Stand::Failed, _) => Err("something ended that did not run"),
        (Stand::Running { .. }, _) => Err("something happened to it while it ran"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, check};
    use serde_json::json;

    /// Events of task 1 as `kind` or `kind:fence`; every lease is a run of its own.
    fn log(text: &str) -> Vec<Line> {
        let events = text.split_whitespace().zip(1u64..);
        events
            .map(|(event, id)| {
                let (kind, fence) = event.split_once(':').unwrap_or((event, ""));
                Line {
                    id,
                    kind: format!("task.{kind}"),
                    task: Some("1".into()),
                    run: (kind == "leased").then(|| format!("r{id}")),
                    data: fence.parse::<u64>().map_or(json!(null), |fence| json!({ "fence": fence })),
                }
            })
            .collect()
    }

    fn findings(text: &str) -> Vec<&'static str> {
        check(&log(text)).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn lives_as_they_should_be_have_no_findings() {
        for lifecycle in [
            "added leased:1 done:1",
            "added leased:1 retrying:1 leased:2 done:2",
            "added leased:1 runner_lost:1 leased:2 failed:2 dead retried leased:3 done:3",
            "added leased:1 blocked:1 unblocked leased:2 released:2 cancelled",
            "added leased:1 cancelled retried cancelled",
            "added dependency_failed dead",
            "added leased:1 runner_lost:1 dead",
        ] {
            assert!(findings(lifecycle).is_empty(), "{lifecycle}: {:?}", findings(lifecycle));
        }
    }

    #[test]
    fn every_planted_fault_is_found() {
        for (lifecycle, fault) in [
            ("added leased:1", "it has no end"),
            ("added", "it has no end"),
            ("added leased:1 leased:2 done:2", "it ran twice at once"),
            ("added leased:1 done:1 leased:2 done:2", "it ran after its end"),
            ("added leased:1 runner_lost:1 leased:2 done:1", "who had lost its lease was heard"),
            ("added leased:1 done:1 done:1", "its end was overwritten"),
            ("added leased:1 done:1 cancelled", "its end was overwritten"),
            ("added leased:1 cancelled done:1", "its end was overwritten"),
            ("added leased:1 retrying:1 leased:1 done:1", "a lease has an old number"),
            ("added done:1", "something ended that did not run"),
            ("added leased:1 unblocked done:1", "something happened to it while it ran"),
            ("leased:1 done:1", "it was never added"),
            ("added added", "it was added twice"),
        ] {
            assert!(findings(lifecycle).contains(&fault), "{lifecycle}: {:?}", findings(lifecycle));
        }
        let mut twice = log("added leased:1 runner_lost:1 leased:2 done:2");
        twice[3].run = twice[1].run.clone();
        assert!(check(&twice).iter().any(|finding| finding.what == "a run has no name of its own"));
        let mut unordered = log("added leased:1 done:1");
        unordered[2].id = 2;
        assert!(check(&unordered).iter().any(|finding| finding.what == "the log is not in order"));
    }
}
