//! HTTP/1.1 as it is on the wire: heads, and where bodies end.
//!
//! Nothing is passed on as it came: what goes on is written anew from what was understood, so that nobody after us can
//! understand it in another way. What can be understood in two ways is not.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, StatusCode, Uri, Version, request, response};

use crate::request::connection_words;

/// Longer heads are refused.
pub(crate) const LONGEST_HEAD: usize = 64 << 10;
/// More headers are refused.
const MOST_HEADERS: usize = 100;
/// The longest size of a chunk, with all that may stand beside it.
const LONGEST_SIZE: usize = 1 << 10;
/// Longer words after a body are refused. Nobody hears the others either.
const LONGEST_TRAILERS: usize = 16 << 10;

/// Room for an ordinary head, and for what may follow it at once.
const GROWTH: usize = 2 << 10;

/// Why something is not HTTP/1.1, or not for certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("the headers are too long")]
    TooLong,
    #[error("the headers cannot be read")]
    Head,
    #[error("nobody can say how long the body is")]
    Length,
    #[error("the body is not in the pieces that it says it is in")]
    Chunk,
}

impl Malformed {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Malformed::TooLong => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Malformed::Head | Malformed::Length | Malformed::Chunk => StatusCode::BAD_REQUEST,
        }
    }
}

/// Takes a head from what has come, once it is whole. `seen` is how much was looked at before.
fn take_head(bytes: &mut BytesMut, seen: &mut usize) -> Result<Option<Bytes>, Malformed> {
    if *seen == 0 {
        let blank = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let _ = bytes.split_to(blank);
    }
    let from = seen.saturating_sub(2);
    let lines = memchr::memchr_iter(b'\n', &bytes[from..]).map(|at| from + at + 1);
    let end = lines.into_iter().find_map(|next| match &bytes[next..] {
        [b'\n', ..] => Some(next + 1),
        [b'\r', b'\n', ..] => Some(next + 2),
        _ => None,
    });
    match end {
        Some(end) if end <= LONGEST_HEAD => {
            *seen = 0;
            Ok(Some(bytes.split_to(end).freeze()))
        }
        None if bytes.len() <= LONGEST_HEAD => {
            *seen = bytes.len();
            Ok(None)
        }
        _ => Err(Malformed::TooLong),
    }
}

fn headers(head: &Bytes, parsed: &[httparse::Header<'_>]) -> Result<HeaderMap, Malformed> {
    let mut headers = HeaderMap::with_capacity(parsed.len() + 2);
    for header in parsed {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| Malformed::Head)?;
        let value = head.slice_ref(header.value);
        headers.append(name, HeaderValue::from_maybe_shared(value).map_err(|_| Malformed::Head)?);
    }
    Ok(headers)
}

fn version(minor: Option<u8>) -> Version {
    if minor == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 }
}

fn refused(error: httparse::Error) -> Malformed {
    match error {
        httparse::Error::TooManyHeaders => Malformed::TooLong,
        _ => Malformed::Head,
    }
}

/// The head of a request, once it is whole.
pub(crate) fn take_request(
    bytes: &mut BytesMut,
    seen: &mut usize,
) -> Result<Option<request::Parts>, Malformed> {
    let Some(head) = take_head(bytes, seen)? else { return Ok(None) };
    let mut space = [const { std::mem::MaybeUninit::uninit() }; MOST_HEADERS];
    let mut parsed = httparse::Request::new(&mut []);
    let status = parsed.parse_with_uninit_headers(&head, &mut space).map_err(refused)?;
    let (true, Some(method), Some(path)) = (status.is_complete(), parsed.method, parsed.path) else {
        return Err(Malformed::Head);
    };
    let (mut parts, ()) = http::Request::new(()).into_parts();
    parts.method = Method::from_bytes(method.as_bytes()).map_err(|_| Malformed::Head)?;
    let path = head.slice_ref(path.as_bytes());
    parts.uri = Uri::from_maybe_shared(path).map_err(|_| Malformed::Head)?;
    parts.version = version(parsed.version);
    parts.headers = headers(&head, parsed.headers)?;
    Ok(Some(parts))
}

