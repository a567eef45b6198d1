//! Requests by HTTP/2, and those that are made of the proxy itself: to their hosts, on connections that all of them share.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::client::legacy::ResponseFuture;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use crate::answer::{Body, BodyError, Refusal};
use crate::held_body::{HeldBody, Place, in_slices};
use crate::meter::{Admitted, Api, Reading};
use crate::note::{Counted, Counts, Note};
use crate::passing::{Passing, reading};
use crate::request::{Decision, Prepared, Target, Watch, admit, is_websocket, prepare, strayed};
use crate::session::{Busy, Session, Ways};
use crate::upstream::no_way;

/// Forwards a request to a host that the policy allows, or says why not.
pub(crate) async fn forward_or_answer(
    ways: Arc<Ways>,
    target: Target,
    request: Request<Incoming>,
) -> Response<Body> {
    let mut note = target.note(&ways.session);
    note.asks(request.method(), request.uri());
    // More have to wait, with what they hold of a body.
    note.place = Arc::clone(&ways.session.exchanges).acquire_owned().await.ok();
    match forward(&ways, &target, request, note).await {
        Ok(response) => response,
        Err(refusal) => refusal.answer(&ways.session.network),
    }
}

async fn forward(
    ways: &Arc<Ways>,
    target: &Target,
    request: Request<Incoming>,
    mut note: Note,
) -> Result<Response<Body>, Refusal> {
    let sent = send(ways, target, request, &mut note).await;
    let Sent { answer, prepared, theirs } = match sent.inspect_err(|refusal| note.refused(refusal))? {
        Either::Own(answer) => return Ok(answer),
        Either::Host(sent) => sent,
    };
    let answer = answer.take().ok_or_else(|| Refusal::unreachable("the broker ends"))?;
    let (mut parts, body) = answer.into_parts();
    let drains = ways.session.is_bounded().then(|| ways.session.busy());
    let passing = Passing::begin(&ways.session, prepared, &mut parts, note)?;
    if parts.status == StatusCode::SWITCHING_PROTOCOLS {
        if !is_websocket(&parts.headers) {
            return Err(Refusal::unreachable("the host upgrades to something else"));
        }
        return switch(theirs, Response::from_parts(parts, body), passing);
    }
    // In the words of the host's own, there may be anything.
    parts.extensions.clear();
    // From here on it counts, whoever goes away.
    let metered = Metered { body: Some(body), trailers: None, passing, drains };
    Ok(Response::from_parts(parts, metered.boxed_unsync()))
}

/// Whose answer it is.
enum Either {
    Own(Response<Body>),
    Host(Sent),
}

/// A request that was sent, and what goes with its answer.
struct Sent {
    answer: Held,
    prepared: Prepared,
    theirs: Option<hyper::upgrade::OnUpgrade>,
}

async fn send(
    ways: &Arc<Ways>,
    target: &Target,
    mut request: Request<Incoming>,
    note: &mut Note,
) -> Result<Either, Refusal> {
    let session = &ways.session;
    let theirs = hyper::upgrade::on(&mut request);
    let (mut parts, body) = request.into_parts();
    let mut prepared = match prepare(ways, target, &mut parts, note).await? {
        Decision::Answer(answer) => return Ok(Either::Own(answer)),
        Decision::Send(prepared) => prepared,
    };
    parts.uri = address(target, &parts.uri)?;
    parts.version = Version::HTTP_11;
    let found = Arc::new(Found { counts: Arc::clone(&note.counts), stray: AtomicBool::new(false) });
    let watched = Watched { body, watch: Watch::new(session, target), found: Arc::clone(&found) };
    let body = match prepared.counted(session) {
        None => watched.boxed_unsync(),
        Some(api) => {
            let (body, place) = whole_body(session, watched, &found, target).await?;
            let body = admit(session, api, &mut parts.headers, body, &mut prepared).await?;
            parts.headers.insert(CONTENT_LENGTH, body.len().into());
            in_slices(place.hold(body))
        }
    };
    let request = Request::from_parts(parts, body);
    let client = if prepared.upgrade { &ways.first_client } else { &ways.client };
    let answer = match prepared.counted(session) {
        None => client.request(request).await.map(|answer| Held { answer: Some(answer), counted: None }),
        Some(api) => {
            let admitted = prepared.admitted.clone();
            count_though_unwanted(session, api, admitted, client.request(request)).await?
        }
    };
    let answer = answer.map_err(|error| failed(&error, &found, target))?;
    if let Some(answer) = &answer.answer {
        prepared.heard(answer.status()).await;
    }
    let theirs = prepared.upgrade.then_some(theirs);
    Ok(Either::Host(Sent { answer, prepared, theirs }))
}

