//! Tasks and their queue.

use std::collections::BTreeMap;

use ringfence_core::event::{RunResult, RunStatus, Usage};
use ringfence_core::failure::FailureClass;
use ringfence_core::ids::{RunId, TaskId};
use ringfence_core::paths::DirectoryId;
use ringfence_core::task::{Lifecycle, RetryRule, Role, TaskEvent, TaskSpec, TaskStatus, UnixSeconds};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;

/// Current time, passed in by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Milliseconds since the epoch.
    pub ms: u64,
}

impl Now {
    /// Seconds since the epoch.
    pub fn seconds(self) -> UnixSeconds {
        self.ms / 1000
    }
}

/// A task to be added.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// Specification of the task.
    pub spec: TaskSpec,
    /// Lane. Tasks of the same lane run one at a time.
    pub lane: String,
    /// Device and inode of the task's directory.
    pub workspace: DirectoryId,
}

/// Outcome of adding a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Added {
    /// Id of the task.
    pub task: TaskId,
    /// Whether a task with the same idempotency key existed already.
    pub existed: bool,
}

/// A stored task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Id of the task.
    pub id: TaskId,
    /// Specification of the task.
    pub spec: TaskSpec,
    /// Lane.
    pub lane: String,
    /// Device and inode of the task's directory when the task was added or last retried. A task without one is not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<DirectoryId>,
    /// Lifecycle of the task.
    #[serde(flatten)]
    pub lifecycle: Lifecycle,
    /// Dependencies that are not done yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<TaskId>,
    /// Time when the task was added, in milliseconds since the epoch.
    pub created_ms: u64,
    /// Time of the last change, in milliseconds since the epoch.
    pub changed_ms: u64,
    /// Result of the last run that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RunResult>,
}

/// A run of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskRun {
    /// Id of the run.
    pub run: RunId,
    /// Id of its task.
    pub task: TaskId,
    /// Fencing token of its lease.
    pub fence: u64,
    /// Process that claimed the task.
    pub owner: String,
    /// Start time, in milliseconds since the epoch.
    pub started_ms: u64,
    /// End time, in milliseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// Outcome; `None` while the run is active, if its runner was lost, and if the task was released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RunStatus>,
    /// Failure class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<FailureClass>,
    /// Tokens and cost.
    pub usage: Usage,
}

/// An active lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// The task.
    pub task: TaskId,
    /// The run.
    pub run: RunId,
    /// Fencing token.
    pub fence: u64,
    /// Expiry, by the clock of the process that claimed the task. Each heartbeat extends it.
    pub until: UnixSeconds,
    /// Process that claimed the task.
    pub owner: String,
}

/// A request for tasks.
pub struct Claim<'a> {
    /// Name of the claiming process.
    pub owner: &'a str,
    /// Roles whose tasks are claimed.
    pub roles: &'a [Role],
    /// Maximum number of tasks.
    pub max_tasks: usize,
    /// Maximum number of running tasks in the queue; 0 means no limit.
    pub max_concurrency: u32,
    /// Expiry of the leases.
    pub until: UnixSeconds,
    /// Returns whether the claiming process can run a task.
    pub accepts: &'a dyn Fn(&TaskSpec) -> bool,
    /// Creates the id of a run and locks it; `None` ends the claim.
    pub new_run_id: &'a dyn Fn() -> Option<RunId>,
}

/// Settings that decide how tasks continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskPolicy {
    /// Retry policy.
    pub retry: RetryRule,
    /// URL of a webhook for the end of every task, in addition to the task's own.
    pub webhook: Option<String>,
}

/// A change of a task.
pub struct Change<'a> {
    /// The task.
    pub task: &'a TaskId,
    /// The event.
    pub event: TaskEvent,
    /// Settings that apply.
    pub rules: &'a TaskPolicy,
    /// Random value that spreads retries.
    pub jitter: u8,
    /// Result, if a run ended.
    pub result: Option<&'a RunResult>,
    /// New device and inode of the task's directory, set by a retry.
    pub workspace: Option<DirectoryId>,
}

