//! Failure classes. They decide what happens next; the words of a message never do.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::text::PlainText;
use crate::units::Seconds;

/// Longer messages are cut: they are sentences, not logs.
const MAX_MESSAGE_BYTES: usize = 8 << 10;

/// What kind of failure ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// The policy or the configuration cannot be kept here.
    Refused,
    /// The program of the mode is not installed.
    RuntimeMissing,
    /// The image is not there.
    ImageMissing,
    /// The agent CLI is not there.
    CliMissing,
    /// The agent CLI needs a login or a key.
    AuthRequired,
    /// The service of the mode does not answer.
    DaemonDown,
    /// The run took longer than it may.
    Timeout,
    /// The run took more memory than it may.
    OutOfMemory,
    /// The run started more processes than it may.
    OutOfProcesses,
    /// The provider's limit is reached, until it resets.
    Quota,
    /// The model's server cannot serve just now.
    ModelOverloaded,
    /// The model's server cannot be reached.
    Network,
    /// The agent CLI failed by itself.
    AgentError,
    /// The run spent more than it may.
    BudgetExceeded,
    /// Somebody ended it.
    Cancelled,
    /// It failed, and nothing tells why.
    Unknown,
}

/// What a failure class means for the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Trying again cannot help.
    Terminal,
    /// Trying again after a while may help.
    Transient,
    /// Trying again helps once the provider's limit resets.
    AfterReset,
}

impl FailureClass {
    /// All classes.
    pub const ALL: [FailureClass; 16] = [
        Self::Refused,
        Self::RuntimeMissing,
        Self::ImageMissing,
        Self::CliMissing,
        Self::AuthRequired,
        Self::DaemonDown,
        Self::Timeout,
        Self::OutOfMemory,
        Self::OutOfProcesses,
        Self::Quota,
        Self::ModelOverloaded,
        Self::Network,
        Self::AgentError,
        Self::BudgetExceeded,
        Self::Cancelled,
        Self::Unknown,
    ];

    /// What it means for the task.
    pub fn disposition(self) -> Disposition {
        match self {
            Self::Quota => Disposition::AfterReset,
            Self::DaemonDown
            | Self::Timeout
            | Self::OutOfMemory
            | Self::OutOfProcesses
            | Self::ModelOverloaded
            | Self::Network
            | Self::AgentError
            | Self::Unknown => Disposition::Transient,
            Self::Refused
            | Self::RuntimeMissing
            | Self::ImageMissing
            | Self::CliMissing
            | Self::AuthRequired
            | Self::BudgetExceeded
            | Self::Cancelled => Disposition::Terminal,
        }
    }

    /// The class of an HTTP status with which a model's server refused.
    pub fn of_http_status(status: u16) -> Self {
        match status {
            401 | 403 => Self::AuthRequired,
            402 | 429 => Self::Quota,
            408 => Self::Network,
            500..=599 => Self::ModelOverloaded,
            _ => Self::AgentError,
        }
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Refused => "refused",
            Self::RuntimeMissing => "runtime_missing",
            Self::ImageMissing => "image_missing",
            Self::CliMissing => "cli_missing",
            Self::AuthRequired => "auth_required",
            Self::DaemonDown => "daemon_down",
            Self::Timeout => "timeout",
            Self::OutOfMemory => "out_of_memory",
            Self::OutOfProcesses => "out_of_processes",
            Self::Quota => "quota",
            Self::ModelOverloaded => "model_overloaded",
            Self::Network => "network",
            Self::AgentError => "agent_error",
            Self::BudgetExceeded => "budget_exceeded",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        })
    }
}

/// Why a run failed, and what one can do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of failure.
    pub class: FailureClass,
    /// What happened, in one sentence.
    pub message: PlainText,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<PlainText>,
    /// When the provider said to come back, counted from the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<Seconds>,
}

impl Failure {
    /// A failure with nothing but its class and its sentence.
    pub fn new(class: FailureClass, message: impl Into<PlainText>) -> Self {
        let message = message.into().truncated(MAX_MESSAGE_BYTES);
        Self { class, message, remedy: None, retry_after_seconds: None }
    }

    /// The same, with the remedy.
    pub fn with_remedy(mut self, remedy: impl Into<PlainText>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The same, with the provider's word on when to come back.
    pub fn with_retry_after(mut self, seconds: Option<Seconds>) -> Self {
        self.retry_after_seconds = seconds;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::{Disposition, FailureClass};

    #[test]
    fn the_printed_name_is_the_stored_name() {
        for class in FailureClass::ALL {
            assert_eq!(serde_json::to_string(&class).unwrap(), format!("\"{class}\""));
        }
    }

    #[test]
    fn what_only_a_person_can_mend_is_never_retried() {
        for class in [FailureClass::Refused, FailureClass::AuthRequired, FailureClass::CliMissing] {
            assert_eq!(class.disposition(), Disposition::Terminal);
        }
    }

    #[test]
    fn statuses_become_classes() {
        for (status, class) in [
            (401, FailureClass::AuthRequired),
            (403, FailureClass::AuthRequired),
            (429, FailureClass::Quota),
            (500, FailureClass::ModelOverloaded),
            (529, FailureClass::ModelOverloaded),
            (400, FailureClass::AgentError),
        ] {
            assert_eq!(FailureClass::of_http_status(status), class, "{status}");
        }
    }
}
