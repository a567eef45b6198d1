//! Tasks: the queue itself.

use std::collections::BTreeMap;

use ringfence_core::event::{RunResult, RunStatus, Usage};
use ringfence_core::failure::FailureClass;
use ringfence_core::ids::{RunId, TaskId};
use ringfence_core::paths::DirectoryId;
use ringfence_core::task::{Incident, Life, RetryRule, Role, StateName, TaskSpec, Time};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;

/// The time, as whoever calls knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Milliseconds since the epoch.
    pub ms: u64,
}

impl Now {
    /// Seconds since the epoch.
    pub fn seconds(self) -> Time {
        self.ms / 1000
    }
}

/// A task as it is added.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// What it asks for.
    pub spec: TaskSpec,
    /// Tasks of the same lane are done one after another.
    pub lane: String,
    /// The directory that it names, as it is now.
    pub workspace: DirectoryId,
}

/// What became of a task that was added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Added {
    /// Its id.
    pub task: TaskId,
    /// Whether it was there already, by its key.
    pub existed: bool,
}

/// A task as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// What it asks for.
    pub spec: TaskSpec,
    /// Its lane.
    pub lane: String,
    /// The directory that it works in, as it was when the task was accepted or last retried; `None` if it was added before
    /// this was kept, and then it is not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<DirectoryId>,
    /// How far it has come.
    #[serde(flatten)]
    pub life: Life,
    /// Tasks that it still waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<TaskId>,
    /// When it was added, in milliseconds since the epoch.
    pub created_ms: u64,
    /// When something last happened to it.
    pub changed_ms: u64,
    /// The result of its last attempt that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RunResult>,
}

/// One attempt at a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// The run.
    pub run: RunId,
    /// Of which task.
    pub task: TaskId,
    /// With which lease.
    pub fence: u64,
    /// Who took it.
    pub owner: String,
    /// When, in milliseconds since the epoch.
    pub started_ms: u64,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// How it ended; `None` while it runs, and for one that vanished or was handed back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RunStatus>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<FailureClass>,
    /// What it used.
    pub usage: Usage,
}

/// A lease that is out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lease {
    /// The task.
    pub task: TaskId,
    /// The attempt.
    pub run: RunId,
    /// Its number.
    pub fence: u64,
    /// Until when, by the clock of who leased it. It changes with every heartbeat.
    pub until: Time,
    /// Who took it.
    pub owner: String,
}

/// Who wants work, and how much.
pub struct Claim<'a> {
    /// Who.
    pub owner: &'a str,
    /// Of which roles.
    pub roles: &'a [Role],
    /// How many at most.
    pub most: usize,
    /// How many may run in all; 0 is no bound.
    pub max_concurrency: u32,
    /// Until when the leases hold.
    pub until: Time,
    /// Whether a task is for this one.
    pub fits: &'a dyn Fn(&TaskSpec) -> bool,
    /// Names the run of a task, and holds it.
    pub name: &'a dyn Fn() -> Option<RunId>,
}

/// The rules by which a task goes on, as the settings have them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Of retries.
    pub retry: RetryRule,
    /// Who is told of every end, besides whom the task names.
    pub webhook: Option<String>,
}

/// Something that happens to a task.
pub struct Change<'a> {
    /// Which.
    pub task: &'a TaskId,
    /// What.
    pub incident: Incident,
    /// By these rules.
    pub rules: &'a Rules,
    /// Spreads retries, from 0 to 255.
    pub jitter: u8,
    /// The result, if a run ended.
    pub result: Option<&'a RunResult>,
    /// The directory that it works in from now on, where a retry has accepted one.
    pub workspace: Option<DirectoryId>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Changed {
    /// The task as it is now.
    pub task: Task,
    /// How it was before.
    pub before: Life,
    /// The tasks that died of it, this one among them.
    pub died: Vec<TaskId>,
}

/// Which tasks to list.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// In one of these states; all, if empty.
    pub states: Vec<StateName>,
    /// Of this role.
    pub role: Option<Role>,
    /// Of this agent.
    pub agent: Option<String>,
    /// Only those that were added before this one.
    pub before: Option<TaskId>,
    /// How many at most.
    pub limit: usize,
}

/// How many tasks there are of each state.
pub type Counts = BTreeMap<StateName, u64>;

/// What an agent has to do and has done. Of who is asked for without a name it is the role's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentRow {
    /// The agent, as tasks name it.
    pub agent: String,
    /// How many of its tasks there are of each state.
    pub tasks: Counts,
    /// When something last happened to one of them, in milliseconds since the epoch.
    pub changed_ms: u64,
    /// What its runs have used.
    pub usage: Usage,
}

/// What came of the runs that ended within some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// When it began, in milliseconds since the epoch.
    pub from_ms: u64,
    /// Runs that succeeded.
    pub succeeded: u64,
    /// Runs that failed.
    pub failed: u64,
    /// Runs that were cancelled.
    pub cancelled: u64,
    /// What they used.
    pub usage: Usage,
}

/// The queue.
pub trait Tasks {
    /// Accepts tasks, all or none. They are on the disk when this returns.
    fn add(&self, new: &[NewTask], now: Now) -> Result<Vec<Added>, StoreError>;
    /// One task.
    fn task(&self, id: &TaskId) -> Result<Task, StoreError>;
    /// Tasks, the newest first.
    fn tasks(&self, filter: &Filter) -> Result<Vec<Task>, StoreError>;
    /// How many there are of each state.
    fn counts(&self) -> Result<Counts, StoreError>;
    /// The attempts at a task, the first one first.
    fn attempts(&self, id: &TaskId) -> Result<Vec<Attempt>, StoreError>;
    /// The agents that tasks were for.
    fn agents(&self) -> Result<Vec<AgentRow>, StoreError>;
    /// Which task each run was for.
    fn tasks_of_runs(&self) -> Result<BTreeMap<RunId, TaskId>, StoreError>;
    /// Takes the tasks whose turn it is.
    fn claim(&self, claim: &Claim<'_>, now: Now) -> Result<Vec<Task>, StoreError>;
    /// Lets something happen to a task, with all that follows from it.
    fn change(&self, change: &Change<'_>, now: Now) -> Result<Changed, StoreError>;
    /// The runs of cancelled tasks of which something may be left. Until they are released their lanes wait.
    fn leaving(&self) -> Result<Vec<(TaskId, RunId)>, StoreError>;
    /// Says that nothing is left of a cancelled run.
    fn release(&self, task: &TaskId, run: &RunId, now: Now) -> Result<(), StoreError>;
    /// The leases that are out.
    fn leases(&self) -> Result<Vec<Lease>, StoreError>;
    /// When something that waits for its time has it; in the past if its time has come.
    fn next_due(&self) -> Result<Option<Time>, StoreError>;
    /// Whether the store is still where it was opened. One that was moved away is nobody else's.
    fn is_there(&self) -> bool;
    /// Forgets one task that has ended, and that nobody waits for.
    fn delete(&self, id: &TaskId, now: Now) -> Result<(), StoreError>;
    /// What came of the runs that ended in spans of this length, so many of them up to now, the oldest first.
    fn spans(&self, length_ms: u64, count: usize, now: Now) -> Result<Vec<Span>, StoreError>;
    /// Which task a run was for.
    fn task_of(&self, run: &RunId) -> Result<Option<TaskId>, StoreError>;
    /// Forgets tasks that ended before this time, the oldest first, and tells how many; with `really` false it only counts.
    fn forget(&self, before_ms: u64, really: bool) -> Result<u64, StoreError>;
}
