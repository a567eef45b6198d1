//! Every lifecycle up to eight events long, with workers who do not know that they were given up.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use super::{Lifecycle, RetryRule, State, TaskEvent, TaskStatus, UnixSeconds};
use crate::failure::{Failure, FailureClass};

const DEPTH: usize = 8;
/// Two of each, so that every bound is reached within the depth.
const RULE: RetryRule = RetryRule {
    max_attempts: 2,
    max_runner_losses: 2,
    same_failures: 2,
    max_retries: 2,
    max_blocks: 2,
    max_blocked: Duration::from_secs(400),
    first_wait: Duration::from_secs(10),
    longest_wait: Duration::from_secs(60),
    quota_wait: Duration::from_secs(300),
};

#[derive(Clone)]
struct World {
    lifecycle: Lifecycle,
    now: UnixSeconds,
    /// The leases of all who ever worked on it: each may still speak, however late.
    workers: Vec<u64>,
}

impl World {
    fn identity(&self) -> String {
        format!("{:?}", (&self.lifecycle, self.now, &self.workers))
    }

    fn events(&self) -> Vec<(&'static str, TaskEvent)> {
        let run = || "r".parse().unwrap();
        let mut all = vec![
            ("lease", TaskEvent::Lease { run: run(), until: self.now + 60 }),
            ("dependency_failed", TaskEvent::DependencyFailed { failure: failure(FailureClass::Refused) }),
            ("buried", TaskEvent::DeadLettered),
            ("unblocked", TaskEvent::Unblocked),
            ("rescheduled", TaskEvent::Rescheduled { at: self.now + 5 }),
            ("cancel", TaskEvent::Cancel),
            ("retry", TaskEvent::Retry),
        ];
        // Somebody who never had a lease is as wrong as somebody who lost it.
        for &fence in self.workers.iter().chain([&0]) {
            all.extend([
                ("heartbeat", TaskEvent::Heartbeat { fence, until: self.now + 60 }),
                ("succeeded", TaskEvent::Succeeded { fence }),
                ("runner_lost", TaskEvent::RunnerLost { fence }),
                ("handed back", TaskEvent::Released { fence }),
            ]);
            let classes = [FailureClass::Network, FailureClass::AuthRequired, FailureClass::Quota];
            all.extend(classes.map(|class| ("failed", TaskEvent::Failed { fence, failure: failure(class) })));
        }
        all
    }
}

fn failure(class: FailureClass) -> Failure {
    Failure::new(class, "x")
}

fn fence_of(event: &TaskEvent) -> Option<u64> {
    match event {
        TaskEvent::Heartbeat { fence, .. }
        | TaskEvent::Succeeded { fence }
        | TaskEvent::Failed { fence, .. }
        | TaskEvent::RunnerLost { fence }
        | TaskEvent::Released { fence } => Some(*fence),
        _ => None,
    }
}

/// What must hold between a lifecycle and the next.
fn check(before: &Lifecycle, event: &TaskEvent, after: &Lifecycle) {
    let context = || format!("{before:?} -- {event:?} --> {after:?}");
    assert_ne!(before.state, State::Done, "done is the end: {}", context());
    if let Some(fence) = fence_of(event) {
        assert_eq!(fence, before.fence, "only the newest lease is heard: {}", context());
        assert!(matches!(before.state, State::Running { .. }), "{}", context());
    }
    assert!(after.fence >= before.fence, "{}", context());
    if let State::Running { .. } = after.state {
        let leased = matches!(event, TaskEvent::Lease { .. });
        assert_eq!(after.fence, before.fence + u64::from(leased), "{}", context());
        assert!(
            leased != matches!(before.state, State::Running { .. }),
            "one runner at a time: {}",
            context()
        );
    }
    if after.state == State::Done {
        assert!(matches!(event, TaskEvent::Succeeded { .. }), "{}", context());
    }
    if after.state == State::Dead {
        assert_eq!(before.state, State::Failed, "{}", context());
    }
    assert!(after.attempts <= RULE.max_attempts, "{}", context());
    assert!(after.runner_losses <= RULE.max_runner_losses, "{}", context());
    assert!(after.retries <= RULE.max_retries, "{}", context());
    assert!(after.blocks <= RULE.max_blocks, "{}", context());
    assert!(after.blocked_seconds <= RULE.max_blocked.as_secs(), "{}", context());
    assert!(after.failures.starts_with(&before.failures), "history is kept: {}", context());
    let named = matches!(after.state, State::Failed) && before.state != State::Failed;
    assert!(!named || !after.failures.is_empty(), "a failed task has a reason: {}", context());
}

/// Whether the task can still end, without anybody's help.
fn goes_on(lifecycle: &Lifecycle, now: UnixSeconds) -> bool {
    let later = now + 1_000_000;
    match lifecycle.state.name() {
        TaskStatus::Queued => lifecycle
            .step(TaskEvent::Lease { run: "r".parse().unwrap(), until: later }, later, 0, &RULE)
            .is_ok(),
        TaskStatus::Running => {
            lifecycle.step(TaskEvent::RunnerLost { fence: lifecycle.fence }, later, 0, &RULE).is_ok()
                && lifecycle.step(TaskEvent::Succeeded { fence: lifecycle.fence }, later, 0, &RULE).is_ok()
        }
        TaskStatus::Blocked => lifecycle.step(TaskEvent::Unblocked, later, 0, &RULE).is_ok(),
        TaskStatus::Failed => lifecycle.step(TaskEvent::DeadLettered, later, 0, &RULE).is_ok(),
        TaskStatus::Done | TaskStatus::Dead | TaskStatus::Cancelled => true,
    }
}

#[test]
fn no_life_of_eight_incidents_breaks_a_promise() {
    let mut seen = HashSet::new();
    let mut pairs = BTreeSet::new();
    let mut frontier = vec![World { lifecycle: Lifecycle::accepted(0), now: 0, workers: Vec::new() }];
    for _ in 0..DEPTH {
        let mut next = Vec::new();
        for world in frontier {
            assert!(goes_on(&world.lifecycle, world.now), "stuck: {:?}", world.lifecycle);
            for (name, event) in world.events() {
                let Ok(lifecycle) = world.lifecycle.step(event.clone(), world.now, 0, &RULE) else {
                    pairs.insert((world.lifecycle.state.name(), name, false));
                    continue;
                };
                pairs.insert((world.lifecycle.state.name(), name, true));
                check(&world.lifecycle, &event, &lifecycle);
                let mut workers = world.workers.clone();
                if matches!(event, TaskEvent::Lease { .. }) {
                    workers.push(lifecycle.fence);
                }
                // Whatever waits may have its time at once, or not yet.
                for now in [world.now, world.now + 300] {
                    let world = World { lifecycle: lifecycle.clone(), now, workers: workers.clone() };
                    if seen.insert(world.identity()) {
                        next.push(world);
                    }
                }
            }
        }
        frontier = next;
    }
    for state in TaskStatus::ALL {
        for name in [
            "lease",
            "dependency_failed",
            "buried",
            "unblocked",
            "rescheduled",
            "cancel",
            "retry",
            "heartbeat",
            "succeeded",
            "runner_lost",
            "handed back",
            "failed",
        ] {
            let met = [true, false].iter().any(|accepted| pairs.contains(&(state, name, *accepted)));
            assert!(met, "{state} never met {name}");
        }
    }
    assert!(seen.len() > 10_000, "only {} worlds", seen.len());
}
