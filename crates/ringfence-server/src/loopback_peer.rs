//! Whether the process at the other end of a connection within this machine is of this user, outside of every run.
//!
//! The daemon asks it for connections without a credential while `RINGFENCE_ALLOW_INSECURE_SYSTEM_CONTROL` is set, and for login
//! codes and sessions, which are the owner's alone, and for tokens and keys, which no run may use. The command line asks it before it sends a credential. Whatever cannot be
//! found out is refused.
//!
//! - The kernel lists a socket that its process has closed, or not accepted yet, with uid 0 and inode 0. Only an established
//!   socket with an inode counts, and the asker holds its own end open meanwhile, so that the port cannot have been used again.
//! - A sandboxed run has the owner's uid and, with an open network, the owner's loopback. So every process that holds the
//!   socket has to be in the asker's own namespaces, without a seccomp filter, and must not descend from a `ringfence` process
//!   (the gate is above every process of a run). A client must not be one either (a broker dials for runs); a daemon is one.
//! - For login codes and sessions it is enough that a process holds the socket that has no gate above it, and none that has: browsers
//!   have sandboxes of their own. So it is for the daemon's token and keys, which programs of other users may have been given.
//! - It is asked anew for each request: the socket may have been passed to another process since the last one.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The address of the other end.
    pub(crate) peer: SocketAddr,
    /// One's own address.
    pub(crate) local: SocketAddr,
}

/// The socket of the other end as the kernel lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Socket {
    uid: u32,
    inode: u64,
}

/// Whether the socket of the other end belongs to this user, and not to a run of this user. A browser in a sandbox of its own (Flatpak,
/// Snap) is the user's, and so is `sshd`, whose descriptors cannot be listed.
pub(crate) fn is_of_owner(ends: Ends) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let Some(socket) = established(ends).filter(|socket| socket.uid == own) else { return false };
    is_held_outside_of_runs(socket.inode) && established(ends) == Some(socket)
}

/// Whether a token or a key counts on a connection within this machine: its other end is no run's. Where the system does not tell whose
/// connections are, it does.
pub(crate) fn may_use_credentials(ends: Ends) -> bool {
    if !LISTS_OWNERS {
        return true;
    }
    let Some(socket) = established(ends) else { return false };
    let is_outside = match socket.uid == rustix::process::geteuid().as_raw() {
        true => is_held_outside_of_runs(socket.inode),
        false => !is_held_by_run(socket.inode),
    };
    is_outside && established(ends) == Some(socket)
}

/// Whether the other end is a process of this user that no run has started.
pub(crate) fn is_owner_outside_of_runs(ends: Ends, role: Role) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let Some(socket) = established(ends).filter(|socket| socket.uid == own) else { return false };
    are_outside_of_runs(&holders(socket.inode), role) && established(ends) == Some(socket)
}

/// Whether a process holds the socket of the other end: a server's is nobody's until it was accepted.
pub(crate) fn is_held(ends: Ends) -> bool {
    established(ends).is_some()
}

fn established(ends: Ends) -> Option<Socket> {
    LISTS.into_iter().filter_map(|list| fs::read_to_string(list).ok()).find_map(|list| find(&list, ends))
}

/// The established socket of the other end in one of the kernel's lists.
fn find(list: &str, ends: Ends) -> Option<Socket> {
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
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;

    use super::{Ends, Socket, find, holders, is_held, is_of_owner};

    #[test]
    fn established_connection_of_this_user_is_recognised_and_a_closed_one_is_not() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no such address.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            let ends = Ends { peer, local: accepted.local_addr().unwrap() };
            assert!(is_of_owner(ends));
            let socket = super::established(ends).unwrap();
            let own = format!("/proc/{}", std::process::id());
            assert_eq!(holders(socket.inode), [Path::new(&own)]);
            drop(stream);
            // The accepted end is still open, so the port cannot be used again meanwhile.
            assert!(!is_of_owner(ends), "closed by its process");
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
        let ends =
            Ends { peer: "127.0.0.1:59874".parse().unwrap(), local: "127.0.0.1:4301".parse().unwrap() };
        assert_eq!(find(&line("01", "1000", "77"), ends), Some(Socket { uid: 1000, inode: 77 }));
        assert_eq!(find(&line("05", "0", "0"), ends), None, "FIN_WAIT2");
        assert_eq!(find(&line("06", "0", "0"), ends), None, "TIME_WAIT");
        assert_eq!(find(&line("01", "0", "0"), ends), None, "without an inode");
        assert_eq!(find(&line("05", "1000", "77"), ends), None, "half closed");
        let reversed = Ends { peer: ends.local, local: ends.peer };
        assert_eq!(find(&line("01", "1000", "77"), reversed), None);
    }

    #[test]
    fn server_is_known_once_it_has_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ends = Ends { peer: stream.peer_addr().unwrap(), local: stream.local_addr().unwrap() };
        assert!(!is_held(ends) && !is_of_owner(ends), "it waits to be accepted");
        let accepted = listener.accept().unwrap();
        assert!(is_held(ends) && is_of_owner(ends));
        drop(accepted);
        assert!(!is_held(ends), "closed by its process");
    }
}
