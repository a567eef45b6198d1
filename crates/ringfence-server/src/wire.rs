//! The shapes of the API: what the OpenAPI document says, and nothing of what goes on inside.
//!
//! They are written as the command line's `--json` writes them, so that a script reads both alike. What the documents of the
//! origin name (`checkedAt`, `requiresRestart`, …) keeps its name.

use std::collections::BTreeMap;

use ringfence_core::{event, failure, task};
use ringfence_egress::Entry as AuditEntry;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::desk;

/// Tokens and cost.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Usage {
    /// Tokens read, cached ones left out.
    pub(crate) input_tokens: u64,
    /// Tokens written.
    pub(crate) output_tokens: u64,
    /// Tokens read from the provider's cache.
    pub(crate) cached_tokens: u64,
    /// US dollars, where they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cost_usd: Option<f64>,
}

impl From<event::Usage> for Usage {
    fn from(usage: event::Usage) -> Self {
        let event::Usage { input_tokens, output_tokens, cached_tokens, cost_usd } = usage;
        Self { input_tokens, output_tokens, cached_tokens, cost_usd }
    }
}

/// Why a run failed.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Failure {
    /// What kind: it decides what happens next.
    #[schema(example = "auth_required")]
    pub(crate) class: String,
    /// What happened.
    pub(crate) message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
    /// When the provider said to come back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_seconds: Option<u64>,
}

impl From<failure::Failure> for Failure {
    fn from(failure: failure::Failure) -> Self {
        Self {
            class: failure.class.to_string(),
            message: failure.message.into(),
            remedy: failure.remedy.map(Into::into),
            retry_after_seconds: failure.retry_after_seconds.map(|time| time.duration().as_secs()),
        }
    }
}

/// Where a task stands.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TaskStatus {
    Queued,
    Running,
    Blocked,
    Done,
    Failed,
    Dead,
    Cancelled,
}

impl From<task::TaskStatus> for TaskStatus {
    fn from(name: task::TaskStatus) -> Self {
        match name {
            task::TaskStatus::Queued => Self::Queued,
            task::TaskStatus::Running => Self::Running,
            task::TaskStatus::Blocked => Self::Blocked,
            task::TaskStatus::Done => Self::Done,
            task::TaskStatus::Failed => Self::Failed,
            task::TaskStatus::Dead => Self::Dead,
            task::TaskStatus::Cancelled => Self::Cancelled,
        }
    }
}

/// Who does a task.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    #[default]
    Worker,
    Tester,
    Docser,
}

impl From<Role> for task::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Worker => Self::Worker,
            Role::Tester => Self::Tester,
            Role::Docser => Self::Docser,
        }
    }
}

