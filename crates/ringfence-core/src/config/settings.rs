//! Resolved settings: every question answered, nothing left to look up.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::key::is_path_like;
use crate::ids::AgentId;
use crate::mode::Mode;
use crate::paths::PathMappingMode;
use crate::policy::{HostRule, Preset};
use crate::task::{RetryRule, Role};
use crate::units::{MemorySize, Seconds};

/// All settings of an installation.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Settings {
    /// How runs are isolated.
    pub sandbox: SandboxSettings,
    /// How the broker reaches hosts.
    pub broker: BrokerSettings,
    /// How tasks go through the queue.
    pub queue: QueueSettings,
    /// How the daemon answers.
    pub server: ServerSettings,
    /// Who does tasks that name no agent.
    pub executor: ExecutorSettings,
    /// The named agents.
    #[serde(default)]
    pub agents: BTreeMap<AgentId, AgentSettings>,
    /// Directories whose own settings may also loosen.
    pub trusted_projects: Vec<PathBuf>,
}

/// Settings that do not fit the table they were checked against. Only a mistake in the table can cause it.
#[derive(Debug, thiserror::Error)]
#[error("the settings do not fit together")]
pub struct SettingsError(#[from] pub(super) serde_json::Error);

/// How the daemon answers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ServerSettings {
    /// Where, besides its Unix socket: an address with a port, or `none`.
    pub listen: String,
    /// How often one client may ask in a minute; 0 is no bound.
    pub rate_limit: u32,
}

/// How tasks go through the queue.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct QueueSettings {
    /// Whether the daemon takes tasks when it is started for the first time.
    pub dispatcher: bool,
    /// How long a task waits after its first failure.
    pub retry_seconds: Seconds,
    /// How long it waits at most.
    pub retry_max_seconds: Seconds,
    /// How long it waits for a limit whose reset nobody told.
    pub quota_wait_seconds: Seconds,
    /// Number of waits for a provider's limit after which a task is a dead letter.
    pub max_quota_waits: u32,
    /// Longest time that a task waits for a provider's limit, all waits together.
    pub max_quota_wait_seconds: Seconds,
    /// How often a person may ask for it again.
    pub max_retries: u32,
    /// Who is told of every end.
    pub webhook: Option<String>,
    /// Holds the secret that webhooks are signed with.
    pub webhook_secret_file: Option<PathBuf>,
    /// How long tasks and runs are kept; 0 keeps them.
    pub keep_days: u32,
    /// How much runs may take in all.
    pub keep_size: MemorySize,
    /// How the daemon writes its log.
    pub log_format: LogFormat,
    /// How many days of log are kept.
    pub log_days: usize,
}

impl SandboxSettings {
    /// By which rule failed tasks are tried again.
    pub fn retry_rule(&self, queue: &QueueSettings) -> RetryRule {
        RetryRule {
            max_attempts: self.max_attempts,
            max_retries: queue.max_retries,
            first_wait: queue.retry_seconds.duration(),
            longest_wait: queue.retry_max_seconds.duration(),
            quota_wait: queue.quota_wait_seconds.duration(),
            max_blocks: queue.max_quota_waits,
            max_blocked: queue.max_quota_wait_seconds.duration(),
            ..RetryRule::DEFAULT
        }
    }
}

/// How a log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs, one object a line.
    Json,
}

/// Who does tasks that name no agent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ExecutorSettings {
    /// Where nothing else is said.
    pub default: Option<String>,
    /// For the role worker.
    pub worker: String,
    /// For the role tester.
    pub tester: String,
    /// For the role docser.
    pub docser: String,
}

impl ExecutorSettings {
    /// The agent CLI of a role, if one is named.
    pub fn of(&self, role: Role) -> Option<&str> {
        let own = match role {
            Role::Worker => &self.worker,
            Role::Tester => &self.tester,
            Role::Docser => &self.docser,
        };
        let named = if own == "inherit" { self.default.as_deref() } else { Some(own.as_str()) };
        Some(match named? {
            "claude_code" | "claude-code" | "claudecode" => "claude",
            "codex-cli" | "codex_cli" => "codex",
            other => other,
        })
    }
}

