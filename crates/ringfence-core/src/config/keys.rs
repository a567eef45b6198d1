//! The settings' own keys. The sections of the modes are in their backends' folders.

use super::key::{Key, Kind, ProjectRule};
use crate::mode::Mode;

const fn key(path: &'static str, kind: Kind, default: Option<&'static str>, doc: &'static str) -> Key {
    Key { path, kind, default, env: &[], project: ProjectRule::Never, doc }
}

impl Key {
    /// The same row, open to a project's file in this way.
    pub const fn project(mut self, rule: ProjectRule) -> Self {
        self.project = rule;
        self
    }

    /// The same row, set by these variables.
    pub const fn env(mut self, names: &'static [&'static str]) -> Self {
        self.env = names;
        self
    }

    /// A row for a table of one's own.
    pub const fn new(
        path: &'static str,
        kind: Kind,
        default: Option<&'static str>,
        doc: &'static str,
    ) -> Self {
        key(path, kind, default, doc)
    }
}

const WORKSPACE_KINDS: &[&str] = &["bind", "overlay", "worktree", "clone"];
const CLIS: &[&str] = &["claude", "codex", "opencode", "demo", "command"];
/// The names of agent CLIs, and those that the documents give them.
const EXECUTORS: &[&str] = ROLE_EXECUTORS.split_at(1).1;
const ROLE_EXECUTORS: &[&str] = &[
    "inherit",
    "claude_code",
    "codex",
    "opencode",
    "claude",
    "claude-code",
    "claudecode",
    "codex-cli",
    "codex_cli",
    "demo",
    "command",
];
const PROVIDERS: &[&str] = &["anthropic", "openai", "opencode"];

