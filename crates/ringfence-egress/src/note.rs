//! A wish from its beginning to its end: however it ends, it is written down, with what has gone to and fro.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use http::{Method, Uri};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;

use crate::answer::Refusal;
use crate::audit::{Begun, Entry, MALFORMED, Outcome, kept, now_ms};
use crate::session::Session;

/// Bytes that have gone to and fro.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

impl Counts {
    fn any(&self) -> bool {
        self.sent.load(Ordering::Relaxed) + self.received.load(Ordering::Relaxed) > 0
    }
}

/// What somebody wants, and what has come of it so far. Written down when it is dropped.
pub(crate) struct Note {
    session: Arc<Session>,
    host: String,
    port: u16,
    way: &'static str,
    since: Instant,
    outcome: Outcome,
    rule: String,
    method: Option<String>,
    path: Option<String>,
    pub(crate) status: Option<u16>,
    pub(crate) credential: Option<String>,
    /// Names of headers that were removed from the request.
    pub(crate) removed: Vec<String>,
    pub(crate) counts: Arc<Counts>,
    forgotten: bool,
    /// Its place among the requests that go on at once.
    pub(crate) place: Option<OwnedSemaphorePermit>,
    /// That its begin is recorded.
    begun: Option<Begun>,
}

impl Note {
    /// Of something that names no host.
    pub(crate) fn of_no_host(session: &Arc<Session>, way: &'static str) -> Self {
        Self::new(session, &"-", 0, way)
    }

    pub(crate) fn new(session: &Arc<Session>, host: &impl ToString, port: u16, way: &'static str) -> Self {
        Self {
            session: Arc::clone(session),
            host: kept(host.to_string()),
            port,
            way,
            since: Instant::now(),
            outcome: Outcome::Error,
            rule: "closed".into(),
            method: None,
            path: None,
            status: None,
            credential: None,
            removed: Vec::new(),
            counts: Arc::default(),
            forgotten: false,
            place: None,
            begun: None,
        }
    }

    /// This was asked for.
    pub(crate) fn asks(&mut self, method: &Method, uri: &Uri) {
        self.method = Some(method.to_string());
        self.path = Some(uri.path().to_owned());
    }

    /// It was allowed by this rule.
    pub(crate) fn allowed(&mut self, rule: impl Into<String>) {
        (self.outcome, self.rule) = (Outcome::Allow, rule.into());
    }

    /// It was not an honest wish.
    pub(crate) fn blocked(&mut self, rule: &str) {
        (self.outcome, self.rule) = (Outcome::Block, rule.to_owned());
    }

    /// Nobody can say what was wanted.
    pub(crate) fn malformed(&mut self) {
        self.blocked(MALFORMED);
    }

    /// It was refused for this reason.
    pub(crate) fn refused(&mut self, refusal: &Refusal) {
        self.status = Some(refusal.status.as_u16());
        (self.outcome, self.rule) = (refusal.outcome(), refusal.rule.to_owned());
    }

    /// It broke off. Whoever has spoken to a host before has spoken to it.
    pub(crate) fn broke_off(&mut self, rule: &str) {
        if self.counts.any() {
            self.allowed(rule);
        }
    }

    /// Records that it begins, allowed by this rule. Until then nothing may be sent to a host.
    pub(crate) fn begin(&mut self, rule: &str) -> Result<(), Refusal> {
        if self.begun.is_none() {
            let entry = Entry { decision: Outcome::Allow, rule: kept(rule.to_owned()), ..self.entry() };
            self.begun = Some(self.session.begin(entry)?);
        }
        Ok(())
    }

    /// It is noted elsewhere, unless its begin is recorded.
    pub(crate) fn forget(mut self) {
        self.forgotten = true;
    }

    fn entry(&self) -> Entry {
        Entry {
            at_ms: now_ms(),
            decision: self.outcome,
            rule: kept(self.rule.clone()),
            host: self.host.clone(),
            port: self.port,
            way: self.way.to_owned(),
            method: self.method.clone().map(kept),
            path: self.path.clone().map(kept),
            status: self.status,
            sent: self.counts.sent.load(Ordering::Relaxed),
            received: self.counts.received.load(Ordering::Relaxed),
            duration_ms: u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            credential: self.credential.clone(),
            removed_headers: self.removed.clone(),
            count: None,
            request: None,
            begun: false,
        }
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        match self.begun.take() {
            Some(begun) => self.session.end(&begun, self.entry()),
            None if self.forgotten => {}
            None => self.session.write(&self.entry()),
        }
    }
}

/// A stream to a host whose bytes are counted.
pub(crate) struct Counted<S> {
    inner: S,
    counts: Arc<Counts>,
}

impl<S> Counted<S> {
    pub(crate) fn new(inner: S, note: &Note) -> Self {
        Self { inner, counts: Arc::clone(&note.counts) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
        this.counts.received.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let count = ready!(Pin::new(&mut this.inner).poll_write(cx, buf))?;
        this.counts.sent.fetch_add(count as u64, Ordering::Relaxed);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
