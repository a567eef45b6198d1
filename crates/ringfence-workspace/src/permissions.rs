//! Whether a file system has permissions for each file.

use std::path::Path;

/// The types of file systems that show one mode for all files and cannot change it: MSDOS, exFAT, NTFS by both drivers, 9P (directories
/// of Windows in WSL), FUSE, to which other users have access only if whoever mounted it has allowed that.
#[cfg(target_os = "linux")]
const TYPES_WITHOUT: [i64; 6] = [0x4d44, 0x2011_bab0, 0x5346_544e, 0x7366_746e, 0x0102_1997, 0x6573_5546];

/// Whether the file system of a path keeps permissions for each file. In doubt it does.
#[cfg(target_os = "linux")]
pub fn keeps_permissions(path: &Path) -> bool {
    rustix::fs::statfs(path).map_or(true, |system| !TYPES_WITHOUT.contains(&system.f_type))
}

/// Whether the file system of a path keeps permissions for each file. In doubt it does.
#[cfg(not(target_os = "linux"))]
pub fn keeps_permissions(_: &Path) -> bool {
    true
}
