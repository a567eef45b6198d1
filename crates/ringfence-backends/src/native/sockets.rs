//! Sockets of the host below what a run sees of the system.
//!
//! A program reaches whoever listens at a path that it sees: neither a read-only mount nor a network of its own keeps it from
//! that. The workspace and what a policy names are searched for sockets; the system is too large for that, so the kernel is asked
//! which names are bound.
#![expect(clippy::disallowed_methods, reason = "parts of the system, which no run writes")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use crate::shared::survey::real;

/// Places of which a run sees nothing, unless its program is there. Most sockets are there, and resolving the path of each takes several calls.
const UNSEEN: [&str; 3] = ["/run/", "/var/run/", "/tmp/"];

/// `SOCK_DIAG_BY_FAMILY`, and the types of messages that end an answer: `NLMSG_ERROR`, `NLMSG_DONE`.
const BY_FAMILY: u16 = 20;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
/// `AF_UNIX`.
const FAMILY: u8 = 1;
/// The states of sockets that take connections or messages of anybody: `TCP_LISTEN`, and `TCP_CLOSE` for those without connections.
const STATES: u32 = 1 << 10 | 1 << 7;
/// `UDIAG_SHOW_NAME`, and its attribute in an answer, `UNIX_DIAG_NAME`.
const SHOW_NAME: u32 = 1;
const NAME_ATTRIBUTE: u16 = 0;
/// The lengths of `struct nlmsghdr`, `struct unix_diag_req`, `struct unix_diag_msg` and `struct nlattr`.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = 24;
const MESSAGE_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 4;
/// The kernel answers in pieces of at most this length.
const ANSWER_BYTES: usize = 32 << 10;

/// The sockets below directories that are seen, links resolved.
pub(super) fn below(seen: &[&Path]) -> io::Result<Vec<PathBuf>> {
    // Not every kernel has the first, and some containers refuse it.
    let is_unseen = |place: &&str| !seen.iter().any(|seen| seen.starts_with(place));
    let unseen: Vec<&str> = UNSEEN.into_iter().filter(is_unseen).collect();
    let names =
        bound(&unseen).or_else(|_| fs::read("/proc/net/unix").map(|table| listed(&table, &unseen)))?;
    let mut parents = BTreeMap::new();
    let mut found = Vec::new();
    for name in names {
        let (Some(parent), Some(last)) = (name.parent(), name.file_name()) else { continue };
        let real = parents.entry(parent.to_owned()).or_insert_with(|| real(parent).map(|(real, _)| real));
        let Some(path) = real.as_ref().map(|real| real.join(last)) else { continue };
        let is_socket = || fs::symlink_metadata(&path).is_ok_and(|data| data.file_type().is_socket());
        if seen.iter().any(|seen| path.starts_with(seen)) && is_socket() {
            found.push(path);
        }
    }
    Ok(found)
}

/// Whether a name is a path that may be seen.
fn may_be_seen(name: &[u8], unseen: &[&str]) -> bool {
    name.starts_with(b"/") && !unseen.iter().any(|unseen| name.starts_with(unseen.as_bytes()))
}

/// The names that sockets are bound to, as the kernel tells them.
fn bound(unseen: &[&str]) -> io::Result<Vec<PathBuf>> {
    let flags = SocketFlags::CLOEXEC;
    let kernel =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?;
    rustix::net::send(&kernel, &request(), SendFlags::empty())?;
    let mut names = Vec::new();
    let mut answer = vec![0; ANSWER_BYTES];
    loop {
        let (_, length) = rustix::net::recv(&kernel, &mut answer[..], RecvFlags::TRUNC)?;
        let answer = answer.get(..length).ok_or(io::ErrorKind::InvalidData)?;
        if parse(answer, unseen, &mut names)? {
            return Ok(names);
        }
    }
}

fn request() -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + REQUEST_BYTES).unwrap_or_default();
    let header = [&length.to_ne_bytes()[..], &BY_FAMILY.to_ne_bytes(), &DUMP.to_ne_bytes(), &[0; 8]];
    let (states, any_inode, any_cookie) = (STATES.to_ne_bytes(), [0; 4], [0xff; 8]);
    let body = [&[FAMILY, 0, 0, 0][..], &states, &any_inode, &SHOW_NAME.to_ne_bytes(), &any_cookie];
    header.into_iter().chain(body).flatten().copied().collect()
}

