//! Promises, and by which mechanism a mode keeps them on this machine.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// One thing that a policy can ask of a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    /// Nothing outside of the workspace and the named paths can be written; the system is read-only.
    FilesConfined,
    /// The home directory is an empty private one.
    HomePrivate,
    /// The workspace cannot be written.
    WorkspaceReadOnly,
    /// What is written in the workspace goes to a layer of its own.
    WorkspaceUntouched,
    /// Secrets cannot be read.
    SecretsUnreadable,
    /// Protected paths cannot be written or created.
    PathsProtected,
    /// Files that match a denied glob cannot be read.
    GlobsDenied,
    /// Processes, memory and terminals of the host are out of reach.
    ProcessesSeparate,
    /// Nothing gives more rights than the run began with.
    PrivilegesDropped,
    /// No network.
    NetworkNone,
    /// No network but the named hosts.
    NetworkAllow,
    /// No variable but the named ones.
    EnvAllowList,
    /// Credentials stay outside.
    CredentialsBroker,
    /// Login directories are there, read-only.
    CredentialsMount,
    /// The run ends in time, with all that it started.
    Timeout,
    /// The run ends when it has printed too much.
    OutputCap,
    /// Memory is bounded.
    Memory,
    /// Processors are bounded.
    Cpus,
    /// Processes are bounded.
    Pids,
    /// Disk space of private places is bounded.
    Disk,
    /// What the run adds to the disk of its workspace is bounded.
    Growth,
    /// Tokens and money are bounded.
    Budget,
}

impl Promise {
    /// All of them.
    pub const ALL: [Promise; 22] = [
        Promise::FilesConfined,
        Promise::HomePrivate,
        Promise::WorkspaceReadOnly,
        Promise::WorkspaceUntouched,
        Promise::SecretsUnreadable,
        Promise::PathsProtected,
        Promise::GlobsDenied,
        Promise::ProcessesSeparate,
        Promise::PrivilegesDropped,
        Promise::NetworkNone,
        Promise::NetworkAllow,
        Promise::EnvAllowList,
        Promise::CredentialsBroker,
        Promise::CredentialsMount,
        Promise::Timeout,
        Promise::OutputCap,
        Promise::Memory,
        Promise::Cpus,
        Promise::Pids,
        Promise::Disk,
        Promise::Growth,
        Promise::Budget,
    ];

    /// What a person reads.
    pub fn describe(self) -> &'static str {
        match self {
            Promise::FilesConfined => "files outside of the workspace stay untouched",
            Promise::HomePrivate => "the home directory is private",
            Promise::WorkspaceReadOnly => "the workspace is read-only",
            Promise::WorkspaceUntouched => "the workspace itself stays untouched",
            Promise::SecretsUnreadable => "secrets are unreadable",
            Promise::PathsProtected => "protected paths stay as they are",
            Promise::GlobsDenied => "denied files are unreadable",
            Promise::ProcessesSeparate => "processes of the host are out of reach",
            Promise::PrivilegesDropped => "privileges cannot be gained",
            Promise::NetworkNone => "there is no network",
            Promise::NetworkAllow => "only the allowed hosts can be reached",
            Promise::EnvAllowList => "only the allowed variables are seen",
            Promise::CredentialsBroker => "credentials stay outside",
            Promise::CredentialsMount => "login directories are mounted read-only",
            Promise::Timeout => "the run ends in time",
            Promise::OutputCap => "output is bounded",
            Promise::Memory => "memory is bounded",
            Promise::Cpus => "cpus are bounded",
            Promise::Pids => "processes are bounded",
            Promise::Disk => "disk space is bounded",
            Promise::Growth => "growth of the workspace's disk is bounded",
            Promise::Budget => "tokens and cost are bounded at known model providers",
        }
    }
}

/// By what a promise is kept, such as `landlock abi 7`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mechanism(String);

/// The mechanism of [`Promise::Growth`], which is the same in every mode: the engine watches the file system.
pub const GROWTH_MECHANISM: &str = "free space is read every two seconds";

impl Mechanism {
    /// Named so.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What a mode can keep on this machine, and by what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    mechanisms: BTreeMap<Promise, Mechanism>,
    /// Cheaper mechanisms for limits that a run has by default.
    defaults: BTreeMap<Promise, Mechanism>,
    /// What to change on this machine for more.
    hint: Option<String>,
}

impl Capabilities {
    /// The mechanism that keeps a promise, if there is one.
    pub fn mechanism(&self, promise: Promise) -> Option<&Mechanism> {
        self.mechanisms.get(&promise)
    }

    /// The mechanism that keeps a limit that a run has by default.
    pub fn default_mechanism(&self, promise: Promise) -> Option<&Mechanism> {
        self.defaults.get(&promise).or_else(|| self.mechanism(promise))
    }

    /// The same, with another mechanism for a limit that a run has by default.
    pub fn with_default(mut self, promise: Promise, mechanism: impl Into<String>) -> Self {
        self.defaults.insert(promise, Mechanism::new(mechanism));
        self
    }

    /// The same, with what to change on this machine for more.
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// What to change on this machine for more.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl<M: Into<String>> FromIterator<(Promise, M)> for Capabilities {
    fn from_iter<I: IntoIterator<Item = (Promise, M)>>(pairs: I) -> Self {
        let mechanisms = pairs.into_iter().map(|(promise, name)| (promise, Mechanism::new(name))).collect();
        Self { mechanisms, defaults: BTreeMap::new(), hint: None }
    }
}