/// Reads the body of a request to a model whole, under a budget. Returns it with its place.
async fn whole_body(
    session: &Session,
    mut body: Watched,
    found: &Found,
    target: &Target,
) -> Result<(Bytes, Place), Refusal> {
    let mut whole = HeldBody::new(&session.bodies, body.size_hint().exact());
    while let Some(frame) = body.frame().await {
        let broken = |_| match found.stray.load(Ordering::Relaxed) {
            true => strayed(target),
            false => Refusal::bad("the body of the request broke off"),
        };
        if let Ok(data) = frame.map_err(broken)?.into_data() {
            whole.add(&data).await?;
        }
    }
    Ok(whole.finish())
}

/// Waits for the answer to a request on a task of its own: if whoever asked goes away, it comes all the same, and counts.
async fn count_though_unwanted(
    session: &Arc<Session>,
    api: Api,
    admitted: Option<Arc<Admitted>>,
    request: ResponseFuture,
) -> Result<Result<Held, hyper_util::client::legacy::Error>, Refusal> {
    let (told, hears) = tokio::sync::oneshot::channel();
    let (session, busy) = (Arc::clone(session), session.busy());
    tokio::spawn(async move {
        if let Some(admitted) = &admitted {
            admitted.sent();
        }
        let answer = request.await;
        if let (Err(error), Some(admitted)) = (&answer, &admitted)
            && (error.is_connect() || no_way(error).is_some())
        {
            admitted.settle();
        }
        let held = answer.map(|answer| Held {
            answer: Some(answer),
            counted: Some(Counting { api, session, admitted, busy }),
        });
        // Wherever it is when nobody wants it any more, it counts.
        let _ = told.send(held);
    });
    hears.await.map_err(|_| Refusal::unreachable("the broker ends"))
}

/// An answer on its way to whoever asked. One that has to be counted is, also if nobody takes it.
struct Held {
    answer: Option<Response<Incoming>>,
    counted: Option<Counting>,
}

/// What is needed to count an answer.
struct Counting {
    api: Api,
    session: Arc<Session>,
    admitted: Option<Arc<Admitted>>,
    busy: Busy,
}

impl Held {
    /// From now on it is somebody else's.
    fn take(mut self) -> Option<Response<Incoming>> {
        self.answer.take()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (Some(answer), Some(counting)) = (self.answer.take(), self.counted.take()) else { return };
        let Counting { api, session, admitted, busy } = counting;
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let reading = reading(&session, api, answer.status(), answer.headers(), admitted);
            drain(answer.into_body(), reading).await;
            drop(busy);
        });
    }
}

/// How much of an answer that nobody wants is read so that it is counted, and how long a piece of it may take.
pub(crate) const DRAINED: usize = 64 << 20;
pub(crate) const DRAINING: Duration = Duration::from_secs(60);

/// Reads an answer that nobody wants any more to its end.
async fn drain(mut body: Incoming, mut reading: Reading) {
    let mut read = 0;
    while let Ok(Some(Ok(frame))) = tokio::time::timeout(DRAINING, body.frame()).await {
        let Some(data) = frame.data_ref() else { continue };
        read += data.len();
        reading.read(data);
        if read > DRAINED {
            break;
        }
    }
    reading.end();
}

