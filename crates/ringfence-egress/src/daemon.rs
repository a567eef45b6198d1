//! Ringfence's own daemons, which no run may reach, whatever its policy allows.
//!
//! A daemon announces the port on which it listens by an abstract Unix socket, whose name holds the port. The kernel lists such
//! names for a network namespace and removes one with its process. So a broker knows the daemon of every installation and program
//! name of its user and of root at the addresses of this machine, not only that of its own state directory. Any user can bind such
//! a name, so who has is asked of the kernel by connecting to it, or by the socket's inode where it accepts nothing.
//!
//! A run with an open network can bind such names too, and thousands of them. So they are looked at on a thread of its own, for a
//! limited time: the broker's own thread serves meanwhile. An announcement in a file would need none of this, but no directory is known
//! to all installations of a user and to root's, and a daemon in a container that shares the network has none in common with the host.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

use http::StatusCode;

use crate::answer::Refusal;
#[cfg(target_os = "linux")]
use crate::unix_diag::{Listener, listeners, owner_of_inode};

/// How the name of an announcement begins; the port and a random number follow.
#[cfg(target_os = "linux")]
const ANNOUNCEMENT: &str = "ringfence-daemon:";
/// The kernel's list of Unix sockets. Abstract names begin with `@` there.
#[cfg(target_os = "linux")]
const UNIX_SOCKETS: &str = "/proc/self/net/unix";
/// The flags of a socket there that takes connections.
#[cfg(target_os = "linux")]
const LISTENING: &[u8] = b"00010000";
/// How long the names of a port are looked at.
#[cfg(target_os = "linux")]
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);
/// More names of one port, of this user and of root, are not looked at: no user has so many daemons.
#[cfg(target_os = "linux")]
const MAX_NAMES: usize = 16 << 10;
/// One lookup of this process at a time.
#[cfg(target_os = "linux")]
static LOOKUPS: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(1);

/// A port that a daemon has announced, for as long as this is held.
#[derive(Debug)]
pub struct Announcement {
    #[cfg(target_os = "linux")]
    socket: std::sync::Arc<std::os::unix::net::UnixListener>,
    /// Takes the connections of those who ask whose it is, and closes them.
    #[cfg(target_os = "linux")]
    acceptor: Option<std::thread::JoinHandle<()>>,
}

impl Announcement {
    /// Announces that a daemon listens on a port. Connections that came before have to be closed unanswered.
    #[cfg(target_os = "linux")]
    pub fn of(port: u16) -> io::Result<Self> {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};
        let mut random = [0_u8; 8];
        getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
        let name = format!("{ANNOUNCEMENT}{port}:{:016x}", u64::from_ne_bytes(random));
        let socket = std::sync::Arc::new(UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?);
        let accepting = std::sync::Arc::clone(&socket);
        let acceptor = std::thread::Builder::new().name("announcement".into()).spawn(move || {
            loop {
                match accepting.accept() {
                    Ok(_) => {}
                    // The socket was shut down.
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
                    // A process without descriptors may have some soon.
                    Err(_) => std::thread::park_timeout(std::time::Duration::from_millis(50)),
                }
            }
        })?;
        Ok(Self { socket, acceptor: Some(acceptor) })
    }

    /// Nothing: there are no abstract sockets here.
    #[cfg(not(target_os = "linux"))]
    pub fn of(_: u16) -> io::Result<Self> {
        Ok(Self {})
    }
}

#[cfg(target_os = "linux")]
impl Drop for Announcement {
    fn drop(&mut self) {
        // The name lasts for as long as the other thread holds the socket.
        let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
        let _ = self.acceptor.take().map(std::thread::JoinHandle::join);
    }
}

/// Whether a daemon of this user or of root has announced a port. In doubt, and when it takes long to find out, it has.
#[cfg(target_os = "linux")]
async fn is_announced(port: u16) -> bool {
    let lookup = async {
        let permit = LOOKUPS.acquire().await.ok()?;
        let until = Instant::now() + LOOKUP_TIMEOUT;
        let lookup = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            is_announced_until(port, until)
        });
        lookup.await.ok()
    };
    tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await.ok().flatten().unwrap_or(true)
}

