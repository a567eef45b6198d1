//! Events: what happened to tasks, processes and settings, in order, never changed afterwards.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::StoreError;
use crate::tasks::Now;

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Happened {
    /// Such as `task.added`.
    pub kind: String,
    /// To which task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// In which run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// More of it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

/// An event as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Grows by at least one with each.
    pub id: u64,
    /// Milliseconds since the epoch.
    pub at_ms: u64,
    /// What happened.
    #[serde(flatten)]
    pub happened: Happened,
}

/// The log of events.
pub trait Events {
    /// Adds one.
    fn note(&self, happened: &Happened, now: Now) -> Result<(), StoreError>;
    /// Those after an id, the oldest first.
    fn events_after(&self, id: u64, limit: usize) -> Result<Vec<Entry>, StoreError>;
    /// The last id; 0 if there is none.
    fn last_event(&self) -> Result<u64, StoreError>;
}
