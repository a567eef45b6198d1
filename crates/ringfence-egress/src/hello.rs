//! What a client says first: is it TLS, and to whom?

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// A first message that is longer is no ordinary client's.
const LONGEST: usize = 64 << 10;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;

/// What it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The beginning of TLS.
    Tls {
        /// The name that it asks for, as it was written.
        name: Option<String>,
        /// Whether it may ask for another name in secret.
        encrypted: bool,
    },
    /// Something else, or nothing at all.
    Other,
}

/// Reads as much as it takes to know. All that was read is in `bytes`, also when this is given up.
pub(crate) async fn read_hello(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: &mut Vec<u8>,
) -> io::Result<Kind> {
    let mut hello = Hello::default();
    loop {
        if bytes.first().is_some_and(|first| *first != HANDSHAKE) {
            return Ok(Kind::Other);
        }
        match hello.parse(bytes) {
            Parsed::Whole(kind) => return Ok(kind),
            Parsed::Nonsense => return Err(io::ErrorKind::InvalidData.into()),
            Parsed::More if bytes.len() > LONGEST => return Err(io::ErrorKind::InvalidData.into()),
            Parsed::More => {}
        }
        if stream.read_buf(bytes).await? == 0 {
            return Ok(Kind::Other);
        }
    }
}

/// How far it was understood.
pub(crate) enum Parsed {
    Whole(Kind),
    More,
    Nonsense,
}

/// Understands what has come at once.
pub(crate) fn parse(bytes: &[u8]) -> Parsed {
    Hello::default().parse(bytes)
}

/// A handshake, which is cut into records at will. Nothing is looked at twice, however small the pieces are in which it comes.
#[derive(Default)]
struct Hello {
    handshake: Vec<u8>,
    /// How many bytes of the connection were read.
    seen: usize,
    /// What is missing of the record that is being read.
    left: usize,
}

impl Hello {
    /// Goes on with all that has come, of which it knows the beginning.
    fn parse(&mut self, bytes: &[u8]) -> Parsed {
        // What comes after it is nobody's business.
        while !is_whole(&self.handshake) {
            let rest = bytes.get(self.seen..).unwrap_or_default();
            if self.left > 0 {
                let part = &rest[..self.left.min(rest.len())];
                self.handshake.extend_from_slice(part);
                (self.seen, self.left) = (self.seen + part.len(), self.left - part.len());
                if self.left > 0 {
                    break;
                }
                continue;
            }
            let [kind, _, _, high, low, ..] = rest else { break };
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            if *kind != HANDSHAKE || length == 0 {
                return Parsed::Nonsense;
            }
            (self.seen, self.left) = (self.seen + 5, length);
        }
        understood(&self.handshake)
    }
}

fn understood(handshake: &[u8]) -> Parsed {
    let [kind, a, b, c, body @ ..] = handshake else { return Parsed::More };
    let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
    if *kind != CLIENT_HELLO || length > LONGEST {
        return Parsed::Nonsense;
    }
    match body.get(..length) {
        None => Parsed::More,
        Some(body) => read_extensions(body).map_or(Parsed::Nonsense, Parsed::Whole),
    }
}

fn is_whole(handshake: &[u8]) -> bool {
    matches!(handshake, [_, a, b, c, body @ ..] if body.len() >= (usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c)))
}

fn read_extensions(body: &[u8]) -> Option<Kind> {
    let mut reader = Reader(body);
    reader.take(2 + 32)?;
    reader.short_list()?;
    reader.list()?;
    reader.short_list()?;
    let mut extensions = Reader(if reader.0.is_empty() { &[] } else { reader.list()? });
    let (mut name, mut encrypted) = (None, false);
    while !extensions.0.is_empty() {
        let kind = extensions.number()?;
        let content = extensions.list()?;
        match kind {
            // A second name would be read by some and not by others.
            SERVER_NAME if name.is_some() => return None,
            SERVER_NAME => name = Some(server_name(content)?),
            ENCRYPTED_CLIENT_HELLO => encrypted = true,
            _ => {}
        }
    }
    Some(Kind::Tls { name, encrypted })
}

/// One host name and nothing else.
fn server_name(content: &[u8]) -> Option<String> {
    let mut list = Reader(Reader(content).list()?);
    if list.take(1)? != [0] {
        return None;
    }
    let name = String::from_utf8(list.list()?.to_vec()).ok()?;
    list.0.is_empty().then_some(name)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn list(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        self.take(usize::from(length))
    }

    fn short_list(&mut self) -> Option<&'a [u8]> {
        let length = self.take(1)?[0];
        self.take(usize::from(length))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustls::pki_types::ServerName;

    use super::{Hello, Kind, Parsed, parse};

    fn hello(name: &'static str) -> Vec<u8> {
        let roots = rustls::RootCertStore::empty();
        let config =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
        let name = ServerName::try_from(name).unwrap();
        let mut connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        connection.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_name_is_read() {
        let expected = |name: Option<&str>| Kind::Tls { name: name.map(String::from), encrypted: false };
        for (name, seen) in [("example.com", Some("example.com")), ("1.2.3.4", None)] {
            let bytes = hello(name);
            assert!(matches!(parse(&bytes), Parsed::Whole(kind) if kind == expected(seen)));
            assert!(matches!(parse(&bytes[..bytes.len() - 1]), Parsed::More));
        }
    }

    #[test]
    fn what_comes_after_it_does_not_matter() {
        let mut bytes = hello("example.com");
        bytes.extend([20, 3, 3, 0, 1, 1, 23, 3, 3, 0, 2, 1, 2]);
        assert!(matches!(parse(&bytes), Parsed::Whole(Kind::Tls { name: Some(_), .. })));
    }

    #[test]
    fn records_may_cut_it_anywhere() {
        let bytes = hello("example.com");
        let mut cut = Vec::new();
        for part in bytes[5..].chunks(7) {
            cut.extend([22, 3, 1, 0, part.len() as u8]);
            cut.extend(part);
        }
        assert!(
            matches!(parse(&cut), Parsed::Whole(Kind::Tls { name: Some(name), .. }) if name == "example.com")
        );
    }

    #[test]
    fn pieces_are_understood_as_the_whole() {
        let bytes = hello("example.com");
        let mut cut = Vec::new();
        for part in bytes[5..].chunks(3) {
            cut.extend([22, 3, 1, 0, part.len() as u8]);
            cut.extend(part);
        }
        for bytes in [bytes, cut] {
            let mut hello = Hello::default();
            for end in 0..bytes.len() {
                assert!(matches!(hello.parse(&bytes[..end]), Parsed::More), "{end}");
            }
            assert!(matches!(hello.parse(&bytes), Parsed::Whole(Kind::Tls { name: Some(_), .. })));
        }
    }

    proptest! {
        #[test]
        fn nothing_breaks_it(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            parse(&bytes);
        }

        #[test]
        fn nothing_in_a_real_one_breaks_it(at in 0_usize..200, byte in any::<u8>()) {
            let mut bytes = hello("example.com");
            let at = at.min(bytes.len() - 1);
            bytes[at] = byte;
            parse(&bytes);
        }
    }
}