/// What a task asks for. All that is left out is up to the agent and the settings.
///
/// It is read as [`task::TaskSpec`]; this is how it looks. It may promise more than is accepted (an agent has to exist), never
/// less: what it rules out is refused. `null` is the same as nothing.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskSpec {
    /// What to do. It may be empty where there is a `command`.
    #[schema(max_length = 131_008, pattern = r"^[^\x00]*$")]
    prompt: String,
    /// An agent of the settings, or an agent CLI; else the one of the role.
    agent: Option<String>,
    /// Who does it.
    #[schema(default = "worker")]
    #[serde(default)]
    role: Role,
    /// The larger, the sooner.
    #[schema(default = 0)]
    #[serde(default)]
    priority: i32,
    /// Tasks of one lane are done one after another.
    #[schema(min_length = 1, max_length = 200, pattern = r"^\S+$")]
    lane: Option<String>,
    /// Tasks that have to be done before.
    #[serde(default)]
    after: Vec<String>,
    /// Two tasks with the same key are one.
    #[schema(min_length = 1, max_length = 200, pattern = r"^\S+$")]
    key: Option<String>,
    /// Not before this time, in seconds since the epoch.
    #[schema(maximum = 253_402_300_799_u64)]
    not_before: Option<u64>,
    /// Where to work: an absolute path on the daemon's machine.
    #[schema(pattern = r"^/")]
    directory: Option<String>,
    /// What the workspace is made of.
    workspace: Option<WorkspaceKind>,
    /// Where it runs.
    mode: Option<Mode>,
    /// What it may do: a preset, or the path of a policy file.
    policy: Option<String>,
    /// Hosts that it may reach besides, such as `example.org`, `*.example.org` or `example.org:8443`.
    #[serde(default)]
    allow: Vec<String>,
    /// Ports of the daemon's machine that it may reach.
    #[schema(minimum = 1, maximum = 65_535)]
    #[serde(default)]
    allow_local: Vec<u16>,
    /// Names of variables that it may see, with the values that the daemon has.
    #[serde(default)]
    env: Vec<String>,
    /// With which model.
    #[schema(min_length = 1, max_length = 200, pattern = r"^\S+$")]
    model: Option<String>,
    /// At which address.
    base_url: Option<String>,
    /// With the agent CLI `command`: what to run, in the shell's words.
    command: Option<String>,
    /// How long an attempt may take, in seconds.
    #[schema(minimum = 1, maximum = 31_536_000)]
    timeout: Option<u64>,
    /// How much memory: a whole number of bytes, or with `k`, `m` or `g` of more.
    #[schema(example = "512m")]
    memory: Option<String>,
    /// How many processors.
    cpus: Option<TextOrNumber>,
    /// How many processes.
    #[schema(format = Int64, minimum = 1, maximum = 4_294_967_295_u32)]
    pids: Option<u32>,
    /// How often it is tried.
    #[schema(minimum = 1, maximum = 100)]
    max_attempts: Option<u32>,
    /// Who is told of its end.
    #[schema(pattern = r"^https?://")]
    webhook: Option<String>,
}

/// A number, also as a text.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum TextOrNumber {
    Text(String),
    Number(f64),
}

/// What a workspace is made of.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WorkspaceKind {
    Bind,
    Overlay,
    Worktree,
    Clone,
}

/// Where an agent runs.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    Host,
    Native,
    Docker,
    Podman,
    Apple,
    Sbx,
    Microvm,
    Incus,
    Fly,
    Kubernetes,
}

impl From<Mode> for ringfence_core::mode::Mode {
    fn from(mode: Mode) -> Self {
        Self::ALL[mode as usize]
    }
}

/// The switch of a whole installation.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Environment {
    Host,
    Sandbox,
}

impl From<Environment> for ringfence_core::mode::ExecutionEnvironment {
    fn from(environment: Environment) -> Self {
        match environment {
            Environment::Host => Self::Host,
            Environment::Sandbox => Self::Sandbox,
        }
    }
}

/// A task as it is kept.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Task {
    /// Its number.
    #[schema(example = "42")]
    pub(crate) id: String,
    /// What it asks for.
    #[schema(value_type = Object)]
    pub(crate) spec: task::TaskSpec,
    /// Tasks of the same lane are done one after another.
    pub(crate) lane: String,
    /// The directory that it works in, as it was when the task was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workspace: Option<DirectoryId>,
    /// Where it stands.
    pub(crate) state: TaskStatus,
    /// While it runs: the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<String>,
    /// While it runs: until when its lease holds, in seconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lease_until: Option<u64>,
    /// While it is queued: not before this time, in seconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) not_before: Option<u64>,
    /// While it is blocked: until this time, in seconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<u64>,
    /// How often it was tried since somebody last asked for it.
    pub(crate) attempts: u32,
    /// Number of lost runners in that time.
    pub(crate) runner_losses: u32,
    /// How often somebody asked for it again.
    pub(crate) retries: u32,
    /// How often a provider's limit stopped it.
    pub(crate) blocks: u32,
    /// How long it has waited for such limits, in seconds.
    pub(crate) blocked_seconds: u64,
    /// The number of the newest lease.
    pub(crate) fence: u64,
    /// The failures so far, the newest last.
    pub(crate) failures: Vec<Failure>,
    /// Tasks that it still waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) waits_for: Vec<String>,
    /// When it was added, in milliseconds since the epoch.
    pub(crate) created_ms: u64,
    /// When something last happened to it.
    pub(crate) changed_ms: u64,
    /// The result of its last attempt that ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<RunResult>,
}

