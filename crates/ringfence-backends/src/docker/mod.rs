//! Mode `docker`: a container of the Docker engine.
//!
//! Here so far: its settings and what doctor looks at. Runs in it are refused until its driver is here.

mod config;
mod probe;

use ringfence_core::mode::Mode;

use crate::Entry;

pub(crate) const ENTRY: Entry = Entry {
    mode: Mode::Docker,
    boundary: "container: shared kernel, own everything else",
    needs: "a Docker engine",
    keys: config::KEYS,
    probe: probe::probe,
    backend: None,
};
