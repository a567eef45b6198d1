//! The lifecycle of a task, as a pure step function.
//!
//! ```text
//!             lease                 succeeded
//!   queued ─────────▶ running ───────────────────▶ done
//!     ▲  ▲               │ │ released, or its runner was lost
//!     │  └───────────────┼─┘
//!     │ backoff          │ failed
//!     │                  ├─▶ blocked ──(reset time)──▶ queued      quota, within limits
//!     └──────────────────┤
//!                        └─▶ failed ──▶ dead                       terminal, or out of attempts
//!   queued ─▶ failed: a dependency ended without success
//!   cancel: queued | running | blocked ─▶ cancelled
//!   retry (by the user): failed | dead | cancelled ─▶ queued       within limits
//! ```
//!
//! Every event of a run carries the fencing token of its lease, so that a lost runner cannot overwrite newer state.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::{Disposition, Failure, FailureClass};
use crate::ids::RunId;

/// Seconds since the epoch.
pub type UnixSeconds = u64;

/// State and history of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifecycle {
    /// Current state.
    #[serde(flatten)]
    pub state: State,
    /// Number of attempts since the task was added or last retried.
    pub attempts: u32,
    /// Number of lost runners in that time.
    #[serde(default)]
    pub runner_losses: u32,
    /// Number of retries by the user.
    #[serde(default)]
    pub retries: u32,
    /// Number of waits for a provider's limit since the task was added or last retried.
    #[serde(default)]
    pub blocks: u32,
    /// Sum of these waits, in seconds.
    #[serde(default)]
    pub blocked_seconds: u64,
    /// Fencing token of the newest lease.
    pub fence: u64,
    /// The last failures, newest last; at most 100.
    pub failures: Vec<Failure>,
}

/// State of a task.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum State {
    /// Waits to be claimed.
    Queued {
        /// Earliest time of the next run.
        not_before: UnixSeconds,
    },
    /// A runner executes it.
    Running {
        /// Id of the run.
        run: RunId,
        /// Expiry of the lease by the clock of the dispatcher, for display. Liveness is not decided by it, because clocks jump.
        lease_until: UnixSeconds,
    },
    /// Waits for the provider's limit to reset.
    Blocked {
        /// End of the wait.
        until: UnixSeconds,
    },
    /// Succeeded.
    Done,
    /// Failed, and not yet a dead letter.
    Failed,
    /// Failed, and a dead letter.
    Dead,
    /// Cancelled.
    Cancelled,
}

impl State {
    /// Returns the name of the state.
    pub fn name(&self) -> TaskStatus {
        match self {
            State::Queued { .. } => TaskStatus::Queued,
            State::Running { .. } => TaskStatus::Running,
            State::Blocked { .. } => TaskStatus::Blocked,
            State::Done => TaskStatus::Done,
            State::Failed => TaskStatus::Failed,
            State::Dead => TaskStatus::Dead,
            State::Cancelled => TaskStatus::Cancelled,
        }
    }
}

/// The name of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum TaskStatus {
    Queued,
    Running,
    Blocked,
    Done,
    Failed,
    Dead,
    Cancelled,
}

impl TaskStatus {
    /// All states.
    pub const ALL: [TaskStatus; 7] =
        [Self::Queued, Self::Running, Self::Blocked, Self::Done, Self::Failed, Self::Dead, Self::Cancelled];
    /// Their names, in the same order.
    pub const NAMES: [&'static str; 7] =
        ["queued", "running", "blocked", "done", "failed", "dead", "cancelled"];

    /// Returns the stored name.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Parses a stored name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|name| name.as_str() == text)
    }

    /// Returns whether only a retry by the user can change the state.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Dead | Self::Cancelled)
    }
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// An event in the lifecycle of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEvent {
    /// A dispatcher claims the task.
    Lease {
        /// Id of the run.
        run: RunId,
        /// Expiry of the lease.
        until: UnixSeconds,
    },
    /// The runner is alive.
    Heartbeat {
        /// Fencing token of its lease.
        fence: u64,
        /// New expiry of the lease.
        until: UnixSeconds,
    },
    /// The run succeeded.
    Succeeded {
        /// Fencing token of its lease.
        fence: u64,
    },
    /// The run failed.
    Failed {
        /// Fencing token of its lease.
        fence: u64,
        /// Cause.
        failure: Failure,
    },
    /// The runner ended without a result.
    RunnerLost {
        /// Fencing token of its lease.
        fence: u64,
    },
    /// The runner returns the task without an attempt.
    Released {
        /// Fencing token of its lease.
        fence: u64,
    },
    /// A dependency ended without success.
    DependencyFailed {
        /// Cause.
        failure: Failure,
    },
    /// The dead letter was written.
    DeadLettered,
    /// The provider's limit has reset.
    Unblocked,
    /// The clock went back, and the wait is adjusted.
    Rescheduled {
        /// New end of the wait.
        at: UnixSeconds,
    },
    /// The user cancels the task.
    Cancel,
    /// The user retries the task.
    Retry,
}

