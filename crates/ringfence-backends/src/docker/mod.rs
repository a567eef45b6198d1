//! Mode `docker`: a container of the Docker engine.
//!
//! Isolates: files (the image, read-only; an empty home; the workspace), processes, network, IPC, with no capability, no
//! new privileges, and seccomp twice: the engine's and ours. Shares: the kernel. With a network of the engine's instead
//! of the gate's, what goes out is not enforced.

mod config;
mod endpoint;

use ringfence_core::mode::Mode;

use crate::Entry;
use crate::shared::container::{Containers, Flavor, keeper, probe};

pub(crate) const FLAVOR: Flavor = Flavor {
    mode: Mode::Docker,
    name: "Docker",
    endpoint: endpoint::find,
    remedy: "install Docker and start its daemon (`dockerd`, or Docker Desktop)",
    keep_id: None,
    host_name: "host.docker.internal",
    mask_option: false,
    owned_memory: true,
    bare_network: true,
    joins_options: false,
};

pub(crate) const ENTRY: Entry = Entry {
    mode: Mode::Docker,
    boundary: "container: shared kernel, own everything else",
    needs: "a Docker engine",
    keys: config::KEYS,
    probe: |around, settings| probe(FLAVOR, around, settings),
    keeper: Some(|around| keeper(FLAVOR, around)),
    backend: Some(|around, settings| Box::new(Containers::new(FLAVOR, around.clone(), settings))),
};