fn address(target: &Target, uri: &Uri) -> Result<Uri, Refusal> {
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    Uri::builder()
        .scheme(if target.secure { Scheme::HTTPS } else { Scheme::HTTP })
        .authority(format!("{}:{}", target.host, target.port))
        .path_and_query(path)
        .build()
        .map_err(|_| Refusal::bad("the address cannot be written"))
}

fn failed(error: &hyper_util::client::legacy::Error, found: &Found, target: &Target) -> Refusal {
    if found.stray.load(Ordering::Relaxed) {
        return strayed(target);
    }
    match no_way(error) {
        Some(refusal) => refusal.clone(),
        None => target.broke_off(),
    }
}

/// Lets both sides speak as they like from now on.
fn switch(
    theirs: Option<hyper::upgrade::OnUpgrade>,
    mut answer: Response<Incoming>,
    passing: Passing,
) -> Result<Response<Body>, Refusal> {
    let Some(theirs) = theirs else {
        return Err(Refusal::unreachable("the host upgrades without being asked"));
    };
    let ours = hyper::upgrade::on(&mut answer);
    tokio::spawn(async move {
        if let (Ok(theirs), Ok(ours)) = (theirs.await, ours.await) {
            let ours = TokioIo::new(ours);
            let (mut theirs, mut ours) = (TokioIo::new(theirs), Counted::new(ours, passing.note()));
            let _ = copy_bidirectional(&mut theirs, &mut ours).await;
        }
        drop(passing);
    });
    let (parts, _) = answer.into_parts();
    Ok(Response::from_parts(parts, crate::answer::empty()))
}

/// What was seen of a body on its way.
struct Found {
    counts: Arc<Counts>,
    stray: AtomicBool,
}

/// A body that is looked at while it goes.
struct Watched {
    body: Incoming,
    watch: Watch,
    found: Arc<Found>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            other => return Poll::Ready(other.map(|result| result.map_err(Into::into))),
        };
        let data = frame.data_ref().map_or(&[][..], |data| data);
        this.found.counts.sent.fetch_add(data.len() as u64, Ordering::Relaxed);
        if this.watch.is_stray(data) || frame.trailers_ref().is_some_and(|one| this.watch.is_stray_after(one))
        {
            this.found.stray.store(true, Ordering::Relaxed);
            return Poll::Ready(Some(Err("a placeholder is where it does not belong".into())));
        }
        // No header goes on that was not looked at. By HTTP/1.1 trailers do not go on either.
        if frame.is_trailers() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer that is counted, and noted when it has come to its end.
struct Metered {
    body: Option<Incoming>,
    /// What follows the body.
    trailers: Option<HeaderMap>,
    passing: Passing,
    /// Whether it is read to its end, also when nobody wants it any more: it has to be counted.
    drains: Option<Busy>,
}

impl http_body::Body for Metered {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else {
            return Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        };
        let data = match ready!(Pin::new(body).poll_frame(cx)).transpose()?.map(Frame::into_data) {
            Some(Ok(data)) => this.passing.pass(data),
            // It is over, but for what is held back and what follows.
            end => {
                this.body = None;
                this.trailers = end.and_then(Result::err).and_then(|frame| frame.into_trailers().ok());
                this.trailers.iter_mut().for_each(|trailers| this.passing.pass_trailers(trailers));
                this.passing.rest()
            }
        };
        if this.body.is_none() && data.is_empty() {
            return Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        }
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        let nothing = self.passing.is_empty() && self.trailers.is_none();
        nothing && self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Incoming::size_hint).unwrap_or_default()
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        let (Some(body), Some(busy)) = (self.body.take(), self.drains.take()) else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && let Some(reading) = self.passing.take_reading()
        {
            runtime.spawn(async move {
                drain(body, reading).await;
                drop(busy);
            });
        }
    }
}