/// The head of an answer, once it is whole.
pub(crate) fn take_response(
    bytes: &mut BytesMut,
    seen: &mut usize,
) -> Result<Option<response::Parts>, Malformed> {
    let Some(head) = take_head(bytes, seen)? else { return Ok(None) };
    let mut space = [const { std::mem::MaybeUninit::uninit() }; MOST_HEADERS];
    let mut parsed = httparse::Response::new(&mut []);
    let status = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut parsed, &head, &mut space)
        .map_err(refused)?;
    let (true, Some(code)) = (status.is_complete(), parsed.code) else { return Err(Malformed::Head) };
    let (mut parts, ()) = http::Response::new(()).into_parts();
    parts.status = StatusCode::from_u16(code).map_err(|_| Malformed::Head)?;
    parts.version = version(parsed.version);
    parts.headers = headers(&head, parsed.headers)?;
    Ok(Some(parts))
}

/// Whether a connection is meant to serve for more. One of HTTP/1.0 never is.
pub(crate) fn keeps_alive(version: Version, headers: &HeaderMap) -> bool {
    version == Version::HTTP_11 && !connection_words(headers).any(|word| word.eq_ignore_ascii_case(b"close"))
}

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// There is none, whatever was told of its length.
    None(Option<u64>),
    Bytes(u64),
    Chunks,
    /// Until the connection ends, which only answers are.
    Rest,
}

impl Length {
    pub(crate) fn is_none(self) -> bool {
        matches!(self, Length::None(_) | Length::Bytes(0))
    }

    /// How a body of this length is written for somebody who understands chunks, or not.
    pub(crate) fn pieces(self, chunks: bool) -> Pieces {
        if chunks && matches!(self, Length::Chunks | Length::Rest) { Pieces::Chunks } else { Pieces::Bare }
    }
}

fn told(headers: &HeaderMap) -> Result<Option<u64>, Malformed> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse().ok());
    if values.next().is_some() {
        return Err(Malformed::Length);
    }
    length.map(Some).ok_or(Malformed::Length)
}

fn chunked(headers: &HeaderMap) -> Result<bool, Malformed> {
    let mut values = headers.get_all(TRANSFER_ENCODING).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(false),
        (Some(one), None) if one.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(true),
        _ => Err(Malformed::Length),
    }
}

/// How long the body of a request is.
pub(crate) fn request_length(parts: &request::Parts) -> Result<Length, Malformed> {
    match (chunked(&parts.headers)?, told(&parts.headers)?) {
        (true, None) if parts.version == Version::HTTP_11 => Ok(Length::Chunks),
        (false, length) => Ok(length.map_or(Length::None(None), Length::Bytes)),
        _ => Err(Malformed::Length),
    }
}

/// How long the body of an answer is, which may be to a request for its head alone.
pub(crate) fn response_length(head_only: bool, parts: &response::Parts) -> Result<Length, Malformed> {
    let bare = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&parts.status);
    match (chunked(&parts.headers)?, told(&parts.headers)?) {
        (true, Some(_)) => Err(Malformed::Length),
        (_, told) if bare || head_only => Ok(Length::None(told)),
        (true, None) => Ok(Length::Chunks),
        (false, Some(length)) => Ok(Length::Bytes(length)),
        (false, None) => Ok(Length::Rest),
    }
}

/// What comes next of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Data(Bytes),
    /// Whatever it is, it has not come yet.
    Later,
    End,
}

/// Reads a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// So many bytes are to come.
    Bytes(u64),
    /// The size of a chunk is to come.
    Size,
    /// So many bytes of a chunk are to come, and the end of its line.
    Chunk(u64),
    /// What may be said after the last chunk, of which so much was said.
    Trailers(usize),
    /// Everything that comes.
    Rest,
}

impl Body {
    pub(crate) fn new(length: Length) -> Self {
        match length {
            Length::None(_) => Body::Bytes(0),
            Length::Bytes(count) => Body::Bytes(count),
            Length::Chunks => Body::Size,
            Length::Rest => Body::Rest,
        }
    }

