//! The TCP listeners of the daemon.
//!
//! A browser resolves the dashboard's name to 127.0.0.1 and to ::1. A program that listened on the daemon's port at the other of the
//! two would be given the login code and the session. So a daemon that serves loopback holds its port at both.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use rustix::io::Errno;

use crate::ServerError;

/// The addresses of `localhost` names in browsers.
const LOCALHOST: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
/// Connections that wait to be accepted, as for other listeners.
#[cfg(target_os = "linux")]
const BACKLOG: i32 = 128;
/// How many free ports are tried if any port will do.
const MAX_ATTEMPTS: usize = 20;

/// Listens at an address, and on the same port at the addresses of `localhost` if it serves loopback. The first listener is that
/// of the address itself.
pub(crate) fn bind(address: SocketAddr) -> Result<Vec<TcpListener>, ServerError> {
    let mut attempts = if address.port() == 0 { MAX_ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        match bind_all(address) {
            Err(ServerError::Taken { .. }) if attempts > 0 => {}
            bound => return bound,
        }
    }
}

fn bind_all(address: SocketAddr) -> Result<Vec<TcpListener>, ServerError> {
    let first = listen(address)?;
    let port = first.local_addr()?.port();
    let more = companions(address.ip(), takes_both_families(&first)?);
    let mut all = vec![first];
    for companion in more.map(|ip| SocketAddr::new(ip, port)) {
        match listen(companion) {
            Ok(listener) => all.push(listener),
            // The machine may be given the address later, and another program would then listen at it.
            Err(ServerError::Address { source, .. }) if is_absent(&source) => {
                all.extend(listen_beforehand(companion)?);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

fn listen(address: SocketAddr) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address).map_err(|source| unbound(address, source))
}

/// Why there is no listener at an address.
fn unbound(address: SocketAddr, source: io::Error) -> ServerError {
    match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::Taken { address },
        _ => ServerError::Address { address: address.to_string(), source },
    }
}

/// Listens at an IPv6 address that the machine does not have yet; `None` if it has no IPv6.
#[cfg(target_os = "linux")]
fn listen_beforehand(address: SocketAddr) -> Result<Option<TcpListener>, ServerError> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
    let listen = || {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_ipv6_freebind(&socket, true)?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(TcpListener::from(socket))
    };
    match listen() {
        Ok(listener) => Ok(Some(listener)),
        Err(Errno::AFNOSUPPORT) => Ok(None),
        Err(error) => Err(unbound(address, error.into())),
    }
}

#[cfg(not(target_os = "linux"))]
fn listen_beforehand(_: SocketAddr) -> Result<Option<TcpListener>, ServerError> {
    Ok(None)
}

/// The addresses of `localhost` that a listener at `ip` does not hold. One that does not serve loopback needs none.
fn companions(ip: IpAddr, both_families: bool) -> impl Iterator<Item = IpAddr> {
    let serves_loopback = ip.is_loopback() || ip.is_unspecified();
    let held = move |other: &IpAddr| {
        *other == ip || (ip.is_unspecified() && (both_families || other.is_ipv4() == ip.is_ipv4()))
    };
    LOCALHOST.into_iter().filter(move |other| serves_loopback && !held(other))
}

/// Whether a listener at `[::]` accepts IPv4 connections too.
fn takes_both_families(listener: &TcpListener) -> Result<bool, ServerError> {
    Ok(listener.local_addr()?.is_ipv6()
        && !rustix::net::sockopt::ipv6_v6only(listener).map_err(io::Error::from)?)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

    use super::{bind, companions};
    use crate::ServerError;

    #[test]
    fn daemon_holds_its_port_at_both_addresses_of_localhost() {
        let all = |ip: &str, both| companions(ip.parse().unwrap(), both).collect::<Vec<IpAddr>>();
        let [four, six]: [IpAddr; 2] = ["127.0.0.1", "::1"].map(|text| text.parse().unwrap());
        assert_eq!(all("127.0.0.1", false), [six]);
        assert_eq!(all("::1", false), [four]);
        assert_eq!(all("127.0.0.5", false), [four, six]);
        assert_eq!(all("0.0.0.0", false), [six]);
        assert_eq!(all("::", true), [] as [IpAddr; 0]);
        assert_eq!(all("::", false), [four]);
        assert_eq!(all("192.0.2.7", false), [] as [IpAddr; 0]);
        assert_eq!(all("2001:db8::7", false), [] as [IpAddr; 0]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn address_that_the_machine_does_not_have_yet_is_held() {
        let absent: SocketAddr = "[2001:db8::7]:0".parse().unwrap();
        assert!(super::is_absent(&TcpListener::bind(absent).unwrap_err()));
        // A machine may have no IPv6.
        let Some(listener) = super::listen_beforehand(absent).unwrap() else { return };
        let held = listener.local_addr().unwrap();
        let error = super::listen_beforehand(held).unwrap_err();
        assert!(matches!(error, ServerError::Taken { address } if address == held), "{error}");
    }

    #[test]
    fn port_that_is_taken_at_the_other_address_is_refused() {
        let listeners = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        for address in super::LOCALHOST.map(|ip| SocketAddr::new(ip, port)) {
            // A machine may have no IPv6.
            if TcpListener::bind((address.ip(), 0)).is_ok() {
                TcpStream::connect(address).unwrap();
                assert!(TcpListener::bind(address).is_err(), "{address} is free for others");
            }
        }
        drop(listeners);
        let Ok(other) = TcpListener::bind("[::1]:0") else { return };
        let taken = other.local_addr().unwrap();
        let error = bind(SocketAddr::new("127.0.0.1".parse().unwrap(), taken.port())).unwrap_err();
        assert!(matches!(error, ServerError::Taken { address } if address == taken), "{error}");
        assert!(error.remedy().unwrap().contains("server.listen"));
    }
}
