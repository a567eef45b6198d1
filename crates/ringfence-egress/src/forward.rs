//! One request on its way: is it what it says it is, does it carry what it must not, and what does it need.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
    IF_RANGE, RANGE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::client::legacy::ResponseFuture;
use hyper_util::rt::TokioIo;
use ringfence_core::policy::{Host, Verdict, parse_authority};
use tokio::io::copy_bidirectional;

use crate::answer::{Body, BodyError, Refusal, whole};
use crate::begun::Begun;
use crate::credential::Credential;
use crate::login::{Login, LoginError};
use crate::meter::{Api, Meter, Reading};
use crate::note::{Counted, Counts, Note};
use crate::placeholder::percent_decoded;
use crate::scrub::Scrub;
use crate::secret::Secret;
use crate::session::{Busy, Session, Ways};
use crate::upstream::no_way;

/// Where a request goes, whatever it says itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) secure: bool,
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl Target {
    fn ordinary_port(&self) -> u16 {
        if self.secure { 443 } else { 80 }
    }

    /// Whether an authority means it.
    fn is(&self, authority: &str) -> bool {
        parse_authority(authority)
            .is_ok_and(|(host, port)| host == self.host && port.unwrap_or(self.ordinary_port()) == self.port)
    }

    /// Whether the host of a tunnel, which may or may not name the port, can mean it.
    pub(crate) fn may_be(&self, authority: &str) -> bool {
        parse_authority(authority)
            .is_ok_and(|(host, port)| host == self.host && port.is_none_or(|port| port == self.port))
    }

    fn authority(&self) -> String {
        match self.port == self.ordinary_port() {
            true => self.host.to_string(),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// Headers that concern one connection alone.
const HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("proxy-authenticate"),
    TRAILER,
    TRANSFER_ENCODING,
];

/// Forwards a request to a host that the policy allows, or says why not.
pub(crate) async fn forward_or_answer(
    ways: Arc<Ways>,
    target: Target,
    request: Request<Incoming>,
) -> Response<Body> {
    let way = if target.secure { "tls" } else { "http" };
    let mut note = Note::new(&ways.session, &target.host, target.port, way);
    note.method = Some(request.method().to_string());
    note.path = Some(request.uri().path().to_owned());
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
    let Sent { answer, secrets, theirs, api } = sent.inspect_err(|refusal| note.refused(refusal))?;
    let mut answer = match answer {
        Either::Own(answer) => return Ok(answer),
        Either::Host(held) => held.take().ok_or_else(|| Refusal::unreachable("the broker ends"))?,
    };
    note.status = Some(answer.status().as_u16());
    let scrubs: Vec<Scrub> = secrets.into_iter().map(Scrub::new).collect();
    scrubs.iter().for_each(|scrub| scrub.headers(answer.headers_mut()));
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        return switch(theirs, answer, note);
    }
    if !scrubs.is_empty() && is_packed(answer.headers()) {
        let refusal = Refusal::unreachable("the host packs its answer though it was asked not to");
        note.refused(&refusal);
        return Err(refusal);
    }
    let (mut parts, body) = answer.into_parts();
    // In the words of the host's own, there may be anything.
    parts.extensions.clear();
    strip(&mut parts.headers, false);
    let streams = is_stream(&parts.headers);
    let reading = api.map(|api| Reading::new(api, Arc::clone(ways.session.meter()), streams));
    let drains = ways.session.is_bounded().then(|| ways.session.busy());
    // From here on it counts, whoever goes away.
    let mut metered = Metered { body: Some(Begun::new(body)), reading, scrubs, note, drains };
    if let Some(body) = &mut metered.body {
        body.begin().await;
    }
    Ok(Response::from_parts(parts, metered.boxed_unsync()))
}

/// A request that was sent, and what goes with its answer.
struct Sent {
    answer: Either,
    /// What was put on the wire.
    secrets: Vec<Secret>,
    theirs: Option<hyper::upgrade::OnUpgrade>,
    api: Option<Api>,
}

/// Whose answer it is.
enum Either {
    Own(Response<Body>),
    Host(Held),
}

async fn send(
    ways: &Arc<Ways>,
    target: &Target,
    mut request: Request<Incoming>,
    note: &mut Note,
) -> Result<Sent, Refusal> {
    let session = &ways.session;
    check_honesty(target, &request)?;
    if let Some(login) = session.login_at(&target.host, target.port)
        && request.uri().path() == login.kind.path
    {
        let answer = Either::Own(refreshed(ways, login, note).await?);
        return Ok(Sent { answer, secrets: Vec::new(), theirs: None, api: None });
    }
    // The broker speaks to those who refresh logins; a run only if the policy lets it.
    let rule = match session.judge(&target.host, target.port) {
        Verdict::Allowed { rule, .. } => rule,
        Verdict::Denied(denial) => return Err(denial.into()),
    };
    let looked = session.looks_into(&target.host, target.port);
    let upgrade = wants_websocket(&request)?;
    let path = percent_decoded(request.uri().path());
    let path = String::from_utf8_lossy(&path).to_ascii_lowercase();
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    check_budget(session, looked, upgrade, reads, &path)?;
    let theirs = upgrade.then(|| hyper::upgrade::on(&mut request));
    let (mut parts, body) = request.into_parts();
    strip(&mut parts.headers, upgrade);
    check_placeholders(session, target, &parts.uri, &parts.headers)?;
    let mut secrets = Vec::new();
    let mut login = None;
    for credential in session.credentials.iter().filter(|one| one.is_for(&target.host, target.port)) {
        if !credential.travels(target.secure) {
            continue;
        }
        let applied = credential.apply(&mut parts.headers, &ways.login_client).await;
        let used = applied.map_err(|error| no_login(&error))?;
        if let Some(first) = used.first() {
            note.credential = Some(credential.name().to_owned());
            login = login.or_else(|| Some((credential.login()?.clone(), first.clone())));
            secrets.extend(used);
        }
        // What is left of a placeholder is where the host might repeat it.
        if credential.is_in_headers(&parts.headers) {
            return Err(stray(credential, target));
        }
    }
    let api = Api::of(&path).filter(|_| looked);
    if api.is_some() || !secrets.is_empty() {
        // What is packed or cut into pieces cannot be read here.
        parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        parts.headers.remove(RANGE);
        parts.headers.remove(IF_RANGE);
    }
    parts.uri = address(target, &parts.uri)?;
    parts.version = Version::HTTP_11;
    let host = target.authority().parse().map_err(|_| Refusal::bad("the host cannot be written"))?;
    parts.headers.insert(HOST, host);
    let found = Arc::new(Found { counts: Arc::clone(&note.counts), stray: AtomicBool::new(false) });
    let mut body = Begun::new(body);
    body.begin().await;
    let watched = Watched::new(body, session, target, &found);
    let request = Request::from_parts(parts, watched.boxed_unsync());
    let client = if upgrade { &ways.first_client } else { &ways.client };
    note.allowed(&rule);
    let counted = api.filter(|_| session.is_bounded());
    let answer = match counted {
        None => client.request(request).await.map(|answer| Held::new(answer, None)),
        Some(api) => count_though_unwanted(session, api, client.request(request)).await?,
    };
    let held = answer.map_err(|error| failed(&error, &found, target))?;
    if let Some((login, token)) = &login
        && held.answer.as_ref().is_some_and(|answer| answer.status() == StatusCode::UNAUTHORIZED)
    {
        login.doubt(token).await;
    }
    Ok(Sent { answer: Either::Host(held), secrets, theirs, api })
}

/// Waits for the answer to a request on a task of its own: if whoever asked goes away, it comes all the same, and counts.
async fn count_though_unwanted(
    session: &Arc<Session>,
    api: Api,
    request: ResponseFuture,
) -> Result<Result<Held, hyper_util::client::legacy::Error>, Refusal> {
    let (told, hears) = tokio::sync::oneshot::channel();
    let (meter, busy) = (Arc::clone(session.meter()), session.busy());
    tokio::spawn(async move {
        let held = request.await.map(|answer| Held::new(answer, Some((api, meter, busy))));
        // Wherever it is when nobody wants it any more, it counts.
        let _ = told.send(held);
    });
    hears.await.map_err(|_| Refusal::unreachable("the broker ends"))
}

/// An answer on its way to whoever asked. One that has to be counted is, also if nobody takes it.
struct Held {
    answer: Option<Response<Incoming>>,
    counted: Option<(Api, Arc<Meter>, Busy)>,
}

impl Held {
    fn new(answer: Response<Incoming>, counted: Option<(Api, Arc<Meter>, Busy)>) -> Self {
        Self { answer: Some(answer), counted }
    }

    /// From now on it is somebody else's.
    fn take(mut self) -> Option<Response<Incoming>> {
        self.answer.take()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (Some(answer), Some((api, meter, busy))) = (self.answer.take(), self.counted.take()) else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let reading = Reading::new(api, meter, is_stream(answer.headers()));
            drain(answer.into_body(), reading).await;
            drop(busy);
        });
    }
}

