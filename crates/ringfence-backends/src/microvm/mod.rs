//! Mode `microvm`: a local guest with its own kernel.
//!
//! Here so far: its settings and what doctor looks at. Runs in it are refused until its driver is here.

mod probe;

use ringfence_core::mode::Mode;

use crate::Entry;

pub(crate) const ENTRY: Entry = Entry {
    mode: Mode::Microvm,
    boundary: "virtual machine with its own kernel",
    needs: "QEMU; KVM where the processor has it",
    keys: &[],
    probe: probe::probe,
    keeper: None,
    backend: None,
};
