//! What can be asked of an installation: by the command line, by the API and by the pages, here or far away.
//!
//! One trait, two who have it: the installation itself, and [`crate::client::Remote`], which asks a daemon. So a verb of
//! the command line does not know whether its daemon is on this machine.

use std::path::PathBuf;
use std::time::Duration;

use ringfence_core::backend::Finding;
use ringfence_core::event::{RunResult, Usage};
use ringfence_core::ids::{RunId, TaskId};
use ringfence_core::mode::{ExecutionEnvironment, Mode};
use ringfence_core::record::Record;
use ringfence_core::task::TaskSpec;
use ringfence_egress::Entry as AuditEntry;
use ringfence_store::runs::LogLine;
use ringfence_store::{
    Added, AgentRow, Counts, DeadLetter, Delivery, Filter, NewEvent, ProcessRow, Span, StoredEvent, Task,
    TaskRun,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Why something was not done. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What kind.
    pub kind: RefusalKind,
    /// What a person reads.
    pub message: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// What kind of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// What was asked for makes no sense.
    Invalid,
    /// Nobody knows it.
    NotFound,
    /// It cannot be done as things are.
    Conflict,
    /// It cannot be done just now.
    Unavailable,
    /// Who asks may not.
    Forbidden,
    /// Something went wrong here.
    Internal,
}

impl Refusal {
    /// Of a kind, in words.
    pub fn new(kind: RefusalKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), remedy: None }
    }

    /// The same, with what to do about it.
    pub fn with_remedy(self, remedy: Option<impl Into<String>>) -> Self {
        Self { remedy: remedy.map(Into::into), ..self }
    }
}

impl From<ringfence_store::StoreError> for Refusal {
    fn from(error: ringfence_store::StoreError) -> Self {
        use ringfence_store::StoreError as E;
        let kind = match &error {
            E::NoTask(_) | E::NoDeadLetter(_) => RefusalKind::NotFound,
            E::Spec(_) => RefusalKind::Invalid,
            E::NoSuchDependency(_)
            | E::DependencyEnded { .. }
            | E::KeyTaken { .. }
            | E::Step { .. }
            | E::Awaited(_) => RefusalKind::Conflict,
            E::Busy | E::Full => RefusalKind::Unavailable,
            E::Place { .. } | E::Newer { .. } | E::Damaged { .. } | E::Other(_) => RefusalKind::Internal,
        };
        let remedy = error.remedy();
        Refusal::new(kind, error.to_string()).with_remedy(remedy)
    }
}

/// What came of a question.
pub type Answer<T> = Result<T, Refusal>;

/// How an agent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentStatus {
    /// Has nothing to do.
    Idle,
    /// Works.
    Busy,
    /// Nobody would start it.
    Offline,
}

/// An agent of the settings, or one that had a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    /// How it is.
    pub status: AgentStatus,
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it has to do and has done.
    #[serde(flatten)]
    pub row: AgentRow,
}

/// A run in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// Which.
    pub run: RunId,
    /// How far it has come: `running`, `success`, `failed`, `cancelled`, `lost`, `damaged`.
    pub status: String,
    /// Whose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The class of its failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A run with all that is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunView {
    /// How far it has come.
    pub status: String,
    /// What was asked and what was in force.
    pub record: Record,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RunResult>,
    /// Which task it was for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
}

/// A file that a run changed in a layer of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// From the workspace. What is invisible, steers or is no text is escaped. Empty in a note about all changes.
    pub path: String,
    /// What was done: `added`, `changed`, `deleted` and the like.
    pub change: String,
    /// The lines, in the unified form, where the file is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    /// Why there are no lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omitted: Option<String>,
    /// Why it cannot be applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict: Option<String>,
}

/// The dead letters, and the webhooks that were given up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Letters {
    /// Tasks.
    pub tasks: Vec<DeadLetter>,
    /// Webhooks.
    pub webhooks: Vec<Delivery>,
}

/// What was used, by some key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// The day, agent, model, task or run.
    pub key: String,
    /// How much.
    pub usage: Usage,
}

/// By what to sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum UsedBy {
    Day,
    Agent,
    Model,
    Task,
    Run,
}

impl UsedBy {
    /// Their names.
    pub const NAMES: [&'static str; 5] = ["day", "agent", "model", "task", "run"];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// The one of this name.
    pub fn parse(text: &str) -> Option<Self> {
        let all = [Self::Day, Self::Agent, Self::Model, Self::Task, Self::Run];
        all.into_iter().find(|by| by.as_str() == text)
    }
}

/// A setting with its value and where it comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Such as `sandbox.mode`.
    pub key: String,
    /// Its value; what is nobody's business is masked.
    pub value: Value,
    /// Whether it is.
    pub masked: bool,
    /// Which layer won.
    pub layer: String,
    /// What it is for.
    pub doc: String,
    /// What may stand there.
    pub expects: String,
    /// The values that may stand there, where they can be counted.
    pub choices: Vec<String>,
    /// The variables that set it, the documents' names among them.
    pub variables: Vec<String>,
    /// What the running system was told, if anything.
    pub system: Option<Value>,
}

