//! What a run may do: files, network, environment, credentials, limits.
//!
//! A policy is data that one can print, edit and read back. It promises nothing by itself: `plan::resolve` turns it
//! into promises and refuses where a mode cannot keep them.

mod document;
mod egress;
pub mod home;
mod host;
mod host_rule;
mod preset;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use document::{KEYS, PolicyError, parse};
pub use egress::{Denial, Verdict};
pub use host::{Host, InvalidHost, is_public, parse_authority};
pub use host_rule::{BadHostRule, HostRule};
pub use preset::{Preset, UnknownPreset};

use std::path::{Path, PathBuf};

use globset::{Glob, GlobSet, GlobSetBuilder};

use crate::capability::Promise;
use crate::units::{Cpus, MemorySize, Seconds};

/// Everything that is asked of a run's surroundings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Which files can be reached.
    pub files: Files,
    /// Which hosts can be reached.
    pub network: Network,
    /// Which variables are seen.
    pub env: Env,
    /// How the agent CLI gets its credentials.
    pub credentials: Credentials,
    /// How much of everything.
    pub limits: Limits,
}

/// Which files a run can reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// How far it can reach at all.
    pub reach: Reach,
    /// What it may do in the workspace.
    pub workspace: WorkspaceAccess,
    /// More paths that it may read.
    pub read: Vec<String>,
    /// More paths that it may write.
    pub write: Vec<String>,
    /// Paths that it must never read, wherever they are reachable from.
    pub secrets: Vec<String>,
    /// What it may do with the git directory of the workspace, and of every repository below it.
    pub git: GitAccess,
    /// Paths in the workspace that it must not write, also where they do not exist yet. Those that exist are protected in
    /// every directory below the workspace too.
    pub protect: Vec<String>,
    /// Globs in the workspace that it must not read.
    pub deny: Vec<String>,
}

impl Files {
    /// The paths that are never read, in this home.
    pub fn secret_paths<'a>(&'a self, home: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
        self.secrets.iter().map(|path| match path.strip_prefix("~/") {
            Some(rest) => home.join(rest),
            None => PathBuf::from(path),
        })
    }

    /// The globs that are not read, as one.
    pub fn denied(&self) -> Result<GlobSet, globset::Error> {
        let mut builder = GlobSetBuilder::new();
        for glob in &self.deny {
            builder.add(Glob::new(glob)?);
        }
        builder.build()
    }
}

/// How far a run can reach into the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// All that the person who starts it can reach.
    Host,
    /// The workspace, the system read-only, an empty home.
    Workspace,
}

/// What a run may do in its workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkspaceAccess {
    /// Read and write.
    ReadWrite,
    /// Read alone.
    ReadOnly,
}

/// What a run may do with a git directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GitAccess {
    /// Write a private one. Verified objects and refs are imported when the run is over; configuration and hooks are not.
    Private,
    /// Read it.
    ReadOnly,
    /// Write it: what the run puts into configuration or hooks is executed by git on the host.
    Direct,
}

/// Which hosts a run can reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The rule.
    pub mode: NetworkMode,
    /// With `allow`: the hosts, besides those that the agent CLI needs. Empty allows nothing more.
    pub allow: Vec<HostRule>,
    /// Hosts that are never reached, whatever else is said.
    pub deny: Vec<HostRule>,
    /// Whether a person is asked for a host that is not named.
    pub ask: bool,
    /// Ports of the host's own loopback that are reached at the same ports inside.
    #[serde(default)]
    pub local: Vec<u16>,
}

/// The rule of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// Nothing.
    None,
    /// The hosts that are named.
    Allow,
    /// Everything.
    Open,
}

/// Which variables of the environment a run sees, besides those that every program needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Env {
    /// Names to pass on. Empty passes none.
    pub allow: Vec<String>,
}

/// How the agent CLI gets its credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Credentials {
    /// Placeholders inside; the host puts the real ones on the wire.
    Broker,
    /// The variables and login files of the person, as they are.
    Env,
    /// The login directories, read-only.
    Mount,
    /// None at all.
    None,
}

/// How much a run may take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Wall-clock time.
    pub timeout_seconds: Seconds,
    /// Memory of the whole run.
    pub memory: Option<MemorySize>,
    /// Processors of the whole run.
    pub cpus: Option<Cpus>,
    /// Processes of the whole run.
    pub pids: Option<u32>,
    /// Disk space of the private layers.
    pub disk: Option<MemorySize>,
    /// By how much the file system of the workspace may fill up while the run goes on. `None`: as the engine chooses.
    #[serde(default)]
    pub growth: Option<MemorySize>,
    /// Output on both streams together, and the size of the log that it becomes.
    pub output: MemorySize,
    /// Tokens of the model.
    pub tokens: Option<u64>,
    /// Money, in US dollars.
    pub cost_usd: Option<f64>,
}

impl Policy {
    /// The promises that a mode has to keep for this policy to hold.
    pub fn promises(&self) -> BTreeSet<Promise> {
        let asked = [
            (Promise::FilesConfined, self.files.reach == Reach::Workspace),
            (Promise::HomePrivate, self.files.reach == Reach::Workspace),
            (Promise::WorkspaceReadOnly, self.files.workspace == WorkspaceAccess::ReadOnly),
            (Promise::SecretsUnreadable, !self.files.secrets.is_empty()),
            // Where nothing can be written there is nothing to protect.
            (
                Promise::PathsProtected,
                (!self.files.protect.is_empty() || self.files.git != GitAccess::Direct)
                    && self.files.workspace == WorkspaceAccess::ReadWrite,
            ),
            (Promise::GlobsDenied, !self.files.deny.is_empty()),
            (Promise::ProcessesSeparate, self.files.reach == Reach::Workspace),
            (Promise::PrivilegesDropped, self.files.reach == Reach::Workspace),
            (Promise::NetworkNone, self.reaches_nothing()),
            (Promise::NetworkAllow, self.network.mode != NetworkMode::Open && !self.reaches_nothing()),
            (Promise::EnvAllowList, true),
            (Promise::CredentialsBroker, self.credentials == Credentials::Broker),
            (Promise::CredentialsMount, self.credentials == Credentials::Mount),
            (Promise::Timeout, true),
            (Promise::OutputCap, true),
            (Promise::Memory, self.limits.memory.is_some()),
            (Promise::Cpus, self.limits.cpus.is_some()),
            (Promise::Pids, self.limits.pids.is_some()),
            (Promise::Disk, self.limits.disk.is_some()),
            (Promise::Growth, self.limits.growth.is_some()),
            (Promise::Budget, self.limits.tokens.is_some() || self.limits.cost_usd.is_some()),
        ];
        asked.into_iter().filter(|(_, asked)| *asked).map(|(promise, _)| promise).collect()
    }

    /// Whether there is no host that can be reached. An empty list allows nothing.
    pub fn reaches_nothing(&self) -> bool {
        match self.network.mode {
            _ if !self.network.local.is_empty() => false,
            NetworkMode::None => true,
            NetworkMode::Allow => self.network.allow.is_empty() && !self.network.ask,
            NetworkMode::Open => false,
        }
    }

    /// Names one more host. A policy that named none before becomes one that names this alone.
    pub fn allow_host(&mut self, rule: HostRule) {
        self.network.mode = NetworkMode::Allow;
        self.network.allow.push(rule);
    }
}