/// The keys that do not belong to one mode.
pub const KEYS: &[Key] = &[
    key("sandbox.mode", Kind::Choice(&Mode::NAMES), Some("\"native\""), "where agents run")
        .env(&["RINGFENCE_MODE"])
        .project(ProjectRule::LeaveFirst),
    key("sandbox.policy", Kind::PolicyChoice, None, "what runs may do: a preset or a policy file")
        .env(&["RINGFENCE_POLICY"])
        .project(ProjectRule::Later),
    key("sandbox.timeout_seconds", Kind::Seconds, Some("600"), "how long a run may take")
        .project(ProjectRule::Lower),
    key(
        "sandbox.patience_seconds",
        Kind::Seconds,
        Some("60"),
        "how long an agent CLI may go on retrying without progress",
    )
    .project(ProjectRule::Lower),
    key("sandbox.max_attempts", Kind::Whole(1, 100), Some("3"), "how often a task is tried")
        .project(ProjectRule::Lower),
    key("sandbox.max_concurrency", Kind::Whole(0, 10_000), Some("0"), "how many runs at once; 0 is no bound"),
    key(
        "sandbox.env_allowlist",
        Kind::EnvNames,
        Some(r#"["ANTHROPIC_API_KEY", "OPENAI_API_KEY"]"#),
        "variables that runs may see",
    )
    .project(ProjectRule::Subset),
    key(
        "sandbox.path_mapping_mode",
        Kind::Choice(&["mapped", "same-path"]),
        Some("\"mapped\""),
        "where the workspace appears inside: at /workspace or at its own path",
    ),
    key(
        "sandbox.workspace",
        Kind::Choice(WORKSPACE_KINDS),
        Some("\"bind\""),
        "the directory itself, a layer over it, a git worktree or a clone",
    ),
    key(
        "sandbox.warm",
        Kind::Whole(0, 64),
        Some("0"),
        "so many containers are kept ready for the workspace in use, each for one run, until nobody has asked for ten minutes",
    ),
    key(
        "sandbox.loopback_env",
        Kind::EnvNames,
        Some("[]"),
        "more variables that hold addresses of services of this machine, besides DATABASE_URL, REDIS_URL and all that end in _URL or _URI",
    ),
    key(
        "broker.connect_to",
        Kind::Texts,
        Some("[]"),
        "hosts whose address is given and not asked for, such as `example.com:443=10.0.0.5:8443`",
    )
    .env(&["RINGFENCE_CONNECT_TO"]),
    key("broker.ca_file", Kind::Path, None, "certificates of more authorities that hosts may be known by")
        .env(&["RINGFENCE_CA_FILE"]),
    key(
        "broker.allow",
        Kind::Hosts,
        Some("[]"),
        "hosts that runs may reach besides those that their policy names",
    ),
    key(
        "broker.credentials",
        Kind::Texts,
        Some("[]"),
        "more credentials: `github`, or `HOST HEADER: VALUE` with `{env:NAME}`, `{file:PATH}`, `{command:WORDS}` or `{keyring:SERVICE/ACCOUNT}` in it",
    ),
    key(
        "broker.login_gateways",
        Kind::Hosts,
        Some("[]"),
        "hosts of gateways (`base_url`) to which the login of a Claude or ChatGPT subscription may be sent; to others only a key is",
    ),
    key(
        "broker.model_headers",
        Kind::Texts,
        Some("[]"),
        "more request headers that go to a model beside its credential, such as `x-portkey-config` or `helicone-*`; those of the agent CLIs go, all others are removed",
    ),
    key("broker.prices_file", Kind::Path, None, "what tokens cost, in the form of the built-in list")
        .env(&["RINGFENCE_PRICES_FILE"]),
    key(
        "broker.claude_dir",
        Kind::Path,
        None,
        "where the login of Claude Code is, in the place of ~/.claude",
    )
    .env(&["RINGFENCE_CLAUDE_AUTH_DIR", "CLAUDE_AUTH_DIR"]),
    key(
        "broker.claude_config_dir",
        Kind::Path,
        None,
        "what Claude Code keeps besides, in the place of ~/.config/claude",
    )
    .env(&["RINGFENCE_CLAUDE_CONFIG_DIR", "CLAUDE_CONFIG_DIR"]),
    key("broker.codex_dir", Kind::Path, None, "where the login of Codex is, in the place of ~/.codex")
        .env(&["RINGFENCE_CODEX_AUTH_DIR", "CODEX_AUTH_DIR"]),
    key(
        "queue.dispatcher",
        Kind::Flag,
        Some("true"),
        "whether the daemon takes tasks when it is started for the first time",
    )
    .env(&["RINGFENCE_DISPATCHER_ENABLED", "DISPATCHER_ENABLED"]),
    key(
        "queue.retry_seconds",
        Kind::Seconds,
        Some("10"),
        "how long a task waits after its first failure; twice as long after each further one",
    ),
    key("queue.retry_max_seconds", Kind::Seconds, Some("600"), "how long it waits at most"),
    key(
        "queue.quota_wait_seconds",
        Kind::Seconds,
        Some("900"),
        "how long it waits for a provider's limit whose reset nobody told",
    ),
    key(
        "queue.max_quota_waits",
        Kind::Whole(1, 1000),
        Some("50"),
        "number of waits for a provider's limit after which a task is a dead letter",
    ),
    key(
        "queue.max_quota_wait_seconds",
        Kind::Seconds,
        Some("691200"),
        "longest time that a task waits for a provider's limit, all waits together",
    ),
    key("queue.max_retries", Kind::Whole(0, 100), Some("3"), "how often a person may ask for a task again"),
    key("queue.webhook", Kind::Url, None, "who is told of the end of every task").env(&["RINGFENCE_WEBHOOK"]),
    key(
        "queue.webhook_secret_file",
        Kind::Path,
        None,
        "holds the secret that webhooks are signed with; RINGFENCE_WEBHOOK_SECRET holds it as well",
    ),
    key(
        "queue.keep_days",
        Kind::Whole(0, 3650),
        Some("30"),
        "how long tasks and runs are kept after their end; 0 keeps them",
    ),
    key(
        "queue.keep_size",
        Kind::Memory,
        Some("\"10g\""),
        "how much the logs and attachments of all runs may take on disk; beyond it the largest are trimmed",
    ),
    key(
        "queue.log_format",
        Kind::Choice(&["text", "json"]),
        Some("\"text\""),
        "how the daemon writes its log",
    )
    .env(&["RINGFENCE_LOG_FORMAT"]),
    key("queue.log_days", Kind::Whole(1, 365), Some("14"), "how many days of log are kept"),
    key(
        "server.listen",
        Kind::Text,
        Some("\"127.0.0.1:4301\""),
        "where the daemon answers besides its Unix socket: an address with a port, or `none`",
    )
    .env(&["RINGFENCE_LISTEN"]),
    key(
        "server.rate_limit",
        Kind::Whole(0, 1_000_000),
        Some("1200"),
        "how often one client may ask the daemon in a minute; 0 is no bound",
    ),
    key("executor.default", Kind::Choice(EXECUTORS), None, "which agent CLI does tasks that name no agent")
        .env(&["RINGFENCE_LLM_EXECUTOR", "LLM_EXECUTOR"]),
    key(
        "executor.worker",
        Kind::Choice(ROLE_EXECUTORS),
        Some("\"inherit\""),
        "the same for the role worker; inherit is the default one",
    )
    .env(&["RINGFENCE_WORKER_LLM_EXECUTOR", "WORKER_LLM_EXECUTOR"]),
    key("executor.tester", Kind::Choice(ROLE_EXECUTORS), Some("\"inherit\""), "the same for the role tester")
        .env(&["RINGFENCE_TESTER_LLM_EXECUTOR", "TESTER_LLM_EXECUTOR"]),
    key("executor.docser", Kind::Choice(ROLE_EXECUTORS), Some("\"inherit\""), "the same for the role docser")
        .env(&["RINGFENCE_DOCSER_LLM_EXECUTOR", "DOCSER_LLM_EXECUTOR"]),
    key("agents.*.name", Kind::Text, None, "what people call the agent"),
    key(
        "agents.*.provider",
        Kind::Choice(PROVIDERS),
        None,
        "whose model; names the agent CLI unless `cli` does",
    ),
    key("agents.*.cli", Kind::Choice(CLIS), None, "which agent CLI"),
    key("agents.*.command", Kind::Text, None, "with cli `command`: what to run, in the shell's words"),
    key("agents.*.model", Kind::Text, None, "which model; the CLI's own choice if not given"),
    key("agents.*.base_url", Kind::Url, None, "another address of the model's server"),
    key("agents.*.working_directory", Kind::Path, None, "where the agent works"),
    key("agents.*.sandbox_mode", Kind::Choice(&Mode::NAMES), None, "where this agent runs"),
    key("agents.*.policy", Kind::PolicyChoice, None, "what this agent may do: a preset or a policy file"),
    key("trusted_projects", Kind::Paths, Some("[]"), "directories whose own settings may also loosen"),
];
