//! SOCKS 5, as far as programs use it: a connection to a name or an address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ringfence_core::policy::Host;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::prefixed::Stream;

const VERSION: u8 = 5;
const NO_METHOD: u8 = 0xff;

/// How a wish is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    Done = 0,
    NotAllowed = 2,
    Unreachable = 4,
    UnknownCommand = 7,
    UnknownAddress = 8,
}

/// What somebody wants to reach, as it was written, and whether it is a host at all.
pub(crate) struct Asked {
    pub(crate) text: String,
    pub(crate) host: Option<Host>,
    pub(crate) port: u16,
}

/// Hears a wish. `None` if it was answered already.
pub(crate) async fn hear(stream: &mut impl Stream) -> io::Result<Option<Asked>> {
    let [version, count] = read(stream).await?;
    let mut methods = vec![0; usize::from(count)];
    stream.read_exact(&mut methods).await?;
    if version != VERSION || !methods.contains(&0) {
        stream.write_all(&[VERSION, NO_METHOD]).await?;
        return Ok(None);
    }
    stream.write_all(&[VERSION, 0]).await?;
    let [version, command, _, kind] = read(stream).await?;
    if version != VERSION {
        return Ok(None);
    }
    let (text, host) = match kind {
        1 => address(IpAddr::V4(Ipv4Addr::from(read::<4>(stream).await?))),
        4 => address(IpAddr::V6(Ipv6Addr::from(read::<16>(stream).await?))),
        3 => {
            let [length] = read(stream).await?;
            let mut name = vec![0; usize::from(length)];
            stream.read_exact(&mut name).await?;
            let text = String::from_utf8_lossy(&name).into_owned();
            // A name that is an address in disguise is read as one, as everywhere.
            let host = text.parse().ok();
            (text, host)
        }
        _ => {
            reply(stream, Reply::UnknownAddress).await?;
            return Ok(None);
        }
    };
    let port = u16::from_be_bytes(read(stream).await?);
    if command != 1 {
        reply(stream, Reply::UnknownCommand).await?;
        return Ok(None);
    }
    Ok(Some(Asked { text, host, port }))
}

fn address(address: IpAddr) -> (String, Option<Host>) {
    (address.to_string(), Some(Host::Address(address.to_canonical())))
}

/// Answers a wish.
pub(crate) async fn reply(stream: &mut impl Stream, reply: Reply) -> io::Result<()> {
    stream.write_all(&[VERSION, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0]).await
}

async fn read<const N: usize>(stream: &mut impl Stream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}
