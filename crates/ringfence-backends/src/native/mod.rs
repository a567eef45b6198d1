//! Mode `native`: a sandbox of the kernel's own means.
//!
//! Here so far: its settings and what doctor looks at. Runs in it are refused until its driver is here.

mod probe;

use ringfence_core::mode::Mode;

use crate::Entry;

pub(crate) const ENTRY: Entry = Entry {
    mode: Mode::Native,
    boundary: "namespaces, Landlock and seccomp: no daemon, no root",
    needs: "Linux 5.13 or newer",
    keys: &[],
    probe: probe::probe,
    backend: None,
};