/// The identity of a directory.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct DirectoryId {
    /// Number of the device.
    pub(crate) device: u64,
    /// Number of the inode on the device.
    pub(crate) inode: u64,
}

impl From<ringfence_core::paths::DirectoryId> for DirectoryId {
    fn from(id: ringfence_core::paths::DirectoryId) -> Self {
        Self { device: id.device, inode: id.inode }
    }
}

impl From<ringfence_store::Task> for Task {
    fn from(kept: ringfence_store::Task) -> Self {
        let lifecycle = kept.lifecycle;
        let state = lifecycle.state.name().into();
        let (mut run, mut lease, mut not_before, mut blocked) = (None, None, None, None);
        match lifecycle.state {
            task::State::Queued { not_before: time } => not_before = Some(time),
            task::State::Running { run: which, lease_until } => {
                run = Some(which.to_string());
                lease = Some(lease_until);
            }
            task::State::Blocked { until } => blocked = Some(until),
            task::State::Done | task::State::Failed | task::State::Dead | task::State::Cancelled => {}
        }
        Self {
            id: kept.id.to_string(),
            spec: kept.spec,
            lane: kept.lane,
            workspace: kept.workspace.map(Into::into),
            state,
            run,
            lease_until: lease,
            not_before,
            until: blocked,
            attempts: lifecycle.attempts,
            runner_losses: lifecycle.runner_losses,
            retries: lifecycle.retries,
            blocks: lifecycle.blocks,
            blocked_seconds: lifecycle.blocked_seconds,
            fence: lifecycle.fence,
            failures: lifecycle.failures.into_iter().map(Into::into).collect(),
            waits_for: kept.waits_for.iter().map(ToString::to_string).collect(),
            created_ms: kept.created_ms,
            changed_ms: kept.changed_ms,
            result: kept.result.map(Into::into),
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RunStatus {
    Success,
    Failed,
    Cancelled,
}

impl From<event::RunStatus> for RunStatus {
    fn from(status: event::RunStatus) -> Self {
        match status {
            event::RunStatus::Success => Self::Success,
            event::RunStatus::Failed => Self::Failed,
            event::RunStatus::Cancelled => Self::Cancelled,
        }
    }
}

/// How a run ended, with all that came of it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct RunResult {
    /// The run.
    pub(crate) run: String,
    /// Its end.
    pub(crate) status: RunStatus,
    /// The exit code of `ringfence` for it.
    pub(crate) exit_code: u8,
    /// The agent's last word.
    pub(crate) text: String,
    /// The files that it named in it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) attachments: Vec<Attachment>,
    /// What to continue the conversation by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<String>,
    /// Tokens and cost of this run.
    pub(crate) usage: Usage,
    /// Tokens and cost of the whole conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_usage: Option<Usage>,
    /// What the broker saw on the wire, model by model.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metered: BTreeMap<String, Usage>,
    /// Wall-clock time.
    pub(crate) duration_ms: u64,
    /// Processes that were still there at the end, and were ended.
    pub(crate) leftover_processes: u32,
    /// Processes that could not be ended.
    pub(crate) surviving_processes: u32,
    /// Refs of the workspace's repositories that the run changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) git_refs: Vec<GitRef>,
    /// Files that the run made or changed and that another program executes later.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) executed_later: Vec<ExecutedLater>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<Failure>,
}

/// A ref of a git repository that a run changed.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct GitRef {
    /// The git directory.
    pub(crate) repository: String,
    /// The name of the ref.
    pub(crate) name: String,
    /// The object that it named before, if it existed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
    /// The object that the run gave it, unless it deleted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<String>,
    /// The ref that names that object, if its own had changed meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kept_as: Option<String>,
    /// The ref that names the object that it named before, if the run deleted the ref or moved it to other commits than later
    /// ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from_kept_as: Option<String>,
}

impl From<event::GitRef> for GitRef {
    fn from(git_ref: event::GitRef) -> Self {
        let event::GitRef { repository, name, from, to, kept_as, from_kept_as } = git_ref;
        Self { repository: repository.display().to_string(), name, from, to, kept_as, from_kept_as }
    }
}

/// A file that another program executes later.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ExecutedLater {
    /// Its path, from the workspace.
    pub(crate) path: String,
    /// What executes it.
    pub(crate) why: String,
    /// The ref whose commits hold it, if a commit of the run changed it; `index` if the run only staged it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) git_ref: Option<String>,
    /// Other refs whose commits hold it too, at most 8.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) more_git_refs: Vec<String>,
}

