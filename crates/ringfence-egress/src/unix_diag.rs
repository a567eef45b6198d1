//! Whose a Unix socket is, asked of the kernel by `NETLINK_SOCK_DIAG`: also of a socket that accepts no connection.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::time::Instant;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use rustix::process::Uid;

/// `SOCK_DIAG_BY_FAMILY`: the type of the request and of its answer.
const BY_FAMILY: u16 = 20;
/// `AF_UNIX`.
const FAMILY: u8 = 1;
/// The types of messages that end a list, `NLMSG_ERROR` and `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLM_F_REQUEST`, and with `NLM_F_DUMP`.
const REQUEST: u16 = 1;
const DUMP: u16 = 0x301;
/// The state of sockets that take connections, `TCP_LISTEN`.
const LISTENING: u32 = 1 << 10;
/// The kernel sends a list in pieces of at most this length.
const LIST_BYTES: usize = 32 << 10;
/// `UDIAG_SHOW_NAME`, `UDIAG_SHOW_PEER` and `UDIAG_SHOW_UID`.
const SHOWN: u32 = 0x01 | 0x04 | 0x40;
/// `UNIX_DIAG_NAME`, `UNIX_DIAG_PEER` and `UNIX_DIAG_UID`: the attributes of an answer.
const NAME_ATTRIBUTE: u16 = 0;
const PEER_ATTRIBUTE: u16 = 2;
const UID_ATTRIBUTE: u16 = 7;
/// The lengths of `struct nlmsghdr`, `struct unix_diag_req`, `struct unix_diag_msg` and `struct nlattr`.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = 24;
const MESSAGE_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 4;

/// A socket as the kernel describes it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Socket {
    /// An abstract one begins with a zero.
    name: Vec<u8>,
    /// The inode of the other end. 0 until a process has accepted the connection.
    peer: Option<u32>,
    uid: Option<Uid>,
}

/// The inode of the other end of a connected Unix socket, given that of one's own end; `None` until a process has accepted it, and once
/// it was closed. An error where the kernel does not tell.
pub fn peer_of_inode(inode: u64) -> io::Result<Option<u64>> {
    let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
    let socket = ask(u32::try_from(inode).map_err(|_| unsupported())?)?.ok_or_else(unsupported)?;
    Ok(socket.peer.filter(|peer| *peer != 0).map(u64::from))
}

/// The user who has made the Unix socket of an inode; `None` if there is no such socket of this abstract name. A name can hold the
/// end of a line, so that the kernel's list has lines that are none.
pub(crate) fn owner_of_inode(inode: u32, name: &[u8]) -> io::Result<Option<Uid>> {
    let found = ask(inode)?;
    if found.is_none() && !is_answered()? {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    let named = |socket: &Socket| socket.name.strip_prefix(b"\0") == Some(name);
    match found.filter(named) {
        Some(Socket { uid: Some(uid), .. }) => Ok(Some(uid)),
        Some(_) => Err(io::Error::from(io::ErrorKind::Unsupported)),
        None => Ok(None),
    }
}

/// A socket that takes connections at an abstract name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listener {
    /// The name without the zero at its beginning.
    pub(crate) name: Vec<u8>,
    pub(crate) inode: u32,
    /// Who has made the socket.
    pub(crate) user: Uid,
}

