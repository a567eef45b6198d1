//! Ways out: ports, names and sockets of the host. Nothing is sent anywhere but to bait on the loopback.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::path::Path;
use std::time::Duration;

use ringfence_core::capability::Promise;

use super::{Attempt, Bait, Outcome, call, denied, refused};

const PATIENCE: Duration = Duration::from_millis(300);

const fn attempt(group: &'static str, what: &'static str, attempt: fn(&Bait) -> Outcome) -> Attempt {
    Attempt { group, promise: Promise::NetworkNone, what, attempt }
}

const fn door(what: &'static str, attempt: fn(&Bait) -> Outcome) -> Attempt {
    Attempt { group: "sockets", promise: Promise::ProcessesSeparate, what, attempt }
}

pub(super) const ATTEMPTS: &[Attempt] = &[
    attempt("network", "reach a service of the host on 127.0.0.1", |bait| {
        connect(SocketAddr::from((Ipv4Addr::LOCALHOST, bait.tcp)))
    }),
    attempt("network", "reach it by another name of the loopback", |bait| {
        connect(SocketAddr::from((Ipv4Addr::UNSPECIFIED, bait.tcp)))
    }),
    attempt("network", "reach it as an address of version 6", |bait| {
        connect(SocketAddr::from((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), bait.tcp)))
    }),
    attempt("network", "reach a service of the host on ::1", |bait| match bait.tcp6 {
        Some(port) => connect(SocketAddr::from((Ipv6Addr::LOCALHOST, port))),
        None => Outcome::NotTried("the host has no ::1".into()),
    }),
    attempt("network", "send a datagram and be answered", |bait| answered(bait, b"ping")),
    attempt("network", "find a network besides the loopback", |_| {
        let devices = fs::read_to_string("/proc/net/dev").unwrap_or_default();
        let names = devices.lines().skip(2).filter_map(|line| line.split(':').next()).map(str::trim);
        let others: Vec<&str> = names.filter(|name| *name != "lo").collect();
        match others[..] {
            [] => Outcome::Held("there is none".into()),
            _ => Outcome::Broken(others.join(", ")),
        }
    }),
    attempt("network", "find a route", |_| {
        let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
        match routes.lines().skip(1).count() {
            0 => Outcome::Held("there is none".into()),
            count => Outcome::Broken(format!("{count} routes")),
        }
    }),
    attempt("dns", "ask a resolver of the host", |bait| {
        // A question for the address of example.com, as any resolver takes it.
        let mut question = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in ["example", "com"] {
            question.push(label.len() as u8);
            question.extend(label.as_bytes());
        }
        question.extend([0, 0, 1, 0, 1]);
        answered(bait, &question)
    }),
    attempt("dns", "find the host's resolver on its own address", |_| {
        match TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 53], 53)), PATIENCE) {
            Ok(_) => Outcome::Broken("it answers".into()),
            Err(error) => Outcome::Held(error.to_string()),
        }
    }),
    attempt("network", "make packets by hand (raw socket)", |_| socket(libc::AF_INET, libc::SOCK_RAW, 1)),
    attempt("network", "listen to all packets (packet socket)", |_| {
        socket(libc::AF_PACKET, libc::SOCK_RAW, 0)
    }),
    door("connect to a socket of the host by its path", |bait| {
        refused(UnixStream::connect(bait.outside.join("socket")))
    }),
    door("connect to a socket in the workspace that the host listens on", |bait| {
        refused(UnixStream::connect(bait.workspace.join("socket")))
    }),
    door("connect to an abstract socket of the host", |bait| {
        let address = UnixAddress::from_abstract_name(&bait.abstract_socket);
        refused(address.and_then(|address| UnixStream::connect_addr(&address)))
    }),
    door("connect to a socket in the state of ringfence", |bait| {
        refused(UnixStream::connect(bait.at_home.with_file_name("socket")))
    }),
    door("find a container engine", |_| {
        doors(&["/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock"])
    }),
    door("find the system's bus", |_| doors(&["/run/dbus/system_bus_socket", "/run/systemd/private"])),
    door("find an agent for keys", |_| match std::env::var_os("SSH_AUTH_SOCK") {
        Some(path) => refused(UnixStream::connect(path)),
        None => Outcome::Held("no variable names one".into()),
    }),
    door("talk to the hypervisor (vsock)", |_| socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
    door("use the kernel's ciphers (af_alg)", |_| socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)),
    door("listen to the kernel (netlink audit)", |_| {
        socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT)
    }),
    door("make a socket of any other family", |_| {
        let usual = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
        any_family(libc::SYS_socket, &usual)
    }),
    door("make a pair of sockets of any other family", |_| {
        any_family(libc::SYS_socketpair, &[libc::AF_UNIX])
    }),
];

/// The first number that no family has.
const FAMILIES: i32 = 46;

/// Tries every family but these. That the kernel does not know one is an answer that only the kernel gives.
fn any_family(call: libc::c_long, usual: &[i32]) -> Outcome {
    let mut pair = [0i32; 2];
    let others = (1..FAMILIES).filter(|family| !usual.contains(family));
    for family in others {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET] {
            let number = |value: i32| value.unsigned_abs() as usize;
            let arguments = [number(family), number(kind), 0, pair.as_mut_ptr() as usize, 0];
            if let Outcome::Broken(why) = denied(call, arguments) {
                return Outcome::Broken(format!("family {family}: {why}"));
            }
        }
    }
    Outcome::Held("all are refused".into())
}

fn connect(address: SocketAddr) -> Outcome {
    refused(TcpStream::connect_timeout(&address, PATIENCE))
}

fn answered(bait: &Bait, question: &[u8]) -> Outcome {
    let asked = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send_to(question, (Ipv4Addr::LOCALHOST, bait.udp))?;
        socket.recv(&mut [0; 512])
    });
    refused(asked)
}

fn socket(family: i32, kind: i32, protocol: i32) -> Outcome {
    let number = |value: i32| value.unsigned_abs() as usize;
    match call(libc::SYS_socket, [number(family), number(kind), number(protocol), 0, 0]) {
        Ok(descriptor) => {
            // SAFETY: closes what was just opened.
            unsafe { libc::close(descriptor as i32) };
            Outcome::Broken("it can be made".into())
        }
        Err(error) => Outcome::Held(error.to_string()),
    }
}

fn doors(paths: &[&str]) -> Outcome {
    let open = paths.iter().find(|path| UnixStream::connect(Path::new(path)).is_ok());
    let closed = || io::Error::from(io::ErrorKind::NotFound).to_string();
    open.map_or_else(|| Outcome::Held(closed()), |path| Outcome::Broken((*path).to_owned()))
}