    /// Takes what is there of it.
    pub(crate) fn take(&mut self, bytes: &mut BytesMut) -> Result<Piece, Malformed> {
        loop {
            match self {
                Body::Bytes(0) => return Ok(Piece::End),
                _ if bytes.is_empty() => return Ok(Piece::Later),
                Body::Rest => return Ok(Piece::Data(bytes.split().freeze())),
                Body::Bytes(left) => return Ok(Piece::Data(take_of(left, bytes))),
                Body::Chunk(left @ 1..) => return Ok(Piece::Data(take_of(left, bytes))),
                Body::Chunk(0) => match &bytes[..] {
                    [b'\r', b'\n', ..] => {
                        let _ = bytes.split_to(2);
                        *self = Body::Size;
                    }
                    [b'\r'] => return Ok(Piece::Later),
                    _ => return Err(Malformed::Chunk),
                },
                // No size at all would be taken for nothing.
                Body::Size if !bytes[0].is_ascii_hexdigit() => return Err(Malformed::Chunk),
                Body::Size => match httparse::parse_chunk_size(bytes) {
                    Ok(httparse::Status::Complete((end, size))) if end <= LONGEST_SIZE => {
                        let _ = bytes.split_to(end);
                        *self = if size == 0 { Body::Trailers(0) } else { Body::Chunk(size) };
                    }
                    Ok(httparse::Status::Partial) if bytes.len() < LONGEST_SIZE => return Ok(Piece::Later),
                    _ => return Err(Malformed::Chunk),
                },
                Body::Trailers(said) => {
                    let Some(end) = memchr::memchr(b'\n', bytes) else {
                        return match *said + bytes.len() < LONGEST_TRAILERS {
                            true => Ok(Piece::Later),
                            false => Err(Malformed::Chunk),
                        };
                    };
                    let line = bytes.split_to(end + 1);
                    *said += line.len();
                    match &line[..] {
                        b"\n" | b"\r\n" => *self = Body::Bytes(0),
                        _ if *said < LONGEST_TRAILERS => {}
                        _ => return Err(Malformed::Chunk),
                    }
                }
            }
        }
    }
}

fn take_of(left: &mut u64, bytes: &mut BytesMut) -> Bytes {
    let count = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
    *left -= count as u64;
    bytes.split_to(count).freeze()
}

/// Writes the head of a request.
pub(crate) fn put_request(out: &mut BytesMut, parts: &request::Parts, length: Length) {
    out.reserve(GROWTH);
    let path = parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    // An address may have a query and no path.
    let root: &[u8] = if path.starts_with('?') { b"/" } else { b"" };
    put(out, &[parts.method.as_str().as_bytes(), b" ", root, path.as_bytes(), b" HTTP/1.1\r\n"]);
    put_headers(out, &parts.headers, length, length.pieces(true));
}

/// Writes the head of an answer.
pub(crate) fn put_response(out: &mut BytesMut, parts: &response::Parts, length: Length, pieces: Pieces) {
    out.reserve(GROWTH);
    let reason = parts.status.canonical_reason().unwrap_or_default();
    put(out, &[b"HTTP/1.1 ", parts.status.as_str().as_bytes(), b" ", reason.as_bytes(), b"\r\n"]);
    put_headers(out, &parts.headers, length, pieces);
}

