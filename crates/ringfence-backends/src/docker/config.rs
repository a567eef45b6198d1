//! The settings of this mode, with the names and defaults of the documents; the image is our own.

use ringfence_core::config::{Key, Kind, ProjectRule};

pub(super) const KEYS: &[Key] = &[
    Key::new(
        "sandbox.docker.image",
        Kind::Text,
        Some("\"ringfence/agent:latest\""),
        "the image that agents run in",
    )
    .env(&["RINGFENCE_SANDBOX_DOCKER_IMAGE", "SANDBOX_DOCKER_IMAGE"]),
    Key::new(
        "sandbox.docker.network",
        Kind::Text,
        Some("\"default\""),
        "`default` is no network but the gate; another name is an open network of the engine",
    )
    .env(&["RINGFENCE_SANDBOX_DOCKER_NETWORK", "SANDBOX_DOCKER_NETWORK"]),
    Key::new("sandbox.docker.memory", Kind::Memory, Some("\"2g\""), "memory of a container")
        .project(ProjectRule::Lower),
    Key::new("sandbox.docker.cpus", Kind::Cpus, Some("\"1.0\""), "cpus of a container"),
    Key::new("sandbox.docker.pids_limit", Kind::Whole(1, 4_194_304), Some("256"), "processes of a container")
        .project(ProjectRule::Lower),
];
