//! A task's life, as a pure step function.
//!
//! ```text
//!             lease                 succeeded
//!   queued ─────────▶ running ───────────────────▶ done
//!     ▲  ▲               │ │ handed back, or its runner vanished
//!     │  └───────────────┼─┘
//!     │ backoff          │ failed
//!     │                  ├─▶ blocked ──(reset time)──▶ queued      quota, so often and so long, no more
//!     └──────────────────┤
//!                        └─▶ failed ──▶ dead                       terminal, or tried often enough
//!   queued ─▶ failed: what it waits for will never be done
//!   cancel: queued | running | blocked ─▶ cancelled
//!   retry (by a person): failed | dead | cancelled ─▶ queued       so often, and no oftener
//! ```
//!
//! Every write that ends a run carries the fence of its lease: a worker that was given up cannot overwrite.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::failure::{Disposition, Failure, FailureClass};
use crate::ids::RunId;

/// Seconds since the epoch. Whoever calls brings the clock.
pub type Time = u64;

/// A task as far as its life is concerned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    /// Where it stands.
    #[serde(flatten)]
    pub state: State,
    /// How often it was tried since somebody last asked for it.
    pub attempts: u32,
    /// How often its runner vanished in that time.
    #[serde(default)]
    pub vanished: u32,
    /// How often somebody asked for it again.
    #[serde(default)]
    pub retries: u32,
    /// How often a provider's limit stopped it since somebody last asked for it.
    #[serde(default)]
    pub blocks: u32,
    /// How long it has waited for such limits in that time, in seconds.
    #[serde(default)]
    pub blocked_seconds: u64,
    /// The number of the newest lease.
    pub fence: u64,
    /// The failures so far, the newest last; of very many the last ones.
    pub failures: Vec<Failure>,
}

/// Where a task stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
        /// Until when its lease holds, by the clock of who leased it: for people to read. Whether it still holds is
        /// found out by other means, for clocks jump.
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
    pub fn name(&self) -> StateName {
        match self {
            State::Queued { .. } => StateName::Queued,
            State::Running { .. } => StateName::Running,
            State::Blocked { .. } => StateName::Blocked,
            State::Done => StateName::Done,
            State::Failed => StateName::Failed,
            State::Dead => StateName::Dead,
            State::Cancelled => StateName::Cancelled,
        }
    }
}

/// The name of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum StateName {
    Queued,
    Running,
    Blocked,
    Done,
    Failed,
    Dead,
    Cancelled,
}

impl StateName {
    /// All of them.
    pub const ALL: [StateName; 7] =
        [Self::Queued, Self::Running, Self::Blocked, Self::Done, Self::Failed, Self::Dead, Self::Cancelled];
    /// Their names, in the same order.
    pub const NAMES: [&'static str; 7] =
        ["queued", "running", "blocked", "done", "failed", "dead", "cancelled"];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// The state of this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|name| name.as_str() == text)
    }

    /// Whether nothing happens to the task any more, unless somebody asks for it.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Dead | Self::Cancelled)
    }
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
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
    /// Nothing is left of who worked on it.
    Vanished {
        /// Its lease.
        fence: u64,
    },
    /// Who worked on it gives it back untried.
    HandedBack {
        /// Its lease.
        fence: u64,
    },
    /// What it waits for will never be done.
    Forsaken {
        /// Why.
        failure: Failure,
    },
    /// The dead letter is written.
    Buried,
    /// The provider's limit has reset.
    Unblocked,
    /// The clock went back, and what it waits for would be too far away.
    Rescheduled {
        /// When it is its turn now.
        at: Time,
    },
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
    /// How often its runner may vanish before the task is taken for what makes it vanish.
    pub max_vanished: u32,
    /// After so many failures in the same words another try would tell nothing new.
    pub same_failures: u32,
    /// How often somebody may ask for it again.
    pub max_retries: u32,
    /// How often a provider's limit may stop it.
    pub max_blocks: u32,
    /// How long it waits for such limits in all. What the agent CLI claims of the reset is cut to what is left of it.
    pub max_blocked: Duration,
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
        state: StateName,
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
    /// It was asked for too often.
    #[error("the task was retried {times} times already")]
    TooOften {
        /// How often.
        times: u32,
    },
}

impl RetryRule {
    /// Where nobody says otherwise.
    pub const DEFAULT: RetryRule = RetryRule {
        max_attempts: 3,
        max_vanished: 5,
        same_failures: 3,
        max_retries: 3,
        max_blocks: 50,
        // One weekly limit, and a day.
        max_blocked: Duration::from_secs(8 * 86_400),
        first_wait: Duration::from_secs(10),
        longest_wait: Duration::from_secs(600),
        quota_wait: Duration::from_secs(900),
    };
}

