//! Mode `host`: a process of the machine.
//!
//! Isolates: nothing. Files, network, secrets are the person's own. Keeps: a session and descriptors of its own, the
//! list of variables, memory per process, the output cap, and the end: whatever the agent started ends with it.

mod caps;
mod driver;
mod plan;
mod probe;

use ringfence_core::mode::Mode;

use crate::Entry;

pub use driver::Host;

pub(crate) const ENTRY: Entry = Entry {
    mode: Mode::Host,
    boundary: "none: a process with a time limit that leaves nothing running",
    needs: "nothing",
    keys: &[],
    probe: probe::probe,
    keeper: None,
    backend: Some(|around, _| Box::new(Host::new(around.gate.clone()))),
};
