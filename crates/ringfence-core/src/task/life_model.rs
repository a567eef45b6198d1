//! Every life up to eight incidents long, with workers who do not know that they were given up.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use super::{Incident, Life, RetryRule, State, StateName, Time};
use crate::failure::{Failure, FailureClass};

const DEPTH: usize = 8;
/// Two of each, so that every bound is reached within the depth.
const RULE: RetryRule = RetryRule {
    max_attempts: 2,
    max_vanished: 2,
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
    life: Life,
    now: Time,
    /// The leases of all who ever worked on it: each may still speak, however late.
    workers: Vec<u64>,
}

impl World {
    fn identity(&self) -> String {
        format!("{:?}", (&self.life, self.now, &self.workers))
    }

    fn incidents(&self) -> Vec<(&'static str, Incident)> {
        let run = || "r".parse().unwrap();
        let mut all = vec![
            ("lease", Incident::Lease { run: run(), until: self.now + 60 }),
            ("forsaken", Incident::Forsaken { failure: failure(FailureClass::Refused) }),
            ("buried", Incident::Buried),
            ("unblocked", Incident::Unblocked),
            ("rescheduled", Incident::Rescheduled { at: self.now + 5 }),
            ("cancel", Incident::Cancel),
            ("retry", Incident::Retry),
        ];
        // Somebody who never had a lease is as wrong as somebody who lost it.
        for &fence in self.workers.iter().chain([&0]) {
            all.extend([
                ("heartbeat", Incident::Heartbeat { fence, until: self.now + 60 }),
                ("succeeded", Incident::Succeeded { fence }),
                ("vanished", Incident::Vanished { fence }),
                ("handed back", Incident::HandedBack { fence }),
            ]);
            let classes = [FailureClass::Network, FailureClass::AuthRequired, FailureClass::Quota];
            all.extend(classes.map(|class| ("failed", Incident::Failed { fence, failure: failure(class) })));
        }
        all
    }
}

fn failure(class: FailureClass) -> Failure {
    Failure::new(class, "x")
}

fn fence_of(incident: &Incident) -> Option<u64> {
    match incident {
        Incident::Heartbeat { fence, .. }
        | Incident::Succeeded { fence }
        | Incident::Failed { fence, .. }
        | Incident::Vanished { fence }
        | Incident::HandedBack { fence } => Some(*fence),
        _ => None,
    }
}

/// What must hold between a life and the next.
fn check(before: &Life, incident: &Incident, after: &Life) {
    let context = || format!("{before:?} -- {incident:?} --> {after:?}");
    assert_ne!(before.state, State::Done, "done is the end: {}", context());
    if let Some(fence) = fence_of(incident) {
        assert_eq!(fence, before.fence, "only the newest lease is heard: {}", context());
        assert!(matches!(before.state, State::Running { .. }), "{}", context());
    }
    assert!(after.fence >= before.fence, "{}", context());
    if let State::Running { .. } = after.state {
        let leased = matches!(incident, Incident::Lease { .. });
        assert_eq!(after.fence, before.fence + u64::from(leased), "{}", context());
        assert!(
            leased != matches!(before.state, State::Running { .. }),
            "one runner at a time: {}",
            context()
        );
    }
    if after.state == State::Done {
        assert!(matches!(incident, Incident::Succeeded { .. }), "{}", context());
    }
    if after.state == State::Dead {
        assert_eq!(before.state, State::Failed, "{}", context());
    }
    assert!(after.attempts <= RULE.max_attempts, "{}", context());
    assert!(after.vanished <= RULE.max_vanished, "{}", context());
    assert!(after.retries <= RULE.max_retries, "{}", context());
    assert!(after.blocks <= RULE.max_blocks, "{}", context());
    assert!(after.blocked_seconds <= RULE.max_blocked.as_secs(), "{}", context());
    assert!(after.failures.starts_with(&before.failures), "history is kept: {}", context());
    let named = matches!(after.state, State::Failed) && before.state != State::Failed;
    assert!(!named || !after.failures.is_empty(), "a failed task has a reason: {}", context());
}

/// Whether the task can still end, without anybody's help.
fn goes_on(life: &Life, now: Time) -> bool {
    let later = now + 1_000_000;
    match life.state.name() {
        StateName::Queued => {
            life.step(Incident::Lease { run: "r".parse().unwrap(), until: later }, later, 0, &RULE).is_ok()
        }
        StateName::Running => {
            life.step(Incident::Vanished { fence: life.fence }, later, 0, &RULE).is_ok()
                && life.step(Incident::Succeeded { fence: life.fence }, later, 0, &RULE).is_ok()
        }
        StateName::Blocked => life.step(Incident::Unblocked, later, 0, &RULE).is_ok(),
        StateName::Failed => life.step(Incident::Buried, later, 0, &RULE).is_ok(),
        StateName::Done | StateName::Dead | StateName::Cancelled => true,
    }
}

#[test]
fn no_life_of_eight_incidents_breaks_a_promise() {
    let mut seen = HashSet::new();
    let mut pairs = BTreeSet::new();
    let mut frontier = vec![World { life: Life::accepted(0), now: 0, workers: Vec::new() }];
    for _ in 0..DEPTH {
        let mut next = Vec::new();
        for world in frontier {
            assert!(goes_on(&world.life, world.now), "stuck: {:?}", world.life);
            for (name, incident) in world.incidents() {
                let Ok(life) = world.life.step(incident.clone(), world.now, 0, &RULE) else {
                    pairs.insert((world.life.state.name(), name, false));
                    continue;
                };
                pairs.insert((world.life.state.name(), name, true));
                check(&world.life, &incident, &life);
                let mut workers = world.workers.clone();
                if matches!(incident, Incident::Lease { .. }) {
                    workers.push(life.fence);
                }
                // Whatever waits may have its time at once, or not yet.
                for now in [world.now, world.now + 300] {
                    let world = World { life: life.clone(), now, workers: workers.clone() };
                    if seen.insert(world.identity()) {
                        next.push(world);
                    }
                }
            }
        }
        frontier = next;
    }
    for state in StateName::ALL {
        for name in [
            "lease",
            "forsaken",
            "buried",
            "unblocked",
            "rescheduled",
            "cancel",
            "retry",
            "heartbeat",
            "succeeded",
            "vanished",
            "handed back",
            "failed",
        ] {
            let met = [true, false].iter().any(|accepted| pairs.contains(&(state, name, *accepted)));
            assert!(met, "{state} never met {name}");
        }
    }
    assert!(seen.len() > 10_000, "only {} worlds", seen.len());
}