impl From<event::ExecutedLater> for ExecutedLater {
    fn from(file: event::ExecutedLater) -> Self {
        Self {
            path: file.path.to_string(),
            why: file.why,
            git_ref: file.git_ref,
            more_git_refs: file.more_git_refs,
        }
    }
}

impl From<event::RunResult> for RunResult {
    fn from(result: event::RunResult) -> Self {
        Self {
            run: result.run.to_string(),
            status: result.status.into(),
            exit_code: result.exit_code,
            text: result.text.into(),
            attachments: result.attachments.into_iter().map(Into::into).collect(),
            session: result.session.map(|session| session.to_string()),
            usage: result.usage.into(),
            session_usage: result.session_usage.map(Into::into),
            metered: result.metered.into_iter().map(|(model, usage)| (model.into(), usage.into())).collect(),
            duration_ms: result.duration_ms,
            leftover_processes: result.leftover_processes,
            surviving_processes: result.surviving_processes,
            git_refs: result.git_refs.into_iter().map(Into::into).collect(),
            executed_later: result.executed_later.into_iter().map(Into::into).collect(),
            failure: result.failure.map(Into::into),
        }
    }
}

/// A file that an agent named in its last word.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Attachment {
    /// Where, as the agent named it.
    pub(crate) path: String,
    /// In bytes.
    pub(crate) size: u64,
    /// By its name.
    pub(crate) media_type: String,
    /// In hexadecimal digits.
    pub(crate) sha256: String,
    /// Where it was copied to on the daemon's machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) copy: Option<String>,
}

impl From<event::Attachment> for Attachment {
    fn from(attachment: event::Attachment) -> Self {
        let event::Attachment { path, size, media_type, sha256, copy } = attachment;
        let copy = copy.map(|copy| copy.display().to_string());
        Self { path: path.display().to_string(), size, media_type, sha256, copy }
    }
}

/// One attempt at a task.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TaskRun {
    /// The run.
    pub(crate) run: String,
    /// Of which task.
    pub(crate) task: String,
    /// With which lease.
    pub(crate) fence: u64,
    /// Who took it.
    pub(crate) owner: String,
    /// When, in milliseconds since the epoch.
    pub(crate) started_ms: u64,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended_ms: Option<u64>,
    /// How it ended; left out while it runs, and if its runner was lost, and if the task was released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<RunStatus>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) class: Option<String>,
    /// What it used.
    pub(crate) usage: Usage,
}

impl From<ringfence_store::TaskRun> for TaskRun {
    fn from(attempt: ringfence_store::TaskRun) -> Self {
        Self {
            run: attempt.run.to_string(),
            task: attempt.task.to_string(),
            fence: attempt.fence,
            owner: attempt.owner,
            started_ms: attempt.started_ms,
            ended_ms: attempt.ended_ms,
            status: attempt.status.map(Into::into),
            class: attempt.class.map(|class| class.to_string()),
            usage: attempt.usage.into(),
        }
    }
}

