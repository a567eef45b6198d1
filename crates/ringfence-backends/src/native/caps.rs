//! What the kernel of this machine can keep.

use ringfence_core::capability::{Capabilities, GROWTH_MECHANISM, Promise};
use ringfence_linux::Controller;

use super::boundary::Boundary;
use super::limits::Offer;

/// Landlock with abstract sockets and signals.
const SCOPES: u32 = 6;

/// What can be promised behind a boundary.
pub(super) fn capabilities(boundary: &Boundary, offer: &Offer) -> Capabilities {
    match boundary {
        Boundary::Namespaces => with_namespaces(offer),
        Boundary::LandlockAlone { why } => {
            landlock_alone(offer).with_hint(format!("{}: {}", why.seen, why.remedy))
        }
    }
}

/// No path within another can be shut, and nothing is private but what is named so. On an older kernel that is nothing.
fn landlock_alone(offer: &Offer) -> Capabilities {
    let abi = ringfence_linux::landlock_abi();
    if abi < SCOPES {
        return Capabilities::default();
    }
    let landlock = format!("landlock abi {abi}, seccomp");
    [
        (Promise::FilesConfined, landlock.clone()),
        (Promise::HomePrivate, format!("{landlock}, a home of its own")),
        (Promise::WorkspaceReadOnly, landlock.clone()),
        (Promise::SecretsUnreadable, landlock.clone()),
        (Promise::ProcessesSeparate, format!("landlock scopes, {landlock}, own session")),
        (Promise::PrivilegesDropped, "no capabilities, no new privileges, seccomp".into()),
        (Promise::NetworkNone, "seccomp: no sockets".into()),
        (Promise::EnvAllowList, "cleared environment".into()),
        (Promise::CredentialsBroker, "none inside".into()),
        (Promise::Timeout, "subreaper".into()),
        (Promise::OutputCap, "counted on the pipes".into()),
        (Promise::Growth, GROWTH_MECHANISM.into()),
    ]
    .into_iter()
    .chain(bounded(offer, &[(Promise::Memory, Controller::Memory), (Promise::Cpus, Controller::Cpu)]))
    .collect()
}

fn bounded(offer: &Offer, limits: &[(Promise, Controller)]) -> Vec<(Promise, String)> {
    let by = |(promise, controller): &(Promise, Controller)| {
        Some((*promise, offer.means(*controller)?.describe()))
    };
    limits.iter().filter_map(by).collect()
}

fn with_namespaces(offer: &Offer) -> Capabilities {
    let landlock = match ringfence_linux::landlock_abi() {
        0 => String::new(),
        abi => format!(", landlock abi {abi}"),
    };
    let scopes = if ringfence_linux::landlock_abi() >= SCOPES { ", landlock scopes" } else { "" };
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
        (Promise::NetworkAllow, "network namespace, broker".into()),
        (Promise::EnvAllowList, "cleared environment".into()),
        (Promise::CredentialsBroker, "placeholders inside, broker".into()),
        (Promise::Timeout, "pid namespace".into()),
        (Promise::OutputCap, "counted on the pipes".into()),
        (Promise::Growth, GROWTH_MECHANISM.into()),
        (Promise::Budget, "counted by the broker".into()),
        (Promise::CredentialsMount, "private copies without what they are refreshed by".into()),
        (Promise::Disk, "one memory of that size for all private places".into()),
    ]
    .into_iter()
    .chain(bounded(
        offer,
        &[
            (Promise::Memory, Controller::Memory),
            (Promise::Pids, Controller::Pids),
            (Promise::Cpus, Controller::Cpu),
        ],
    ))
    .collect()
}