/// The same; this blocks. What a run announces does not count: other runs could not reach programs of the host then.
#[cfg(target_os = "linux")]
fn is_announced_until(port: u16, until: Instant) -> bool {
    let own = rustix::process::geteuid();
    let Ok(names) = announcements(port, until) else { return true };
    let mut of_user = std::collections::HashSet::new();
    for (looked_at, named) in names.iter().enumerate() {
        if looked_at >= MAX_NAMES || Instant::now() >= until {
            return true;
        }
        match announcer(named) {
            Ok(Some(owner)) if owner == own => of_user.extend([u64::from(named.inode)]),
            // The descriptors of root's processes cannot be listed.
            Ok(Some(owner)) if owner.is_root() => return true,
            Ok(_) => {}
            Err(_) => return true,
        }
    }
    !of_user.is_empty() && !crate::processes::are_held_by_runs_alone(&of_user, until)
}

/// Whether a daemon of this user has announced a port. In doubt it has not.
#[cfg(target_os = "linux")]
pub fn is_announced_by_this_user(port: u16) -> bool {
    let own = rustix::process::geteuid();
    let is_own = |named: &Named| matches!(announcer(named), Ok(Some(owner)) if owner == own);
    let until = Instant::now() + LOOKUP_TIMEOUT;
    announcements(port, until).is_ok_and(|names| names.iter().take(MAX_NAMES).any(is_own))
}

/// Nothing is known: there are no abstract sockets here.
#[cfg(not(target_os = "linux"))]
pub fn is_announced_by_this_user(_: u16) -> bool {
    false
}

/// A listening socket that has the name of an announcement.
#[cfg(target_os = "linux")]
struct Named {
    name: Vec<u8>,
    inode: u32,
}

