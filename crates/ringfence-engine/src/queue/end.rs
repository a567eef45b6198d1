//! How a run's end becomes the task's.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;

use ringfence_core::event::{RunResult, RunStatus};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::ids::TaskId;
use ringfence_core::task::TaskEvent;
use ringfence_store::{Change, Now, Store, StoreError, Task, TaskPolicy};

use crate::causes::causes;

/// What a result means for the task of a lease. A run that was told to end is given back.
pub fn incident_of(result: &RunResult, fence: u64) -> TaskEvent {
    let unknown = || Failure::new(FailureClass::Unknown, "the run failed and nobody said why");
    match (result.status, &result.failure) {
        (RunStatus::Success, _) => TaskEvent::Succeeded { fence },
        (RunStatus::Cancelled, _) => TaskEvent::Released { fence },
        (RunStatus::Failed, failure) => {
            TaskEvent::Failed { fence, failure: failure.clone().unwrap_or_else(unknown) }
        }
    }
}

/// Writes an end down, with its letter if it is a sad one. What was settled by somebody else meanwhile stays as it is.
pub fn finish(
    store: &dyn Store,
    state: &Path,
    task: &TaskId,
    event: TaskEvent,
    result: Option<&RunResult>,
    rules: &TaskPolicy,
    now: Now,
) -> Result<Option<Task>, StoreError> {
    let change = Change { task, event, rules, jitter: jitter(), result, workspace: None };
    let changed = match store.change(&change, now) {
        Err(StoreError::Step { .. }) => return Ok(None),
        other => other?,
    };
    write_letters(store, state, &changed.died);
    Ok(Some(changed.task))
}

/// Writes the files of letters. Without them the letters are still in the store, and the daemon writes them when it starts.
pub fn write_letters(store: &dyn Store, state: &Path, tasks: &[TaskId]) {
    for task in tasks {
        let letter = store.dead_letter(task).map_err(|error| causes(&error));
        let written = letter.and_then(|letter| letter.write(state).map_err(|error| causes(&error)));
        if let Err(why) = written {
            tracing::warn!(%task, why, "the file of a dead letter cannot be written");
        }
    }
}

/// Anything from 0 to 255.
fn jitter() -> u8 {
    // Every hasher of the standard library starts from fresh random keys.
    RandomState::new().build_hasher().finish().to_le_bytes()[0]
}
