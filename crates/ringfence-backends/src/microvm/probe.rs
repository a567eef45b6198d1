//! Is it here, and what is missing?
#![expect(clippy::disallowed_methods, reason = "devices of the machine, for doctor")]

use std::path::Path;

use ringfence_core::backend::Finding;
use ringfence_core::config::Settings;

use crate::Surroundings;
use crate::shared::probing;

pub(super) fn probe(around: &Surroundings, _: &Settings) -> Vec<Finding> {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let can = cpu.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    // A device node alone proves nothing: some machines have one that cannot run a stock kernel.
    let kvm = if can && Path::new("/dev/kvm").exists() {
        Finding::ok("acceleration", "KVM")
    } else {
        Finding::ok("acceleration", "none, software emulation")
    };
    vec![
        probing::program(around, &["qemu-system-x86_64"], "install qemu-system-x86"),
        kvm,
        probing::no_driver(),
    ]
}
