//! Why the store did not do what it was asked. Nothing was changed then.

use std::path::PathBuf;

use ringfence_core::ids::TaskId;
use ringfence_core::task::{BadSpec, StateName, StepError};

/// Why nothing was changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Nobody knows the task.
    #[error("there is no task `{0}`")]
    NoTask(String),
    /// What it waits for is not there.
    #[error("the task waits for `{0}`, which is not there")]
    NoSuchBefore(TaskId),
    /// What it waits for will never be done.
    #[error("the task waits for {task}, which is {state}")]
    NeverDone {
        /// Which.
        task: TaskId,
        /// How it ended.
        state: StateName,
    },
    /// The task cannot be accepted.
    #[error(transparent)]
    Spec(#[from] BadSpec),
    /// The key stands for another task.
    #[error("the key `{key}` belongs to task {task}, which asks for something else")]
    KeyTaken {
        /// The key.
        key: String,
        /// Its task.
        task: TaskId,
    },
    /// That cannot happen to the task now.
    #[error("task {task}: {error}")]
    Step {
        /// Which.
        task: TaskId,
        /// Why.
        error: StepError,
    },
    /// It cannot be forgotten yet.
    #[error("task {0} cannot be deleted: it has not ended, or somebody still waits for it")]
    Awaited(TaskId),
    /// There is no such letter.
    #[error("there is no dead letter of `{0}`")]
    NoLetter(String),
    /// There is no place.
    #[error("{path} cannot be used: {why}")]
    Place {
        /// Where.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Somebody else writes, and does not stop.
    #[error("the store is in use by somebody else for too long")]
    Busy,
    /// There is no space.
    #[error("the disk of the store is full; nothing was changed")]
    Full,
    /// It was made by a later version.
    #[error("the store {path} is of version {found}, and this ringfence knows versions up to {known}")]
    Newer {
        /// Where.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// It is not what it was.
    #[error("the store {path} is damaged: {why}")]
    Damaged {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Anything else that the database says.
    #[error("the store cannot be used: {0}")]
    Other(String),
}

impl StoreError {
    /// What to do about it.
    pub fn remedy(&self) -> Option<&'static str> {
        Some(match self {
            StoreError::NoTask(_) => "`ringfence task list` shows all",
            StoreError::NoLetter(_) => "`ringfence dead-letter list` shows all",
            StoreError::NoSuchBefore(_) => "add the tasks in their order",
            StoreError::NeverDone { .. } => "retry that task first",
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

    /// Whether it may be over in a while.
    pub fn is_passing(&self) -> bool {
        matches!(self, StoreError::Busy | StoreError::Full | StoreError::Other(_))
    }
}
