//! The promises of the step function.

use std::time::Duration;

use proptest::prelude::*;

use super::{Incident, Life, RetryRule, State, StepError};
use crate::failure::{Failure, FailureClass};
use crate::units::Seconds;

const RULE: RetryRule = RetryRule {
    max_attempts: 3,
    max_vanished: 2,
    same_failures: 3,
    max_retries: 2,
    max_blocks: 3,
    max_blocked: Duration::from_secs(86_400),
    first_wait: Duration::from_secs(10),
    longest_wait: Duration::from_secs(60),
    quota_wait: Duration::from_secs(300),
};

fn lease(run: &str) -> Incident {
    Incident::Lease { run: run.parse().unwrap(), until: u64::MAX }
}

fn failed(fence: u64, class: FailureClass) -> Incident {
    Incident::Failed { fence, failure: Failure::new(class, "x") }
}

fn step(life: &Life, incident: Incident, now: u64) -> Result<Life, StepError> {
    life.step(incident, now, 0, &RULE)
}

#[test]
fn a_transient_failure_is_retried_with_growing_waits_and_then_fails() {
    let mut life = Life::accepted(0);
    let mut now = 0;
    for wait in [10, 20] {
        life = step(&life, lease("r"), now).unwrap();
        life = step(&life, failed(life.fence, FailureClass::Network), now).unwrap();
        assert_eq!(life.state, State::Queued { not_before: now + wait });
        assert_eq!(step(&life, lease("r"), now), Err(StepError::TooEarly { until: now + wait }));
        now += wait;
    }
    life = step(&life, lease("r"), now).unwrap();
    life = step(&life, failed(life.fence, FailureClass::Network), now).unwrap();
    assert_eq!((life.state.clone(), life.failures.len()), (State::Failed, 3));
    assert_eq!(step(&life, Incident::Buried, now).unwrap().state, State::Dead);
}

#[test]
fn a_terminal_failure_is_not_retried() {
    let life = step(&Life::accepted(0), lease("r"), 0).unwrap();
    assert_eq!(step(&life, failed(1, FailureClass::AuthRequired), 0).unwrap().state, State::Failed);
}

#[test]
fn a_quota_waits_for_the_providers_reset_and_costs_no_try() {
    let life = step(&Life::accepted(0), lease("r"), 0).unwrap();
    let failure = Failure::new(FailureClass::Quota, "x").with_retry_after(Seconds::new(3600));
    let blocked = step(&life, Incident::Failed { fence: 1, failure }, 100).unwrap();
    assert_eq!((blocked.state.clone(), blocked.attempts), (State::Blocked { until: 3700 }, 0));
    assert_eq!(step(&blocked, Incident::Unblocked, 3699), Err(StepError::TooEarly { until: 3700 }));
    assert!(matches!(step(&blocked, Incident::Unblocked, 3700).unwrap().state, State::Queued { .. }));
}

#[test]
fn a_late_worker_cannot_overwrite() {
    let first = step(&Life::accepted(0), lease("a"), 0).unwrap();
    let given_up = step(&first, Incident::Vanished { fence: 1 }, 10).unwrap();
    assert!(step(&given_up, lease("b"), 10).is_err(), "not at once");
    let second = step(&given_up, lease("b"), 20).unwrap();
    assert_eq!(
        step(&second, Incident::Succeeded { fence: first.fence }, 21),
        Err(StepError::Fenced { given: 1, newest: 2 })
    );
    assert_eq!(second.attempts, 1, "a vanished worker costs no try");
}

#[test]
fn a_cancelled_run_cannot_come_back() {
    let running = step(&Life::accepted(0), lease("a"), 0).unwrap();
    let cancelled = step(&running, Incident::Cancel, 1).unwrap();
    assert!(step(&cancelled, Incident::Succeeded { fence: 1 }, 2).is_err());
    assert!(matches!(step(&cancelled, Incident::Retry, 2).unwrap().state, State::Queued { .. }));
}

