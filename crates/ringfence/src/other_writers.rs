//! Which users besides this one and root can write a directory, or a file that governs runs: by its mode, its group and its access
//! control list.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::anyhow;
use ringfence_workspace::{keeps_permissions, read_bounded};

use crate::report::advise;

/// No list of accounts is longer, in bytes.
const MAX_ACCOUNTS_BYTES: u64 = 4 << 20;

/// Whether other users can write a directory: any, members of its group, or those whom its access control list names. The group that
/// many systems make for each user, with write access by default (`umask 002`), has no other member. In doubt they can.
pub(crate) fn is_open_to_others(directory: &Path, data: &fs::Metadata) -> bool {
    is_open_to_others_than(rustix::process::geteuid().as_raw(), directory, data)
}

/// Refuses a file that governs runs and that other users than its owner and root can write, or replace in its directory. One that is
/// not there, or is no file, is reported where it is read.
pub(crate) fn refuse_open_to_others(file: &Path) -> anyhow::Result<()> {
    let Some(data) = fs::metadata(file).ok().filter(fs::Metadata::is_file) else { return Ok(()) };
    if is_open_to_others_than(data.uid(), file, &data) && keeps_permissions(file) {
        let shown = file.display();
        return Err(advise(
            anyhow!("{shown} governs runs, and other users can write it"),
            format!("look at what is in it, then run `chmod go-w {shown}`"),
        ));
    }
    // Where the name is a link, it is the directory of the link that counts too.
    let end = fs::canonicalize(file).ok();
    for directory in [Some(file), end.as_deref()].into_iter().flatten().filter_map(Path::parent) {
        // Below one with the sticky bit no other user can replace a file.
        let is_open = |data: &fs::Metadata| data.mode() & 0o1002 == 0o002;
        if fs::metadata(directory).is_ok_and(|data| is_open(&data)) && keeps_permissions(directory) {
            let (shown, directory) = (file.display(), directory.display());
            return Err(advise(
                anyhow!("{shown} governs runs, and other users can replace it in {directory}"),
                format!("look at what is in it, then run `chmod o-w {directory}`"),
            ));
        }
    }
    Ok(())
}

/// Whether users besides this one and root can write a file or a directory.
fn is_open_to_others_than(own: u32, path: &Path, data: &fs::Metadata) -> bool {
    if data.mode() & 0o002 != 0 {
        return true;
    }
    // With an access control list these bits are its mask, which bounds all that it gives.
    if data.mode() & 0o020 == 0 {
        return false;
    }
    let Some(Writers { users, mut groups, has_group }) = listed_writers(path) else { return true };
    groups.extend(has_group.then_some(data.gid()));
    let is_other = |uid: &u32| *uid != own && *uid != 0;
    users.iter().any(is_other) || (!groups.is_empty() && !are_private(&groups, own))
}

/// Whom an access control list lets write.
#[derive(Debug, PartialEq, Eq)]
struct Writers {
    users: Vec<u32>,
    groups: Vec<u32>,
    /// Whether the group of the file or the directory itself can write.
    has_group: bool,
}

impl Writers {
    /// Those of a file or a directory with a mode alone, by which its group can write.
    fn of_mode() -> Self {
        Self { users: Vec::new(), groups: Vec::new(), has_group: true }
    }

    /// Reads the kernel's form of a list: a version, then a tag, permissions and an id for each entry, in little-endian order.
    #[cfg(any(target_os = "linux", test))]
    fn parse(list: &[u8]) -> Option<Self> {
        const VERSION: [u8; 4] = [2, 0, 0, 0];
        const WRITE: u16 = 2;
        const USER: u16 = 2;
        const OWNING_GROUP: u16 = 4;
        const GROUP: u16 = 8;
        let (entries, rest) = list.strip_prefix(&VERSION)?.as_chunks::<8>();
        let mut writers = Self { has_group: false, ..Self::of_mode() };
        for [tag, tag_high, permissions, permissions_high, id @ ..] in entries {
            if u16::from_le_bytes([*permissions, *permissions_high]) & WRITE == 0 {
                continue;
            }
            match u16::from_le_bytes([*tag, *tag_high]) {
                USER => writers.users.push(u32::from_le_bytes(*id)),
                GROUP => writers.groups.push(u32::from_le_bytes(*id)),
                OWNING_GROUP => writers.has_group = true,
                _ => {}
            }
        }
        rest.is_empty().then_some(writers)
    }
}

/// Whom the access control list of a file or a directory lets write, within its mask; nothing if that cannot be found out.
#[cfg(target_os = "linux")]
fn listed_writers(path: &Path) -> Option<Writers> {
    use rustix::io::Errno;
    /// The kernel keeps no longer value.
    const MAX_VALUE_BYTES: usize = 64 << 10;
    let mut list = vec![0; MAX_VALUE_BYTES];
    match rustix::fs::getxattr(path, "system.posix_acl_access", &mut list[..]) {
        Ok(length) => Writers::parse(list.get(..length)?),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Some(Writers::of_mode()),
        Err(_) => None,
    }
}

