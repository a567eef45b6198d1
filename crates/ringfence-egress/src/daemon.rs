//! The daemon of this installation, which no run may reach, whatever its policy allows.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use http::StatusCode;

use crate::answer::Refusal;

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

    /// Refuses an address at which the daemon could answer: its port, on any address of this machine.
    pub(crate) fn refuse(&self, target: SocketAddr) -> Result<(), Refusal> {
        let daemon = self.read().and_then(|text| text.parse::<SocketAddr>().ok());
        match daemon {
            Some(daemon) if daemon.port() == target.port() && is_of_this_machine(target.ip()) => {
                let message = format!("{target} is ringfence's own daemon, which no run may reach");
                Err(Refusal::new(StatusCode::FORBIDDEN, "daemon", message))
            }
            _ => Ok(()),
        }
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
    use super::DaemonAddress;

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
