//! HTTP/1.1 between one client and one host: one request after another, each side on a connection of its own, all on one task.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, Bytes};
use http::header::{CONNECTION, EXPECT};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version, request, response};
use http_body_util::BodyExt;
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::answer::{self, Refusal};
use crate::exchange::{Broken, Download, Exchange, GLANCE, READ, Side, Upload};
use crate::held_body::{HeldBody, Place};
use crate::http1::{
    Body, Length, Malformed, Piece, Pieces, keeps_alive, put_request, put_response, request_length,
    response_length, take_request,
};
use crate::meter::{Admitted, Api};
use crate::note::{Counted, Note};
use crate::passing::Passing;
use crate::prefixed::{Prefixed, Stream};
use crate::request::{Decision, Prepared, Target, Watch, admit, is_websocket, prepare};
use crate::session::Ways;
use crate::tunnel::IDLE_PATIENCE;
use crate::upstream::Wire;

/// Whoever says nothing for so long may be silent for longer, and no room is kept for what it may say.
const SOON: Duration = Duration::from_secs(2);
/// A connection that was idle for longer is not used again: somebody between may have forgotten it.
const KEPT: Duration = Duration::from_secs(90);
/// How long, and how much, somebody is listened to who was answered before it had finished.
const LINGER: Duration = Duration::from_secs(1);
const LINGERED: usize = 1 << 20;

/// What becomes of the client's connection after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Another,
    /// It was told that there is none.
    End,
    /// It has to see that something is missing.
    Cut,
}

/// Serves a client that speaks HTTP/1.1 to a host.
pub(crate) async fn relay(ways: Arc<Ways>, client: impl Stream, target: Target) {
    let (client, clock) = (Side::new(client), Box::pin(sleep(SOON)));
    let mut relay = Relay { ways, target, client, host: None, since: Instant::now(), clock };
    let next = loop {
        match relay.serve().await {
            Next::Another => {}
            next => break next,
        }
    };
    if next == Next::End {
        let _ = timeout(LINGER, relay.linger()).await;
    }
}

struct Relay<S> {
    ways: Arc<Ways>,
    target: Target,
    client: Side<S>,
    /// A connection that has served before and may do so again, and since when it waits.
    host: Option<(Side<Wire>, Instant)>,
    /// Since when a request is waited for, and what tells that it takes long.
    since: Instant,
    clock: Pin<Box<Sleep>>,
}

/// What a request is, besides its head.
#[derive(Debug, Clone, Copy)]
struct Asked {
    length: Length,
    /// Whether its answer has no body, whatever it says.
    head_only: bool,
    /// Whether pieces of unknown length are understood.
    chunks: bool,
    /// Whether another may follow.
    keeps: bool,
    /// Whether its body comes once it is asked for.
    waits: bool,
}

impl Asked {
    /// Whether another may follow though its body was not read: there is none.
    fn may_go_on(&self) -> bool {
        self.keeps && self.length.is_none()
    }
}

impl<S: Stream> Relay<S> {
    /// The next request, or nothing if there is none.
    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<request::Parts>, Malformed>> {
        self.poll_host(cx);
        loop {
            if let Some(parts) = take_request(&mut self.client.read, &mut self.client.seen)? {
                return Poll::Ready(Ok(Some(parts)));
            }
            match self.client.poll_read(cx, GLANCE) {
                Poll::Ready(true) => {}
                Poll::Ready(false) => return Poll::Ready(Ok(None)),
                Poll::Pending => break,
            }
        }
        self.poll_silence(cx).map(|()| Ok(None))
    }

    /// A host that goes away, or speaks unasked, is not kept.
    fn poll_host(&mut self, cx: &mut Context<'_>) {
        if self.host.as_mut().is_some_and(|(host, _)| host.poll_read(cx, 1).is_ready()) {
            self.host = None;
        }
    }