/// Where a body ends is told as it was understood, and not as somebody has said.
fn put_headers(out: &mut BytesMut, headers: &HeaderMap, length: Length, pieces: Pieces) {
    for (name, value) in
        headers.iter().filter(|(name, _)| ![CONTENT_LENGTH, TRANSFER_ENCODING].contains(name))
    {
        put(out, &[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
    }
    match (pieces, length) {
        (Pieces::Chunks, _) => put(out, &[b"transfer-encoding: chunked\r\n"]),
        (Pieces::Bare, Length::Bytes(count) | Length::None(Some(count))) => {
            put(out, &[format!("content-length: {count}\r\n").as_bytes()]);
        }
        (Pieces::Bare, Length::None(None) | Length::Chunks | Length::Rest) => {}
    }
    put(out, &[b"\r\n"]);
}

fn put(out: &mut BytesMut, parts: &[&[u8]]) {
    parts.iter().for_each(|part| out.put_slice(part));
}

/// How the pieces of a body are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pieces {
    /// As they are: their length was told, or the connection ends with them.
    Bare,
    Chunks,
}

impl Pieces {
    /// Writes a piece.
    pub(crate) fn put(self, out: &mut BytesMut, data: &[u8]) {
        match self {
            _ if data.is_empty() => {}
            Pieces::Bare => out.put_slice(data),
            Pieces::Chunks => put(out, &[format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"]),
        }
    }

    /// Writes the end.
    pub(crate) fn put_end(self, out: &mut BytesMut) {
        if self == Pieces::Chunks {
            out.put_slice(b"0\r\n\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use http::{Method, Version};
    use proptest::prelude::*;

    use super::{
        Body, LONGEST_HEAD, Length, Malformed, Piece, Pieces, put_request, request_length, response_length,
        take_request, take_response,
    };

    fn request(text: &str) -> Result<Option<http::request::Parts>, Malformed> {
        take_request(&mut BytesMut::from(text), &mut 0)
    }

    #[test]
    fn a_head_is_read_once_it_is_whole() {
        let text = "\r\nPOST /a?b HTTP/1.1\r\nHost: x\r\nX: 1\r\nx: 2\r\n\r\nrest";
        let (mut bytes, mut seen) = (BytesMut::new(), 0);
        for (at, byte) in text.bytes().enumerate() {
            bytes.extend_from_slice(&[byte]);
            let Some(parts) = take_request(&mut bytes, &mut seen).unwrap() else { continue };
            assert_eq!(at + 1, text.len() - "rest".len());
            assert_eq!((parts.method, parts.uri.to_string()), (Method::POST, "/a?b".into()));
            assert_eq!(parts.headers.get_all("x").iter().count(), 2);
            return;
        }
        panic!("it was never whole");
    }

    #[test]
    fn what_is_no_head_is_refused() {
        let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(LONGEST_HEAD));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: 1\r\n".repeat(101));
        for (text, expected) in [
            ("GET / HTTP/1.1\r\nHost : x\r\n\r\n", Malformed::Head),
            ("GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", Malformed::Head),
            ("GET / HTTP/1.1\r\nA: b\0\r\n\r\n", Malformed::Head),
            ("GET / HTTP/2.0\r\n\r\n", Malformed::Head),
            ("GET /\r\n\r\n", Malformed::Head),
            ("GET / HTTP/1.1\r\n: b\r\n\r\n", Malformed::Head),
            ("GET / HTTP/1.1\rHost: x\r\n\r\n", Malformed::Head),
            ("PRI * HTTP/2.0\r\n\r\n", Malformed::Head),
            (&long, Malformed::TooLong),
            (&many, Malformed::TooLong),
        ] {
            assert_eq!(request(text).map(drop), Err(expected), "{text:.60}");
        }
        let endless = format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(LONGEST_HEAD));
        assert_eq!(request(&endless).map(drop), Err(Malformed::TooLong));
    }

    #[test]
    fn a_length_is_told_in_one_way_or_not_at_all() {
        let length = |version: &str, headers: &str| {
            request_length(&request(&format!("POST / HTTP/{version}\r\n{headers}\r\n")).unwrap().unwrap())
        };
        assert_eq!(length("1.1", ""), Ok(Length::None(None)));
        assert_eq!(length("1.1", "Content-Length: 12\r\n"), Ok(Length::Bytes(12)));
        assert_eq!(length("1.1", "Transfer-Encoding: Chunked\r\n"), Ok(Length::Chunks));
        for headers in [
            "Content-Length: 1\r\nContent-Length: 1\r\n",
            "Content-Length: 1, 1\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: 0x1\r\n",
            "Content-Length: \r\n",
            "Content-Length: 18446744073709551616\r\n",
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked, identity\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: xchunked\r\n",
        ] {
            assert_eq!(length("1.1", headers), Err(Malformed::Length), "{headers}");
        }
        assert_eq!(length("1.0", "Transfer-Encoding: chunked\r\n"), Err(Malformed::Length));
    }

    #[test]
    fn an_answer_without_a_body_has_none() {
        let length = |head_only: bool, status: &str, headers: &str| {
            let mut bytes = BytesMut::from(&*format!("HTTP/1.1 {status}\r\n{headers}\r\n"));
            let parts = take_response(&mut bytes, &mut 0).unwrap().unwrap();
            assert_eq!(parts.version, Version::HTTP_11);
            response_length(head_only, &parts)
        };
        assert_eq!(length(true, "200 OK", "Content-Length: 5\r\n"), Ok(Length::None(Some(5))));
        assert_eq!(length(false, "304 X", "Content-Length: 5\r\n"), Ok(Length::None(Some(5))));
        assert_eq!(length(false, "204 X", ""), Ok(Length::None(None)));
        assert_eq!(length(false, "200 OK", "Content-Length: 5\r\n"), Ok(Length::Bytes(5)));
        assert_eq!(length(false, "200 OK", "Transfer-Encoding: chunked\r\n"), Ok(Length::Chunks));
        assert_eq!(length(false, "200 OK", ""), Ok(Length::Rest));
        let both = "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n";
        assert_eq!(length(false, "200 OK", both), Err(Malformed::Length));
    }

    /// All of a body, and what was left after it; nothing if it does not end.
    type Read = Result<Option<(Vec<u8>, Vec<u8>)>, Malformed>;

    /// Reads a body that comes in pieces of this size.
    fn read(mut body: Body, wire: &[u8], size: usize) -> Read {
        let (mut bytes, mut data) = (BytesMut::new(), Vec::new());
        let mut pieces = wire.chunks(size);
        loop {
            match body.take(&mut bytes)? {
                Piece::Data(piece) => data.extend(piece),
                Piece::End => {
                    return Ok(Some((data, [&bytes[..], &pieces.collect::<Vec<_>>().concat()].concat())));
                }
                Piece::Later => match pieces.next() {
                    Some(piece) => bytes.extend_from_slice(piece),
                    None => return Ok(None),
                },
            }
        }
    }

    #[test]
    fn what_are_no_chunks_is_refused() {
        let endless = format!("1;{}", "a".repeat(2000));
        let trailers = format!("0\r\n{}", "a: b\r\n".repeat(4000));
        for wire in
            ["x\r\n", "-1\r\n", "fffffffffffffffff\r\n", "1\r\nab\r\n", "1\nab", "\r\n", &endless, &trailers]
        {
            assert_eq!(read(Body::Size, wire.as_bytes(), 1), Err(Malformed::Chunk), "{wire:.40}");
            assert_eq!(read(Body::Size, wire.as_bytes(), 9999), Err(Malformed::Chunk), "{wire:.40}");
        }
        assert_eq!(read(Body::Size, b"5\r\nabc", 2), Ok(None));
        let whole = Ok(Some((b"abc".to_vec(), b"GET".to_vec())));
        assert_eq!(read(Body::Size, b"3;x=y\r\nabc\r\n0\r\nT: 1\r\n\r\nGET", 3), whole);
    }

    /// A request, as somebody understands it.
    type Understood = (Method, String, Vec<u8>);

    /// What is understood here of what is said, and how it goes on.
    fn understood(said: &[u8]) -> (Vec<Understood>, BytesMut) {
        let (mut bytes, mut all, mut out) = (BytesMut::from(said), Vec::new(), BytesMut::new());
        while let Ok(Some(mut parts)) = take_request(&mut bytes, &mut 0) {
            let Ok(length) = request_length(&parts) else { break };
            let Ok(Some((body, rest))) = read(Body::new(length), &bytes, usize::MAX) else { break };
            if parts.method == Method::CONNECT {
                break;
            }
            crate::request::strip(&mut parts.headers, false);
            put_request(&mut out, &parts, length);
            let pieces = length.pieces(true);
            pieces.put(&mut out, &body);
            pieces.put_end(&mut out);
            all.push((parts.method, parts.uri.path_and_query().unwrap().to_string(), body));
            bytes = BytesMut::from(&rest[..]);
        }
        (all, out)
    }

    /// What another implementation understands of what goes on.
    async fn heard(said: BytesMut) -> Vec<Understood> {
        use http_body_util::BodyExt;
        let (mut ours, theirs) = tokio::io::duplex(1 << 20);
        let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
        let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let told = told.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes().to_vec();
                let _ = told.send((parts.method, parts.uri.to_string(), body));
                hyper::Result::Ok(http::Response::new(String::new()))
            }
        });
        tokio::io::AsyncWriteExt::write_all(&mut ours, &said).await.unwrap();
        tokio::io::AsyncWriteExt::shutdown(&mut ours).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(theirs);
        let _ =
            hyper::server::conn::http1::Builder::new().half_close(true).serve_connection(io, service).await;
        let mut all = Vec::new();
        while let Ok(one) = hears.try_recv() {
            all.push(one);
        }
        all
    }

    const LINES: [&str; 10] = [
        "GET http://x?y HTTP/1.1\r\n",
        "GET /a HTTP/1.1\r\n",
        "POST /b?c HTTP/1.1\r\n",
        "POST http://x/d HTTP/1.1\r\n",
        "HEAD / HTTP/1.0\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "PUT /%0d%0a HTTP/1.1\n",
        "\r\nPOST /e HTTP/1.1\r\n",
        "GET /f HTTP/1.1 \r\n",
        "get /g HTTP/1.1\r\n",
    ];
    const HEADERS: [&str; 18] = [
        "Host: x\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: 0\r\n",
        "Content-Length: 43\r\n",
        "content-length:\t5 \r\n",
        "Content-Length: 05\r\n",
        "Content-Length: 5, 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "transfer-encoding:\tChunked \r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding:\r\n chunked\r\n",
        "Connection: content-length\r\n",
        "Connection: close, transfer-encoding\r\n",
        "X: y\n",
        "X: \u{e9}\r\n",
        "Upgrade: h2c\r\n",
    ];
    const BODIES: [&str; 12] = [
        "",
        "hello",
        "5\r\nhello\r\n",
        "5;a=b\r\nhello\r\n",
        "05\r\nhello\r\n",
        "5\nhello\n",
        "0\r\n\r\n",
        "0\r\nX: y\r\n\r\n",
        "0\n\n",
        "\r\n",
        "2b\r\n",
        "GET /smuggled HTTP/1.1\r\nHost: x\r\nX: 12\r\n\r\n",
    ];

    fn said() -> impl Strategy<Value = String> {
        let some = |from: &[&'static str], most| {
            prop::collection::vec(prop::sample::select(from.to_vec()), 0..most).prop_map(|all| all.concat())
        };
        let line = prop::sample::select(LINES.to_vec());
        let end = prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\n", "\r", ""]);
        let one = (line, some(&HEADERS, 4), end, some(&BODIES, 5));
        let one = one.prop_map(|(line, headers, end, body)| [line, &headers, end, &body].concat());
        prop::collection::vec(one, 1..4).prop_map(|all| all.concat())
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_however_it_is_cut(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..6),
            size in 1_usize..40,
        ) {
            let all = pieces.concat();
            let mut wire = BytesMut::new();
            pieces.iter().for_each(|piece| Pieces::Chunks.put(&mut wire, piece));
            Pieces::Chunks.put_end(&mut wire);
            wire.extend_from_slice(b"next");
            prop_assert_eq!(read(Body::Size, &wire, size), Ok(Some((all.clone(), b"next".to_vec()))));
            let bare = [&all[..], b"next"].concat();
            let length = Body::new(Length::Bytes(all.len() as u64));
            prop_assert_eq!(read(length, &bare, size), Ok(Some((all, b"next".to_vec()))));
        }

        /// Nobody after us finds a request, or a body, that was not found here.
        #[test]
        fn whatever_is_said_goes_on_as_it_was_understood(said in said()) {
            let (ours, out) = understood(said.as_bytes());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            prop_assert_eq!(runtime.block_on(heard(out)), ours);
        }

        #[test]
        fn nothing_that_comes_is_too_much(wire in prop::collection::vec(any::<u8>(), 0..400), size in 1_usize..50) {
            let _ = read(Body::Size, &wire, size);
            let _ = take_request(&mut BytesMut::from(&wire[..]), &mut 0);
            let _ = take_response(&mut BytesMut::from(&wire[..]), &mut 0);
        }
    }
}
