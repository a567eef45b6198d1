//! A task's life, as a pure step function.
//!
//! ```text
//!             lease                 succeeded
//!   queued ─────────▶ running ───────────────────▶ done
//!     ▲  ▲               │ │ lease lost
//!     │  └───────────────┼─┘
//!     │ backoff          │ failed
//!     │                  ├─▶ blocked ──(reset time)──▶ queued      quota
//!     └──────────────────┤
//!                        └─▶ failed ──▶ dead                       terminal, or tried often enough
//!   cancel: queued | running | blocked ─▶ cancelled
//!   retry (by a person): failed | dead | cancelled ─▶ queued
//! ```
//!
//! Every write that ends a run carries the fence of its lease: a worker that was given up cannot overwrite.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::{Disposition, Failure};
use crate::ids::RunId;

/// Seconds since the epoch. Whoever calls brings the clock.
pub type Time = u64;

/// A task as far as its life is concerned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    /// Where it stands.
    pub state: State,
    /// How often it was tried.
    pub attempts: u32,
    /// The number of the newest lease.
    pub fence: u64,
    /// The failures so far, the newest last.
    pub failures: Vec<Failure>,
}

/// Where a task stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum State {
    /// Waits for its turn.
    Queued {
        /// Not before this time.
        not_before: Time,
    },
    /// Somebody works on it.
    Running {
        /// The attempt.
        run: RunId,
        /// Until when its lease holds.
        lease_until: Time,
    },
    /// Waits for the provider's limit to reset.
    Blocked {
        /// Until this time.
        until: Time,
    },
    /// It succeeded.
    Done,
    /// It failed for good and waits to be put into the dead-letter store.
    Failed,
    /// It is in the dead-letter store.
    Dead,
    /// Somebody cancelled it.
    Cancelled,
}

impl State {
    /// What a person reads.
    pub fn name(&self) -> &'static str {
        match self {
            State::Queued { .. } => "queued",
            State::Running { .. } => "running",
            State::Blocked { .. } => "blocked",
            State::Done => "done",
            State::Failed => "failed",
            State::Dead => "dead",
            State::Cancelled => "cancelled",
        }
    }
}

/// What can happen to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incident {
    /// A dispatcher takes it.
    Lease {
        /// The attempt.
        run: RunId,
        /// How long the lease holds.
        until: Time,
    },
    /// The worker is alive.
    Heartbeat {
        /// Its lease.
        fence: u64,
        /// How long the lease holds now.
        until: Time,
    },
    /// The run succeeded.
    Succeeded {
        /// Its lease.
        fence: u64,
    },
    /// The run failed.
    Failed {
        /// Its lease.
        fence: u64,
        /// Why.
        failure: Failure,
    },
    /// The lease ran out without a word.
    LeaseExpired,
    /// The dead letter is written.
    Buried,
    /// The provider's limit has reset.
    Unblocked,
    /// Somebody cancels it.
    Cancel,
    /// Somebody wants it tried again.
    Retry,
}

/// How often and how soon to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryRule {
    /// How often a task is tried.
    pub max_attempts: u32,
    /// The wait after the first failure; doubles each time.
    pub first_wait: Duration,
    /// The longest wait.
    pub longest_wait: Duration,
    /// The wait for a quota whose reset nobody told.
    pub quota_wait: Duration,
}

/// Why nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// That cannot happen in this state.
    #[error("a task that is {state} cannot be {what}")]
    NotNow {
        /// The state.
        state: &'static str,
        /// What was wanted.
        what: &'static str,
    },
    /// The worker's lease was given to somebody else.
    #[error("lease {given} is no longer valid, the newest is {newest}")]
    Fenced {
        /// The worker's lease.
        given: u64,
        /// The newest lease.
        newest: u64,
    },
    /// Its time has not come.
    #[error("the task waits until {until}")]
    TooEarly {
        /// The time.
        until: Time,
    },
}

