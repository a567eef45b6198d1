//! Whose a connection on loopback is: every user of a machine has the same one.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Whether whoever is at the other end is the owner of this process, or root. Who cannot be found is nobody's.
pub(crate) fn is_ours(peer: SocketAddr, local: SocketAddr) -> bool {
    let me = rustix::process::geteuid().as_raw();
    owner(peer, local).is_some_and(|uid| uid == me || uid == 0)
}

/// The user of the socket that a connection comes from, as the kernel lists it.
fn owner(peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let (from, to) = (written(peer), written(local));
    let lists = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    lists.into_iter().filter_map(|list| fs::read_to_string(list).ok()).find_map(|list| {
        list.lines().skip(1).find_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let ends = (words.next()?, words.next()?);
            let wanted = from.iter().zip(&to).any(|(from, to)| ends == (from, to));
            // Behind them: state, queues, timers, retransmits.
            wanted.then(|| words.nth(4)?.parse().ok()).flatten()
        })
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

    use super::{is_ours, owner};

    #[test]
    fn a_connection_of_this_process_is_ours_and_one_that_is_gone_is_nobodys() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no such address.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let local = listener.local_addr().unwrap();
            let stream = TcpStream::connect(local).unwrap();
            let peer = stream.local_addr().unwrap();
            assert_eq!(owner(peer, local), Some(rustix::process::geteuid().as_raw()));
            assert!(is_ours(peer, local));
            assert!(!is_ours("127.0.0.1:1".parse().unwrap(), local));
        }
    }
}
