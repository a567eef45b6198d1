//! Whether the process at the other end of a loopback connection is the daemon's owner, outside of every run.
//!
//! Used for connections without a credential while `RINGFENCE_ALLOW_INSECURE_SYSTEM_CONTROL` is set, and for login codes
//! that were on a command line. Whatever cannot be found out is refused.
//!
//! - The kernel lists a socket that its process has closed with uid 0 and inode 0. Only an established socket with an
//!   inode counts, and the daemon holds its own end open meanwhile, so that the port cannot have been used again.
//! - A sandboxed run has the owner's uid and, with an open network, the owner's loopback. So every process that holds the
//!   socket has to be in the daemon's own namespaces, without a seccomp filter, and neither be a `ringfence` process (a
//!   broker dials for runs) nor descend from one (the gate is above every process of a run).
//! - It is asked anew for each request: the socket may have been passed to another process since the last one.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// `01` in the fourth column of `/proc/net/tcp`.
const ESTABLISHED: &str = "01";
/// The same of a socket that takes connections.
const LISTENING: &str = "0A";
/// The kernel's lists of TCP sockets.
const LISTS: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
/// The namespaces of a process that has to share the daemon's.
const NAMESPACES: [&str; 3] = ["user", "pid", "mnt"];
/// Longer chains of parents are refused.
const MAX_ANCESTORS: usize = 1000;

/// Both ends of a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The client's address.
    pub(crate) peer: SocketAddr,
    /// The daemon's address.
    pub(crate) local: SocketAddr,
}

/// The client's socket as the kernel lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Socket {
    uid: u32,
    inode: u64,
}

/// Whether the client's socket belongs to the daemon's owner.
pub(crate) fn is_of_owner(ends: Ends) -> bool {
    established(ends).is_some_and(|socket| socket.uid == rustix::process::geteuid().as_raw())
}

/// Whether the client is a process of the daemon's owner that no run has started.
pub(crate) fn is_owner_outside_of_runs(ends: Ends) -> bool {
    let Some(socket) = established(ends).filter(|_| is_of_owner(ends)) else { return false };
    let holders = holders(socket.inode);
    !holders.is_empty()
        && holders.iter().all(|process| is_outside_of_runs(process))
        && established(ends) == Some(socket)
}

fn established(ends: Ends) -> Option<Socket> {
    LISTS.into_iter().filter_map(|list| fs::read_to_string(list).ok()).find_map(|list| find(&list, ends))
}

/// The users whose sockets take connections to an address; `None` where the kernel does not list them.
pub(crate) fn listeners(address: SocketAddr) -> Option<Vec<u32>> {
    let lists: Vec<String> = LISTS.into_iter().filter_map(|list| fs::read_to_string(list).ok()).collect();
    let users = lists.iter().flat_map(|list| find_listeners(list, address)).collect();
    (!lists.is_empty()).then_some(users)
}

/// The users of the sockets in one of the kernel's lists that listen at an address, or at all addresses.
fn find_listeners(list: &str, address: SocketAddr) -> Vec<u32> {
    let written = written(address);
    let port = format!(":{:04X}", address.port());
    let takes = |local: &str| {
        let everywhere = local.strip_suffix(&port).is_some_and(|ip| ip.bytes().all(|byte| byte == b'0'));
        everywhere || written.iter().any(|address| address == local)
    };
    let user = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, LISTENING, _, _, _, uid, ..] = columns[..] else { return None };
        // A user that cannot be read is none of one's own.
        takes(local).then(|| uid.parse().unwrap_or(u32::MAX))
    };
    list.lines().skip(1).filter_map(user).collect()
}

/// The established socket of the client in one of the kernel's lists.
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

/// The processes that hold a socket, as directories of `/proc`. Those of other users cannot be looked into.
fn holders(inode: u64) -> Vec<PathBuf> {
    let wanted = format!("socket:[{inode}]");
    let holds = |process: &PathBuf| {
        let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        descriptors.into_iter().any(|entry| {
            fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == wanted.as_str())
        })
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    processes.filter(|process| pid_of(process).is_some()).filter(holds).collect()
}

fn pid_of(process: &Path) -> Option<u32> {
    process.file_name()?.to_str()?.parse().ok()
}

/// Whether a process is one that the owner has started, and not a run.
fn is_outside_of_runs(process: &Path) -> bool {
    let own = Path::new("/proc/self");
    let namespace = |process: &Path, name: &str| fs::read_link(process.join("ns").join(name)).ok();
    let shares = |name: &&str| {
        let mine = namespace(own, name);
        mine.is_some() && namespace(process, name) == mine
    };
    NAMESPACES.iter().all(shares)
        && status_field(process, "Seccomp:").as_deref() == Some("0")
        && !descends_from_ringfence(process)
}

/// Whether a process or one of its ancestors is this program. The gate of a run cannot be looked into; its name can.
fn descends_from_ringfence(process: &Path) -> bool {
    let own = (status_field(Path::new("/proc/self"), "Name:"), program(Path::new("/proc/self")));
    let mut process = process.to_owned();
    for _ in 0..MAX_ANCESTORS {
        let Some(name) = status_field(&process, "Name:") else { return true };
        let same_program = program(&process).is_some_and(|program| Some(program) == own.1);
        if own.0.as_deref() == Some(&name) || same_program {
            return true;
        }
        match status_field(&process, "PPid:").and_then(|parent| parent.parse::<u32>().ok()) {
            Some(0) => return false,
            Some(parent) => process = Path::new("/proc").join(parent.to_string()),
            None => return true,
        }
    }
    true
}

/// The program of a process by device and inode, also when its file was replaced.
fn program(process: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(process.join("exe")).ok().map(|data| (data.dev(), data.ino()))
}

fn status_field(process: &Path, name: &str) -> Option<String> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;

    use super::{Ends, Socket, find, holders, is_of_owner, status_field};

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
    fn status_of_a_process_is_read() {
        assert!(status_field(Path::new("/proc/self"), "PPid:").unwrap().parse::<u32>().is_ok());
        assert_eq!(status_field(Path::new("/proc/none"), "PPid:"), None);
    }
}
