//! Dead letters: tasks that ended without success.
//!
//! The row in the store is authoritative. The file `queue/dead-letter/<task>.json` is a copy, and is written again if it is missing.

use std::fs;
use std::path::{Path, PathBuf};

use ringfence_core::failure::Failure;
use ringfence_core::ids::TaskId;
use serde::{Deserialize, Serialize};

use crate::atomic::{self, WriteError};
use crate::error::StoreError;
use crate::tasks::{Task, TaskRun};

/// A task that ended without success.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The task.
    pub task: Task,
    /// Time of the dead letter, in milliseconds since the epoch.
    pub at_ms: u64,
    /// The last failure.
    pub failure: Failure,
    /// Runs of the task, oldest first.
    pub runs: Vec<TaskRun>,
}

impl DeadLetter {
    /// Returns the directory of dead-letter files.
    pub fn directory(state: &Path) -> PathBuf {
        state.join("queue").join("dead-letter")
    }

    /// Returns the dead-letter file of a task.
    pub fn file(state: &Path, task: &TaskId) -> PathBuf {
        Self::directory(state).join(format!("{task}.json"))
    }

    /// Writes the dead-letter file.
    pub fn write(&self, state: &Path) -> Result<(), WriteError> {
        let file = Self::file(state, &self.task.id);
        let directory = Self::directory(state);
        atomic::private_dir(&directory).map_err(|source| WriteError::new(&directory, source))?;
        let text = serde_json::to_vec_pretty(self).map_err(|error| WriteError::new(&file, error.into()))?;
        atomic::write(&file, &text)
    }

    /// Removes the dead-letter file of a task, if it exists.
    pub fn remove(state: &Path, task: &TaskId) {
        let _ = fs::remove_file(Self::file(state, task));
    }
}

/// Stores dead letters.
pub trait DeadLetters {
    /// Returns the dead letters of tasks added before `before`, newest first.
    fn dead_letters(&self, before: Option<&TaskId>, limit: usize) -> Result<Vec<DeadLetter>, StoreError>;
    /// Returns the dead letter of a task.
    fn dead_letter(&self, task: &TaskId) -> Result<DeadLetter, StoreError>;
    /// Deletes a dead letter. The task stays dead.
    fn discard(&self, task: &TaskId) -> Result<(), StoreError>;
}