/// Reads an answer that nobody wants any more to its end.
async fn drain(mut body: impl http_body::Body<Data = Bytes> + Unpin, mut reading: Reading) {
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

fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

fn is_packed(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_ENCODING)
        .is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// What agent CLIs say to the hosts of models besides asking the model, as paths end.
const HARMLESS: [&str; 6] =
    ["/count_tokens", "/models", "/ps/mcp", "/event_logging/batch", "/metrics", "/settings"];

/// A run that has a budget uses models only in ways that can be counted.
fn check_budget(
    session: &Session,
    looked: bool,
    upgrade: bool,
    reads: bool,
    path: &str,
) -> Result<(), Refusal> {
    let refused = |message: &str| Err(Refusal::new(StatusCode::FORBIDDEN, "budget", message));
    if session.meter().is_over() {
        return refused("the budget of the run is used up");
    }
    let counted = Api::of(path).is_some() || HARMLESS.iter().any(|end| path.ends_with(end));
    if session.is_bounded() && looked && (upgrade || (!reads && !counted)) {
        return refused("the run has a budget, and this cannot be counted");
    }
    Ok(())
}

/// A run that refreshes a login by itself is told that it has what it had; whatever has to be done is done here.
async fn refreshed(ways: &Ways, login: &Arc<Login>, note: &mut Note) -> Result<Response<Body>, Refusal> {
    login.access(&ways.login_client).await.map_err(|error| no_login(&error))?;
    note.status = Some(StatusCode::OK.as_u16());
    note.credential = Some(format!("{} login", login.kind.name));
    note.allowed("login");
    let mut response = Response::new(whole(login.answer().to_string()));
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    Ok(response)
}

fn no_login(error: &LoginError) -> Refusal {
    let status = match error {
        LoginError::Rejected { .. } => StatusCode::UNAUTHORIZED,
        LoginError::Store { .. } | LoginError::Unreachable { .. } => StatusCode::BAD_GATEWAY,
    };
    // Where the person keeps it is none of the run's business.
    let message = match error {
        LoginError::Rejected { .. } => "the login is not accepted any more",
        LoginError::Store { .. } => "the login cannot be read or written",
        LoginError::Unreachable { .. } => "the login has run out, and nobody gives a new one",
    };
    Refusal::new(status, "login", message)
}

/// A request that could be read in two ways is read in none.
fn check_honesty(target: &Target, request: &Request<Incoming>) -> Result<(), Refusal> {
    let headers = request.headers();
    let hosts: Vec<_> = headers.get_all(HOST).iter().collect();
    let named = hosts.iter().map(|host| host.to_str().unwrap_or("?"));
    let asked = request.uri().authority().map(Authority::as_str);
    if hosts.len() > 1 {
        return Err(Refusal::bad("the request has several hosts"));
    }
    if hosts.is_empty() && asked.is_none() {
        return Err(Refusal::bad("the request has no host"));
    }
    if let Some(other) = named.chain(asked).find(|authority| !target.is(authority)) {
        let message = format!("the request is for {}, and says {}", target.authority(), other.escape_debug());
        return Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, "host-mismatch", message));
    }
    if headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH) {
        return Err(Refusal::bad("the request has two lengths"));
    }
    if headers.get_all(CONTENT_LENGTH).iter().count() > 1 {
        return Err(Refusal::bad("the request has two lengths"));
    }
    if request.method() == Method::CONNECT || request.method() == Method::TRACE {
        return Err(Refusal::bad("the method is not for hosts"));
    }
    Ok(())
}

