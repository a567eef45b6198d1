//! Errors of the store. After an error, nothing was changed.

use std::path::PathBuf;

use ringfence_core::ids::TaskId;
use ringfence_core::task::{InvalidTaskSpec, StepError, TaskStatus};

/// Error of a store operation.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The task does not exist.
    #[error("there is no task `{0}`")]
    NoTask(String),
    /// A dependency does not exist.
    #[error("the task depends on `{0}`, which does not exist")]
    NoSuchDependency(TaskId),
    /// A dependency ended without success.
    #[error("the task depends on {task}, which is {state}")]
    DependencyEnded {
        /// The dependency.
        task: TaskId,
        /// Its state.
        state: TaskStatus,
    },
    /// The task is invalid.
    #[error(transparent)]
    Spec(#[from] InvalidTaskSpec),
    /// The idempotency key belongs to a different task.
    #[error("the key `{key}` belongs to task {task}, which asks for something else")]
    KeyTaken {
        /// Idempotency key.
        key: String,
        /// Task with this key.
        task: TaskId,
    },
    /// The event is not valid in the state of the task.
    #[error("task {task}: {error}")]
    Step {
        /// The task.
        task: TaskId,
        /// Cause.
        error: StepError,
    },
    /// The task cannot be deleted yet.
    #[error(
        "task {0} cannot be deleted: it has not ended, another task depends on it, or its webhook was not delivered yet"
    )]
    Awaited(TaskId),
    /// The dead letter does not exist.
    #[error("there is no dead letter of `{0}`")]
    NoDeadLetter(String),
    /// The file or its directory cannot be used.
    #[error("{path} cannot be used: {why}")]
    Place {
        /// Where.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Another process held the write lock for too long.
    #[error("timed out waiting for another process to finish writing to the store")]
    Busy,
    /// The disk is full.
    #[error("the disk of the store is full; nothing was changed")]
    Full,
    /// The schema is newer than this version of Ringfence.
    #[error("the store {path} is of version {found}, and this ringfence knows versions up to {known}")]
    Newer {
        /// Where.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest supported version.
        known: u32,
    },
    /// The database is corrupt.
    #[error("the store {path} is damaged: {why}")]
    Damaged {
        /// Where.
        path: PathBuf,
        /// Cause.
        why: String,
    },
    /// Any other error of the database.
    #[error("the store cannot be used: {0}")]
    Other(String),
}

impl StoreError {
    /// Returns what the user can do about it.
    pub fn remedy(&self) -> Option<&'static str> {
        Some(match self {
            StoreError::NoTask(_) => "`ringfence task list` shows all",
            StoreError::NoDeadLetter(_) => "`ringfence dead-letter list` shows all",
            StoreError::NoSuchDependency(_) => "add the tasks in their order",
            StoreError::DependencyEnded { .. } => "retry that task first",
            StoreError::Awaited(_) => "cancel it first; one whose webhook is still to be delivered can wait",
            StoreError::Full => "free some space on the disk of the state directory",
            StoreError::Newer { .. } => "use the newer ringfence that made it, or another RINGFENCE_HOME",
            StoreError::Damaged { .. } => {
                "move the file away to begin anew, or bring back a copy; `sqlite3 FILE .recover` reads what can be read"
            }
            StoreError::Place { .. } => "check the permissions of the state directory",
            StoreError::KeyTaken { .. } => "choose another key, or ask for the same",
            StoreError::Step { error: StepError::TooOften { .. }, .. } => {
                "mend what makes it fail, then add it as a new task"
            }
            StoreError::Busy => "try again; `ringfence status` shows who works",
            StoreError::Spec(_) | StoreError::Step { .. } | StoreError::Other(_) => return None,
        })
    }

    /// Returns whether a later attempt may succeed.
    pub fn is_passing(&self) -> bool {
        matches!(self, StoreError::Busy | StoreError::Full | StoreError::Other(_))
    }
}
