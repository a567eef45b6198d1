//! A request and its answer between a client and a host. Both may speak at once, and neither is read faster than the other
//! listens.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::{StatusCode, response};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::timeout;

use crate::answer::Refusal;
use crate::forward::{DRAINED, DRAINING};
use crate::http1::{Body, Length, Malformed, Piece, Pieces, take_response};
use crate::note::Counts;
use crate::passing::Passing;
use crate::prefixed::Stream;
use crate::request::{Target, Watch, strayed};

/// How much is read at once, and where nothing is expected.
pub(crate) const READ: usize = 8 << 10;
pub(crate) const GLANCE: usize = 1 << 10;
/// So much is written at once.
const FULL: usize = 16 << 10;
/// No more is held of what a client says before it is asked.
const HELD: usize = 64 << 10;

/// One end of the way: what has come from it and was not understood yet, and what is still to go there.
pub(crate) struct Side<S> {
    pub(crate) stream: S,
    pub(crate) read: BytesMut,
    /// How much of it was looked at in search of a head.
    pub(crate) seen: usize,
    pub(crate) out: BytesMut,
    /// The whole body of a request, which goes after it and is not copied.
    body: Option<Bytes>,
    unflushed: bool,
    /// Whether it has broken off, and not just said that it says nothing more.
    failed: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Side<S> {
    pub(crate) fn new(stream: S) -> Self {
        let (read, out) = (BytesMut::new(), BytesMut::new());
        Self { stream, read, seen: 0, out, body: None, unflushed: false, failed: false }
    }

    /// Whether more has come; `false` if nothing comes any more.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, size: usize) -> Poll<bool> {
        self.read.reserve(size);
        let reading = pin!(self.stream.read_buf(&mut self.read));
        reading.poll(cx).map(|read| {
            self.failed |= read.is_err();
            read.is_ok_and(|count| count > 0)
        })
    }

    /// Ready when the other end has gone. What it says meanwhile is for later.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.read.len() < HELD {
            match self.poll_read(cx, GLANCE) {
                Poll::Ready(true) => {}
                Poll::Ready(false) => return Poll::Ready(()),
                Poll::Pending => break,
            }
        }
        Poll::Pending
    }

    /// Sends this after all else. A short one goes with it at once.
    pub(crate) fn put_body(&mut self, body: Bytes) {
        match body.len() <= FULL {
            true => self.out.extend_from_slice(&body),
            false => self.body = Some(body),
        }
    }

    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.out.is_empty() {
            let count = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.out))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.out.advance(count);
            self.unflushed = true;
        }
        while let Some(body) = self.body.as_mut().filter(|body| !body.is_empty()) {
            let count = ready!(Pin::new(&mut self.stream).poll_write(cx, body))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            body.advance(count);
            self.unflushed = true;
        }
        self.body = None;
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Whether nothing is left of what was said, or is to be said.
    pub(crate) fn is_clean(&self) -> bool {
        self.read.is_empty() && self.out.is_empty() && self.body.is_none() && !self.unflushed
    }

    /// Nothing happens for a while, and no room is kept for it.
    pub(crate) fn rest(&mut self) {
        for buffer in [&mut self.read, &mut self.out] {
            if buffer.is_empty() {
                *buffer = BytesMut::new();
            }
        }
    }
}

/// What went wrong between the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    Client,
    Host,
    /// What the client says cannot be understood.
    Request(Malformed),
    /// What the host says cannot be understood.
    Answer,
    /// The body of the request holds a placeholder of another host.
    Stray,
}

impl Broken {
    pub(crate) fn refusal(self, target: &Target) -> Refusal {
        match self {
            Broken::Client | Broken::Host => target.broke_off(),
            Broken::Request(malformed) => malformed.into(),
            Broken::Answer => Refusal::unreachable(format!("{} answers in no known way", target.host)),
            Broken::Stray => strayed(target),
        }
    }
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        Refusal::new(malformed.status(), "bad-request", malformed.to_string())
    }
}