/// The listening sockets that have names of announcements of a port, without those that another user has made, if the kernel tells. Any
/// user can make thousands.
#[cfg(target_os = "linux")]
fn announcements(port: u16, until: Instant) -> io::Result<Vec<Named>> {
    let begins = format!("{ANNOUNCEMENT}{port}:");
    let own = rustix::process::geteuid();
    let is_meant = |listener: &Listener| {
        listener.name.starts_with(begins.as_bytes()) && (listener.user == own || listener.user.is_root())
    };
    match listeners(until, is_meant) {
        Ok(found) => {
            Ok(found.into_iter().map(|Listener { name, inode, .. }| Named { name, inode }).collect())
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
        Err(_) => listed(begins.as_bytes()),
    }
}

/// The same from the kernel's list, of all users. Connections that wait to be accepted are listed by the same name.
#[cfg(target_os = "linux")]
fn listed(begins: &[u8]) -> io::Result<Vec<Named>> {
    let list = std::fs::read(UNIX_SOCKETS)?;
    let names = list.split(|byte| *byte == b'\n').filter_map(|line| {
        let columns: Vec<&[u8]> =
            line.split(u8::is_ascii_whitespace).filter(|text| !text.is_empty()).collect();
        let [_, _, _, flags, _, _, inode, name] = columns[..] else { return None };
        let name = name.strip_prefix(b"@").filter(|name| name.starts_with(begins))?;
        let inode = std::str::from_utf8(inode).ok().and_then(|text| text.parse().ok());
        // No socket has the inode 0, so nothing is known of one whose inode cannot be read.
        (flags == LISTENING).then(|| Named { name: name.to_vec(), inode: inode.unwrap_or(0) })
    });
    Ok(names.collect())
}

/// Who has announced; `None` if nobody listens. A socket that accepts nothing, or is flooded, is known by its inode.
#[cfg(target_os = "linux")]
fn announcer(named: &Named) -> io::Result<Option<rustix::process::Uid>> {
    owner_of(&named.name).or_else(|_| owner_of_inode(named.inode, &named.name))
}

/// Who listens at an abstract name; `None` if nobody does, whatever else has the name.
#[cfg(target_os = "linux")]
fn owner_of(name: &[u8]) -> io::Result<Option<rustix::process::Uid>> {
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    // A listener that accepts nothing keeps no one waiting.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?) {
        Ok(()) => Ok(Some(rustix::net::sockopt::socket_peercred(&socket)?.uid)),
        Err(Errno::CONNREFUSED | Errno::PROTOTYPE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
async fn is_announced(_: u16) -> bool {
    false
}

/// The file in the state directory that holds the address on which the daemon listens.
const FILE: &str = "api.address";

/// Where the daemon of a state directory listens. The file is read each time: a daemon may be started during a run.
#[derive(Debug, Clone)]
pub struct DaemonAddress(PathBuf);

impl DaemonAddress {
    /// Of a state directory.
    pub fn of(state: &Path) -> Self {
        Self(state.join(FILE))
    }

    /// The file that holds it. A daemon that was killed leaves it.
    pub fn file(&self) -> &Path {
        &self.0
    }

    /// The address, as the daemon has written it.
    pub fn read(&self) -> Option<String> {
        std::fs::read_to_string(&self.0).ok().filter(|text| !text.is_empty())
    }

    /// Refuses an address of this machine at which a daemon could answer: the port of this one, or of any other that has announced
    /// itself.
    pub(crate) async fn refuse(&self, target: SocketAddr) -> Result<(), Refusal> {
        let own = self.read().and_then(|text| text.parse::<SocketAddr>().ok());
        if own.is_none_or(|own| own.port() != target.port()) && !is_announced(target.port()).await {
            return Ok(());
        }
        let message = format!("{target} is ringfence's own daemon, which no run may reach");
        Err(Refusal::new(StatusCode::FORBIDDEN, "daemon", message))
    }
}

/// Whether an address is one of this machine: one that a socket can be bound to. In doubt it is.
pub fn is_of_this_machine(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let link_local = matches!(address, IpAddr::V6(six) if six.is_unicast_link_local());
    if address.is_loopback() || address.is_unspecified() || link_local {
        return true;
    }
    match UdpSocket::bind((address, 0)) {
        Ok(_) => true,
        Err(error) => error.kind() != io::ErrorKind::AddrNotAvailable,
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "what a daemon has written")]
mod tests {
    #[cfg(target_os = "linux")]
    use super::{Announcement, is_announced_by_this_user};
    use super::{DaemonAddress, is_of_this_machine};

    /// Whether a target of this machine is refused.
    fn refuses(daemon: &DaemonAddress, target: std::net::SocketAddr) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        is_of_this_machine(target.ip()) && runtime.block_on(daemon.refuse(target)).is_err()
    }

    #[cfg(target_os = "linux")]
    fn is_announced(port: u16) -> bool {
        super::is_announced_until(port, std::time::Instant::now() + super::LOOKUP_TIMEOUT)
    }

    #[cfg(target_os = "linux")]
    fn announcements(port: u16) -> std::io::Result<Vec<super::Named>> {
        super::announcements(port, std::time::Instant::now() + super::LOOKUP_TIMEOUT)
    }

    /// More names than are looked at.
    #[cfg(target_os = "linux")]
    #[test]
    fn names_that_another_user_has_bound_are_left_out() {
        use std::io::{BufRead, BufReader};
        use std::os::unix::process::CommandExt;
        let own = rustix::process::geteuid();
        if !own.is_root() {
            return;
        }
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        let script = "import resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
bound = []
for number in range(16600):
    bound.append(socket.socket(socket.AF_UNIX))
    bound[-1].bind('\\0%s%s:%d' % (sys.argv[1], sys.argv[2], number))
    bound[-1].listen()
print('ready', flush=True)
sys.stdin.read()";
        let mut stranger = std::process::Command::new("/usr/bin/python3")
            .args(["-c", script, super::ANNOUNCEMENT, &port.to_string()])
            .uid(31_337)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(stranger.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let found = announcements(port).map(|names| names.len());
        let is_announced_by_stranger = is_announced(port);
        let announcement = Announcement::of(port);
        let is_announced_by_own = is_announced(port) && is_announced_by_this_user(port);
        drop(announcement);
        drop(stranger.stdin.take());
        stranger.wait().unwrap();
        assert_eq!((ready.as_str(), found.ok()), ("ready\n", Some(0)));
        assert!(!is_announced_by_stranger && is_announced_by_own);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn announced_port_is_refused_for_as_long_as_its_daemon_lives() {
        let state = tempfile::tempdir().unwrap();
        let other = DaemonAddress::of(state.path());
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        let far = (std::net::Ipv4Addr::new(192, 0, 2, 7), address.port()).into();
        assert!(!refuses(&other, address));
        let [first, second] = [Announcement::of(address.port()), Announcement::of(address.port())];
        assert!(refuses(&other, address) && !refuses(&other, far));
        drop(first.unwrap());
        assert!(refuses(&other, address));
        drop(second.unwrap());
        assert!(!refuses(&other, address));
    }

    /// A name that no listener of this user or of root has tells nothing.
    #[cfg(target_os = "linux")]
    #[test]
    fn name_of_an_announcement_alone_announces_nothing() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        let name = |end: &str| {
            SocketAddr::from_abstract_name(format!("{}{port}:{end}", super::ANNOUNCEMENT)).unwrap()
        };
        let _datagrams = UnixDatagram::bind_addr(&name("datagrams")).unwrap();
        assert!(!is_announced(port) && !is_announced_by_this_user(port));
        let listener = UnixListener::bind_addr(&name("listener")).unwrap();
        assert!(is_announced(port) && is_announced_by_this_user(port));
        drop(listener);
        assert!(!is_announced(port) && !is_announced_by_this_user(port));
        // Connections that nobody accepts fill the queue of a socket.
        let full = UnixListener::bind_addr(&name("full")).unwrap();
        let listed = announcements(port).unwrap();
        let full_name = &listed.iter().find(|named| named.name.ends_with(b"full")).unwrap().name;
        let waiting: Vec<_> = std::iter::repeat_with(|| UnixStream::connect_addr(&name("full")))
            .take_while(|_| super::owner_of(full_name).is_ok())
            .collect();
        assert!(super::owner_of(full_name).is_err());
        assert!(is_announced(port) && is_announced_by_this_user(port));
        drop((full, waiting));
        // Asked more often than connections fit into the queue of a socket.
        let _announcement = Announcement::of(port).unwrap();
        let names = announcements(port).unwrap();
        let name = &names.first().unwrap().name;
        assert!((0..20_000).filter(|_| matches!(super::owner_of(name), Ok(Some(_)))).count() > 10_000);
    }

    #[test]
    fn port_of_the_daemon_is_refused_on_every_address_of_this_machine() {
        let state = tempfile::tempdir().unwrap();
        let daemon = DaemonAddress::of(state.path());
        // Other daemons of this machine announce ports of their own, but none the first one, and none 0.
        let refuses = |target: &str| refuses(&daemon, target.parse().unwrap());
        assert!(!refuses("127.0.0.1:1"), "there is no daemon yet");
        for listens in ["127.0.0.1:1", "0.0.0.0:1", "[::]:1", "[::1]:1"] {
            std::fs::write(daemon.file(), listens).unwrap();
            for target in [
                "127.0.0.1:1",
                "127.9.9.9:1",
                "0.0.0.0:1",
                "[::]:1",
                "[::1]:1",
                "[::ffff:127.0.0.1]:1",
                "[::ffff:0.0.0.0]:1",
                "[fe80::1]:1",
            ] {
                assert!(refuses(target), "{target} with a daemon at {listens}");
            }
            for target in ["127.0.0.1:0", "192.0.2.7:1", "[2001:db8::7]:1"] {
                assert!(!refuses(target), "{target} with a daemon at {listens}");
            }
        }
        std::fs::write(daemon.file(), "").unwrap();
        assert!(!refuses("127.0.0.1:1"), "it listens nowhere");
    }
}