fn wants_websocket(request: &Request<Incoming>) -> Result<bool, Refusal> {
    match request.headers().get(UPGRADE) {
        Some(_) if request.version() == Version::HTTP_2 => Err(Refusal::bad("HTTP/2 upgrades to nothing")),
        Some(protocol) if protocol.as_bytes().eq_ignore_ascii_case(b"websocket") => Ok(true),
        // Any other wish of the kind may be ignored, and is.
        _ => Ok(false),
    }
}

fn strip(headers: &mut HeaderMap, upgrade: bool) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(&named).filter(|name| !(upgrade && **name == UPGRADE)) {
        headers.remove(name);
    }
    // Programs that speak of trailers mean them, and nothing else is spoken of here.
    if headers.get(TE).is_some_and(|te| te != "trailers") {
        headers.remove(TE);
    }
    if upgrade {
        headers.insert(CONNECTION, http::HeaderValue::from_static("upgrade"));
    } else {
        headers.remove(UPGRADE);
    }
}

/// In an address a placeholder is never at its place; in a header only on its way to its own host, by a safe way.
fn check_placeholders(
    session: &Session,
    target: &Target,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let address = percent_decoded(uri.path_and_query().map(PathAndQuery::as_str).unwrap_or_default());
    for credential in &session.credentials {
        let own = credential.is_for(&target.host, target.port) && credential.travels(target.secure);
        if credential.is_in(&address) || (!own && credential.is_in_headers(headers)) {
            return Err(stray(credential, target));
        }
    }
    Ok(())
}

