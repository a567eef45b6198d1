//! The paths to which Unix sockets are bound in this network namespace, as the kernel lists them. Every user of the machine chooses such
//! names, and how many there are.
#![expect(clippy::disallowed_methods, reason = "a file of the kernel")]

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use rustix::process::Uid;

/// `SOCK_DIAG_BY_FAMILY`, and the types of messages that end an answer: `NLMSG_ERROR`, `NLMSG_DONE`.
const BY_FAMILY: u16 = 20;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
/// `AF_UNIX`.
const FAMILY: u8 = 1;
/// States of sockets, and the type of those that take messages without a connection: `TCP_ESTABLISHED`, `TCP_CLOSE`, `TCP_LISTEN`, and
/// `SOCK_DGRAM`.
const ESTABLISHED: u8 = 1;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;
const DATAGRAM: u8 = 2;
const STATES: u32 = 1 << ESTABLISHED | 1 << CLOSE | 1 << LISTEN;
/// `UDIAG_SHOW_NAME` and `UDIAG_SHOW_UID`, and their attributes in an answer: `UNIX_DIAG_NAME` and `UNIX_DIAG_UID`.
const SHOWN: u32 = 0x01 | 0x40;
const NAME_ATTRIBUTE: u16 = 0;
const UID_ATTRIBUTE: u16 = 7;
/// The lengths of `struct nlmsghdr`, `struct unix_diag_req`, `struct unix_diag_msg` and `struct nlattr`.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = 24;
const MESSAGE_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 4;
/// The kernel answers in pieces of at most this length.
const ANSWER_BYTES: usize = 32 << 10;

/// A path to which a socket is bound, as the program has named it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BoundName {
    pub(super) path: PathBuf,
    /// Who has made the socket; `None` if the kernel does not tell.
    pub(super) user: Option<Uid>,
}

/// Tells each name of sockets that take connections or messages, until `each` ends it.
pub(super) fn list(each: &mut dyn FnMut(BoundName) -> ControlFlow<()>) -> io::Result<()> {
    // Not every kernel has the first, and some containers refuse it.
    ask(each).or_else(|_| {
        fs::read("/proc/net/unix").map(|table| {
            let _ = listed(&table).try_for_each(each);
        })
    })
}

/// The names as the kernel tells them to programs.
fn ask(each: &mut dyn FnMut(BoundName) -> ControlFlow<()>) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC;
    let kernel =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?;
    rustix::net::send(&kernel, &request(), SendFlags::empty())?;
    let mut answer = vec![0; ANSWER_BYTES];
    loop {
        let (_, length) = rustix::net::recv(&kernel, &mut answer[..], RecvFlags::TRUNC)?;
        let answer = answer.get(..length).ok_or(io::ErrorKind::InvalidData)?;
        if parse(answer, each)?.is_break() {
            return Ok(());
        }
    }
}

fn request() -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + REQUEST_BYTES).unwrap_or_default();
    let header = [&length.to_ne_bytes()[..], &BY_FAMILY.to_ne_bytes(), &DUMP.to_ne_bytes(), &[0; 8]];
    let (states, any_inode, any_cookie) = (STATES.to_ne_bytes(), [0; 4], [0xff; 8]);
    let body = [&[FAMILY, 0, 0, 0][..], &states, &any_inode, &SHOWN.to_ne_bytes(), &any_cookie];
    header.into_iter().chain(body).flatten().copied().collect()
}