#[test]
fn a_provider_that_never_lets_go_does_not_hold_a_task_for_ever() {
    let mut life = Life::accepted(0);
    let mut now = 0;
    let mut waits = Vec::new();
    loop {
        life = step(&life, lease("r"), now).unwrap();
        let failure = Failure::new(FailureClass::Quota, "x").with_retry_after(Seconds::new(1));
        life = step(&life, Incident::Failed { fence: life.fence, failure }, now).unwrap();
        let State::Blocked { until } = life.state else { break };
        waits.push(until - now);
        now = until;
        life = step(&life, Incident::Unblocked, now).unwrap();
    }
    assert_eq!((life.state, waits), (State::Failed, vec![10, 20, 40]));
    let last = life.failures.last().unwrap();
    assert_eq!(last.message, "the provider's limit stopped it again after 3 waits, 70 seconds in all");
    assert!(last.remedy.as_ref().unwrap().contains("queue.max_quota_waits"));
}

#[test]
fn a_claimed_reset_is_cut_to_what_is_left_of_the_longest_wait() {
    let mut life = Life::accepted(0);
    let mut now = 0;
    for wait in [60_000, 26_400] {
        life = step(&life, lease("r"), now).unwrap();
        let failure = Failure::new(FailureClass::Quota, "x").with_retry_after(Seconds::new(60_000));
        life = step(&life, Incident::Failed { fence: life.fence, failure }, now).unwrap();
        assert_eq!(life.state, State::Blocked { until: now + wait });
        now += wait;
        life = step(&life, Incident::Unblocked, now).unwrap();
    }
    life = step(&life, lease("r"), now).unwrap();
    let failed = step(&life, failed(life.fence, FailureClass::Quota), now).unwrap();
    assert_eq!((failed.state.clone(), failed.blocked_seconds), (State::Failed, 86_400));
    let dead = step(&failed, Incident::Buried, now).unwrap();
    let again = step(&dead, Incident::Retry, now).unwrap();
    assert_eq!((again.blocks, again.blocked_seconds), (0, 0), "a person's retry starts a new count");
}

#[test]
fn a_clock_that_went_back_is_made_up_for() {
    let waiting = Life::accepted(1000);
    assert_eq!(
        step(&waiting, Incident::Rescheduled { at: 7 }, 5).unwrap().state,
        State::Queued { not_before: 7 }
    );
    let running = step(&waiting, lease("r"), 1000).unwrap();
    assert!(step(&running, Incident::Rescheduled { at: 7 }, 5).is_err());
}

fn incidents() -> impl Strategy<Value = Incident> {
    prop_oneof![
        Just(lease("r")),
        (0u64..4).prop_map(|fence| Incident::Heartbeat { fence, until: 50 }),
        (0u64..4).prop_map(|fence| Incident::Succeeded { fence }),
        (0u64..4, 0usize..15).prop_map(|(fence, class)| failed(fence, FailureClass::ALL[class])),
        (0u64..4).prop_map(|fence| Incident::Vanished { fence }),
        (0u64..4).prop_map(|fence| Incident::HandedBack { fence }),
        Just(Incident::Buried),
        Just(Incident::Unblocked),
        Just(Incident::Cancel),
        Just(Incident::Retry),
    ]
}

proptest! {
    /// Whatever happens in whatever order: fences only grow, done stays done, tries stay within the rule.
    #[test]
    fn no_sequence_of_incidents_breaks_the_invariants(
        sequence in prop::collection::vec((incidents(), 0u64..40, any::<u8>()), 0..60)
    ) {
        let mut life = Life::accepted(0);
        let mut now = 0;
        for (incident, passed, jitter) in sequence {
            now += passed;
            let Ok(next) = life.step(incident, now, jitter, &RULE) else { continue };
            prop_assert!(next.fence >= life.fence);
            prop_assert!(life.state != State::Done, "done is the end");
            if let State::Running { .. } = next.state {
                prop_assert!(next.attempts >= 1);
            }
            life = next;
        }
    }
}
