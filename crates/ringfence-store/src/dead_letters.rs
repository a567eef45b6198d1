//! Dead letters: tasks that ended without being done.
//!
//! The row is what counts. The file `queue/dead-letter/<task>.json` is written from it, and again if it is not there.

use std::fs;
use std::path::{Path, PathBuf};

use ringfence_core::failure::Failure;
use ringfence_core::ids::TaskId;
use serde::{Deserialize, Serialize};

use crate::atomic::{self, WriteError};
use crate::error::StoreError;
use crate::tasks::{Attempt, Task};

/// A task that ended without being done, with all that is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The task.
    pub task: Task,
    /// When it died, in milliseconds since the epoch.
    pub at_ms: u64,
    /// Why, in the end.
    pub failure: Failure,
    /// What was tried.
    pub attempts: Vec<Attempt>,
}

impl DeadLetter {
    /// Where the letters of an installation are.
    pub fn directory(state: &Path) -> PathBuf {
        state.join("queue").join("dead-letter")
    }

    /// Where the letter of a task is.
    pub fn file(state: &Path, task: &TaskId) -> PathBuf {
        Self::directory(state).join(format!("{task}.json"))
    }

    /// Writes it where people look for it.
    pub fn write(&self, state: &Path) -> Result<(), WriteError> {
        let file = Self::file(state, &self.task.id);
        let directory = Self::directory(state);
        atomic::private_dir(&directory).map_err(|source| WriteError::new(&directory, source))?;
        let text = serde_json::to_vec_pretty(self).map_err(|error| WriteError::new(&file, error.into()))?;
        atomic::write(&file, &text)
    }

    /// Takes it away. One that is not there is as good.
    pub fn remove(state: &Path, task: &TaskId) {
        let _ = fs::remove_file(Self::file(state, task));
    }
}

/// The dead letters.
pub trait DeadLetters {
    /// Those of tasks that were added before one, the newest first.
    fn letters(&self, before: Option<&TaskId>, limit: usize) -> Result<Vec<DeadLetter>, StoreError>;
    /// That of a task.
    fn letter(&self, task: &TaskId) -> Result<DeadLetter, StoreError>;
    /// Throws it away. The task stays dead.
    fn discard(&self, task: &TaskId) -> Result<(), StoreError>;
}
