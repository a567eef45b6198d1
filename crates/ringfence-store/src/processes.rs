//! Processes of an installation (dispatcher, workers), as the process manager sees them.

use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::tasks::Now;

/// Status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessStatus {
    /// Never started.
    Idle,
    /// Running.
    Running,
    /// Exited with code 0.
    Completed,
    /// Exited with another code, or by a signal.
    Failed,
    /// Stopped on request.
    Stopped,
}

/// State of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRow {
    /// Name, such as `worker-1`.
    pub name: String,
    /// Desired state: whether the process is to run.
    pub wanted: bool,
    /// Actual state.
    pub status: ProcessStatus,
    /// Process id while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Start time, in milliseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    /// End time, in milliseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_ms: Option<u64>,
    /// Exit code, if it exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Message for the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl ProcessRow {
    /// Returns the state of a process that was never started.
    pub fn idle(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            wanted: false,
            status: ProcessStatus::Idle,
            pid: None,
            started_ms: None,
            finished_ms: None,
            exit_code: None,
            signal: None,
            message: None,
        }
    }
}

/// Stores the processes of an installation.
pub trait Processes {
    /// Returns all processes that were ever started.
    fn processes(&self) -> Result<Vec<ProcessRow>, StoreError>;
    /// Sets the desired state of a process.
    fn want_process(&self, name: &str, wanted: bool, now: Now) -> Result<(), StoreError>;
    /// Stores the state of a process, except for its desired state.
    fn put_process(&self, row: &ProcessRow, now: Now) -> Result<(), StoreError>;
}
