//! Events: an append-only log of changes to tasks, processes and settings.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::StoreError;
use crate::tasks::Now;

/// An event before it has an id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewEvent {
    /// Kind, such as `task.added`.
    pub kind: String,
    /// Id of the task, if the event is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Id of the run, if the event is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Further fields, by kind.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

/// An event of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredEvent {
    /// Id; later events have larger ids.
    pub id: u64,
    /// Time, in milliseconds since the epoch.
    pub at_ms: u64,
    /// The event itself.
    #[serde(flatten)]
    pub event: NewEvent,
}

/// The log of events.
pub trait Events {
    /// Appends an event.
    fn note(&self, event: &NewEvent, now: Now) -> Result<(), StoreError>;
    /// Returns the events after an id, oldest first.
    fn events_after(&self, id: u64, limit: usize) -> Result<Vec<StoredEvent>, StoreError>;
    /// Returns the id of the newest event; 0 if there is none.
    fn last_event(&self) -> Result<u64, StoreError>;
}
