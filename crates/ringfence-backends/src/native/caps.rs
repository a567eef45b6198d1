//! What the kernel of this machine can keep.

use ringfence_core::capability::{Capabilities, Promise};
use ringfence_linux::Controller;

use super::limits::Offer;

/// Whether the kernel gives namespaces to this user at all.
pub(super) fn user_namespaces() -> bool {
    let limit = std::fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    limit.trim().parse::<u64>().is_ok_and(|count| count > 0)
}

/// Without user namespaces nothing can be promised, so everything is refused.
pub(super) fn capabilities(offer: &Offer) -> Capabilities {
    if !user_namespaces() {
        return Capabilities::default();
    }
    let landlock = match ringfence_linux::landlock_abi() {
        0 => String::new(),
        abi => format!(", landlock abi {abi}"),
    };
    let scopes = if ringfence_linux::landlock_abi() >= 6 { ", landlock scopes" } else { "" };
    let mounts = format!("mount namespace{landlock}, seccomp");
    [
        (Promise::FilesConfined, mounts.clone()),
        (Promise::HomePrivate, "mount namespace, memory".into()),
        (Promise::WorkspaceReadOnly, "read-only mount".into()),
        (Promise::WorkspaceUntouched, "overlayfs in the user namespace".into()),
        (Promise::SecretsUnreadable, mounts),
        (Promise::PathsProtected, "read-only mounts".into()),
        (Promise::GlobsDenied, "masking mounts over what is there at the start".into()),
        (Promise::ProcessesSeparate, format!("pid and ipc namespaces, own session{scopes}, seccomp")),
        (Promise::PrivilegesDropped, "user namespace, no capabilities, no new privileges, seccomp".into()),
        (Promise::NetworkNone, "network namespace".into()),
        (Promise::EnvAllowList, "cleared environment".into()),
        (Promise::CredentialsBroker, "none inside".into()),
        (Promise::Timeout, "pid namespace".into()),
        (Promise::OutputCap, "counted on the pipes".into()),
        (Promise::Disk, "one memory of that size for all private places".into()),
    ]
    .into_iter()
    .chain(
        [
            (Promise::Memory, Controller::Memory),
            (Promise::Pids, Controller::Pids),
            (Promise::Cpus, Controller::Cpu),
        ]
        .into_iter()
        .filter_map(|(promise, controller)| Some((promise, offer.means(controller)?.describe()))),
    )
    .collect()
}