/// The sockets of this network namespace that take connections at an abstract name, as far as `is_meant` says so. An error where the
/// kernel does not tell, or not until then.
pub(crate) fn listeners(until: Instant, is_meant: impl Fn(&Listener) -> bool) -> io::Result<Vec<Listener>> {
    let kernel = kernel()?;
    rustix::net::send(&kernel, &request_of(DUMP, LISTENING, 0), SendFlags::empty())?;
    let mut found = Vec::new();
    let mut answer = vec![0; LIST_BYTES];
    while Instant::now() < until {
        let (_, length) = rustix::net::recv(&kernel, &mut answer[..], RecvFlags::TRUNC)?;
        let mut rest = answer.get(..length).ok_or(io::ErrorKind::InvalidData)?;
        while let (Some(length), Some(kind)) = (u32_at(rest, 0), u16_at(rest, 4)) {
            let length = usize::try_from(length).unwrap_or(usize::MAX).max(HEADER_BYTES);
            let message = rest.get(..length).ok_or(io::ErrorKind::InvalidData)?;
            match kind {
                DONE => return Ok(found),
                ERROR => return Err(io::ErrorKind::Unsupported.into()),
                BY_FAMILY => found.extend(listener(message)?.filter(&is_meant)),
                _ => {}
            }
            rest = rest.get(length.next_multiple_of(ATTRIBUTE_BYTES)..).unwrap_or_default();
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// `None` for one whose name is a path. An error where the kernel does not tell who has made it.
fn listener(message: &[u8]) -> io::Result<Option<Listener>> {
    let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
    let (inode, socket) = socket_of(message).ok_or_else(unsupported)?;
    let Some(name) = socket.name.strip_prefix(b"\0") else { return Ok(None) };
    let user = socket.uid.ok_or_else(unsupported)?;
    Ok(Some(Listener { name: name.to_vec(), inode, user }))
}

/// Whether this kernel answers such questions at all: it does not tell a socket that is not there from a question it does not know.
fn is_answered() -> io::Result<bool> {
    let own = UnixDatagram::unbound()?;
    let inode = rustix::fs::fstat(own.as_fd())?.st_ino;
    Ok(u32::try_from(inode).is_ok_and(|inode| ask(inode).is_ok_and(|socket| socket.is_some())))
}

/// A socket at which the kernel answers.
fn kernel() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let family = AddressFamily::NETLINK;
    Ok(rustix::net::socket_with(family, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?)
}

fn ask(inode: u32) -> io::Result<Option<Socket>> {
    let kernel = kernel()?;
    rustix::net::send(&kernel, &request(inode), SendFlags::empty())?;
    let mut answer = [0; 4096];
    let (length, _) = rustix::net::recv(&kernel, &mut answer, RecvFlags::empty())?;
    Ok(parse(answer.get(..length).unwrap_or_default(), inode))
}

/// The question for one socket, of any state.
fn request(inode: u32) -> Vec<u8> {
    request_of(REQUEST, u32::MAX, inode)
}

fn request_of(kind: u16, states: u32, inode: u32) -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + REQUEST_BYTES).unwrap_or_default();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + REQUEST_BYTES);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    // The sequence number and the port are the caller's, and not needed.
    bytes.extend([0; 8]);
    bytes.extend([FAMILY, 0, 0, 0]);
    bytes.extend(states.to_ne_bytes());
    bytes.extend(inode.to_ne_bytes());
    bytes.extend(SHOWN.to_ne_bytes());
    // With any cookie.
    bytes.extend([0xff; 8]);
    bytes
}

/// The socket in an answer about an inode; `None` if the answer is an error or about another one.
fn parse(answer: &[u8], inode: u32) -> Option<Socket> {
    if u16_at(answer, 4)? != BY_FAMILY {
        return None;
    }
    socket_of(answer).filter(|(found, _)| *found == inode).map(|(_, socket)| socket)
}

