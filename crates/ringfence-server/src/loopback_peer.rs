//! Whether the process at the other end of a connection within this machine is of this user, outside of every run.
//!
//! The daemon asks it for connections without a credential while `RINGFENCE_ALLOW_INSECURE_SYSTEM_CONTROL` is set, and for login
//! codes and sessions, which are the owner's alone, and for tokens and keys, which no run may use. The command line asks it before it sends a credential. Whatever cannot be
//! found out is refused.
//!
//! - The kernel lists a socket that its process has closed, or not accepted yet, with uid 0 and inode 0. Only an established
//!   socket with an inode counts.
//! - The list knows a connection by its addresses alone, and those of a connection that the other end has reset are free for another one,
//!   while its descriptor and what was read from it are still there. So the asker's own end has to be established once the look-up is over:
//!   then it was so all the time, and until then the kernel gave its addresses to no other connection.
//! - A sandboxed run has the owner's uid and, with an open network, the owner's loopback. So every process that holds the
//!   socket has to be in the asker's own namespaces, without a seccomp filter, and must not descend from a `ringfence` process
//!   (the gate is above every process of a run). A client must not be one either (a broker dials for runs); a daemon is one.
//! - For login codes and sessions it is enough that a process holds the socket that has no gate above it, and none that has: browsers
//!   have sandboxes of their own. So it is for the daemon's token and keys, which programs of other users may have been given.
//! - It is asked anew for each request: the socket may have been passed to another process since the last one.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ringfence_egress::processes::{
    Role, are_outside_of_runs, holders, is_held_by_run, is_held_outside_of_runs,
};

/// `01` in the fourth column of `/proc/net/tcp`.
const ESTABLISHED: &str = "01";
/// The kernel's lists of TCP sockets.
const LISTS: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];

/// Whether this system lists whose sockets are. Elsewhere than on Linux no connection is known to be the owner's.
pub(crate) const LISTS_OWNERS: bool = cfg!(target_os = "linux");

/// Both ends of a TCP connection.
#[derive(Debug, Clone)]
pub(crate) struct Ends {
    /// The address of the other end.
    pub(crate) peer: SocketAddr,
    /// One's own address.
    pub(crate) local: SocketAddr,
    /// One's own end, by a descriptor beside that of its stream.
    own: Arc<OwnedFd>,
}

impl Ends {
    /// Those of a stream.
    pub(crate) fn of(stream: &tokio::net::TcpStream) -> io::Result<Self> {
        Self::new(stream, stream.peer_addr()?, stream.local_addr()?)
    }

    /// Those of a stream whose addresses are known. Those of one that has ended cannot all be asked for.
    pub(crate) fn new(stream: &impl AsFd, peer: SocketAddr, local: SocketAddr) -> io::Result<Self> {
        Ok(Self { peer, local, own: Arc::new(stream.as_fd().try_clone_to_owned()?) })
    }

    /// Whether one's own end is established: it has received neither a reset nor the end of what the other end sends.
    #[cfg(target_os = "linux")]
    fn is_established(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut polled = [PollFd::new(&*self.own, PollFlags::RDHUP)];
        let answered = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&Timespec::default())));
        // What was not asked for is told too: a reset, an error.
        answered == Ok(0)
    }

    /// No connection is found elsewhere.
    #[cfg(not(target_os = "linux"))]
    fn is_established(&self) -> bool {
        let _ = &self.own;
        false
    }
}

/// The socket of the other end as the kernel lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Socket {
    uid: u32,
    inode: u64,
}

/// Whether the socket of the other end belongs to this user, and not to a run of this user. A browser in a sandbox of its own (Flatpak,
/// Snap) is the user's, and so is `sshd`, whose descriptors cannot be listed.
pub(crate) fn is_of_owner(ends: &Ends) -> bool {
    let own = rustix::process::geteuid().as_raw();
    holds_for_peer(ends, |socket| socket.uid == own && is_held_outside_of_runs(socket.inode))
}

/// Whether a token or a key counts on a connection within this machine: its other end is no run's. Where the system does not tell whose
/// connections are, it does.
pub(crate) fn may_use_credentials(ends: &Ends) -> bool {
    if !LISTS_OWNERS {
        return true;
    }
    let own = rustix::process::geteuid().as_raw();
    holds_for_peer(ends, |socket| match socket.uid == own {
        true => is_held_outside_of_runs(socket.inode),
        false => !is_held_by_run(socket.inode),
    })
}

/// Whether the other end is a process of this user that no run has started.
pub(crate) fn is_owner_outside_of_runs(ends: &Ends, role: Role) -> bool {
    let own = rustix::process::geteuid().as_raw();
    holds_for_peer(ends, |socket| socket.uid == own && are_outside_of_runs(&holders(socket.inode), role))
}

/// Whether a process holds the socket of the other end: a server's is nobody's until it was accepted.
pub(crate) fn is_held(ends: &Ends) -> bool {
    holds_for_peer(ends, |_| true)
}

/// Whether something holds for the socket of the other end, which is the same before and after, and that of this connection.
fn holds_for_peer(ends: &Ends, holds: impl FnOnce(Socket) -> bool) -> bool {
    // What has ended already needs no look-up.
    let found = ends.is_established().then(|| established(ends)).flatten();
    let is_found_again = |socket| established(ends) == Some(socket);
    // Last of all: the list may have told of another connection since this one ended.
    found.is_some_and(|socket| holds(socket) && is_found_again(socket)) && ends.is_established()
}

fn established(ends: &Ends) -> Option<Socket> {
    LISTS.into_iter().filter_map(|list| fs::read_to_string(list).ok()).find_map(|list| find(&list, ends))
}