/// What becomes of a change of the settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SettingsChanged {
    /// What to know about it.
    pub warnings: Vec<String>,
    /// Each with what it was and what it is.
    pub changes: Vec<SettingChange>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SettingChange {
    /// Which.
    pub key: String,
    /// What it was.
    pub before: Value,
    /// What it is.
    pub after: Value,
}

/// What came of the wish to start or stop a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessAnswer {
    /// How it is now.
    pub process: ProcessRow,
    /// It ran before.
    pub already_running: bool,
    /// It is not started here, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// What came of stopping all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoppedAll {
    /// These were stopped.
    pub stopped: Vec<String>,
    /// These did not run.
    pub skipped: Vec<String>,
    /// So many runs were ended.
    pub cancelled_runs: u64,
    /// So many tasks went back into the queue.
    pub requeued_tasks: u64,
}

/// The daemon, the queue and where tasks run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The process of the daemon, if it runs.
    pub daemon: Option<u32>,
    /// Where it listens.
    pub address: Option<String>,
    /// Where tasks run.
    pub execution_environment: Option<ExecutionEnvironment>,
    /// In which mode.
    pub mode: Option<Mode>,
    /// Why the settings cannot be read.
    pub settings_error: Option<String>,
    /// How many tasks there are of each state.
    pub tasks: Counts,
    /// The processes.
    pub processes: Vec<ProcessRow>,
}

/// A mode, as a person chooses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeView {
    /// Its name.
    pub mode: Mode,
    /// What stands between the agent and the machine.
    pub boundary: String,
    /// What it needs.
    pub needs: String,
    /// Whether this program can run agents in it.
    pub available: bool,
    /// Whether the settings use it.
    pub in_use: bool,
    /// Each promise that it keeps here, and by what.
    pub promises: Vec<(String, String)>,
    /// What to change on this machine for more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// What the doctor found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// Nothing that the settings depend on is broken.
    pub passed: bool,
    /// The mode in use.
    pub mode: Mode,
    /// Mode by mode.
    pub modes: Vec<FindingGroup>,
    /// Agent CLI by agent CLI.
    pub agent_clis: Vec<FindingGroup>,
}

/// Findings of one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingGroup {
    /// Of what.
    pub name: String,
    /// Whether the settings depend on it.
    pub required: bool,
    /// What was found.
    pub findings: Vec<Finding>,
}

/// Whether an agent CLI has a login where tasks run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoginCheck {
    /// Which agent CLI.
    pub cli: String,
    /// Whether it can be run there.
    pub available: bool,
    /// Whether it has a login that works as far as one can tell. What nobody knows is not.
    pub authenticated: bool,
    /// How the check came out.
    pub class: LoginClass,
    /// When it was made, RFC 3339.
    pub checked_at: String,
    /// Where.
    pub execution_environment: ExecutionEnvironment,
    /// In which mode.
    pub mode: Mode,
    /// What a person reads.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// How a check of a login came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoginClass {
    /// There is a login.
    Ok,
    /// The engine of the mode does not answer, or is not there.
    DaemonUnavailable,
    /// The image is not there.
    ImageMissing,
    /// The image has a name that no engine takes.
    InvalidImageName,
    /// The agent CLI is not there.
    CliMissing,
    /// There is no login.
    LoginRequired,
    /// The login has run out.
    Expired,
    /// It took too long to find out.
    Timeout,
    /// Nobody knows.
    Unknown,
}

/// How long a mode takes for nothing at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModeTiming {
    /// Which.
    pub mode: Mode,
    /// The median, in milliseconds, if it works here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_ms: Option<f64>,
    /// Why it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Told each line of a log; false ends it.
pub type Tell<'a> = dyn FnMut(LogLine) -> bool + 'a;

/// How far something that takes long has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// So many steps are done.
    pub done: u64,
    /// So many there are.
    pub of: u64,
    /// The step that is under way.
    pub what: String,
}

