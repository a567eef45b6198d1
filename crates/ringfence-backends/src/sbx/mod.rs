//! Mode `sbx`: Docker's microVM sandboxes.
//!
//! Here so far: its settings and what doctor looks at. Runs in it are refused until its driver is here.

mod probe;

use ringfence_core::mode::Mode;

use crate::Entry;

pub(crate) const ENTRY: Entry = Entry {
    mode: Mode::Sbx,
    boundary: "virtual machine of Docker's sandboxes",
    needs: "Docker Desktop with sandboxes, or `sbx`",
    keys: &[],
    probe: probe::probe,
    keeper: None,
    backend: None,
};