/// The established socket of the other end in one of the kernel's lists.
fn find(list: &str, ends: &Ends) -> Option<Socket> {
    let (from, to) = (written(ends.peer), written(ends.local));
    list.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, local, remote, state, _, _, _, uid, _, inode, ..] = columns[..] else { return None };
        let wanted = from.iter().zip(&to).any(|(from, to)| local == from && remote == to);
        let socket = Socket { uid: uid.parse().ok()?, inode: inode.parse().ok()? };
        (wanted && state == ESTABLISHED && socket.inode != 0).then_some(socket)
    })
}

/// An address as the kernel writes it, in the list of each family.
fn written(address: SocketAddr) -> [String; 2] {
    let words = |octets: &[u8]| -> String {
        let word = |octets: &[u8]| octets.iter().rev().map(|byte| format!("{byte:02X}")).collect::<String>();
        octets.chunks(4).map(word).collect()
    };
    let port = address.port();
    let four = match address.ip().to_canonical() {
        IpAddr::V4(four) => words(&four.octets()),
        IpAddr::V6(_) => String::new(),
    };
    let six: Ipv6Addr = match address.ip() {
        IpAddr::V4(four) => four.to_ipv6_mapped(),
        IpAddr::V6(six) => six,
    };
    [format!("{four}:{port:04X}"), format!("{}:{port:04X}", words(&six.octets()))]
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::path::Path;

    use super::{
        Ends, Role, Socket, find, holders, is_held, is_of_owner, is_owner_outside_of_runs,
        may_use_credentials,
    };

    impl Ends {
        /// Addresses alone.
        pub(crate) fn unconnected(peer: &str, local: &str) -> Self {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            Self::new(&socket, peer.parse().unwrap(), local.parse().unwrap()).unwrap()
        }
    }

    #[test]
    fn established_connection_of_this_user_is_recognised_and_a_closed_one_is_not() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no such address.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            let ends = Ends::new(&accepted, peer, accepted.local_addr().unwrap()).unwrap();
            assert!(is_of_owner(&ends));
            let socket = super::established(&ends).unwrap();
            let own = format!("/proc/{}", std::process::id());
            assert_eq!(holders(socket.inode), [Path::new(&own)]);
            drop(stream);
            assert!(!is_of_owner(&ends), "closed by its process");
        }
    }

    #[test]
    fn closed_and_orphaned_sockets_are_not_listed_as_anybodys() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let line = |state: &str, uid: &str, inode: &str| {
            format!(
                "{head}  53: 0100007F:E9E2 0100007F:10CD {state} 00000000:00000000 00:00000000 00000000 {uid} 0 {inode} 1 0\n"
            )
        };
        let ends = Ends::unconnected("127.0.0.1:59874", "127.0.0.1:4301");
        assert_eq!(find(&line("01", "1000", "77"), &ends), Some(Socket { uid: 1000, inode: 77 }));
        assert_eq!(find(&line("05", "0", "0"), &ends), None, "FIN_WAIT2");
        assert_eq!(find(&line("06", "0", "0"), &ends), None, "TIME_WAIT");
        assert_eq!(find(&line("01", "0", "0"), &ends), None, "without an inode");
        assert_eq!(find(&line("05", "1000", "77"), &ends), None, "half closed");
        let reversed = Ends { peer: ends.local, local: ends.peer, ..ends };
        assert_eq!(find(&line("01", "1000", "77"), &reversed), None);
    }

    #[test]
    fn server_is_known_once_it_has_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ends = Ends::new(&stream, stream.peer_addr().unwrap(), stream.local_addr().unwrap()).unwrap();
        assert!(!is_held(&ends) && !is_of_owner(&ends), "it waits to be accepted");
        let accepted = listener.accept().unwrap();
        assert!(is_held(&ends) && is_of_owner(&ends));
        drop(accepted);
        assert!(!is_held(&ends), "closed by its process");
    }

    /// Connects from an address that another connection may have had.
    fn connect_from(local: SocketAddr, to: SocketAddr) -> TcpStream {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
        let stream = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_reuseaddr(&stream, true).unwrap();
        bind(&stream, &local).unwrap();
        connect(&stream, &to).unwrap();
        stream.into()
    }

    #[test]
    fn connection_that_was_reset_is_not_taken_for_the_next_one_from_its_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let accept = || {
            let (accepted, peer) = listener.accept().unwrap();
            (Ends::new(&accepted, peer, to).unwrap(), accepted)
        };
        let first = connect_from("127.0.0.1:0".parse().unwrap(), to);
        let (reset, mut accepted) = accept();
        assert!(is_of_owner(&reset) && may_use_credentials(&reset));
        rustix::net::sockopt::set_socket_linger(&first, Some(std::time::Duration::ZERO)).unwrap();
        drop(first);
        let next = connect_from(reset.peer, to);
        let (ends, _next_accepted) = accept();
        assert_eq!((ends.peer, ends.local), (reset.peer, reset.local));
        assert!(super::established(&reset).is_some(), "the list tells of the next one");
        for read in [false, true] {
            if read {
                // Then the socket does not tell of the reset as an error any more.
                assert!(accepted.read(&mut [0]).is_err());
            }
            assert!(!is_of_owner(&reset) && !may_use_credentials(&reset) && !is_held(&reset));
            assert!(!is_owner_outside_of_runs(&reset, Role::Client));
        }
        assert!(is_of_owner(&ends) && may_use_credentials(&ends));
        drop(next);
    }

    #[test]
    fn connection_whose_other_end_has_sent_its_last_is_not_established() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        let ends = Ends::new(&accepted, peer, accepted.local_addr().unwrap()).unwrap();
        (&stream).write_all(b"x").unwrap();
        assert!(ends.is_established(), "with bytes that were not read yet");
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!ends.is_established());
    }
}