/// Retry policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryRule {
    /// Maximum number of attempts.
    pub max_attempts: u32,
    /// Number of lost runners after which the task fails.
    pub max_runner_losses: u32,
    /// Number of identical failures in a row after which the task fails.
    pub same_failures: u32,
    /// Maximum number of retries by the user.
    pub max_retries: u32,
    /// Maximum number of waits for a provider's limit.
    pub max_blocks: u32,
    /// Maximum sum of these waits. A reset time that the agent CLI reports is cut to what is left of it.
    pub max_blocked: Duration,
    /// Wait after the first failure; doubles with each failure.
    pub first_wait: Duration,
    /// Maximum wait after a failure.
    pub longest_wait: Duration,
    /// Wait for a provider's limit without a known reset time.
    pub quota_wait: Duration,
}

/// Error of an event that is not applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The event is not valid in this state.
    #[error("a task that is {state} cannot be {what}")]
    NotNow {
        /// Current state.
        state: TaskStatus,
        /// Participle of the event.
        what: &'static str,
    },
    /// The lease was replaced by a newer one.
    #[error("lease {given} is no longer valid, the newest is {newest}")]
    Fenced {
        /// Fencing token of the event.
        given: u64,
        /// Fencing token of the newest lease.
        newest: u64,
    },
    /// The wait is not over.
    #[error("the task waits until {until}")]
    TooEarly {
        /// End of the wait.
        until: UnixSeconds,
    },
    /// The user retried the task too often.
    #[error("the task was retried {times} times already")]
    TooOften {
        /// Number of retries so far.
        times: u32,
    },
}

impl RetryRule {
    /// Defaults.
    pub const DEFAULT: RetryRule = RetryRule {
        max_attempts: 3,
        max_runner_losses: 5,
        same_failures: 3,
        max_retries: 3,
        max_blocks: 50,
        // A weekly limit and one day.
        max_blocked: Duration::from_secs(8 * 86_400),
        first_wait: Duration::from_secs(10),
        longest_wait: Duration::from_secs(600),
        quota_wait: Duration::from_secs(900),
    };
}

impl Lifecycle {
    /// Returns the lifecycle of a task that was just added.
    pub fn accepted(not_before: UnixSeconds) -> Self {
        Self {
            state: State::Queued { not_before },
            attempts: 0,
            runner_losses: 0,
            retries: 0,
            blocks: 0,
            blocked_seconds: 0,
            fence: 0,
            failures: Vec::new(),
        }
    }

    /// Returns the lifecycle after an event. `jitter` is a random value that spreads retries.
    pub fn step(
        &self,
        event: TaskEvent,
        now: UnixSeconds,
        jitter: u8,
        rule: &RetryRule,
    ) -> Result<Lifecycle, StepError> {
        let not_now = |what| StepError::NotNow { state: self.state.name(), what };
        let mut next = self.clone();
        match (event, &self.state) {
            (TaskEvent::Lease { run, until }, State::Queued { not_before }) => {
                if now < *not_before {
                    return Err(StepError::TooEarly { until: *not_before });
                }
                next.attempts += 1;
                next.fence += 1;
                next.state = State::Running { run, lease_until: until };
            }
            (TaskEvent::Heartbeat { fence, until }, State::Running { run, .. }) => {
                self.check_fence(fence)?;
                next.state = State::Running { run: run.clone(), lease_until: until };
            }
            (TaskEvent::Succeeded { fence }, State::Running { .. }) => {
                self.check_fence(fence)?;
                next.state = State::Done;
            }
            (TaskEvent::Failed { fence, failure }, State::Running { .. }) => {
                self.check_fence(fence)?;
                next.state = self.after_failure(&failure, now, jitter, rule);
                let is_limit = failure.class.disposition() == Disposition::AfterReset;
                if let State::Blocked { until } = next.state {
                    // A provider's limit is not a failure of the task, so the attempt does not count.
                    next.attempts = next.attempts.saturating_sub(1);
                    next.blocks += 1;
                    next.blocked_seconds += until.saturating_sub(now);
                }
                next.remember(failure);
                if is_limit && next.state == State::Failed {
                    next.remember(self.waited_enough());
                }
            }
            (TaskEvent::RunnerLost { fence }, State::Running { .. }) => {
                self.check_fence(fence)?;
                // A lost runner is not a failure of the task, so the attempt does not count.
                next.attempts = next.attempts.saturating_sub(1);
                next.runner_losses += 1;
                // The cause may last for a while, as a full disk does.
                let wait = backoff(next.runner_losses, jitter, rule);
                next.state = State::Queued { not_before: now.saturating_add(wait.as_secs()) };
                if next.runner_losses >= rule.max_runner_losses {
                    let message = format!("its runner was lost {} times", next.runner_losses);
                    next.remember(Failure::new(FailureClass::Unknown, message));
                    next.state = State::Failed;
                }
            }
            (TaskEvent::Released { fence }, State::Running { .. }) => {
                self.check_fence(fence)?;
                next.attempts = next.attempts.saturating_sub(1);
                next.state = State::Queued { not_before: now };
            }
            (TaskEvent::DependencyFailed { failure }, State::Queued { .. }) => {
                next.remember(failure);
                next.state = State::Failed;
            }
            (TaskEvent::Unblocked, State::Blocked { until }) => {
                if now < *until {
                    return Err(StepError::TooEarly { until: *until });
                }
                next.state = State::Queued { not_before: now };
            }
            (TaskEvent::Rescheduled { at }, State::Queued { .. }) => {
                next.state = State::Queued { not_before: at };
            }
            (TaskEvent::Rescheduled { at }, State::Blocked { .. }) => {
                next.state = State::Blocked { until: at }
            }
            (TaskEvent::DeadLettered, State::Failed) => next.state = State::Dead,
            (TaskEvent::Cancel, State::Queued { .. } | State::Running { .. } | State::Blocked { .. }) => {
                next.fence += 1;
                next.state = State::Cancelled;
            }
            (TaskEvent::Retry, State::Failed | State::Dead | State::Cancelled) => {
                if self.retries >= rule.max_retries {
                    return Err(StepError::TooOften { times: self.retries });
                }
                (next.attempts, next.runner_losses, next.blocks, next.blocked_seconds) = (0, 0, 0, 0);
                next.retries += 1;
                next.state = State::Queued { not_before: now };
            }
            (TaskEvent::Lease { .. }, _) => return Err(not_now("leased")),
            (TaskEvent::Heartbeat { .. }, _) => return Err(not_now("kept alive")),
            (TaskEvent::Succeeded { .. } | TaskEvent::Failed { .. }, _) => return Err(not_now("finished")),
            (TaskEvent::RunnerLost { .. } | TaskEvent::Released { .. }, _) => {
                return Err(not_now("released"));
            }
            (TaskEvent::DependencyFailed { .. }, _) => return Err(not_now("failed by a dependency")),
            (TaskEvent::DeadLettered, _) => return Err(not_now("dead-lettered")),
            (TaskEvent::Unblocked, _) => return Err(not_now("unblocked")),
            (TaskEvent::Rescheduled { .. }, _) => return Err(not_now("rescheduled")),
            (TaskEvent::Cancel, _) => return Err(not_now("cancelled")),
            (TaskEvent::Retry, _) => return Err(not_now("retried")),
        }
        Ok(next)
    }

