//! Mode `apple`: a container of Apple's runtime, in a virtual machine of its own.
//!
//! Here so far: its settings and what doctor looks at. Runs in it are refused until its driver is here.

mod config;
mod probe;

use ringfence_core::mode::Mode;

use crate::Entry;

pub(crate) const ENTRY: Entry = Entry {
    mode: Mode::Apple,
    boundary: "virtual machine per container",
    needs: "macOS 26 on Apple silicon, a container runtime command",
    keys: config::KEYS,
    probe: probe::probe,
    keeper: None,
    backend: None,
};
