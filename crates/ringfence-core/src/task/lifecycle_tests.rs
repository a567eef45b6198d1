//! The promises of the step function.

use std::time::Duration;

use proptest::prelude::*;

use super::{Lifecycle, RetryRule, State, StepError, TaskEvent};
use crate::failure::{Failure, FailureClass};
use crate::units::Seconds;

const RULE: RetryRule = RetryRule {
    max_attempts: 3,
    max_runner_losses: 2,
    same_failures: 3,
    max_retries: 2,
    max_blocks: 3,
    max_blocked: Duration::from_secs(86_400),
    first_wait: Duration::from_secs(10),
    longest_wait: Duration::from_secs(60),
    quota_wait: Duration::from_secs(300),
};

fn lease(run: &str) -> TaskEvent {
    TaskEvent::Lease { run: run.parse().unwrap(), until: u64::MAX }
}

fn failed(fence: u64, class: FailureClass) -> TaskEvent {
    TaskEvent::Failed { fence, failure: Failure::new(class, "x") }
}

fn step(lifecycle: &Lifecycle, event: TaskEvent, now: u64) -> Result<Lifecycle, StepError> {
    lifecycle.step(event, now, 0, &RULE)
}

#[test]
fn a_transient_failure_is_retried_with_growing_waits_and_then_fails() {
    let mut lifecycle = Lifecycle::accepted(0);
    let mut now = 0;
    for wait in [10, 20] {
        lifecycle = step(&lifecycle, lease("r"), now).unwrap();
        lifecycle = step(&lifecycle, failed(lifecycle.fence, FailureClass::Network), now).unwrap();
        assert_eq!(lifecycle.state, State::Queued { not_before: now + wait });
        assert_eq!(step(&lifecycle, lease("r"), now), Err(StepError::TooEarly { until: now + wait }));
        now += wait;
    }
    lifecycle = step(&lifecycle, lease("r"), now).unwrap();
    lifecycle = step(&lifecycle, failed(lifecycle.fence, FailureClass::Network), now).unwrap();
    assert_eq!((lifecycle.state.clone(), lifecycle.failures.len()), (State::Failed, 3));
    assert_eq!(step(&lifecycle, TaskEvent::DeadLettered, now).unwrap().state, State::Dead);
}

#[test]
fn a_terminal_failure_is_not_retried() {
    let lifecycle = step(&Lifecycle::accepted(0), lease("r"), 0).unwrap();
    assert_eq!(step(&lifecycle, failed(1, FailureClass::AuthRequired), 0).unwrap().state, State::Failed);
}

#[test]
fn a_quota_waits_for_the_providers_reset_and_costs_no_try() {
    let lifecycle = step(&Lifecycle::accepted(0), lease("r"), 0).unwrap();
    let failure = Failure::new(FailureClass::Quota, "x").with_retry_after(Seconds::new(3600));
    let blocked = step(&lifecycle, TaskEvent::Failed { fence: 1, failure }, 100).unwrap();
    assert_eq!((blocked.state.clone(), blocked.attempts), (State::Blocked { until: 3700 }, 0));
    assert_eq!(step(&blocked, TaskEvent::Unblocked, 3699), Err(StepError::TooEarly { until: 3700 }));
    assert!(matches!(step(&blocked, TaskEvent::Unblocked, 3700).unwrap().state, State::Queued { .. }));
}

#[test]
fn a_late_worker_cannot_overwrite() {
    let first = step(&Lifecycle::accepted(0), lease("a"), 0).unwrap();
    let given_up = step(&first, TaskEvent::RunnerLost { fence: 1 }, 10).unwrap();
    assert!(step(&given_up, lease("b"), 10).is_err(), "not at once");
    let second = step(&given_up, lease("b"), 20).unwrap();
    assert_eq!(
        step(&second, TaskEvent::Succeeded { fence: first.fence }, 21),
        Err(StepError::Fenced { given: 1, newest: 2 })
    );
    assert_eq!(second.attempts, 1, "a vanished worker costs no try");
}

#[test]
fn a_cancelled_run_cannot_come_back() {
    let running = step(&Lifecycle::accepted(0), lease("a"), 0).unwrap();
    let cancelled = step(&running, TaskEvent::Cancel, 1).unwrap();
    assert!(step(&cancelled, TaskEvent::Succeeded { fence: 1 }, 2).is_err());
    assert!(matches!(step(&cancelled, TaskEvent::Retry, 2).unwrap().state, State::Queued { .. }));
}

