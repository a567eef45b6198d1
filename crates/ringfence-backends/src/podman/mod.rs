//! Mode `podman`: a container of Podman, of root's or of the person's own.
//!
//! Isolates and shares what `docker` does; there is no daemon to trust. Where nobody has started Podman's service, it is
//! started for the time that it is needed.

mod config;
mod endpoint;

use ringfence_core::mode::Mode;

use crate::Entry;
use crate::shared::container::{Containers, Flavor, keeper, probe};

pub(crate) const FLAVOR: Flavor = Flavor {
    mode: Mode::Podman,
    name: "Podman",
    endpoint: endpoint::find,
    remedy: "install podman",
    keep_id: Some("keep-id"),
    host_name: "host.containers.internal",
    mask_option: true,
    owned_memory: false,
    bare_network: false,
    joins_options: true,
};

pub(crate) const ENTRY: Entry = Entry {
    mode: Mode::Podman,
    boundary: "container: shared kernel, own everything else, no daemon",
    needs: "Podman",
    keys: config::KEYS,
    probe: |around, settings| probe(FLAVOR, around, settings),
    keeper: Some(|around| keeper(FLAVOR, around)),
    backend: Some(|around, settings| Box::new(Containers::new(FLAVOR, around.clone(), settings))),
};
