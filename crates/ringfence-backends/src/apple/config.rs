//! The settings of this mode, with the names and defaults of the documents; the image is our own.

use ringfence_core::config::{Key, Kind, ProjectRule};

pub(super) const KEYS: &[Key] = &[
    Key::new(
        "sandbox.apple.runtime_command",
        Kind::Text,
        Some("\"apple-container\""),
        "the command of the container runtime",
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
        "`default` is no network but the gate",
    ),
    Key::new("sandbox.apple.memory", Kind::Memory, Some("\"2g\""), "memory of a container")
        .project(ProjectRule::Lower),
    Key::new("sandbox.apple.cpus", Kind::Cpus, Some("\"1.0\""), "cpus of a container"),
];
