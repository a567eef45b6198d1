//! Is it here, and what is missing?

use ringfence_core::backend::Finding;
use ringfence_core::config::Settings;

use super::boundary::{self, Boundary};
use crate::Surroundings;
use crate::shared::probing;

pub(super) fn probe(_: &Surroundings, _: &Settings) -> Vec<Finding> {
    let (_, release) = probing::kernel();
    let namespaces = match boundary::look() {
        Boundary::Namespaces => Finding::ok("user namespaces", format!("kernel {release}")),
        Boundary::LandlockAlone { why } => Finding::absent("user namespaces", why.seen, why.remedy),
    };
    let landlock = match ringfence_linux::landlock_abi() {
        0 => Finding::ok("landlock", "not in this kernel; mounts and seccomp hold without it"),
        abi => Finding::ok("landlock", format!("abi {abi}")),
    };
    vec![namespaces, landlock]
}