/// The body of a request that is on its way.
pub(crate) struct Upload {
    pub(crate) body: Body,
    pub(crate) pieces: Pieces,
    pub(crate) watch: Watch,
    pub(crate) counts: Arc<Counts>,
}

impl Upload {
    /// Takes on what has come; whether that was the last of it.
    fn take(&mut self, from: &mut BytesMut, to: &mut BytesMut) -> Result<Taken, Broken> {
        while to.len() < FULL {
            match self.body.take(from).map_err(Broken::Request)? {
                Piece::Data(data) => {
                    self.counts.sent.fetch_add(data.len() as u64, Ordering::Relaxed);
                    if self.watch.is_stray(&data) {
                        return Err(Broken::Stray);
                    }
                    self.pieces.put(to, &data);
                }
                Piece::Later => return Ok(Taken::Some),
                Piece::End => {
                    self.pieces.put_end(to);
                    return Ok(Taken::All);
                }
            }
        }
        Ok(Taken::Enough)
    }
}

/// The body of an answer that is on its way.
pub(crate) struct Download {
    body: Body,
    pieces: Pieces,
    /// Whether all of it was taken on.
    ended: bool,
    pub(crate) passing: Passing,
}

impl Download {
    pub(crate) fn new(length: Length, pieces: Pieces, passing: Passing) -> Self {
        Self { body: Body::new(length), pieces, ended: false, passing }
    }

    fn take(&mut self, from: &mut BytesMut, to: &mut BytesMut) -> Result<Taken, Broken> {
        while to.len() < FULL && !self.ended {
            match self.body.take(from).map_err(|_| Broken::Answer)? {
                Piece::Data(data) => self.pieces.put(to, &self.passing.pass(data)),
                Piece::Later => return Ok(Taken::Some),
                Piece::End => self.end(to),
            }
        }
        Ok(if self.ended { Taken::All } else { Taken::Enough })
    }

    fn end(&mut self, to: &mut BytesMut) {
        self.ended = true;
        self.pieces.put(to, &self.passing.rest());
        self.pieces.put_end(to);
    }
}

/// How much of what there is was taken on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// What had come.
    Some,
    /// As much as is written at once.
    Enough,
    /// All that there will be.
    All,
}

/// A request and its answer, between two sides.
pub(crate) struct Exchange<H> {
    pub(crate) host: Side<H>,
    /// What is still to be said to the host.
    pub(crate) upload: Option<Upload>,
    /// The host listens no longer. It may have said why.
    pub(crate) deaf: bool,
    /// Whether it ends when the client goes away.
    pub(crate) watched: bool,
}

