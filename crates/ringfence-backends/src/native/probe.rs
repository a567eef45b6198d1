//! Is it here, and what is missing?

use ringfence_core::backend::Finding;
use ringfence_core::config::Settings;

use super::caps;
use crate::Surroundings;
use crate::shared::probing;

pub(super) fn probe(_: &Surroundings, _: &Settings) -> Vec<Finding> {
    let (_, release) = probing::kernel();
    let namespaces = if caps::user_namespaces() {
        Finding::ok("user namespaces", format!("kernel {release}"))
    } else {
        Finding::absent(
            "user namespaces",
            format!("kernel {release} allows none"),
            "set the sysctl user.max_user_namespaces above 0",
        )
    };
    let landlock = match ringfence_linux::landlock_abi() {
        0 => Finding::ok("landlock", "not in this kernel; mounts and seccomp hold without it"),
        abi => Finding::ok("landlock", format!("abi {abi}")),
    };
    vec![namespaces, landlock]
}
