//! Confines what a git process of the host may write.
//!
//! Git follows links and files that name other directories, and a run may have made them. The kernel's Landlock keeps it to the
//! directories that an import is about, whatever it follows.

use std::io;
use std::path::PathBuf;

/// Lets this thread, and the processes that it starts from now on, write only below these directories. A kernel without
/// Landlock confines nothing.
#[cfg(target_os = "linux")]
pub(crate) fn to_directories(writable: &[PathBuf]) -> io::Result<()> {
    use landlock::{
        ABI, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    };
    // Devices are not handled: git is started by a shell that opens `/dev/null`.
    let writes = AccessFs::from_write(ABI::V3);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(writes)
        .and_then(Ruleset::create)
        .map_err(io::Error::other)?;
    for path in writable {
        let path = PathFd::new(path).map_err(io::Error::other)?;
        ruleset = ruleset.add_rule(PathBeneath::new(path, writes)).map_err(io::Error::other)?;
    }
    let null = PathFd::new("/dev/null").map_err(io::Error::other)?;
    let null = PathBeneath::new(null, AccessFs::WriteFile);
    let ruleset = ruleset.add_rule(null).map_err(io::Error::other)?;
    ruleset.restrict_self().map(drop).map_err(io::Error::other)
}

/// Whether the kernel confines. Asked on a thread of its own, which ends confined.
#[cfg(target_os = "linux")]
pub(crate) fn is_enforced() -> bool {
    use landlock::{ABI, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetStatus};
    let ask = || {
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_write(ABI::V1))
            .and_then(Ruleset::create);
        let status = ruleset.and_then(landlock::RulesetCreated::restrict_self);
        status.is_ok_and(|status| status.ruleset != RulesetStatus::NotEnforced)
    };
    std::thread::scope(|scope| scope.spawn(ask).join()).unwrap_or(false)
}

/// Nothing confines it there.
#[cfg(not(target_os = "linux"))]
pub(crate) fn to_directories(_: &[PathBuf]) -> io::Result<()> {
    Ok(())
}

/// Nothing does there.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_enforced() -> bool {
    false
}