impl Life {
    /// A task that was just accepted.
    pub fn accepted(not_before: Time) -> Self {
        Self {
            state: State::Queued { not_before },
            attempts: 0,
            vanished: 0,
            retries: 0,
            blocks: 0,
            blocked_seconds: 0,
            fence: 0,
            failures: Vec::new(),
        }
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
                let is_limit = failure.class.disposition() == Disposition::AfterReset;
                if let State::Blocked { until } = next.state {
                    // The provider's limit says nothing about the task: the attempt is given back.
                    next.attempts = next.attempts.saturating_sub(1);
                    next.blocks += 1;
                    next.blocked_seconds += until.saturating_sub(now);
                }
                next.remember(failure);
                if is_limit && next.state == State::Failed {
                    next.remember(self.waited_enough());
                }
            }
            (Incident::Vanished { fence }, State::Running { .. }) => {
                self.check_fence(fence)?;
                // A runner that vanished says nothing about the task, unless it does so again and again.
                next.attempts = next.attempts.saturating_sub(1);
                next.vanished += 1;
                // What made it vanish may last for a while, as a full disk does.
                let wait = backoff(next.vanished, jitter, rule);
                next.state = State::Queued { not_before: now.saturating_add(wait.as_secs()) };
                if next.vanished >= rule.max_vanished {
                    let message = format!("what worked on it vanished {} times", next.vanished);
                    next.remember(Failure::new(FailureClass::Unknown, message));
                    next.state = State::Failed;
                }
            }
            (Incident::HandedBack { fence }, State::Running { .. }) => {
                self.check_fence(fence)?;
                next.attempts = next.attempts.saturating_sub(1);
                next.state = State::Queued { not_before: now };
            }
            (Incident::Forsaken { failure }, State::Queued { .. }) => {
                next.remember(failure);
                next.state = State::Failed;
            }
            (Incident::Unblocked, State::Blocked { until }) => {
                if now < *until {
                    return Err(StepError::TooEarly { until: *until });
                }
                next.state = State::Queued { not_before: now };
            }
            (Incident::Rescheduled { at }, State::Queued { .. }) => {
                next.state = State::Queued { not_before: at };
            }
            (Incident::Rescheduled { at }, State::Blocked { .. }) => {
                next.state = State::Blocked { until: at }
            }
            (Incident::Buried, State::Failed) => next.state = State::Dead,
            (Incident::Cancel, State::Queued { .. } | State::Running { .. } | State::Blocked { .. }) => {
                next.fence += 1;
                next.state = State::Cancelled;
            }
            (Incident::Retry, State::Failed | State::Dead | State::Cancelled) => {
                if self.retries >= rule.max_retries {
                    return Err(StepError::TooOften { times: self.retries });
                }
                (next.attempts, next.vanished, next.blocks, next.blocked_seconds) = (0, 0, 0, 0);
                next.retries += 1;
                next.state = State::Queued { not_before: now };
            }
            (Incident::Lease { .. }, _) => return Err(not_now("leased")),
            (Incident::Heartbeat { .. }, _) => return Err(not_now("kept alive")),
            (Incident::Succeeded { .. } | Incident::Failed { .. }, _) => return Err(not_now("finished")),
            (Incident::Vanished { .. } | Incident::HandedBack { .. }, _) => {
                return Err(not_now("given up"));
            }
            (Incident::Forsaken { .. }, _) => return Err(not_now("forsaken")),
            (Incident::Buried, _) => return Err(not_now("buried")),
            (Incident::Unblocked, _) => return Err(not_now("unblocked")),
            (Incident::Rescheduled { .. }, _) => return Err(not_now("rescheduled")),
            (Incident::Cancel, _) => return Err(not_now("cancelled")),
            (Incident::Retry, _) => return Err(not_now("retried")),
        }
        Ok(next)
    }

    /// Keeps a failure; of very many only the last ones.
    fn remember(&mut self, failure: Failure) {
        const MOST: usize = 100;
        if self.failures.len() >= MOST {
            self.failures.remove(0);
        }
        self.failures.push(failure);
    }

    /// Why a task is given up that a provider's limit stops again and again.
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

    fn after_failure(&self, failure: &Failure, now: Time, jitter: u8, rule: &RetryRule) -> State {
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
#[path = "life_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "life_model.rs"]
mod model;
