//! Mode `apple`: a container of Apple's runtime, in a virtual machine of its own.
//!
//! Isolates: everything but the workspace and the network, by a virtual machine with a kernel of its own. The runtime is
//! a command: it is started as a process of the host, by the gate, and what it started is taken away by name. Not here:
//! protected and denied paths of the workspace, and rules for the network: what asks for them is refused.

mod caps;
mod command;
mod config;
mod driver;
mod keeper;
mod plan;
mod probe;

use ringfence_core::mode::Mode;

use crate::Entry;

pub(crate) const ENTRY: Entry = Entry {
    mode: Mode::Apple,
    boundary: "virtual machine per container",
    needs: "macOS 26 on Apple silicon, Apple's `container`",
    keys: config::KEYS,
    probe: probe::probe,
    keeper: Some(keeper::keeper),
    backend: Some(|around, settings| Box::new(driver::Apple::new(around.clone(), config::read(settings)))),
};