/// A task that ended without being done.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct DeadLetter {
    /// The task.
    pub(crate) task: Task,
    /// When it died, in milliseconds since the epoch.
    pub(crate) at_ms: u64,
    /// Why, in the end.
    pub(crate) failure: Failure,
    /// What was tried.
    pub(crate) runs: Vec<TaskRun>,
}

impl From<ringfence_store::DeadLetter> for DeadLetter {
    fn from(letter: ringfence_store::DeadLetter) -> Self {
        Self {
            task: letter.task.into(),
            at_ms: letter.at_ms,
            failure: letter.failure.into(),
            runs: letter.runs.into_iter().map(Into::into).collect(),
        }
    }
}

/// A webhook that was given up.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Delivery {
    /// The same for every try.
    pub(crate) id: u64,
    /// Of which task.
    pub(crate) task: String,
    /// At which address.
    pub(crate) url: String,
    /// What was to be told.
    pub(crate) body: String,
    /// How far it has come.
    pub(crate) state: String,
    /// How often it was tried.
    pub(crate) attempts: u32,
    /// When it was to be tried next, in seconds since the epoch.
    pub(crate) due: u64,
    /// What went wrong last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl From<ringfence_store::Delivery> for Delivery {
    fn from(delivery: ringfence_store::Delivery) -> Self {
        Self {
            id: delivery.id,
            task: delivery.task.to_string(),
            url: ringfence_core::config::shown_url(&delivery.url),
            body: delivery.body,
            state: delivery.state.as_str().to_owned(),
            attempts: delivery.attempts,
            due: delivery.due,
            error: delivery.error,
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Event {
    /// Grows by at least one with each.
    pub(crate) id: u64,
    /// Milliseconds since the epoch.
    pub(crate) at_ms: u64,
    /// Such as `task.added`.
    pub(crate) kind: String,
    /// To which task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) task: Option<String>,
    /// In which run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<String>,
    /// More of it.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(crate) data: Value,
}

impl From<ringfence_store::StoredEvent> for Event {
    fn from(entry: ringfence_store::StoredEvent) -> Self {
        let ringfence_store::NewEvent { kind, task, run, data } = entry.event;
        Self { id: entry.id, at_ms: entry.at_ms, kind, task, run, data }
    }
}

/// An agent and what it does.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Agent {
    /// `idle`, `busy` or `offline`.
    pub(crate) status: AgentStatus,
    /// What people call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// As tasks name it.
    pub(crate) agent: String,
    /// How many of its tasks there are of each state.
    pub(crate) tasks: BTreeMap<String, u64>,
    /// When something last happened to one of them, in milliseconds since the epoch.
    pub(crate) changed_ms: u64,
    /// What its runs have used.
    pub(crate) usage: Usage,
}

/// How an agent is.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AgentStatus {
    Idle,
    Busy,
    Offline,
}

impl From<desk::Agent> for Agent {
    fn from(agent: desk::Agent) -> Self {
        let status = match agent.status {
            desk::AgentStatus::Idle => AgentStatus::Idle,
            desk::AgentStatus::Busy => AgentStatus::Busy,
            desk::AgentStatus::Offline => AgentStatus::Offline,
        };
        Self {
            status,
            name: agent.name,
            agent: agent.row.agent,
            tasks: counts(&agent.row.tasks),
            changed_ms: agent.row.changed_ms,
            usage: agent.row.usage.into(),
        }
    }
}

/// Counts by the names of the states.
pub(crate) fn counts(counts: &ringfence_store::Counts) -> BTreeMap<String, u64> {
    counts.iter().map(|(state, count)| (state.to_string(), *count)).collect()
}