/// Hears of the steps of something that takes long.
pub type Hear<'a> = &'a (dyn Fn(Step) + Sync + 'a);

/// All that can be asked.
pub trait Desk: Send + Sync {
    /// Accepts tasks, all or none.
    fn add(&self, specs: Vec<TaskSpec>) -> Answer<Vec<Added>>;
    /// Tasks, the newest first.
    fn tasks(&self, filter: &Filter) -> Answer<Vec<Task>>;
    /// One task.
    fn task(&self, id: &TaskId) -> Answer<Task>;
    /// How many there are of each state.
    fn counts(&self) -> Answer<Counts>;
    /// What was tried.
    fn runs_of_task(&self, id: &TaskId) -> Answer<Vec<TaskRun>>;
    /// Takes a task out of the queue and ends its run.
    fn cancel(&self, id: &TaskId) -> Answer<Task>;
    /// Puts a task into the queue again.
    fn retry(&self, id: &TaskId) -> Answer<Task>;
    /// Forgets a task that has ended.
    fn forget(&self, id: &TaskId) -> Answer<()>;

    /// The dead letters of tasks that were added before one, the newest first, and the webhooks that were given up.
    fn dead_letters(&self, before: Option<&TaskId>, limit: usize) -> Answer<Letters>;
    /// That of a task.
    fn dead_letter(&self, id: &TaskId) -> Answer<DeadLetter>;
    /// Throws it away.
    fn discard(&self, id: &TaskId) -> Answer<()>;

    /// Events after an id, the oldest first; if there are none yet, waits for one as long as this.
    fn events(&self, after: u64, limit: usize, wait: Duration) -> Answer<Vec<StoredEvent>>;
    /// The last id.
    fn last_event(&self) -> Answer<u64>;

    /// Runs, the newest first, those before one.
    fn runs(&self, before: Option<&RunId>, limit: usize) -> Answer<Vec<RunRow>>;
    /// The run that a person means: its id, the beginning or end of it, or `last`.
    fn run(&self, id: &str) -> Answer<RunView>;
    /// What it reached and what it was denied.
    fn net(&self, id: &RunId) -> Answer<Vec<AuditEntry>>;
    /// Its log, line by line; with `follow` until it is over.
    fn log(&self, id: &RunId, follow: bool, tell: &mut Tell<'_>) -> Answer<()>;

    /// Who there is.
    fn agents(&self) -> Answer<Vec<Agent>>;
    /// What was used.
    fn usage(&self, by: UsedBy) -> Answer<Vec<Used>>;
    /// The daemon and the queue.
    fn status(&self) -> Answer<Status>;

    /// Changes settings of the running system, all or none; `None` takes one back.
    fn change_settings(&self, changes: &[(String, Option<String>)]) -> Answer<SettingsChanged>;

    /// The processes.
    fn processes(&self) -> Answer<Vec<ProcessRow>>;
    /// Starts one.
    fn start_process(&self, name: &str) -> Answer<ProcessAnswer>;
    /// Stops one.
    fn stop_process(&self, name: &str) -> Answer<ProcessAnswer>;
    /// Stops all.
    fn stop_all(&self) -> Answer<StoppedAll>;
    /// The end of what one has said.
    fn process_log(&self, name: &str, lines: usize) -> Answer<String>;
    /// Whether an agent CLI has a login.
    fn login(&self, cli: &str, environment: Option<ExecutionEnvironment>) -> Answer<LoginCheck>;
}

/// An installation on this machine: what only a daemon can ask.
pub trait House: Desk {
    /// Where tasks run now.
    fn environment(&self) -> Answer<ExecutionEnvironment>;
    /// Adds an event.
    fn note(&self, happened: &NewEvent) -> Answer<()>;
    /// Where the log of a run is.
    fn log_file(&self, run: &RunId) -> PathBuf;
    /// Whether nothing more will be written to it.
    fn is_over(&self, run: &RunId) -> bool;
    /// Where the copy of an attachment of a run is, by its place in the list.
    fn attachment(&self, run: &RunId, number: usize) -> Answer<(PathBuf, ringfence_core::event::Attachment)>;
    /// What it wrote in a layer.
    fn diff(&self, id: &RunId, is_wanted: &dyn Fn() -> bool) -> Answer<Vec<FileChange>>;
    /// The last times of the queue: so many spans of so many milliseconds, up to now.
    fn spans(&self, length_ms: u64, count: usize) -> Answer<Vec<Span>>;
    /// The settings.
    fn settings(&self) -> Answer<Vec<Setting>>;
    /// The modes.
    fn modes(&self) -> Answer<Vec<ModeView>>;
    /// How long each mode takes that works here.
    fn compare(&self, hear: Hear<'_>) -> Answer<Vec<ModeTiming>>;
    /// What works on this machine.
    fn doctor(&self, hear: Hear<'_>) -> Answer<DoctorReport>;
    /// What held when every promise of a mode was tried.
    fn probe(&self, mode: Option<Mode>, hear: Hear<'_>) -> Answer<Value>;
    /// The keys that names of settings mean, each with its name.
    fn setting_keys(&self, changes: &[(String, Option<String>)]) -> Answer<Vec<(String, String)>>;
    /// Whether the store can be read and written.
    fn is_ready(&self) -> Answer<()>;
}
