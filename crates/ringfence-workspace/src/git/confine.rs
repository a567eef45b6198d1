//! Confines a git process of the host.
//!
//! Git follows links and files that name other directories, executes programs that a configuration names, and a run may have made
//! them. The kernel's Landlock keeps it to the directories that an import is about, and to its own program, whatever it follows.

use std::io;
use std::path::{Path, PathBuf};

/// Lets this thread, and the processes that it starts from now on, execute only this program and write only below these
/// directories, without sockets where the kernel can refuse them. Fails where the kernel has no Landlock.
#[cfg(target_os = "linux")]
pub(crate) fn to_git(program: &Path, writable: &[PathBuf]) -> io::Result<()> {
    use landlock::{
        ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
        RulesetCreatedAttr, RulesetStatus, Scope,
    };
    // Devices are not handled: git opens `/dev/null`.
    let writes = AccessFs::from_write(ABI::V3);
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_write(ABI::V1) | AccessFs::Execute)
        .and_then(|ruleset| ruleset.set_compatibility(CompatLevel::BestEffort).handle_access(writes))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(ABI::V4)))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(ABI::V6)));
    let mut ruleset = ruleset.and_then(Ruleset::create).map_err(io::Error::other)?;
    let mut allow = |path: &Path, access| {
        let path = PathFd::new(path).map_err(io::Error::other)?;
        (&mut ruleset).add_rule(PathBeneath::new(path, access)).map(drop).map_err(io::Error::other)
    };
    for path in writable {
        allow(path, writes)?;
    }
    allow(Path::new("/dev/null"), AccessFs::WriteFile.into())?;
    allow(program, AccessFs::Execute.into())?;
    if let Some(loader) = loader(program) {
        allow(&loader, AccessFs::Execute.into())?;
    }
    let status = ruleset.restrict_self().map_err(io::Error::other)?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(io::ErrorKind::Unsupported.into()),
        RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => Ok(()),
    }
}

/// Nothing confines it there. It is given no configuration but Ringfence's own.
#[cfg(not(target_os = "linux"))]
pub(crate) fn to_git(_: &Path, _: &[PathBuf]) -> io::Result<()> {
    Ok(())
}

/// The dynamic loader that a program names, which the kernel executes for it. `None` is a program without one.
#[cfg(target_os = "linux")]
fn loader(program: &Path) -> Option<PathBuf> {
    use std::ffi::OsStr;
    use std::fs::File;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::FileExt;

    const INTERPRETER: u32 = 3;
    const MAX_HEADERS: u64 = 64;
    const MAX_PATH_BYTES: u64 = 4096;

    let file = File::open(program).ok()?;
    let at = |offset: u64, width: u64| -> Option<u64> {
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..usize::try_from(width).ok()?];
        file.read_exact_at(bytes, offset).ok()?;
        match *bytes {
            [a, b] => Some(u16::from_ne_bytes([a, b]).into()),
            [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d]).into()),
            [a, b, c, d, e, f, g, h] => Some(u64::from_ne_bytes([a, b, c, d, e, f, g, h])),
            _ => None,
        }
    };
    let mut identity = [0; 5];
    file.read_exact_at(&mut identity, 0).ok()?;
    let [b'\x7f', b'E', b'L', b'F', class] = identity else { return None };
    // Where the table is, the sizes of its entries and their number; then in an entry where the text is, and how long.
    let (table, size, count, (offset, length), width) = match class {
        1 => (28, 42, 44, (4, 16), 4),
        2 => (32, 54, 56, (8, 32), 8),
        _ => return None,
    };
    let (table, size, count) = (at(table, width)?, at(size, 2)?, at(count, 2)?);
    let headers = (0..count.min(MAX_HEADERS)).filter_map(|number| table.checked_add(number * size));
    let mut named = headers.filter(|header| at(*header, 4) == Some(INTERPRETER.into()));
    let header = named.next()?;
    let (offset, length) = (at(header + offset, width)?, at(header + length, width)?);
    let mut path = vec![0; usize::try_from(length.min(MAX_PATH_BYTES)).ok()?];
    file.read_exact_at(&mut path, offset).ok()?;
    path.truncate(path.iter().position(|byte| *byte == 0)?);
    Some(PathBuf::from(OsStr::from_bytes(&path)))
}