#[test]
fn a_provider_that_never_lets_go_does_not_hold_a_task_for_ever() {
    let mut lifecycle = Lifecycle::accepted(0);
    let mut now = 0;
    let mut waits = Vec::new();
    loop {
        lifecycle = step(&lifecycle, lease("r"), now).unwrap();
        let failure = Failure::new(FailureClass::Quota, "x").with_retry_after(Seconds::new(1));
        lifecycle = step(&lifecycle, TaskEvent::Failed { fence: lifecycle.fence, failure }, now).unwrap();
        let State::Blocked { until } = lifecycle.state else { break };
        waits.push(until - now);
        now = until;
        lifecycle = step(&lifecycle, TaskEvent::Unblocked, now).unwrap();
    }
    assert_eq!((lifecycle.state, waits), (State::Failed, vec![10, 20, 40]));
    let last = lifecycle.failures.last().unwrap();
    assert_eq!(last.message, "the provider's limit stopped it again after 3 waits, 70 seconds in all");
    assert!(last.remedy.as_ref().unwrap().contains("queue.max_quota_waits"));
}

#[test]
fn a_claimed_reset_is_cut_to_what_is_left_of_the_longest_wait() {
    let mut lifecycle = Lifecycle::accepted(0);
    let mut now = 0;
    for wait in [60_000, 26_400] {
        lifecycle = step(&lifecycle, lease("r"), now).unwrap();
        let failure = Failure::new(FailureClass::Quota, "x").with_retry_after(Seconds::new(60_000));
        lifecycle = step(&lifecycle, TaskEvent::Failed { fence: lifecycle.fence, failure }, now).unwrap();
        assert_eq!(lifecycle.state, State::Blocked { until: now + wait });
        now += wait;
        lifecycle = step(&lifecycle, TaskEvent::Unblocked, now).unwrap();
    }
    lifecycle = step(&lifecycle, lease("r"), now).unwrap();
    let failed = step(&lifecycle, failed(lifecycle.fence, FailureClass::Quota), now).unwrap();
    assert_eq!((failed.state.clone(), failed.blocked_seconds), (State::Failed, 86_400));
    let dead = step(&failed, TaskEvent::DeadLettered, now).unwrap();
    let again = step(&dead, TaskEvent::Retry, now).unwrap();
    assert_eq!((again.blocks, again.blocked_seconds), (0, 0), "a person's retry starts a new count");
}

#[test]
fn a_clock_that_went_back_is_made_up_for() {
    let waiting = Lifecycle::accepted(1000);
    assert_eq!(
        step(&waiting, TaskEvent::Rescheduled { at: 7 }, 5).unwrap().state,
        State::Queued { not_before: 7 }
    );
    let running = step(&waiting, lease("r"), 1000).unwrap();
    assert!(step(&running, TaskEvent::Rescheduled { at: 7 }, 5).is_err());
}

fn events() -> impl Strategy<Value = TaskEvent> {
    prop_oneof![
        Just(lease("r")),
        (0u64..4).prop_map(|fence| TaskEvent::Heartbeat { fence, until: 50 }),
        (0u64..4).prop_map(|fence| TaskEvent::Succeeded { fence }),
        (0u64..4, 0usize..15).prop_map(|(fence, class)| failed(fence, FailureClass::ALL[class])),
        (0u64..4).prop_map(|fence| TaskEvent::RunnerLost { fence }),
        (0u64..4).prop_map(|fence| TaskEvent::Released { fence }),
        Just(TaskEvent::DeadLettered),
        Just(TaskEvent::Unblocked),
        Just(TaskEvent::Cancel),
        Just(TaskEvent::Retry),
    ]
}

proptest! {
    /// Whatever happens in whatever order: fences only grow, done stays done, tries stay within the rule.
    #[test]
    fn no_sequence_of_incidents_breaks_the_invariants(
        sequence in prop::collection::vec((events(), 0u64..40, any::<u8>()), 0..60)
    ) {
        let mut lifecycle = Lifecycle::accepted(0);
        let mut now = 0;
        for (event, passed, jitter) in sequence {
            now += passed;
            let Ok(next) = lifecycle.step(event, now, jitter, &RULE) else { continue };
            prop_assert!(next.fence >= lifecycle.fence);
            prop_assert!(lifecycle.state != State::Done, "done is the end");
            if let State::Running { .. } = next.state {
                prop_assert!(next.attempts >= 1);
            }
            lifecycle = next;
        }
    }
}
