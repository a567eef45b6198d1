//! What was asked, what was in force and by what: written for every run before it starts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::capability::{Mechanism, Promise};
use crate::ids::{RunId, SessionId};
use crate::mode::Mode;
use crate::paths::{DirectoryId, PathMapping};
use crate::policy::Policy;

/// The form of the document. It grows when a reader of old records would misread new ones.
pub const RECORD_SCHEMA: u32 = 1;

/// The record of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The form of this document.
    pub schema: u32,
    /// The run.
    pub run: RunId,
    /// When it began, RFC 3339.
    pub started_at: String,
    /// The agent of the settings, or the agent CLI's name.
    pub agent: String,
    /// The agent CLI.
    pub cli: String,
    /// Where.
    pub mode: Mode,
    /// The policy's name.
    pub policy: String,
    /// What was asked.
    pub requested: Policy,
    /// What was in force; the same promises, with what the agent CLI needs added.
    pub effective: Policy,
    /// By what each promise was kept.
    pub mechanisms: BTreeMap<Promise, Mechanism>,
    /// Default limits that this machine cannot enforce, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_enforced: Vec<String>,
    /// Versions of all that took part.
    pub versions: BTreeMap<String, String>,
    /// The workspace outside and inside.
    pub workspace: PathMapping,
    /// The workspace's directory. `diff` and `apply` refuse another one that has its name now.
    pub workspace_id: DirectoryId,
    /// Whether what was written there went to a layer of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub layer: bool,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The names of the variables that it saw. Their values are nobody's business.
    pub env_names: Vec<String>,
    /// The conversation that it continued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<SessionId>,
    /// What a person should know of it.
    pub notices: Vec<String>,
}
