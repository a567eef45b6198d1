//! What a virtual machine of Apple's runtime can keep.

use ringfence_core::capability::{Capabilities, GROWTH_MECHANISM, Promise};

/// Not here: paths within the workspace, the network, processes, disk space. Files cannot be mounted over files, and the
/// runtime has no rules for what goes out.
pub(super) fn capabilities() -> Capabilities {
    [
        (Promise::FilesConfined, "virtual machine"),
        (Promise::HomePrivate, "virtual machine"),
        (Promise::WorkspaceReadOnly, "read-only volume"),
        (Promise::SecretsUnreadable, "virtual machine: nothing but the workspace is shown"),
        (Promise::ProcessesSeparate, "virtual machine"),
        (Promise::PrivilegesDropped, "virtual machine"),
        (Promise::EnvAllowList, "a file that only the runtime reads"),
        (Promise::Timeout, "the container is ended by name"),
        (Promise::OutputCap, "counted on the pipes"),
        (Promise::Growth, GROWTH_MECHANISM),
        (Promise::Memory, "size of the virtual machine"),
        (Promise::Cpus, "processors of the virtual machine"),
    ]
    .into_iter()
    .collect::<Capabilities>()
    .with_hint("Apple's runtime has no rules for the network and for paths within the workspace")
}
