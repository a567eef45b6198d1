//! Which boundary the kernel gives to this user: namespaces, or only Landlock and seccomp, and what to change for more.
#![expect(clippy::disallowed_methods, reason = "files of the kernel")]

use std::fs;

/// What stands between a run and the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Boundary {
    /// Namespaces of its own, Landlock and seccomp on top.
    Namespaces,
    /// Landlock and seccomp alone: less can be promised.
    LandlockAlone {
        /// Why, and what to change.
        why: Why,
    },
}

/// Why there are no namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Why {
    pub(super) seen: String,
    pub(super) remedy: String,
}

const MOST: &str = "/proc/sys/user/max_user_namespaces";
const DEBIAN: &str = "/proc/sys/kernel/unprivileged_userns_clone";
const APPARMOR: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";

/// Looks at what the kernel says; only where it says that something is restricted, or this process is itself filtered,
/// is it tried.
pub(super) fn look() -> Boundary {
    let root = rustix::process::geteuid().is_root();
    let is = |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    let none = is(MOST, "0");
    let suspect = none || (!root && (is(DEBIAN, "0") || is(APPARMOR, "1"))) || filtered();
    match suspect.then(ringfence_linux::try_namespaces) {
        None | Some(Ok(())) => Boundary::Namespaces,
        Some(Err(error)) => {
            let seen = format!("user namespaces are refused: {error}");
            Boundary::LandlockAlone { why: Why { seen, remedy: remedy(none, root, &is) } }
        }
    }
}

/// Whether somebody else has put a filter on this process, as containers do.
fn filtered() -> bool {
    let mode = rustix::thread::secure_computing_mode();
    mode != Ok(rustix::thread::SecureComputingMode::Disabled)
}

fn remedy(none: bool, root: bool, is: &dyn Fn(&str, &str) -> bool) -> String {
    if none {
        return "set the sysctl user.max_user_namespaces above 0".into();
    }
    if !root && is(DEBIAN, "0") {
        return "set the sysctl kernel.unprivileged_userns_clone to 1".into();
    }
    if !root && is(APPARMOR, "1") {
        return "give ringfence an AppArmor profile that allows `userns`, or set the sysctl \
                kernel.apparmor_restrict_unprivileged_userns to 0"
            .into();
    }
    "if this is a container, start it with a seccomp profile that allows user namespaces".into()
}