/// The socket of a message, and its inode.
fn socket_of(message: &[u8]) -> Option<(u32, Socket)> {
    let inode = u32_at(message, HEADER_BYTES + 4)?;
    let mut socket = Socket::default();
    let mut rest = message.get(HEADER_BYTES + MESSAGE_BYTES..)?;
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let length = usize::from(length);
        let value = rest.get(ATTRIBUTE_BYTES..length)?;
        match kind {
            NAME_ATTRIBUTE => socket.name = value.to_vec(),
            PEER_ATTRIBUTE => socket.peer = u32_at(value, 0),
            UID_ATTRIBUTE => socket.uid = u32_at(value, 0).map(Uid::from_raw),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(ATTRIBUTE_BYTES)..).unwrap_or_default();
    }
    Some((inode, socket))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};

    use rustix::process::Uid;

    use std::time::{Duration, Instant};

    use super::{BY_FAMILY, Listener, Socket, listeners, owner_of_inode, parse, peer_of_inode};

    #[test]
    fn owner_of_a_socket_is_told_by_its_inode_and_name() {
        let name = format!("ringfence-test:{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let inode = u32::try_from(rustix::fs::fstat(socket.as_fd()).unwrap().st_ino).unwrap();
        let own = rustix::process::geteuid();
        assert_eq!(owner_of_inode(inode, name.as_bytes()).unwrap(), Some(own));
        assert_eq!(owner_of_inode(inode, b"another").unwrap(), None);
        assert_eq!(owner_of_inode(0, name.as_bytes()).unwrap(), None);
        drop(socket);
        assert_eq!(owner_of_inode(inode, name.as_bytes()).unwrap(), None, "it is closed");
    }

    #[test]
    fn listeners_are_listed_with_their_users_until_a_moment() {
        let name = format!("ringfence-listener:{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        // A connection has the name too, and listens to nobody.
        let _connected = (UnixStream::connect_addr(&address).unwrap(), listener.accept().unwrap());
        let inode = u32::try_from(rustix::fs::fstat(listener.as_fd()).unwrap().st_ino).unwrap();
        let named = |listener: &Listener| listener.name == name.as_bytes();
        let found = listeners(Instant::now() + Duration::from_secs(600), named).unwrap();
        let user = rustix::process::geteuid();
        assert_eq!(found, [Listener { name: name.clone().into_bytes(), inode, user }]);
        assert!(listeners(Instant::now(), named).is_err());
    }

    #[test]
    fn other_end_of_a_connection_is_told_once_it_is_accepted() {
        let name = SocketAddr::from_abstract_name(format!("ringfence-peer:{}", std::process::id())).unwrap();
        let listener = UnixListener::bind_addr(&name).unwrap();
        let stream = UnixStream::connect_addr(&name).unwrap();
        let inode = |socket: &UnixStream| rustix::fs::fstat(socket.as_fd()).unwrap().st_ino;
        assert_eq!(peer_of_inode(inode(&stream)).unwrap(), None);
        let accepted = listener.accept().unwrap().0;
        assert_eq!(peer_of_inode(inode(&stream)).unwrap(), Some(inode(&accepted)));
        assert_eq!(peer_of_inode(inode(&accepted)).unwrap(), Some(inode(&stream)));
        assert_eq!(crate::processes::holders(inode(&accepted)).len(), 1);
        drop(stream);
        assert_eq!(peer_of_inode(inode(&accepted)).unwrap(), None, "closed");
        assert!(peer_of_inode(u64::MAX).is_err());
    }

    #[test]
    fn answers_that_are_cut_off_or_about_another_inode_tell_nobody() {
        let attribute = |length: u16, kind: u16, value: &[u8]| {
            [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat()
        };
        let head = [&[0; 4][..], &BY_FAMILY.to_ne_bytes(), &[0; 14], &7_u32.to_ne_bytes(), &[0; 8]].concat();
        let uid = attribute(8, 7, &1000_u32.to_ne_bytes());
        let whole = [&head[..], &attribute(6, 0, b"\0x\0\0"), &uid].concat();
        let expected = Socket { name: b"\0x".to_vec(), peer: None, uid: Some(Uid::from_raw(1000)) };
        assert_eq!(parse(&whole, 7), Some(expected));
        assert_eq!(parse(&whole, 8), None);
        for end in 0..whole.len() {
            assert_eq!(parse(&whole[..end], 7).and_then(|socket| socket.uid), None, "{end}");
        }
        for length in [0, 3, 5, u16::MAX] {
            let wrong = [&head[..], &attribute(length, 7, b"1")].concat();
            assert_eq!(parse(&wrong, 7).and_then(|socket| socket.uid), None, "{length}");
        }
    }
}
