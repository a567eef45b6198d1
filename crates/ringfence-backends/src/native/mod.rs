//! Mode `native`: a sandbox of the kernel's own means, for any user, with nothing to install.
//!
//! Isolates: files (a root of its own: the system read-only, an empty home, the workspace), processes, network, IPC,
//! host name, with Landlock and seccomp on top. Shares: the kernel. Not here yet: hosts on an allow list; what
//! asks for them is refused.

mod alone;
mod bound_names;
mod boundary;
mod caps;
mod driver;
mod limits;
mod plan;
mod probe;
mod sockets;
mod system;

use ringfence_core::mode::Mode;

use crate::Entry;

pub(crate) const ENTRY: Entry = Entry {
    mode: Mode::Native,
    boundary: "namespaces, Landlock and seccomp: no daemon, no root",
    needs: "Linux 5.13 or newer with user namespaces (without them, for policies that Landlock alone can keep: 6.12)",
    keys: &[],
    probe: probe::probe,
    keeper: None,
    backend: Some(|around, _| Box::new(driver::Native::new(around.clone()))),
};
