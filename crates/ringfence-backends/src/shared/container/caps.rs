//! What a container can keep.

use ringfence_core::capability::{Capabilities, GROWTH_MECHANISM, Promise};

use ringfence_linux::Controller;

use super::config::NetworkChoice;
use super::engine::Facts;

/// What can be promised by this engine, with this network.
pub(super) fn capabilities(facts: &Facts, network: &NetworkChoice) -> Capabilities {
    let mounts = "mount namespace, read-only image, seccomp";
    let mut all = vec![
        (Promise::FilesConfined, mounts.to_owned()),
        (Promise::HomePrivate, "memory".into()),
        (Promise::WorkspaceReadOnly, "read-only mount".into()),
        (Promise::SecretsUnreadable, mounts.into()),
        (Promise::PathsProtected, "read-only mounts".into()),
        (Promise::GlobsDenied, "masking mounts over what is there at the start".into()),
        (Promise::ProcessesSeparate, "pid and ipc namespaces, own session, seccomp".into()),
        (Promise::PrivilegesDropped, "no capabilities, no new privileges, seccomp".into()),
        (Promise::EnvAllowList, "nothing but what the gate is told".into()),
        (Promise::CredentialsMount, "private copies without what they are refreshed by".into()),
        (Promise::Timeout, "pid namespace".into()),
        (Promise::OutputCap, "counted on the pipes".into()),
        (Promise::Growth, GROWTH_MECHANISM.into()),
        (Promise::Disk, "memory of that size for the home and /tmp".into()),
    ];
    if *network == NetworkChoice::Gate {
        all.extend([
            (Promise::NetworkNone, "network namespace".to_owned()),
            (Promise::NetworkAllow, "network namespace, broker".into()),
            (Promise::CredentialsBroker, "placeholders inside, broker".into()),
            (Promise::Budget, "counted by the broker".into()),
        ]);
    }
    let bounded = [
        (Promise::Memory, Controller::Memory),
        (Promise::Cpus, Controller::Cpu),
        (Promise::Pids, Controller::Pids),
    ];
    let means = |(promise, controller)| Some((promise, facts.means(controller)?.describe()));
    all.extend(bounded.into_iter().filter_map(means));
    let capabilities: Capabilities = all.into_iter().collect();
    match network {
        NetworkChoice::Gate => capabilities,
        NetworkChoice::Named(name) => capabilities.with_hint(format!(
            "the settings name the network `{name}`, on which nothing is enforced: set it to `default`"
        )),
    }
}