    /// Ready when nothing was said for too long. The clock is not set anew for each request: that would cost as much as
    /// reading it.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.clock.as_mut().poll(cx).is_ready() {
            let silence = self.since.elapsed();
            if silence >= IDLE_PATIENCE {
                return Poll::Ready(());
            }
            let next = match silence >= SOON {
                true => {
                    self.client.rest();
                    self.host.iter_mut().for_each(|(host, _)| host.rest());
                    IDLE_PATIENCE
                }
                false => SOON,
            };
            self.clock.as_mut().reset(self.since + next);
        }
        Poll::Pending
    }

    async fn serve(&mut self) -> Next {
        self.since = Instant::now();
        if self.clock.deadline() > self.since + SOON {
            self.clock.as_mut().reset(self.since + SOON);
        }
        let mut parts = match poll_fn(|cx| self.poll_request(cx)).await {
            Ok(Some(parts)) => parts,
            Ok(None) => return Next::End,
            Err(malformed) => {
                let refusal = Refusal::from(malformed);
                self.target.note(&self.ways.session).refused(&refusal);
                return self.answer(refusal.answer(&self.ways.session.network), false, false).await;
            }
        };
        let keeps = keeps_alive(parts.version, &parts.headers);
        let head_only = parts.method == Method::HEAD;
        let mut note = self.target.note(&self.ways.session);
        note.asks(&parts.method, &parts.uri);
        let chunks = parts.version == Version::HTTP_11;
        let expects = parts.headers.remove(EXPECT).is_some() && chunks;
        let asked = request_length(&parts).map(|length| Asked {
            length,
            head_only,
            chunks,
            keeps,
            waits: expects && !length.is_none(),
        });
        let served = match asked {
            Ok(asked) => self.exchange(asked, parts, note).await,
            Err(malformed) => {
                let refusal = malformed.into();
                note.refused(&refusal);
                Err(refusal)
            }
        };
        match served {
            Ok(next) => next,
            Err(refusal) => {
                let keeps = asked.is_ok_and(|asked| asked.may_go_on());
                self.answer(refusal.answer(&self.ways.session.network), head_only, keeps).await
            }
        }
    }

    /// Gives an answer of the broker's own.
    async fn answer(&mut self, answer: Response<answer::Body>, head_only: bool, keeps: bool) -> Next {
        let (mut parts, body) = answer.into_parts();
        let Ok(body) = body.collect().await else { return Next::Cut };
        let body = body.to_bytes();
        if !keeps {
            parts.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        put_response(&mut self.client.out, &parts, Length::Bytes(body.len() as u64), Pieces::Bare);
        if !head_only {
            self.client.out.put_slice(&body);
        }
        match poll_fn(|cx| self.client.poll_send(cx)).await {
            Ok(()) if keeps => Next::Another,
            Ok(()) => Next::End,
            Err(_) => Next::Cut,
        }
    }

    /// Says goodbye, and listens for a while: whoever is cut off while it speaks does not hear what it was told.
    async fn linger(&mut self) {
        let _ = self.client.stream.shutdown().await;
        let mut heard = self.client.read.len();
        while heard < LINGERED && poll_fn(|cx| self.client.poll_read(cx, READ)).await {
            heard += self.client.read.len();
            self.client.read.clear();
        }
    }

    async fn exchange(
        &mut self,
        mut asked: Asked,
        mut parts: request::Parts,
        mut note: Note,
    ) -> Result<Next, Refusal> {
        let ways = Arc::clone(&self.ways);
        let mut prepared = match prepare(&ways, &self.target, &mut parts, &mut note).await {
            Ok(Decision::Send(prepared)) => prepared,
            Ok(Decision::Answer(own)) => {
                drop(note);
                return Ok(self.answer(own, asked.head_only, asked.may_go_on()).await);
            }
            Err(refusal) => {
                note.refused(&refusal);
                return Err(refusal);
            }
        };
        // Something that has to be counted is waited for at the end of the run.
        let _busy = prepared.counted(&ways.session).map(|_| ways.session.busy());
        let body = match prepared.counted(&ways.session) {
            None => None,
            Some(api) => {
                let body = self.metered_body(api, &mut asked, &mut parts.headers, &mut prepared, &note).await;
                match body.inspect_err(|refusal| note.refused(refusal))? {
                    Some(body) => Some(body),
                    None => return Ok(Next::Cut),
                }
            }
        };
        let answered = self.ask(&asked, &parts, body, prepared.admitted.as_deref(), &note).await;
        match answered.inspect_err(|refusal| note.refused(refusal))? {
            Some((exchange, answer)) => self.carry(exchange, answer, asked, prepared, note).await,
            None => Ok(Next::Cut),
        }
    }

    /// Reads the body of a request to a model whole, under a budget, and waits until it may be sent. Nothing if the client goes
    /// away.
    async fn metered_body(
        &mut self,
        api: Api,
        asked: &mut Asked,
        headers: &mut HeaderMap,
        prepared: &mut Prepared,
        note: &Note,
    ) -> Result<Option<Bytes>, Refusal> {
        let session = Arc::clone(&self.ways.session);
        if std::mem::take(&mut asked.waits) {
            self.client.out.put_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            let _ = poll_fn(|cx| self.client.poll_send(cx)).await;
        }
        let Some((body, place)) = self.whole_body(asked.length, note).await? else { return Ok(None) };
        let admitting = admit(&session, api, headers, body, prepared);
        let body = tokio::select! {
            body = admitting => body?,
            () = poll_fn(|cx| self.client.poll_gone(cx)) => return Ok(None),
        };
        asked.length = Length::Bytes(body.len() as u64);
        Ok(Some(place.hold(body)))
    }

    /// The body of a request, as it came, and its place. Nothing if the client goes away.
    async fn whole_body(&mut self, length: Length, note: &Note) -> Result<Option<(Bytes, Place)>, Refusal> {
        let session = &self.ways.session;
        let mut watch = Watch::new(session, &self.target);
        let told = if let Length::Bytes(told) = length { Some(told) } else { None };
        let (mut body, mut whole) = (Body::new(length), HeldBody::new(&session.bodies, told));
        loop {
            match body.take(&mut self.client.read)? {
                Piece::Data(data) => {
                    note.counts.sent.fetch_add(data.len() as u64, Ordering::Relaxed);
                    if watch.is_stray(&data) {
                        return Err(Broken::Stray.refusal(&self.target));
                    }
                    tokio::select! {
                        biased;
                        added = whole.add(&data) => added?,
                        () = poll_fn(|cx| self.client.poll_gone(cx)) => return Ok(None),
                    }
                }
                Piece::End => return Ok(Some(whole.finish())),
                Piece::Later if poll_fn(|cx| self.client.poll_read(cx, READ)).await => {}
                Piece::Later => return Ok(None),
            }
        }
    }

    /// Sends a request, and waits for the head of its answer. Nothing if the client goes away. With a body that was read before,
    /// the answer is waited for all the same: it counts.
    async fn ask(
        &mut self,
        asked: &Asked,
        parts: &request::Parts,
        mut body: Option<Bytes>,
        admitted: Option<&Admitted>,
        note: &Note,
    ) -> Result<Option<(Exchange<Wire>, response::Parts)>, Refusal> {
        // It may have gone away while the request was looked at.
        poll_fn(|cx| {
            self.poll_host(cx);
            Poll::Ready(())
        })
        .await;
        let kept = self.host.take().filter(|(_, since)| since.elapsed() < KEPT);
        let mut kept = kept.map(|(host, _)| host);
        if asked.waits {
            self.client.out.put_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        let is_whole = body.is_some();
        // Nothing was lost if it is asked for again.
        let again =
            [Method::GET, Method::HEAD, Method::OPTIONS].contains(&parts.method) && asked.length.is_none();
        loop {
            let again = again && kept.is_some();
            let mut host = match kept.take() {
                Some(host) => host,
                None => Side::new(self.ways.connector.open(&self.target).await?),
            };
            if let Some(admitted) = admitted {
                admitted.sent();
            }
            put_request(&mut host.out, parts, asked.length);
            if let Some(body) = body.take() {
                host.put_body(body);
            }
            let upload = (!asked.length.is_none() && !is_whole).then(|| Upload {
                body: Body::new(asked.length),
                pieces: asked.length.pieces(true),
                watch: Watch::new(&self.ways.session, &self.target),
                counts: Arc::clone(&note.counts),
            });
            let client = &mut self.client;
            let mut exchange = Exchange { host, upload, deaf: false, watched: true };
            let mut answer = poll_fn(|cx| exchange.poll_answer(cx, client)).await;
            if answer.as_ref().is_err_and(|broken| *broken == Broken::Client)
                && is_whole
                && exchange.upload.is_none()
            {
                exchange.watched = false;
                answer = poll_fn(|cx| exchange.poll_answer(cx, client)).await;
            }
            match answer {
                Ok(answer) => return Ok(Some((exchange, answer))),
                Err(Broken::Client) => return Ok(None),
                Err(Broken::Host) if again && exchange.host.read.is_empty() => {}
                Err(broken) => return Err(broken.refusal(&self.target)),
            }
        }
    }

    /// Carries an answer to whoever asked.
    async fn carry(
        &mut self,
        mut exchange: Exchange<Wire>,
        mut answer: response::Parts,
        asked: Asked,
        prepared: Prepared,
        mut note: Note,
    ) -> Result<Next, Refusal> {
        let (session, client) = (Arc::clone(&self.ways.session), &mut self.client);
        prepared.heard(answer.status).await;
        let counted = prepared.counted(&session).is_some();
        let switches = answer.status == StatusCode::SWITCHING_PROTOCOLS;
        let length = match response_length(asked.head_only, &answer) {
            _ if switches && prepared.upgrade && is_websocket(&answer.headers) => Length::Rest,
            Ok(length) if !switches => length,
            _ => {
                let refusal = Broken::Answer.refusal(&self.target);
                note.refused(&refusal);
                return Err(refusal);
            }
        };
        let host_keeps = keeps_alive(answer.version, &answer.headers) && length != Length::Rest;
        let passing = Passing::begin(&session, prepared, &mut answer, note)?;
        if switches {
            switch(client, exchange.host, &answer, passing).await;
            return Ok(Next::Cut);
        }
        let pieces = length.pieces(asked.chunks);
        let keeps = asked.keeps && exchange.upload.is_none();
        if !keeps {
            answer.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        put_response(&mut client.out, &answer, length, pieces);
        let mut download = Download::new(length, pieces, passing);
        match poll_fn(|cx| exchange.poll_download(cx, client, &mut download)).await {
            Ok(()) => {
                let kept = exchange.into_host().filter(|_| host_keeps);
                self.host = kept.map(|host| (host, Instant::now()));
                Ok(if keeps { Next::Another } else { Next::End })
            }
            Err(broken) => {
                if let Broken::Stray | Broken::Request(_) = broken {
                    download.passing.refused(&broken.refusal(&self.target));
                }
                // Whatever the client does, what it has caused counts.
                if counted {
                    exchange.drain(download).await;
                }
                Ok(Next::Cut)
            }
        }
    }
}

/// Lets both sides speak as they like from now on.
async fn switch(
    client: &mut Side<impl Stream>,
    host: Side<Wire>,
    answer: &response::Parts,
    passing: Passing,
) {
    put_response(&mut client.out, answer, Length::None(None), Pieces::Bare);
    if poll_fn(|cx| client.poll_send(cx)).await.is_err() {
        return;
    }
    let mut theirs = Prefixed::new(client.read.split(), &mut client.stream);
    let mut ours = Counted::new(Prefixed::new(host.read, host.stream), passing.note());
    let _ = copy_bidirectional(&mut theirs, &mut ours).await;
}