/// How the broker reaches hosts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BrokerSettings {
    /// Hosts whose address is given, each as `host:port=address:port`.
    pub connect_to: Vec<String>,
    /// Certificates of more authorities.
    pub ca_file: Option<PathBuf>,
    /// Hosts that runs may reach besides those that their policy names.
    pub allow: Vec<HostRule>,
    /// Credentials that a person has named, as they are written.
    pub credentials: Vec<String>,
    /// Hosts of gateways (`base_url`) to which the login of a subscription may be sent.
    pub login_gateways: Vec<HostRule>,
    /// Request headers that go to a model beside its credential, besides those of the agent CLIs: names, or `x-name-*`.
    pub model_headers: Vec<String>,
    /// What tokens cost.
    pub prices_file: Option<PathBuf>,
    /// Where the login of Claude Code is, in the place of `~/.claude`.
    pub claude_dir: Option<PathBuf>,
    /// Its settings, in the place of `~/.config/claude`.
    pub claude_config_dir: Option<PathBuf>,
    /// Where the login of Codex is, in the place of `~/.codex`.
    pub codex_dir: Option<PathBuf>,
}

/// How runs are isolated.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct SandboxSettings {
    /// Where agents run.
    pub mode: Mode,
    /// What they may do; the mode's default preset if nothing is said.
    pub policy: Option<PolicyChoice>,
    /// How long a run may take.
    pub timeout_seconds: Seconds,
    /// How long an agent CLI may go on retrying without progress.
    pub patience_seconds: Seconds,
    /// How often a task is tried.
    pub max_attempts: u32,
    /// How many runs at once; 0 is no bound.
    pub max_concurrency: u32,
    /// Variables that runs may see.
    pub env_allowlist: Vec<String>,
    /// Where the workspace appears inside.
    pub path_mapping_mode: PathMappingMode,
    /// What the workspace is made of.
    pub workspace: WorkspaceKind,
    /// How many containers are kept ready for a workspace.
    pub warm: u32,
    /// More variables that hold addresses of services of the host.
    pub loopback_env: Vec<String>,
    /// The sections of the modes, each in its backend's own terms.
    #[serde(flatten)]
    pub sections: BTreeMap<String, Value>,
}

impl SandboxSettings {
    /// A mode's own section.
    pub fn section(&self, mode: Mode) -> Option<&Value> {
        self.sections.get(mode.as_str())
    }
}

/// What the workspace is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkspaceKind {
    /// The directory itself.
    Bind,
    /// A layer over it that can be applied or discarded.
    Overlay,
    /// A git worktree.
    Worktree,
    /// A clone.
    Clone,
}

impl WorkspaceKind {
    /// All kinds, with the names that people write.
    pub const ALL: [(&'static str, WorkspaceKind); 4] = [
        ("bind", Self::Bind),
        ("overlay", Self::Overlay),
        ("worktree", Self::Worktree),
        ("clone", Self::Clone),
    ];
}

impl fmt::Display for WorkspaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, kind)| kind == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

/// A preset or a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PolicyChoice {
    /// One of the presets.
    Preset(Preset),
    /// A policy file.
    File(PathBuf),
}

impl TryFrom<String> for PolicyChoice {
    type Error = crate::policy::UnknownPreset;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        if is_path_like(&text) { Ok(Self::File(text.into())) } else { text.parse().map(Self::Preset) }
    }
}

impl From<PolicyChoice> for String {
    fn from(choice: PolicyChoice) -> String {
        match choice {
            PolicyChoice::Preset(preset) => preset.to_string(),
            PolicyChoice::File(path) => path.display().to_string(),
        }
    }
}

/// Whose model an agent uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "names of companies and products")]
pub enum Provider {
    Anthropic,
    Openai,
    Opencode,
}

impl Provider {
    /// The agent CLI that belongs to the provider.
    pub fn cli(self) -> &'static str {
        match self {
            Provider::Anthropic => "claude",
            Provider::Openai => "codex",
            Provider::Opencode => "opencode",
        }
    }
}

/// A named agent. What is `None` is left to the installation or to the agent CLI.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct AgentSettings {
    /// What people call it.
    pub name: Option<String>,
    /// Whose model.
    pub provider: Option<Provider>,
    /// Which agent CLI.
    pub cli: Option<String>,
    /// With the agent CLI `command`: what to run.
    pub command: Option<String>,
    /// Which model.
    pub model: Option<String>,
    /// Another address of the model's server.
    pub base_url: Option<String>,
    /// Where it works.
    pub working_directory: Option<PathBuf>,
    /// Where it runs.
    pub sandbox_mode: Option<Mode>,
    /// What it may do.
    pub policy: Option<PolicyChoice>,
}

impl AgentSettings {
    /// The agent CLI that it names, itself or by its provider.
    pub fn cli_name(&self) -> Option<&str> {
        self.cli.as_deref().or(self.provider.map(Provider::cli))
    }
}