fn stray(credential: &Credential, target: &Target) -> Refusal {
    let message = format!("the placeholder of {} does not belong to {}", credential.name(), target.host);
    Refusal::new(StatusCode::FORBIDDEN, "placeholder", message)
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
        let message = format!("the body held a placeholder that does not belong to {}", target.host);
        return Refusal::new(StatusCode::FORBIDDEN, "placeholder", message);
    }
    if let Some(refusal) = no_way(error) {
        return refusal.clone();
    }
    Refusal::unreachable(format!("{} broke off", target.host))
}

/// Lets both sides speak as they like from now on.
fn switch(
    theirs: Option<hyper::upgrade::OnUpgrade>,
    mut answer: Response<Incoming>,
    note: Note,
) -> Result<Response<Body>, Refusal> {
    let Some(theirs) = theirs else {
        return Err(Refusal::unreachable("the host upgrades without being asked"));
    };
    let ours = hyper::upgrade::on(&mut answer);
    tokio::spawn(async move {
        if let (Ok(theirs), Ok(ours)) = (theirs.await, ours.await) {
            let (mut theirs, mut ours) = (TokioIo::new(theirs), Counted::new(TokioIo::new(ours), &note));
            let _ = copy_bidirectional(&mut theirs, &mut ours).await;
        }
        drop(note);
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
    body: Begun,
    session: Arc<Session>,
    /// The credentials that are not of this host.
    strangers: Vec<usize>,
    /// The end of what went before, in which a placeholder may have begun.
    tail: Vec<u8>,
    longest: usize,
    found: Arc<Found>,
}

impl Watched {
    fn new(body: Begun, session: &Arc<Session>, target: &Target, found: &Arc<Found>) -> Self {
        let credentials = session.credentials.iter().enumerate();
        let strangers: Vec<usize> = credentials
            .filter(|(_, credential)| !credential.is_for(&target.host, target.port))
            .map(|(index, _)| index)
            .collect();
        let lengths = strangers.iter().flat_map(|index| &session.credentials[*index].swaps);
        let longest = lengths.map(|(placeholder, _)| placeholder.length()).max().unwrap_or(0);
        let found = Arc::clone(found);
        Self { body, session: Arc::clone(session), strangers, tail: Vec::new(), longest, found }
    }

    fn is_stray(&mut self, data: &[u8]) -> bool {
        if self.strangers.is_empty() {
            return false;
        }
        let seam = [&self.tail[..], &data[..data.len().min(self.longest)]].concat();
        let credentials = &self.session.credentials;
        let stray = self
            .strangers
            .iter()
            .any(|index| credentials[*index].is_in(&seam) || credentials[*index].is_in(data));
        let all = [&self.tail[..], data].concat();
        self.tail = all[all.len().saturating_sub(self.longest)..].to_vec();
        stray
    }
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
        if let Some(data) = frame.data_ref() {
            this.found.counts.sent.fetch_add(data.len() as u64, Ordering::Relaxed);
            let data = data.clone();
            if this.is_stray(&data) {
                this.found.stray.store(true, Ordering::Relaxed);
                return Poll::Ready(Some(Err("a placeholder is where it does not belong".into())));
            }
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
    body: Option<Begun>,
    reading: Option<Reading>,
    scrubs: Vec<Scrub>,
    note: Note,
    /// Whether it is read to its end, also when nobody wants it any more: it has to be counted.
    drains: Option<Busy>,
}

/// How much of an answer that nobody wants is read so that it is counted, and how long a piece of it may take.
const DRAINED: usize = 64 << 20;
const DRAINING: Duration = Duration::from_secs(60);

impl http_body::Body for Metered {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let frame = match ready!(Pin::new(body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            end => {
                this.body = None;
                let mut rest = Bytes::new();
                for scrub in &mut this.scrubs {
                    let held = scrub.pass(rest);
                    rest = [held, scrub.rest().unwrap_or_default()].concat().into();
                }
                let rest = (!rest.is_empty()).then(|| Ok(Frame::data(rest)));
                return Poll::Ready(end.map(|result| result.map_err(Into::into)).or(rest));
            }
        };
        Poll::Ready(Some(Ok(frame.map_data(|data| {
            this.note.counts.received.fetch_add(data.len() as u64, Ordering::Relaxed);
            if let Some(reading) = &mut this.reading {
                reading.read(&data);
            }
            this.scrubs.iter_mut().fold(data, |data, scrub| scrub.pass(data))
        }))))
    }

    fn is_end_stream(&self) -> bool {
        self.scrubs.iter().all(Scrub::is_empty) && self.body.as_ref().is_none_or(Begun::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Begun::size_hint).unwrap_or_default()
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        let Some(mut reading) = self.reading.take() else { return };
        match (self.body.take(), self.drains.take(), tokio::runtime::Handle::try_current()) {
            (Some(body), Some(busy), Ok(runtime)) => {
                runtime.spawn(async move {
                    drain(body, reading).await;
                    drop(busy);
                });
            }
            _ => reading.end(),
        }
    }
}