impl Life {
    /// A task that was just accepted.
    pub fn accepted(not_before: Time) -> Self {
        Self { state: State::Queued { not_before }, attempts: 0, fence: 0, failures: Vec::new() }
    }

    /// The life after an incident. `jitter`, from 0 to 255, spreads retries; nothing else here is random.
    pub fn step(
        &self,
        incident: Incident,
        now: Time,
        jitter: u8,
        rule: &RetryRule,
    ) -> Result<Life, StepError> {
        let not_now = |what| StepError::NotNow { state: self.state.name(), what };
        let mut next = self.clone();
        match (incident, &self.state) {
            (Incident::Lease { run, until }, State::Queued { not_before }) => {
                if now < *not_before {
                    return Err(StepError::TooEarly { until: *not_before });
                }
                next.attempts += 1;
                next.fence += 1;
                next.state = State::Running { run, lease_until: until };
            }
            (Incident::Heartbeat { fence, until }, State::Running { run, .. }) => {
                self.check_fence(fence)?;
                next.state = State::Running { run: run.clone(), lease_until: until };
            }
            (Incident::Succeeded { fence }, State::Running { .. }) => {
                self.check_fence(fence)?;
                next.state = State::Done;
            }
            (Incident::Failed { fence, failure }, State::Running { .. }) => {
                self.check_fence(fence)?;
                next.state = self.after_failure(&failure, now, jitter, rule);
                if let State::Blocked { .. } = next.state {
                    // The provider's limit says nothing about the task: the attempt is given back.
                    next.attempts = next.attempts.saturating_sub(1);
                }
                next.failures.push(failure);
            }
            (Incident::LeaseExpired, State::Running { lease_until, .. }) => {
                if now < *lease_until {
                    return Err(StepError::TooEarly { until: *lease_until });
                }
                // A worker that vanished says nothing about the task: the attempt is given back.
                next.attempts = next.attempts.saturating_sub(1);
                next.state = State::Queued { not_before: now };
            }
            (Incident::Unblocked, State::Blocked { until }) => {
                if now < *until {
                    return Err(StepError::TooEarly { until: *until });
                }
                next.state = State::Queued { not_before: now };
            }
            (Incident::Buried, State::Failed) => next.state = State::Dead,
            (Incident::Cancel, State::Queued { .. } | State::Running { .. } | State::Blocked { .. }) => {
                next.fence += 1;
                next.state = State::Cancelled;
            }
            (Incident::Retry, State::Failed | State::Dead | State::Cancelled) => {
                next.attempts = 0;
                next.state = State::Queued { not_before: now };
            }
            (Incident::Lease { .. }, _) => return Err(not_now("leased")),
            (Incident::Heartbeat { .. }, _) => return Err(not_now("kept alive")),
            (Incident::Succeeded { .. } | Incident::Failed { .. }, _) => return Err(not_now("finished")),
            (Incident::LeaseExpired, _) => return Err(not_now("given up")),
            (Incident::Buried, _) => return Err(not_now("buried")),
            (Incident::Unblocked, _) => return Err(not_now("unblocked")),
            (Incident::Cancel, _) => return Err(not_now("cancelled")),
            (Incident::Retry, _) => return Err(not_now("retried")),
        }
        Ok(next)
    }

    fn check_fence(&self, given: u64) -> Result<(), StepError> {
        if given == self.fence { Ok(()) } else { Err(StepError::Fenced { given, newest: self.fence }) }
    }

    fn after_failure(&self, failure: &Failure, now: Time, jitter: u8, rule: &RetryRule) -> State {
        match failure.class.disposition() {
            Disposition::Terminal => State::Failed,
            Disposition::AfterReset => {
                let wait = failure.retry_after_seconds.map_or(rule.quota_wait, |seconds| seconds.duration());
                State::Blocked { until: now + wait.as_secs() }
            }
            Disposition::Transient if self.attempts >= rule.max_attempts => State::Failed,
            Disposition::Transient => {
                State::Queued { not_before: now + backoff(self.attempts, jitter, rule).as_secs() }
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
mod tests;