    /// Appends a failure and drops the oldest beyond the limit.
    fn remember(&mut self, failure: Failure) {
        const MAX_FAILURES: usize = 100;
        if self.failures.len() >= MAX_FAILURES {
            self.failures.remove(0);
        }
        self.failures.push(failure);
    }

    /// Returns the failure of a task that waited too often or too long for a provider's limit.
    fn waited_enough(&self) -> Failure {
        let message = format!(
            "the provider's limit stopped it again after {} waits, {} seconds in all",
            self.blocks, self.blocked_seconds
        );
        Failure::new(FailureClass::Quota, message).with_remedy(
            "retry it when the limit has reset, or raise `queue.max_quota_waits` or `queue.max_quota_wait_seconds`",
        )
    }

    fn check_fence(&self, given: u64) -> Result<(), StepError> {
        if given == self.fence { Ok(()) } else { Err(StepError::Fenced { given, newest: self.fence }) }
    }

    /// How many of this round's last failures read the same.
    fn same_before(&self, failure: &Failure) -> u32 {
        let same = |before: &&Failure| before.class == failure.class && before.message == failure.message;
        let round = self.failures.iter().rev().take(self.attempts.saturating_sub(1) as usize);
        u32::try_from(round.take_while(same).count()).unwrap_or(u32::MAX)
    }

    fn after_failure(&self, failure: &Failure, now: UnixSeconds, jitter: u8, rule: &RetryRule) -> State {
        match failure.class.disposition() {
            Disposition::Terminal => State::Failed,
            Disposition::AfterReset => {
                let left = rule.max_blocked.as_secs().saturating_sub(self.blocked_seconds);
                if self.blocks >= rule.max_blocks || left == 0 {
                    return State::Failed;
                }
                let told = failure.retry_after_seconds.map_or(rule.quota_wait, |seconds| seconds.duration());
                // A provider that says "in a second" again and again is not believed, nor a reset in a year.
                let wait = told.max(backoff(self.blocks + 1, jitter, rule)).as_secs().min(left);
                State::Blocked { until: now.saturating_add(wait) }
            }
            Disposition::Transient if self.attempts >= rule.max_attempts => State::Failed,
            Disposition::Transient if self.same_before(failure) + 1 >= rule.same_failures => State::Failed,
            Disposition::Transient => {
                let wait = backoff(self.attempts, jitter, rule);
                State::Queued { not_before: now.saturating_add(wait.as_secs()) }
            }
        }
    }
}

/// Doubles with each attempt up to the longest, then takes off up to a quarter.
fn backoff(attempts: u32, jitter: u8, rule: &RetryRule) -> Duration {
    let doublings = attempts.saturating_sub(1).min(20);
    let full = rule.first_wait.saturating_mul(1 << doublings).min(rule.longest_wait);
    full - full / 4 * u32::from(jitter) / 255
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "lifecycle_model.rs"]
mod model;
