//! Ringfence's own daemons, which no run may reach, whatever its policy allows.
//!
//! A daemon announces the port on which it listens by an abstract Unix socket, whose name holds the port. The kernel lists such
//! names for a network namespace and removes one with its process. So a broker knows the daemon of every installation, user and
//! program name at the addresses of this machine, not only that of its own state directory.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use http::StatusCode;

use crate::answer::Refusal;

/// How the name of an announcement begins; the port and a random number follow.
#[cfg(target_os = "linux")]
const ANNOUNCEMENT: &str = "ringfence-daemon:";
/// The kernel's list of Unix sockets. Abstract names begin with `@` there.
#[cfg(target_os = "linux")]
const UNIX_SOCKETS: &str = "/proc/self/net/unix";

/// A port that a daemon has announced, for as long as this is held.
#[derive(Debug)]
pub struct Announcement {
    #[cfg(target_os = "linux")]
    _socket: std::os::unix::net::UnixDatagram,
}

impl Announcement {
    /// Announces that a daemon listens on a port. Connections that came before have to be closed unanswered.
    #[cfg(target_os = "linux")]
    pub fn of(port: u16) -> io::Result<Self> {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixDatagram};
        let mut random = [0_u8; 8];
        getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
        let name = format!("{ANNOUNCEMENT}{port}:{:016x}", u64::from_ne_bytes(random));
        Ok(Self { _socket: UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)? })
    }

    /// Nothing: there are no abstract sockets here.
    #[cfg(not(target_os = "linux"))]
    pub fn of(_: u16) -> io::Result<Self> {
        Ok(Self {})
    }
}

/// Whether some daemon of this machine has announced a port. In doubt it has.
#[cfg(target_os = "linux")]
fn is_announced(port: u16) -> bool {
    let begins = format!("@{ANNOUNCEMENT}{port}:");
    let name = |line: &[u8]| line.split(|byte| *byte == b' ').next_back().unwrap_or_default().to_vec();
    match std::fs::read(UNIX_SOCKETS) {
        Ok(list) => list.split(|byte| *byte == b'\n').any(|line| name(line).starts_with(begins.as_bytes())),
        Err(_) => true,
    }
}

#[cfg(not(target_os = "linux"))]
fn is_announced(_: u16) -> bool {
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

    /// Refuses an address at which a daemon could answer: the port of this one, or of any other that has announced itself, on
    /// any address of this machine.
    pub(crate) fn refuse(&self, target: SocketAddr) -> Result<(), Refusal> {
        let own = self.read().and_then(|text| text.parse::<SocketAddr>().ok());
        let is_daemon = || own.is_some_and(|own| own.port() == target.port()) || is_announced(target.port());
        if !is_of_this_machine(target.ip()) || !is_daemon() {
            return Ok(());
        }
        let message = format!("{target} is ringfence's own daemon, which no run may reach");
        Err(Refusal::new(StatusCode::FORBIDDEN, "daemon", message))
    }
}

/// Whether an address is one of this machine: one that a socket can be bound to. In doubt it is.
fn is_of_this_machine(address: IpAddr) -> bool {
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
    use super::{Announcement, DaemonAddress};

    #[cfg(target_os = "linux")]
    #[test]
    fn announced_port_is_refused_for_as_long_as_its_daemon_lives() {
        let state = tempfile::tempdir().unwrap();
        let other = DaemonAddress::of(state.path());
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        let far = (std::net::Ipv4Addr::new(192, 0, 2, 7), address.port()).into();
        assert!(other.refuse(address).is_ok());
        let [first, second] = [Announcement::of(address.port()), Announcement::of(address.port())];
        assert!(other.refuse(address).is_err() && other.refuse(far).is_ok());
        drop(first.unwrap());
        assert!(other.refuse(address).is_err());
        drop(second.unwrap());
        assert!(other.refuse(address).is_ok());
    }

    #[test]
    fn port_of_the_daemon_is_refused_on_every_address_of_this_machine() {
        let state = tempfile::tempdir().unwrap();
        let daemon = DaemonAddress::of(state.path());
        let refuses = |target: &str| daemon.refuse(target.parse().unwrap()).is_err();
        assert!(!refuses("127.0.0.1:4301"), "there is no daemon yet");
        for listens in ["127.0.0.1:4301", "0.0.0.0:4301", "[::]:4301", "[::1]:4301"] {
            std::fs::write(daemon.file(), listens).unwrap();
            for target in [
                "127.0.0.1:4301",
                "127.9.9.9:4301",
                "0.0.0.0:4301",
                "[::]:4301",
                "[::1]:4301",
                "[::ffff:127.0.0.1]:4301",
                "[::ffff:0.0.0.0]:4301",
                "[fe80::1]:4301",
            ] {
                assert!(refuses(target), "{target} with a daemon at {listens}");
            }
            for target in ["127.0.0.1:4302", "192.0.2.7:4301", "[2001:db8::7]:4301"] {
                assert!(!refuses(target), "{target} with a daemon at {listens}");
            }
        }
        std::fs::write(daemon.file(), "").unwrap();
        assert!(!refuses("127.0.0.1:4301"), "it listens nowhere");
    }
}
