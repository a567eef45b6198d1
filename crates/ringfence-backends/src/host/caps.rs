//! What a process without a boundary can still promise.

use ringfence_core::capability::{Capabilities, GROWTH_MECHANISM, Promise};

/// Not here: files, network, credentials, cpus, pids, disk. A process can undo its own cpu affinity, and the kernel
/// counts processes per user and not at all for root, so neither would be a promise.
pub(super) fn capabilities() -> Capabilities {
    [
        (Promise::EnvAllowList, "cleared environment"),
        (Promise::Timeout, "subreaper, signals to every descendant"),
        (Promise::OutputCap, "counted on the pipes"),
        (Promise::Growth, GROWTH_MECHANISM),
        (Promise::Memory, "rlimit data for each process, watchdog over all of them"),
    ]
    .into_iter()
    .collect()
}
