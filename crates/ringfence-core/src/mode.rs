//! Where a run takes place. This is the one table of modes: everything that lists them reads it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::suggest::nearest;

/// Where an agent CLI runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "a mode is documented by its backend's folder")]
pub enum Mode {
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

/// A mode that does not exist.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown mode `{given}`{}; the modes are {}", hint(.given), Mode::NAMES.join(", "))]
pub struct UnknownMode {
    given: String,
}

fn hint(given: &str) -> String {
    nearest(given, Mode::NAMES).map(|name| format!(", did you mean `{name}`?")).unwrap_or_default()
}

impl Mode {
    /// All modes, in the order in which people read them.
    pub const ALL: [Mode; 10] = [
        Mode::Host,
        Mode::Native,
        Mode::Docker,
        Mode::Podman,
        Mode::Apple,
        Mode::Sbx,
        Mode::Microvm,
        Mode::Incus,
        Mode::Fly,
        Mode::Kubernetes,
    ];

    /// Their names, in the same order.
    pub const NAMES: [&'static str; 10] =
        ["host", "native", "docker", "podman", "apple", "sbx", "microvm", "incus", "fly", "kubernetes"];

    /// The name that people write.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Whether the mode has a boundary at all. Without one, only the `open` preset can be kept.
    pub fn isolates(self) -> bool {
        self != Mode::Host
    }

    /// Whether a run sees the system of the host: its programs, at their paths.
    pub fn shares_system(self) -> bool {
        matches!(self, Mode::Host | Mode::Native)
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;
    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        Mode::ALL
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| UnknownMode { given: text.to_owned() })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The switch of a whole installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionEnvironment {
    /// Tasks run as processes of the host.
    Host,
    /// Each task runs in a sandbox of its own.
    Sandbox,
}

/// How the execution environment starts things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LaunchMode {
    /// A process of the host.
    Process,
    /// A container, or whatever isolating mode the settings name in its place.
    Docker,
}

impl LaunchMode {
    /// The names that people write, in the order of the variants.
    pub const NAMES: [&'static str; 2] = ["process", "docker"];
}

impl ExecutionEnvironment {
    /// The names that people write, in the order of the variants.
    pub const NAMES: [&'static str; 2] = ["host", "sandbox"];

    /// The mode that it means, where the settings name `named`: an isolating mode that somebody named, or Docker.
    pub fn mode(self, named: Option<Mode>) -> Mode {
        match self {
            ExecutionEnvironment::Host => Mode::Host,
            ExecutionEnvironment::Sandbox => named.filter(|mode| mode.isolates()).unwrap_or(Mode::Docker),
        }
    }

    /// What a mode means for the installation.
    pub fn of(mode: Mode) -> Self {
        if mode.isolates() { ExecutionEnvironment::Sandbox } else { ExecutionEnvironment::Host }
    }

    /// The name that people write.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::Mode;

    #[test]
    fn every_mode_reads_back_from_its_name() {
        for mode in Mode::ALL {
            assert_eq!(mode.as_str().parse::<Mode>(), Ok(mode));
            assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{mode}\""));
        }
    }

    #[test]
    fn an_unknown_mode_names_the_valid_ones_and_the_nearest() {
        let error = "dcoker".parse::<Mode>().unwrap_err().to_string();
        assert!(error.contains("did you mean `docker`?") && error.contains("kubernetes"), "{error}");
    }
}