/// A wish of a run to reach somebody, and what came of it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct NetEntry {
    /// Milliseconds since the epoch, at its end.
    pub(crate) at_ms: u64,
    /// `allow`, `deny`, `block` or `error`.
    pub(crate) decision: String,
    /// The rule that decided.
    pub(crate) rule: String,
    /// The host.
    pub(crate) host: String,
    /// The port.
    pub(crate) port: u16,
    /// By what way: `tunnel`, `tls`, `http`.
    pub(crate) way: String,
    /// The method, where requests are seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<String>,
    /// The path without its query, where requests are seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    /// The answer, where requests are seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    /// Bytes that left.
    pub(crate) sent: u64,
    /// Bytes that came.
    pub(crate) received: u64,
    /// How long it took.
    pub(crate) duration_ms: u64,
    /// The credential that was used, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credential: Option<String>,
    /// Names of headers that were removed from the request, each once for a run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) removed_headers: Vec<String>,
    /// For how many requests it stands, where the audit only counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<u64>,
}

impl From<AuditEntry> for NetEntry {
    fn from(entry: AuditEntry) -> Self {
        Self {
            at_ms: entry.at_ms,
            decision: format!("{:?}", entry.decision).to_lowercase(),
            rule: entry.rule,
            host: entry.host,
            port: entry.port,
            way: entry.way,
            method: entry.method,
            path: entry.path,
            status: entry.status,
            sent: entry.sent,
            received: entry.received,
            duration_ms: entry.duration_ms,
            credential: entry.credential,
            removed_headers: entry.removed_headers,
            count: entry.count,
        }
    }
}

/// A process of the installation.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Process {
    /// Such as `worker-1`.
    pub(crate) name: String,
    /// What people read.
    pub(crate) label: String,
    /// What it does.
    pub(crate) description: String,
    /// `Core` or `Workers`.
    pub(crate) group: String,
    /// `service` or `worker`.
    pub(crate) kind: String,
    /// Whether it can be stopped.
    pub(crate) supports_stop: bool,
    /// Whether it is meant to run.
    pub(crate) wanted: bool,
    /// How it is.
    pub(crate) status: ProcessStatus,
    /// When it was started, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started_at: Option<String>,
    /// When it ended, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finished_at: Option<String>,
    /// Its number, while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    /// By which signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<i32>,
    /// What a person should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
}

/// How a process is.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ProcessStatus {
    Idle,
    Running,
    Completed,
    Failed,
    Stopped,
}

impl From<ringfence_store::ProcessStatus> for ProcessStatus {
    fn from(status: ringfence_store::ProcessStatus) -> Self {
        use ringfence_store::ProcessStatus as S;
        match status {
            S::Idle => Self::Idle,
            S::Running => Self::Running,
            S::Completed => Self::Completed,
            S::Failed => Self::Failed,
            S::Stopped => Self::Stopped,
        }
    }
}

impl From<ringfence_store::ProcessRow> for Process {
    fn from(row: ringfence_store::ProcessRow) -> Self {
        let resident = row.name.split_once('-').filter(|_| !row.name.starts_with("dispatcher"));
        let (label, description, group, kind) = match resident {
            Some((role, number)) => (
                format!("{} {number}", capital(role)),
                format!("takes tasks of the role {role}, on the host"),
                "Workers",
                "worker",
            ),
            None => (
                capital(&row.name),
                "takes tasks in their turn and starts a run for each".to_owned(),
                "Core",
                "service",
            ),
        };
        Self {
            label,
            description,
            group: group.to_owned(),
            kind: kind.to_owned(),
            supports_stop: true,
            wanted: row.wanted,
            status: row.status.into(),
            started_at: row.started_ms.map(time),
            finished_at: row.finished_ms.map(time),
            pid: row.pid,
            exit_code: row.exit_code,
            signal: row.signal,
            message: row.message,
            name: row.name,
        }
    }
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
}

/// A time as RFC 3339 has it.
pub(crate) fn time(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(ms).map(|time| time.to_string()).unwrap_or_default()
}

/// A value as people read it.
pub(crate) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A text as a part of an address.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