impl<H: Stream> Exchange<H> {
    /// Sends the request, or what has come of it. Ready when there is nothing more to send.
    fn poll_upload(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Side<impl Stream>,
    ) -> Poll<Result<(), Broken>> {
        while !self.deaf {
            let taken = match &mut self.upload {
                Some(upload) => upload.take(&mut client.read, &mut self.host.out)?,
                None => Taken::All,
            };
            if taken == Taken::All {
                self.upload = None;
            } else if taken == Taken::Some {
                match client.poll_read(cx, READ) {
                    Poll::Ready(true) => continue,
                    Poll::Ready(false) => return Poll::Ready(Err(Broken::Client)),
                    Poll::Pending => {}
                }
            }
            match self.host.poll_send(cx) {
                Poll::Ready(Ok(())) if taken == Taken::Enough => {}
                Poll::Ready(Ok(())) if taken == Taken::All => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) | Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => {
                    self.deaf = true;
                    self.host.body = None;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Notices if the client goes away while it waits. What it says meanwhile is for later.
    fn poll_leave(&mut self, cx: &mut Context<'_>, client: &mut Side<impl Stream>) -> Result<(), Broken> {
        match self.watched && client.poll_gone(cx).is_ready() {
            true => Err(Broken::Client),
            false => Ok(()),
        }
    }

    /// The head of the answer. What is left of the request goes meanwhile.
    pub(crate) fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Side<impl Stream>,
    ) -> Poll<Result<response::Parts, Broken>> {
        // It may wait for a word before it goes on.
        let _ = client.poll_send(cx);
        let sent = self.poll_upload(cx, client)?;
        loop {
            let head = take_response(&mut self.host.read, &mut self.host.seen);
            match head.map_err(|_| Broken::Answer)? {
                Some(parts) if is_interim(parts.status) => continue,
                Some(parts) => return Poll::Ready(Ok(parts)),
                None => {}
            }
            match self.host.poll_read(cx, READ) {
                Poll::Ready(true) => {}
                Poll::Ready(false) => return Poll::Ready(Err(Broken::Host)),
                Poll::Pending => break,
            }
        }
        if sent.is_ready() {
            self.poll_leave(cx, client)?;
        }
        Poll::Pending
    }

    /// Sends the body of the answer. What is left of the request goes meanwhile.
    pub(crate) fn poll_download(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Side<impl Stream>,
        download: &mut Download,
    ) -> Poll<Result<(), Broken>> {
        let sent = self.poll_upload(cx, client)?;
        loop {
            let mut taken = download.take(&mut self.host.read, &mut client.out)?;
            let mut broken = false;
            if taken == Taken::Some {
                match self.host.poll_read(cx, READ) {
                    Poll::Ready(true) => continue,
                    // One that is cut off has not ended.
                    Poll::Ready(false) if download.body == Body::Rest && !self.host.failed => {
                        download.end(&mut client.out);
                        taken = Taken::All;
                    }
                    Poll::Ready(false) => broken = true,
                    Poll::Pending => {}
                }
            }
            // What was said before it broke off is heard.
            ready!(client.poll_send(cx)).map_err(|_| Broken::Client)?;
            match taken {
                _ if broken => return Poll::Ready(Err(Broken::Host)),
                Taken::All => return Poll::Ready(Ok(())),
                Taken::Enough => {}
                Taken::Some => {
                    if sent.is_ready() {
                        self.poll_leave(cx, client)?;
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// The connection to the host, if nothing is left on it that was said or is to be said.
    pub(crate) fn into_host(self) -> Option<Side<H>> {
        (!self.deaf && self.upload.is_none() && self.host.is_clean()).then_some(self.host)
    }

    /// Reads an answer that nobody wants any more to its end, so that it is counted.
    pub(crate) async fn drain(mut self, mut download: Download) {
        let mut read = 0;
        while read < DRAINED {
            match download.body.take(&mut self.host.read) {
                Ok(Piece::Data(data)) => {
                    read += data.len();
                    download.passing.pass(data);
                }
                Ok(Piece::Later) => {
                    let more = poll_fn(|cx| self.host.poll_read(cx, READ));
                    if !matches!(timeout(DRAINING, more).await, Ok(true)) {
                        return;
                    }
                }
                Ok(Piece::End) | Err(_) => return,
            }
        }
    }
}

/// Whether another answer follows this one. Where protocols are switched none does.
fn is_interim(status: StatusCode) -> bool {
    status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use bytes::Bytes;
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};

    use super::{Broken, Download, Exchange, Side, Upload};
    use crate::http1::{Body, Length, Pieces};
    use crate::note::{Counts, Note};
    use crate::passing::Passing;
    use crate::prefixed::Stream;
    use crate::request::{Prepared, Target, Watch};
    use crate::session::idle_session;

    fn target() -> Target {
        Target::new(false, "host.test".parse().unwrap(), 80)
    }

    /// The connection to a host that answers before it has heard a body of this length, and holds so much of it unheard.
    async fn kept(length: usize, held: usize) -> Option<Side<DuplexStream>> {
        let (mut client, ours) = duplex(1 << 16);
        let (mut host, theirs) = duplex(held);
        client.write_all(&vec![b'x'; length]).await.unwrap();
        host.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        let upload = Upload {
            body: Body::new(Length::Bytes(length as u64)),
            pieces: Pieces::Bare,
            watch: Watch::new(&idle_session(Vec::new()), &target()),
            counts: Arc::new(Counts::default()),
        };
        let host = Side::new(theirs);
        let mut exchange = Exchange { host, upload: Some(upload), deaf: false, watched: true };
        let mut client = Side::new(ours);
        poll_fn(|cx| exchange.poll_answer(cx, &mut client)).await.unwrap();
        assert!(exchange.upload.is_none());
        exchange.into_host()
    }

    /// It would be held twice, and longer than it is needed.
    #[tokio::test]
    async fn whole_body_is_not_copied_and_not_kept_once_it_is_sent() {
        const LENGTH: usize = 1 << 20;
        let (host, theirs) = duplex(1 << 10);
        let mut side = Side::new(theirs);
        let body = Bytes::from(vec![b'x'; LENGTH]);
        side.out.extend_from_slice(b"head");
        side.put_body(body.clone());
        let sending = async {
            poll_fn(|cx| side.poll_send(cx)).await.unwrap();
            assert!(side.is_clean() && side.out.capacity() < LENGTH);
            drop(side);
        };
        let mut host = host;
        let mut heard = Vec::new();
        let ((), read) = tokio::join!(sending, host.read_to_end(&mut heard));
        assert_eq!(read.unwrap(), LENGTH + 4);
        assert!(heard.starts_with(b"headx") && body.is_unique());
    }

    /// Otherwise the next request would be taken for the rest of this one.
    #[tokio::test]
    async fn a_host_that_has_not_heard_all_is_not_kept() {
        assert!(kept(100, 200).await.is_some());
        assert!(kept(300, 200).await.is_none());
    }

    /// What becomes of an answer of this length, and what is heard of it, byte by byte.
    async fn slowly(host: impl Stream, length: Length) -> (Result<(), Broken>, String) {
        let (mut client, ours) = duplex(1);
        let session = idle_session(Vec::new());
        let (mut parts, ()) = http::Response::new(()).into_parts();
        let note = Note::new(&session, &"host.test", 80, "http");
        let passing = Passing::begin(&session, Prepared::default(), &mut parts, note).unwrap();
        let mut download = Download::new(length, Pieces::Chunks, passing);
        let mut exchange = Exchange { host: Side::new(host), upload: None, deaf: false, watched: true };
        let sending = async {
            let mut side = Side::new(ours);
            poll_fn(|cx| exchange.poll_download(cx, &mut side, &mut download)).await
        };
        let mut heard = String::new();
        let (sent, _) = tokio::join!(sending, client.read_to_string(&mut heard));
        (sent, heard)
    }

    #[tokio::test]
    async fn an_answer_ends_once_however_slowly_it_is_heard() {
        const ANSWER: &str = "5\r\nhello\r\n0\r\n\r\n";
        let (mut host, theirs) = duplex(1 << 10);
        host.write_all(ANSWER.as_bytes()).await.unwrap();
        assert_eq!(slowly(theirs, Length::Chunks).await, (Ok(()), ANSWER.to_owned()));
    }

    /// A host that says something, is cut off, and from then on looks as if it had ended.
    struct CutOff(u8);

    impl AsyncRead for CutOff {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.0 += 1;
            match self.0 {
                1 => buf.put_slice(b"half"),
                2 => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                _ => {}
            }
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for CutOff {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn an_answer_that_was_cut_off_stays_so_however_slowly_it_is_heard() {
        assert_eq!(slowly(CutOff(0), Length::Rest).await, (Err(Broken::Host), "4\r\nhalf\r\n".to_owned()));
    }
}