#[cfg(not(target_os = "linux"))]
fn listed_writers(_: &Path) -> Option<Writers> {
    Some(Writers::of_mode())
}

/// Whether groups have no members but a user and root.
fn are_private(groups: &[u32], uid: u32) -> bool {
    let read = |path: &str| {
        let file = fs::File::open(path).ok()?;
        String::from_utf8(read_bounded(file, MAX_ACCOUNTS_BYTES).ok()?).ok()
    };
    let (Some(passwd), Some(group)) = (read("/etc/passwd"), read("/etc/group")) else { return false };
    groups.iter().all(|gid| is_private_group(*gid, uid, &passwd, &group))
}

/// Whether a group is the primary one of a user or of root and of no other, and has no other member, by `/etc/passwd` and `/etc/group`.
fn is_private_group(gid: u32, uid: u32, passwd: &str, group: &str) -> bool {
    let field = |line: &'_ str, number: usize| line.split(':').nth(number).unwrap_or_default().to_owned();
    let (uid, gid) = (uid.to_string(), gid.to_string());
    let has_gid = |user: &&str| field(user, 3) == gid;
    let is_trusted = |user: &&str| field(user, 2) == uid || field(user, 2) == "0";
    let (trusted, others): (Vec<&str>, Vec<&str>) = passwd.lines().partition(is_trusted);
    let names: Vec<String> = trusted.iter().map(|user| field(user, 0)).collect();
    let is_alone = |group: &str| {
        field(group, 3).split(',').all(|member| member.is_empty() || names.iter().any(|name| name == member))
    };
    let mut groups = group.lines().filter(|line| field(line, 2) == gid);
    trusted.iter().any(has_gid) && !others.iter().any(has_gid) && groups.all(is_alone)
}

#[cfg(test)]
mod tests {
    use super::{Writers, is_private_group};

    #[test]
    fn private_group_of_a_user_has_no_other_member() {
        let passwd =
            "root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/h/me:/bin/sh\nyou:x:1001:1001::/h/you:/bin/sh\n";
        let is_private = |passwd: &str, group: &str| is_private_group(1000, 1000, passwd, group);
        assert!(is_private(passwd, "me:x:1000:\nyou:x:1001:me\n") && is_private(passwd, "me:x:1000:me\n"));
        assert!(is_private(passwd, "me:x:1000:root\n"), "root can write everything");
        assert!(!is_private(passwd, "me:x:1000:you\n"), "another member");
        assert!(!is_private(passwd, "me:x:1000:\nalias:x:1000:me,you\n"), "another name of the group");
        let shared = format!("{passwd}third:x:1002:1000::/:/bin/sh\n");
        assert!(!is_private(&shared, "me:x:1000:\n"), "the primary group of another user");
        assert!(!is_private("you:x:1001:1001::/:/bin/sh\n", "me:x:1000:\n"), "the user is not listed");
        assert!(!is_private_group(1001, 1000, passwd, "you:x:1001:\n"), "not the user's own");
        // The group of root is a group like others.
        assert!(is_private_group(0, 1000, passwd, "root:x:0:\n"));
        assert!(is_private_group(0, 1000, passwd, "root:x:0:root,me\n"));
        assert!(!is_private_group(0, 1000, passwd, "root:x:0:you\n"));
        let operator = format!("{passwd}operator:x:11:0::/:/bin/sh\n");
        assert!(!is_private_group(0, 1000, &operator, "root:x:0:\n"));
    }

    #[test]
    fn access_control_list_names_those_who_can_write() {
        let list = |entries: &[(u16, u16, u32)]| {
            let mut bytes = vec![2, 0, 0, 0];
            for (tag, permissions, id) in entries {
                bytes.extend(tag.to_le_bytes());
                bytes.extend(permissions.to_le_bytes());
                bytes.extend(id.to_le_bytes());
            }
            bytes
        };
        let nobody = u32::MAX;
        let entries = [
            (1, 7, nobody),
            (2, 7, 7),
            (2, 5, 8),
            (4, 5, nobody),
            (8, 2, 9),
            (16, 7, nobody),
            (32, 7, nobody),
        ];
        let expected = Writers { users: vec![7], groups: vec![9], has_group: false };
        assert_eq!(Writers::parse(&list(&entries)), Some(expected));
        assert_eq!(Writers::parse(&list(&[(4, 7, nobody)])), Some(Writers::of_mode()));
        for broken in [&b""[..], &[1, 0, 0, 0], &list(&entries)[..9]] {
            assert_eq!(Writers::parse(broken), None);
        }
    }
}
