//! How many descriptors this process may have.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit before it was raised.
static BEFORE: OnceLock<Option<u64>> = OnceLock::new();

/// Raises the limit as far as it goes. By the same number the kernel decides whether a process may send a descriptor while others
/// of the user are on their way: those that a run has sent to itself must not keep this process from sending one.
pub fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // One that cannot be raised stays as it is.
    if current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok() {
        let _ = BEFORE.set(current);
    }
}

/// What the limit was, if this process or the one it is a copy of has raised it. Programs that it starts are to have that.
pub(crate) fn descriptors_before() -> Option<u64> {
    BEFORE.get().copied().flatten()
}
