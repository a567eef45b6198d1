//! Processes of an installation: the dispatcher and its kin, as the process manager sees them.

use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::tasks::Now;

/// How a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessStatus {
    /// It was never started.
    Idle,
    /// It runs.
    Running,
    /// It ended by itself, well.
    Completed,
    /// It ended by itself, badly.
    Failed,
    /// It was stopped.
    Stopped,
}

/// What is known of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRow {
    /// Such as `worker-1`.
    pub name: String,
    /// Whether it is meant to run.
    pub wanted: bool,
    /// How it is.
    pub status: ProcessStatus,
    /// Its number, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// When it was started, in milliseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_ms: Option<u64>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// By which signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// What a person should know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl ProcessRow {
    /// One that was never started.
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

/// The processes.
pub trait Processes {
    /// All that were ever started.
    fn processes(&self) -> Result<Vec<ProcessRow>, StoreError>;
    /// Whether one is meant to run. Nothing else says so.
    fn want_process(&self, name: &str, wanted: bool, now: Now) -> Result<(), StoreError>;
    /// Keeps what else is known of one.
    fn put_process(&self, row: &ProcessRow, now: Now) -> Result<(), StoreError>;
}
