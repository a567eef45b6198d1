//! Shutting oneself in: no capabilities, no new privileges, Landlock, seccomp. In this order, and for good.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::thread::{
    CapabilitySet, CapabilitySets, CpuSet, clear_ambient_capability_set, remove_capability_from_bounding_set,
    sched_getaffinity, sched_setaffinity, set_capabilities, set_no_new_privs,
};

use crate::layout::{Access, Grant};
use crate::seccomp::{Extra, Filter, SeccompError, install};

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

/// Shuts the process in, and everything that it will start. `likely` is a filter that was made before.
pub(crate) fn confine(
    grants: &[Grant],
    processors: Option<u32>,
    (extra, likely): (Extra, Option<Filter>),
) -> Result<(), ConfineError> {
    let mut filter = likely.filter(|filter| filter.extra == extra).map_or_else(|| Filter::new(extra), Ok)?;
    if let Some(count) = processors {
        pin(count)?;
    }
    drop_capabilities()?;
    set_no_new_privs(true).map_err(io::Error::from)?;
    let abi = landlock_abi();
    landlock(grants, abi, extra.alone)?;
    if abi >= SOCKETS_ABI {
        refuse_outer_sockets().map_err(|error| ConfineError::Landlock(error.to_string()))?;
    }
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

/// The first version of Landlock that can refuse to connect to a socket by its path.
const SOCKETS_ABI: u32 = 9;
/// `LANDLOCK_ACCESS_FS_REFER` and `LANDLOCK_ACCESS_FS_RESOLVE_UNIX`, which the library does not know yet.
const REFER: u64 = 1 << 13;
const RESOLVE_UNIX: u64 = 1 << 16;

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathRule {
    allowed: u64,
    parent: i32,
}

/// Refuses all sockets with a path that were made outside. Those that the run makes stay as they are.
fn refuse_outer_sockets() -> io::Result<()> {
    let known = |number: libc::c_long| {
        if number < 0 { Err(io::Error::last_os_error()) } else { Ok(number) }
    };
    let handled = [REFER | RESOLVE_UNIX];
    // SAFETY: the first word of `struct landlock_ruleset_attr` lives until the call returns.
    let ruleset = known(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, handled.as_ptr(), size_of_val(&handled), 0)
    })?;
    let ruleset = i32::try_from(ruleset).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made the descriptor, and nothing else has it.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset) };
    // Every layer refuses to move files between directories unless it says otherwise; that is decided by the other one.
    let root = File::open("/")?;
    let rule = PathRule { allowed: REFER, parent: root.as_raw_fd() };
    // SAFETY: a whole rule of the type that is named, and descriptors that are open.
    known(unsafe { libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), 1, &raw const rule, 0) })?;
    // SAFETY: a descriptor that is open.
    known(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) })?;
    Ok(())
}

/// The newest rights that the library knows; on an older kernel those that it has.
const NEWEST: ABI = ABI::V6;

fn landlock(grants: &[Grant], abi: u32, alone: bool) -> Result<(), ConfineError> {
    let wrong = |error: &dyn std::fmt::Display| ConfineError::Landlock(error.to_string());
    if abi == 0 && !alone {
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
        let opened = open(&grant.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let path = match opened {
            // Not every container has all of them.
            Err(_) if grant.access == Access::Write && !alone && !grant.path.exists() => continue,
            // It was there when the run was planned.
            opened => {
                opened.map_err(|error| wrong(&format!("a path was moved or cannot be opened: {error}")))?
            }
        };
        let data = fstat(&path).map_err(io::Error::from)?;
        let is_directory = FileType::from_raw_mode(data.st_mode).is_dir();
        let access = if is_directory { access } else { access & AccessFs::from_file(NEWEST) };
        ruleset = ruleset.add_rule(PathBeneath::new(path, access)).map_err(|error| wrong(&error))?;
    }
    let status = ruleset.restrict_self().map_err(|error| wrong(&error))?;
    if status.ruleset == RulesetStatus::NotEnforced {
        return Err(ConfineError::Landlock("the kernel has it and does not enforce it".into()));
    }
    Ok(())
}
