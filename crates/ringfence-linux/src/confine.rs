//! Shutting oneself in: no capabilities, no new privileges, Landlock, seccomp. In this order, and for good.

use std::io;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, CpuSet, clear_ambient_capability_set, remove_capability_from_bounding_set,
    sched_getaffinity, sched_setaffinity, set_capabilities, set_no_new_privs,
};

use crate::layout::{Access, Grant};
use crate::seccomp::{Extra, SeccompError, filter, install};

/// Why a process could not be shut in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfineError {
    /// Capabilities or privileges stayed.
    #[error("could not give up privileges: {0}")]
    Privileges(#[from] io::Error),
    /// Landlock did not hold.
    #[error("could not put up Landlock: {0}")]
    Landlock(String),
    /// The filter did not hold.
    #[error("{0}")]
    Seccomp(#[from] SeccompError),
}

/// The version of Landlock that the kernel has; 0 is none.
pub fn landlock_abi() -> u32 {
    // SAFETY: with no attributes and this flag the call only answers with a number.
    let abi =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, 1u32) };
    u32::try_from(abi).unwrap_or(0)
}

/// Shuts the process in, and everything that it will start.
pub(crate) fn confine(grants: &[Grant], processors: Option<u32>, extra: Extra) -> Result<(), ConfineError> {
    let mut filter = filter(extra)?;
    if let Some(count) = processors {
        pin(count)?;
    }
    drop_capabilities()?;
    set_no_new_privs(true).map_err(io::Error::from)?;
    landlock(grants, extra.alone)?;
    install(&mut filter)?;
    Ok(())
}

/// Stays on so many of the processors that it may use, beginning anywhere: several runs are to share them evenly.
fn pin(count: u32) -> io::Result<()> {
    let own = sched_getaffinity(None)?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| own.is_set(*cpu)).collect();
    let first = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.subsec_micros() as usize);
    let mut chosen = CpuSet::new();
    for offset in 0..(count as usize).min(all.len()) {
        chosen.set(all[(first + offset) % all.len()]);
    }
    Ok(sched_setaffinity(None, &chosen)?)
}

fn drop_capabilities() -> io::Result<()> {
    clear_ambient_capability_set()?;
    for capability in CapabilitySet::all().iter() {
        // One that this kernel does not know cannot be had either.
        match remove_capability_from_bounding_set(capability) {
            // And one who may not take it from the set could not use it: there are no new privileges.
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}

/// The newest rights that the library knows; on an older kernel those that it has.
const NEWEST: ABI = ABI::V6;

fn landlock(grants: &[Grant], alone: bool) -> Result<(), ConfineError> {
    let wrong = |error: &dyn std::fmt::Display| ConfineError::Landlock(error.to_string());
    if landlock_abi() == 0 && !alone {
        // The mounts hold by themselves; what the record claims of Landlock is asked of the kernel beforehand.
        return Ok(());
    }
    let all = AccessFs::from_all(NEWEST);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)
        .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .map_err(|error| wrong(&error))?;
    for grant in grants {
        let access: BitFlags<AccessFs> = match grant.access {
            Access::List => AccessFs::ReadDir.into(),
            Access::Read => AccessFs::from_read(NEWEST),
            Access::Use => {
                AccessFs::from_read(NEWEST) | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev
            }
            Access::Write => all,
        };
        // Not every container has all of them.
        if !grant.path.exists() && grant.access == Access::Write && !alone {
            continue;
        }
        // It was there when the run was planned.
        let path = PathFd::new(&grant.path)
            .map_err(|error| wrong(&format!("a path was moved or cannot be opened: {error}")))?;
        let access = if grant.path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
        ruleset = ruleset.add_rule(PathBeneath::new(path, access)).map_err(|error| wrong(&error))?;
    }
    let status = ruleset.restrict_self().map_err(|error| wrong(&error))?;
    if status.ruleset == RulesetStatus::NotEnforced {
        return Err(ConfineError::Landlock("the kernel has it and does not enforce it".into()));
    }
    Ok(())
}
