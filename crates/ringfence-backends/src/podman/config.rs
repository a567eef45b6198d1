//! The settings of this mode: those of the other engine, under its own name.

use ringfence_core::config::{Key, Kind, ProjectRule};

pub(super) const KEYS: &[Key] = &[
    Key::new(
        "sandbox.podman.image",
        Kind::Text,
        Some("\"ringfence/agent:latest\""),
        "the image that agents run in",
    ),
    Key::new(
        "sandbox.podman.network",
        Kind::Text,
        Some("\"default\""),
        "`default` is no network but the gate; another name is an open network of the engine",
    ),
    Key::new("sandbox.podman.memory", Kind::Memory, Some("\"2g\""), "memory of a container")
        .project(ProjectRule::Lower),
    Key::new("sandbox.podman.cpus", Kind::Cpus, Some("\"1.0\""), "cpus of a container"),
    Key::new("sandbox.podman.pids_limit", Kind::Whole(1, 4_194_304), Some("256"), "processes of a container")
        .project(ProjectRule::Lower),
];
