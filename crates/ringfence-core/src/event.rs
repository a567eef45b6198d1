//! What happens during a run, in the same words for every agent CLI.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::ids::{RunId, SessionId};
use crate::mode::Mode;
use crate::text::{PlainJson, PlainText};

/// One line of a run's log, and of `--json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(clippy::large_enum_variant, reason = "there is one result per run, and few events at once")]
pub enum Event {
    /// The run begins; its record is written.
    Started {
        /// The run.
        run: RunId,
        /// The agent CLI.
        cli: String,
        /// Where.
        mode: Mode,
        /// The name of the policy.
        policy: String,
    },
    /// The conversation has this id.
    Session {
        /// What to continue it by.
        session: SessionId,
    },
    /// The agent says something.
    Text {
        /// What it says.
        text: PlainText,
    },
    /// The agent uses a tool.
    ToolUse {
        /// The tool.
        tool: PlainText,
        /// What for.
        input: PlainJson,
    },
    /// A tool answers.
    ToolResult {
        /// The tool, where the CLI tells.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool: Option<PlainText>,
        /// Its answer.
        output: PlainText,
        /// Whether the tool failed.
        is_error: bool,
    },
    /// What has been used so far, in this run.
    Usage {
        /// Tokens and cost.
        #[serde(flatten)]
        usage: Usage,
    },
    /// Something that a person should know.
    Notice {
        /// What.
        message: PlainText,
    },
    /// Lines that are not the CLI's protocol.
    Output {
        /// Where they were written.
        stream: Stream,
        /// The lines, without the last line's end.
        text: PlainText,
    },
    /// The run is over.
    Result(RunResult),
}

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Tokens and cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens read, cached ones left out.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// Tokens read from the provider's cache.
    pub cached_tokens: u64,
    /// US dollars, where the CLI tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

/// No run uses more tokens, or dollars, than this: larger numbers are forged.
const MAX_TOKENS: u64 = 1 << 40;
const MAX_COST_USD: f64 = 1e9;

impl Usage {
    /// What a CLI tells, or told when it was stored, within what a run can use: any process of a run can print numbers. A cost that
    /// is negative or no number is left out.
    #[must_use]
    pub fn bounded(self) -> Usage {
        Usage {
            input_tokens: self.input_tokens.min(MAX_TOKENS),
            output_tokens: self.output_tokens.min(MAX_TOKENS),
            cached_tokens: self.cached_tokens.min(MAX_TOKENS),
            cost_usd: self
                .cost_usd
                .filter(|cost| cost.is_finite() && *cost >= 0.0)
                .map(|cost| cost.min(MAX_COST_USD)),
        }
    }

    /// Both together.
    pub fn plus(self, other: Usage) -> Usage {
        Usage {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cached_tokens: self.cached_tokens.saturating_add(other.cached_tokens),
            cost_usd: match (self.cost_usd, other.cost_usd) {
                (None, None) => None,
                (first, second) => Some(first.unwrap_or(0.0) + second.unwrap_or(0.0)),
            },
        }
    }

    /// What has come since `before`, for a CLI that counts a whole conversation.
    pub fn since(self, before: Usage) -> Usage {
        Usage {
            input_tokens: self.input_tokens.saturating_sub(before.input_tokens),
            output_tokens: self.output_tokens.saturating_sub(before.output_tokens),
            cached_tokens: self.cached_tokens.saturating_sub(before.cached_tokens),
            cost_usd: self.cost_usd.map(|cost| (cost - before.cost_usd.unwrap_or(0.0)).max(0.0)),
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// The run.
    pub run: RunId,
    /// Its end.
    pub status: RunStatus,
    /// The exit code of `ringfence` for it.
    pub exit_code: u8,
    /// The agent's last word.
    pub text: PlainText,
    /// The files that it named in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// What to continue the conversation by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Tokens and cost of this run.
    pub usage: Usage,
    /// Tokens and cost of the whole conversation, where the CLI counts that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_usage: Option<Usage>,
    /// What the broker saw on the wire, model by model.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metered: BTreeMap<PlainText, Usage>,
    /// Wall-clock time.
    pub duration_ms: u64,
    /// Processes that were still there when the agent CLI had ended, and were ended.
    pub leftover_processes: u32,
    /// Processes of the run that could not be ended.
    pub surviving_processes: u32,
    /// Refs of the workspace's repositories that the run changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub git_refs: Vec<GitRef>,
    /// Files that the run made or changed and that another program executes later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub executed_later: Vec<ExecutedLater>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

impl RunResult {
    /// What the broker saw on the wire, of all models. The agent CLI has no part in it.
    pub fn metered_total(&self) -> Usage {
        self.metered.values().fold(Usage::default(), |sum, usage| sum.plus(*usage))
    }
}

/// A ref of a git repository that a run changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitRef {
    /// The git directory.
    pub repository: PathBuf,
    /// The name of the ref.
    pub name: String,
    /// The object that it named before, if it existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The object that the run gave it, unless it deleted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The ref that names that object, if its own had changed meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_as: Option<String>,
    /// The ref that names the object that it named before, if the run deleted the ref or moved it to other commits than later
    /// ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_kept_as: Option<String>,
}

/// A file that another program executes later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutedLater {
    /// Its path, from the workspace.
    pub path: PlainText,
    /// What executes it, in a short sentence.
    pub why: String,
    /// The ref whose commits hold it, if a commit of the run changed it; `index` if the run only staged it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<String>,
    /// Other refs whose commits hold it too, at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_git_refs: Vec<String>,
}

/// A file that an agent named in its last word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Where, as the agent named it.
    pub path: PathBuf,
    /// In bytes.
    pub size: u64,
    /// By its name.
    pub media_type: String,
    /// In hexadecimal digits.
    pub sha256: String,
    /// Where it was copied to on the host, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<PathBuf>,
}

impl Attachment {
    /// What stands above the files that could not be attached, at the end of the text.
    pub const WARNING: &str = "[Warning: Some files could not be found for attachment]";
}

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum RunStatus {
    Success,
    Failed,
    Cancelled,
}