/// Outcome of a change.
#[derive(Debug, Clone, PartialEq)]
pub struct Changed {
    /// The task after the change.
    pub task: Task,
    /// Lifecycle before the change.
    pub before: Lifecycle,
    /// Tasks that became dead letters, including this one.
    pub died: Vec<TaskId>,
}

/// Filter and page of a list of tasks.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// States; all if empty.
    pub states: Vec<TaskStatus>,
    /// Role.
    pub role: Option<Role>,
    /// Agent.
    pub agent: Option<String>,
    /// Only tasks that were added before this one.
    pub before: Option<TaskId>,
    /// Maximum number of tasks.
    pub limit: usize,
}

/// Number of tasks by state.
pub type Counts = BTreeMap<TaskStatus, u64>;

/// Tasks and usage of an agent. Tasks without an agent count for their role.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentRow {
    /// Name of the agent, or of the role.
    pub agent: String,
    /// Number of its tasks by state.
    pub tasks: Counts,
    /// Time of the last change of one of them, in milliseconds since the epoch.
    pub changed_ms: u64,
    /// Usage of its runs.
    pub usage: Usage,
}

/// Outcomes of the runs that ended in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Start of the interval, in milliseconds since the epoch.
    pub from_ms: u64,
    /// Runs that succeeded.
    pub succeeded: u64,
    /// Runs that failed.
    pub failed: u64,
    /// Runs that were cancelled.
    pub cancelled: u64,
    /// Usage of these runs.
    pub usage: Usage,
}

/// Stores tasks.
pub trait Tasks {
    /// Adds tasks in one transaction, which is durable when this returns.
    fn add(&self, new: &[NewTask], now: Now) -> Result<Vec<Added>, StoreError>;
    /// Returns a task.
    fn task(&self, id: &TaskId) -> Result<Task, StoreError>;
    /// Returns tasks, newest first.
    fn tasks(&self, filter: &Filter) -> Result<Vec<Task>, StoreError>;
    /// Counts the tasks by state.
    fn counts(&self) -> Result<Counts, StoreError>;
    /// Returns the runs of a task, oldest first.
    fn runs_of_task(&self, id: &TaskId) -> Result<Vec<TaskRun>, StoreError>;
    /// Returns the agents that have tasks.
    fn agents(&self) -> Result<Vec<AgentRow>, StoreError>;
    /// Maps runs to their tasks.
    fn tasks_of_runs(&self) -> Result<BTreeMap<RunId, TaskId>, StoreError>;
    /// Leases ready tasks: by priority, then by the lane that was served longest ago, then by age.
    fn claim(&self, claim: &Claim<'_>, now: Now) -> Result<Vec<Task>, StoreError>;
    /// Applies an event to a task, and its consequences to the tasks that depend on it.
    fn change(&self, change: &Change<'_>, now: Now) -> Result<Changed, StoreError>;
    /// Returns the runs of cancelled tasks whose sandboxes may still exist. Their lanes are blocked until `cleanup_done`.
    fn pending_cleanup(&self) -> Result<Vec<(TaskId, RunId)>, StoreError>;
    /// Records that the sandbox of a cancelled run is removed.
    fn cleanup_done(&self, task: &TaskId, run: &RunId, now: Now) -> Result<(), StoreError>;
    /// Returns the active leases.
    fn leases(&self) -> Result<Vec<Lease>, StoreError>;
    /// Returns the earliest time at which a waiting task becomes ready; it may be in the past.
    fn next_due(&self) -> Result<Option<UnixSeconds>, StoreError>;
    /// Returns whether the path of the store still names the file that was opened.
    fn is_current(&self) -> bool;
    /// Deletes a task that has ended and that no other task depends on.
    fn delete(&self, id: &TaskId, now: Now) -> Result<(), StoreError>;
    /// Returns the outcomes of runs in the last `count` intervals of `length_ms`, oldest first.
    fn spans(&self, length_ms: u64, count: usize, now: Now) -> Result<Vec<Span>, StoreError>;
    /// Returns the task of a run.
    fn task_of(&self, run: &RunId) -> Result<Option<TaskId>, StoreError>;
    /// Deletes tasks that ended before a time, and returns their number; with `dry_run`, only counts them.
    fn purge(&self, before_ms: u64, dry_run: bool) -> Result<u64, StoreError>;
}