/// Adds the names of one answer. Returns whether it is the last one.
fn parse(mut answer: &[u8], unseen: &[&str], names: &mut Vec<PathBuf>) -> io::Result<bool> {
    while let Some((length, kind)) = message(answer) {
        let whole = answer.get(..length).ok_or(io::ErrorKind::InvalidData)?;
        match kind {
            DONE => return Ok(true),
            ERROR => return Err(io::ErrorKind::Unsupported.into()),
            BY_FAMILY => names.extend(name(whole).filter(|name| may_be_seen(name, unseen)).map(path)),
            _ => {}
        }
        answer = answer.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// The length and the type of the first message.
fn message(answer: &[u8]) -> Option<(usize, u16)> {
    let length = u32::from_ne_bytes(answer.get(..4)?.try_into().ok()?);
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    Some((usize::try_from(length).ok()?.max(HEADER_BYTES), kind))
}

/// The name of the socket of a message.
fn name(message: &[u8]) -> Option<&[u8]> {
    let mut attributes = message.get(HEADER_BYTES + MESSAGE_BYTES..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        if kind == NAME_ATTRIBUTE {
            let name = attributes.get(ATTRIBUTE_BYTES..length)?;
            // An abstract name begins with a zero; of a path it is the end.
            return name.split(|byte| *byte == 0).next();
        }
        attributes = attributes.get(length.max(ATTRIBUTE_BYTES).next_multiple_of(4)..)?;
    }
}

/// The names in the kernel's table, one a line, after seven other columns.
fn listed(table: &[u8], unseen: &[&str]) -> Vec<PathBuf> {
    let names = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let name = line.windows(2).position(|bytes| bytes == b" /")?;
        Some(&line[name + 1..])
    });
    names.filter(|name| may_be_seen(name, unseen)).map(path).collect()
}

fn path(name: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener};
    use std::path::PathBuf;

    use super::{UNSEEN, below, bound, listed};

    #[test]
    fn sockets_below_a_directory_are_found_through_links() {
        // Not below `/tmp`, which no run sees.
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir(at("seen")).unwrap();
        std::os::unix::fs::symlink("seen", at("link")).unwrap();
        let _stream = UnixListener::bind(at("seen/stream")).unwrap();
        let _datagram = UnixDatagram::bind(at("link/datagram")).unwrap();
        let _beside = UnixListener::bind(at("beside")).unwrap();
        let gone = UnixListener::bind(at("seen/gone")).unwrap();
        std::fs::remove_file(at("seen/gone")).unwrap();
        let seen = at("seen").canonicalize().unwrap();
        let mut found = below(&[&seen]).unwrap();
        found.sort_unstable();
        assert_eq!(found, [seen.join("datagram"), seen.join("stream")]);
        drop(gone);
    }

    #[test]
    fn sockets_beside_a_program_below_tmp_are_found() {
        let place = tempfile::tempdir_in("/tmp").unwrap();
        let packages = place.path().canonicalize().unwrap().join("node_modules");
        std::fs::create_dir(&packages).unwrap();
        let _listener = UnixListener::bind(packages.join("socket")).unwrap();
        assert_eq!(below(&[&packages]).unwrap(), [packages.join("socket")]);
    }

    #[test]
    fn both_ways_to_ask_name_the_same_socket() {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = place.path().join("a socket");
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(bound(&UNSEEN).unwrap().contains(&path));
        assert!(listed(&std::fs::read("/proc/net/unix").unwrap(), &UNSEEN).contains(&path));
    }

    #[test]
    fn table_lines_without_a_path_are_left_out() {
        let table = b"Num RefCount Protocol Flags Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 1 /opt/a b\n\
            0: 00000002 00000000 00010000 0001 01 2 @abstract\n\
            0: 00000002 00000000 00010000 0001 01 3 /run/x\n\
            0: 00000003 00000000 00000000 0001 03 4\n";
        assert_eq!(listed(table, &UNSEEN), [PathBuf::from("/opt/a b")]);
    }
}
