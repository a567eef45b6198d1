//! Entry points for fuzz targets: each takes any bytes and asserts what must hold for all of them.

use bytes::BytesMut;
use http::header::HeaderMap;
use ringfence_core::policy::Host;

use crate::hello::{Kind, Parsed, parse};
use crate::http1::{
    Body, Length, Piece, Pieces, put_request, put_response, request_length, response_length, take_request,
    take_response,
};
use crate::request::strip;

/// How many beginnings of an input are compared with the whole.
const MAX_PREFIXES: usize = 64;

/// A `ClientHello`: more bytes after a whole one change nothing, and the name is read back as it was understood.
pub fn client_hello(bytes: &[u8]) {
    let whole = parse(bytes);
    let step = bytes.len().div_ceil(MAX_PREFIXES).max(1);
    for end in (0..bytes.len()).step_by(step) {
        match (parse(&bytes[..end]), &whole) {
            (Parsed::Whole(early), Parsed::Whole(late)) => assert_eq!(early, *late, "later bytes change it"),
            (Parsed::Whole(_), Parsed::More | Parsed::Nonsense) => panic_on("later bytes undo it"),
            (Parsed::Nonsense, Parsed::Whole(_)) => panic_on("later bytes repair it"),
            _ => {}
        }
    }
    if let Parsed::Whole(Kind::Tls { name: Some(name), .. }) = whole
        && let Ok(host) = name.parse::<Host>()
    {
        assert_eq!(host.to_string().parse::<Host>().ok(), Some(host), "a host is not its own name");
    }
}

/// HTTP/1.1 in both directions. The first byte says in pieces of which size the rest comes.
pub fn http1(bytes: &[u8]) {
    let Some((size, wire)) = bytes.split_first() else { return };
    let size = usize::from(*size).max(1);
    for read in [requests, responses] {
        let (messages, forwarded) = read(wire, wire.len().max(1));
        assert_eq!((&messages, &forwarded), (&read(wire, size).0, &read(wire, size).1), "the cut matters");
        let (again, unchanged) = read(&forwarded, size);
        assert_eq!(messages, again, "what goes on is understood otherwise");
        assert_eq!(forwarded, unchanged, "what goes on is not plain");
    }
}

/// A message as it was understood: first line, headers without the hop's own, body.
type Message = (String, HeaderMap, Vec<u8>);

/// Every whole request of a connection, and how they go on.
fn requests(wire: &[u8], size: usize) -> (Vec<Message>, BytesMut) {
    let mut read = Wire { bytes: BytesMut::new(), pieces: wire.chunks(size) };
    let (mut all, mut out) = (Vec::new(), BytesMut::new());
    while let Some(mut parts) = read.head(take_request) {
        let Ok(length) = request_length(&parts) else { break };
        let Some(body) = read.body(length) else { break };
        // What follows it is no HTTP, and no target but its host is passed on.
        if parts.method == http::Method::CONNECT || parts.uri.path_and_query().is_none() {
            break;
        }
        strip(&mut parts.headers, false);
        put_request(&mut out, &parts, length);
        put_body(&mut out, length.pieces(true), &body);
        let path = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        all.push((format!("{} {path}", parts.method), without_lengths(parts.headers), body));
    }
    (all, out)
}

/// Every whole response of a connection, and how they go on.
fn responses(wire: &[u8], size: usize) -> (Vec<Message>, BytesMut) {
    let mut read = Wire { bytes: BytesMut::new(), pieces: wire.chunks(size) };
    let (mut all, mut out) = (Vec::new(), BytesMut::new());
    while let Some(mut parts) = read.head(take_response) {
        let Ok(length) = response_length(false, &parts) else { break };
        let Some(body) = read.body(length) else { break };
        strip(&mut parts.headers, false);
        let pieces = length.pieces(true);
        put_response(&mut out, &parts, length, pieces);
        put_body(&mut out, pieces, &body);
        all.push((parts.status.to_string(), without_lengths(parts.headers), body));
    }
    (all, out)
}

/// A connection whose bytes come in pieces.
struct Wire<'a> {
    bytes: BytesMut,
    pieces: std::slice::Chunks<'a, u8>,
}

impl Wire<'_> {
    fn has_more(&mut self) -> bool {
        let piece = self.pieces.next();
        piece.into_iter().for_each(|piece| self.bytes.extend_from_slice(piece));
        piece.is_some()
    }

    /// The next head, if it is whole and one.
    fn head<P, E>(&mut self, take: fn(&mut BytesMut, &mut usize) -> Result<Option<P>, E>) -> Option<P> {
        let mut seen = 0;
        loop {
            match take(&mut self.bytes, &mut seen) {
                Ok(Some(parts)) => return Some(parts),
                Ok(None) if self.has_more() => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// The whole body, if it comes to its end.
    fn body(&mut self, length: Length) -> Option<Vec<u8>> {
        let (mut body, mut data) = (Body::new(length), Vec::new());
        loop {
            match body.take(&mut self.bytes).ok()? {
                Piece::Data(piece) => data.extend_from_slice(&piece),
                Piece::End => return Some(data),
                Piece::Later if self.has_more() => {}
                Piece::Later => return (length == Length::Rest).then_some(data),
            }
        }
    }
}

fn put_body(out: &mut BytesMut, pieces: Pieces, body: &[u8]) {
    pieces.put(out, body);
    pieces.put_end(out);
}

/// Without the headers that say where a body ends: these are written as they were understood.
fn without_lengths(mut headers: HeaderMap) -> HeaderMap {
    headers.remove(http::header::CONTENT_LENGTH);
    headers.remove(http::header::TRANSFER_ENCODING);
    headers
}

#[expect(clippy::panic, reason = "a fuzz target reports by panicking")]
#[track_caller]
fn panic_on(finding: &str) {
    panic!("{finding}");
}
