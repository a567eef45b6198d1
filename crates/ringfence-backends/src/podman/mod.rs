//! Mode `podman`: a container of Podman.
//!
//! Here so far: its settings and what doctor looks at. Runs in it are refused until its driver is here.

mod probe;

use ringfence_core::mode::Mode;

use crate::Entry;

pub(crate) const ENTRY: Entry = Entry {
    mode: Mode::Podman,
    boundary: "container: shared kernel, own everything else, no daemon",
    needs: "Podman",
    keys: &[],
    probe: probe::probe,
    backend: None,
};
