//! The settings of this mode, with the names and defaults of the documents; the image is our own.

use ringfence_core::config::{Key, Kind, ProjectRule, Settings};
use ringfence_core::mode::Mode;
use ringfence_core::units::{Cpus, MemorySize};
use serde::Deserialize;

/// The section of this mode.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Config {
    pub(super) runtime_command: String,
    pub(super) image: String,
    pub(super) network: String,
    pub(super) memory: MemorySize,
    pub(super) cpus: Cpus,
}

/// What the settings say; they were checked when they were read.
pub(super) fn read(settings: &Settings) -> Result<Config, String> {
    let section = settings.sandbox.section(Mode::Apple).cloned().unwrap_or_default();
    serde_json::from_value(section).map_err(|error| format!("sandbox.apple: {error}"))
}

pub(super) const KEYS: &[Key] = &[
    Key::new(
        "sandbox.apple.runtime_command",
        Kind::Text,
        Some("\"container\""),
        "the command of the container runtime; the documents' `apple-container` is understood",
    ),
    Key::new(
        "sandbox.apple.image",
        Kind::Text,
        Some("\"ringfence/agent:latest\""),
        "the image that agents run in",
    ),
    Key::new(
        "sandbox.apple.network",
        Kind::Text,
        Some("\"default\""),
        "`default` is the runtime's own network; another name is one of its others",
    ),
    Key::new("sandbox.apple.memory", Kind::Memory, Some("\"2g\""), "memory of a container")
        .project(ProjectRule::Lower),
    Key::new("sandbox.apple.cpus", Kind::Cpus, Some("\"1.0\""), "cpus of a container"),
];
