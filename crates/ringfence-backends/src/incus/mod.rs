//! Mode `incus`: a system container of Incus.
//!
//! Here so far: its settings and what doctor looks at. Runs in it are refused until its driver is here.

mod probe;

use ringfence_core::mode::Mode;

use crate::Entry;

pub(crate) const ENTRY: Entry = Entry {
    mode: Mode::Incus,
    boundary: "system container",
    needs: "Incus, or `coi`",
    keys: &[],
    probe: probe::probe,
    keeper: None,
    backend: None,
};
