//! The three presets. Each is just a policy: print it, edit it, pass the file.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::home;
use super::{
    Credentials, Env, Files, GitAccess, Limits, Network, NetworkMode, Policy, Reach, WorkspaceAccess,
};
use crate::mode::Mode;
use crate::suggest::nearest;
use crate::units::{MemorySize, Seconds};

/// A policy with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// The person's own reach, with a timeout. All that a mode without a boundary can keep.
    Open,
    /// The workspace and the model, nothing else.
    Standard,
    /// The same with less: bounded memory and processes, repository metadata read-only.
    Locked,
}

/// A preset that does not exist.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{}; the presets are {}, or name a file such as ./policy.json", self.without_remedy(), Preset::NAMES.join(", "))]
pub struct UnknownPreset {
    given: String,
}

impl UnknownPreset {
    /// What is wrong, for where a relative path is none of the remedies.
    pub fn without_remedy(&self) -> String {
        format!("unknown policy `{}`{}", self.given, hint(&self.given))
    }
}

fn hint(given: &str) -> String {
    nearest(given, Preset::NAMES).map(|name| format!(", did you mean `{name}`?")).unwrap_or_default()
}

pub(super) const SECRETS: [&str; 22] = [
    "~/.ssh",
    "~/.aws",
    "~/.gnupg",
    "~/.config/gh",
    "~/.config/gcloud",
    "~/.azure",
    "~/.netrc",
    "~/.git-credentials",
    "~/.npmrc",
    "~/.pypirc",
    "~/.cargo/credentials.toml",
    "~/.docker",
    "~/.kube",
    "~/.mozilla",
    "~/.config/google-chrome",
    "~/.config/chromium",
    "~/.claude",
    "~/.claude.json",
    "~/.config/claude",
    "~/.codex",
    "~/.local/share/opencode",
    "~/.ringfence",
];

/// One that ends with a slash is a directory: where it is missing, an empty one holds its place. Those of the user's home
/// (`~/…`), wherever the run could write it, are in `home.rs`; elsewhere these are files like any other.
const PROTECT: [&str; 21] = [
    ".gitmodules",
    ".ringfence",
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".claude/commands/",
    ".claude/agents/",
    ".claude/skills/",
    ".claude/hooks/",
    ".codex/",
    "opencode.json",
    ".mcp.json",
    ".vscode",
    ".idea",
    ".envrc",
    ".bashrc",
    ".bash_profile",
    ".profile",
    ".zshrc",
    ".zprofile",
    ".gitconfig",
    ".ripgreprc",
];

const DENY: [&str; 2] = ["**/.env", "**/*.pem"];
const DENY_LOCKED: [&str; 4] = ["**/.env.*", "**/*.key", "**/*.p12", "**/id_*"];

impl Preset {
    /// All presets, from the widest to the narrowest.
    pub const ALL: [Preset; 3] = [Preset::Open, Preset::Standard, Preset::Locked];
    /// Their names, in the same order.
    pub const NAMES: [&'static str; 3] = ["open", "standard", "locked"];

    /// The name that people write.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// The preset of a run that names none.
    pub fn default_of(mode: Mode) -> Self {
        if mode.isolates() { Preset::Standard } else { Preset::Open }
    }

    /// The policy that it stands for.
    pub fn policy(self) -> Policy {
        match self {
            Preset::Open => open(),
            Preset::Standard => standard(),
            Preset::Locked => locked(),
        }
    }
}

fn open() -> Policy {
    Policy {
        files: Files {
            reach: Reach::Host,
            workspace: WorkspaceAccess::ReadWrite,
            read: Vec::new(),
            write: Vec::new(),
            secrets: Vec::new(),
            git: GitAccess::Direct,
            protect: Vec::new(),
            deny: Vec::new(),
        },
        network: Network {
            mode: NetworkMode::Open,
            allow: Vec::new(),
            deny: Vec::new(),
            ask: false,
            local: Vec::new(),
        },
        env: Env { allow: Vec::new() },
        credentials: Credentials::Env,
        limits: Limits {
            timeout_seconds: DEFAULT_TIMEOUT,
            memory: None,
            cpus: None,
            pids: None,
            disk: None,
            growth: None,
            output: MemorySize::from_bytes(64 << 20),
            tokens: None,
            cost_usd: None,
        },
    }
}

const DEFAULT_TIMEOUT: Seconds = match Seconds::new(600) {
    Some(seconds) => seconds,
    None => unreachable!(),
};

fn standard() -> Policy {
    let mut policy = open();
    policy.files.reach = Reach::Workspace;
    policy.files.secrets = SECRETS.map(String::from).to_vec();
    policy.files.git = GitAccess::Private;
    let of_home = home::PROTECTED.iter().map(|name| format!("~/{name}"));
    policy.files.protect = PROTECT.into_iter().map(String::from).chain(of_home).collect();
    policy.files.deny = DENY.map(String::from).to_vec();
    policy.network.mode = NetworkMode::Allow;
    policy.credentials = Credentials::Broker;
    policy
}

fn locked() -> Policy {
    let mut policy = standard();
    policy.files.git = GitAccess::ReadOnly;
    policy.files.deny.extend(DENY_LOCKED.map(String::from));
    policy.limits.memory = Some(MemorySize::from_bytes(2 << 30));
    policy.limits.pids = Some(256);
    policy
}

impl FromStr for Preset {
    type Err = UnknownPreset;
    fn from_str(text: &str) -> Result<Self, UnknownPreset> {
        Preset::ALL
            .into_iter()
            .find(|preset| preset.as_str() == text)
            .ok_or_else(|| UnknownPreset { given: text.to_owned() })
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Preset;
    use crate::mode::Mode;

    #[test]
    fn each_preset_promises_at_least_what_the_wider_one_does() {
        let [open, standard, locked] = Preset::ALL.map(|preset| preset.policy().promises());
        assert!(open.is_subset(&standard) && standard.is_subset(&locked));
        assert!(open.len() < standard.len() && standard.len() < locked.len());
    }

    #[test]
    fn only_a_mode_without_a_boundary_starts_open() {
        for mode in Mode::ALL {
            assert_eq!(Preset::default_of(mode) == Preset::Open, !mode.isolates());
        }
    }
}