/// Tells the names of one answer. Breaks after the last one.
fn parse(
    mut answer: &[u8],
    each: &mut dyn FnMut(BoundName) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    while let Some((length, kind)) = message(answer) {
        let whole = answer.get(..length).ok_or(io::ErrorKind::InvalidData)?;
        match kind {
            DONE => return Ok(ControlFlow::Break(())),
            ERROR => return Err(io::ErrorKind::Unsupported.into()),
            BY_FAMILY => {
                if let Some(name) = name(whole)
                    && each(name).is_break()
                {
                    return Ok(ControlFlow::Break(()));
                }
            }
            _ => {}
        }
        answer = answer.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(ControlFlow::Continue(()))
}

/// The length and the type of the first message.
fn message(answer: &[u8]) -> Option<(usize, u16)> {
    let length = u32::from_ne_bytes(answer.get(..4)?.try_into().ok()?);
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    Some((usize::try_from(length).ok()?.max(HEADER_BYTES), kind))
}

/// The socket of a message, if it is bound to a path and takes connections or messages of anybody. A datagram socket counts as
/// established once a client has connected to it; other established sockets have the name of the one that accepted them.
fn name(message: &[u8]) -> Option<BoundName> {
    let [_, kind, state, ..] = *message.get(HEADER_BYTES..)? else { return None };
    if state == ESTABLISHED && kind != DATAGRAM {
        return None;
    }
    let mut attributes = message.get(HEADER_BYTES + MESSAGE_BYTES..)?;
    let (mut path, mut user) = (None, None);
    while let (Some(length), Some(kind)) = (number(attributes, 0), number(attributes, 2)) {
        let length = usize::from(length);
        let value = attributes.get(ATTRIBUTE_BYTES..length)?;
        match kind {
            // An abstract name begins with a zero; of a path it is the end.
            NAME_ATTRIBUTE => path = value.split(|byte| *byte == 0).next().and_then(absolute),
            UID_ATTRIBUTE => user = value.try_into().ok().map(u32::from_ne_bytes).map(Uid::from_raw),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(ATTRIBUTE_BYTES)..).unwrap_or_default();
    }
    path.map(|path| BoundName { path, user })
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The names in the kernel's table, one a line, after seven other columns.
fn listed(table: &[u8]) -> impl Iterator<Item = BoundName> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let name = line.windows(2).position(|bytes| bytes == b" /")?;
        Some(BoundName { path: absolute(&line[name + 1..])?, user: None })
    })
}

fn absolute(name: &[u8]) -> Option<PathBuf> {
    name.starts_with(b"/").then(|| PathBuf::from(OsStr::from_bytes(name)))
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
    use std::path::PathBuf;

    use super::{BoundName, ask, listed};

    #[test]
    fn both_ways_to_ask_name_the_same_socket() {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = place.path().join("a socket");
        let _listener = UnixListener::bind(&path).unwrap();
        let user = Some(rustix::process::geteuid());
        let mut asked = Vec::new();
        ask(&mut |name| {
            asked.push(name);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(asked.contains(&BoundName { path: path.clone(), user }));
        let table = std::fs::read("/proc/net/unix").unwrap();
        assert!(listed(&table).any(|name| name == BoundName { path: path.clone(), user: None }));
    }

    #[test]
    fn datagram_socket_with_a_client_is_listed_and_an_accepted_connection_is_not() {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = |name: &str| place.path().join(name);
        let _datagram = UnixDatagram::bind(at("datagram")).unwrap();
        UnixDatagram::unbound().unwrap().connect(at("datagram")).unwrap();
        let listener = UnixListener::bind(at("stream")).unwrap();
        let _client = UnixStream::connect(at("stream")).unwrap();
        let _accepted = listener.accept().unwrap();
        drop(listener);
        let mut names = Vec::new();
        ask(&mut |name| {
            names.push(name.path);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(names.contains(&at("datagram")) && !names.contains(&at("stream")));
    }

    #[test]
    fn table_lines_without_a_path_are_left_out() {
        let table = b"Num RefCount Protocol Flags Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 1 /opt/a b\n\
            0: 00000002 00000000 00010000 0001 01 2 @abstract\n\
            0: 00000003 00000000 00000000 0001 03 4\n";
        let names: Vec<PathBuf> = listed(table).map(|name| name.path).collect();
        assert_eq!(names, [PathBuf::from("/opt/a b")]);
    }
}
