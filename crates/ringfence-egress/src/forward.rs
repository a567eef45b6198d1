//! One request on its way: is it what it says it is, does it carry what it must not, and what does it need.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use ringfence_core::policy::{Host, Verdict, parse_authority};
use tokio::io::copy_bidirectional;

use crate::answer::{Body, BodyError, Refusal, whole};
use crate::audit::Outcome;
use crate::credential::Credential;
use crate::login::{Login, LoginError};
use crate::meter::{Api, Reading};
use crate::placeholder::percent_decoded;
use crate::session::{Session, Ways, Wish};
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
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("proxy-authenticate"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
];

/// Forwards a request to a host that the policy allows, or says why not.
pub(crate) async fn forward_or_answer(
    ways: Arc<Ways>,
    target: Target,
    request: Request<Incoming>,
) -> Response<Body> {
    let mut wish = Wish::new(&target.host, target.port, if target.secure { "tls" } else { "http" });
    wish.method = Some(request.method().to_string());
    wish.path = Some(request.uri().path().to_owned());
    let session = Arc::clone(&ways.session);
    match forward(ways, &target, request, &mut wish).await {
        Ok(response) => response,
        Err(refusal) => {
            wish.status = Some(refusal.status.as_u16());
            let outcome = match refusal.status {
                StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Outcome::Error,
                _ if refusal.rule == "placeholder" || refusal.status == StatusCode::BAD_REQUEST => {
                    Outcome::Block
                }
                _ => Outcome::Deny,
            };
            session.note(&wish, outcome, refusal.rule);
            refusal.answer(&session.network)
        }
    }
}

async fn forward(
    ways: Arc<Ways>,
    target: &Target,
    mut request: Request<Incoming>,
    wish: &mut Wish,
) -> Result<Response<Body>, Refusal> {
    let session = &ways.session;
    check_honesty(target, &request)?;
    if let Some(login) = session.login_at(&target.host, target.port)
        && request.uri().path() == login.kind.path
    {
        return refreshed(&ways, login, wish).await;
    }
    // The broker speaks to those who refresh logins; a run only if the policy lets it.
    if let Verdict::Denied(denial) = session.judge(&target.host, target.port) {
        return Err(denial.into());
    }
    if session.meter().is_over() {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "budget", "the budget of the run is used up"));
    }
    let upgrade = wants_websocket(&request)?;
    let theirs = upgrade.then(|| hyper::upgrade::on(&mut request));
    let (mut parts, body) = request.into_parts();
    strip(&mut parts.headers, upgrade);
    check_placeholders(session, target, &parts.uri, &parts.headers)?;
    let own = session.credentials.iter().filter(|credential| credential.is_for(&target.host, target.port));
    let mut used = None;
    for credential in own {
        let applied = credential.apply(&mut parts.headers, &ways.login_client).await;
        if applied.map_err(|error| no_login(&error))? {
            wish.credential = Some(credential.name().to_owned());
            used = credential.login().cloned();
        }
    }
    let api = Api::of(parts.uri.path());
    if api.is_some() {
        // What is packed cannot be counted.
        parts.headers.remove(ACCEPT_ENCODING);
    }
    parts.uri = address(target, &parts.uri)?;
    parts.version = Version::HTTP_11;
    let authority = target.authority();
    let host = authority.parse().map_err(|_| Refusal::bad("the host cannot be written"))?;
    parts.headers.insert(HOST, host);
    let found = Arc::new(Found::default());
    let watched = Watched::new(body, &ways.session, target, &found);
    let request = Request::from_parts(parts, watched.boxed_unsync());
    let client = if upgrade { &ways.first_client } else { &ways.client };
    let answer = client.request(request).await.map_err(|error| failed(&error, &found, target))?;
    wish.status = Some(answer.status().as_u16());
    if let Some(login) = used.filter(|_| answer.status() == StatusCode::UNAUTHORIZED) {
        login.doubt();
    }
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        return switch(ways, theirs, answer, wish.clone());
    }
    let (mut parts, body) = answer.into_parts();
    strip(&mut parts.headers, false);
    let rule = target.authority();
    let streams =
        parts.headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let reading = api.map(|api| Reading::new(api, Arc::clone(session.meter()), streams));
    let metered = Metered { body, reading, session: Arc::clone(session), wish: wish.clone(), found, rule };
    Ok(Response::from_parts(parts, metered.boxed_unsync()))
}

/// A run that refreshes a login by itself is told that it has what it had; whatever has to be done is done here.
async fn refreshed(ways: &Ways, login: &Login, wish: &mut Wish) -> Result<Response<Body>, Refusal> {
    login.access(&ways.login_client).await.map_err(|error| no_login(&error))?;
    wish.status = Some(StatusCode::OK.as_u16());
    wish.credential = Some(format!("{} login", login.kind.name));
    ways.session.note(wish, Outcome::Allow, "login");
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
    Refusal::new(status, "login", error.to_string())
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
    if upgrade {
        headers.insert(CONNECTION, http::HeaderValue::from_static("upgrade"));
    } else {
        headers.remove(UPGRADE);
    }
}

/// In an address a placeholder is never at its place; in a header only on its way to its own host.
fn check_placeholders(
    session: &Session,
    target: &Target,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let address = percent_decoded(uri.path_and_query().map(PathAndQuery::as_str).unwrap_or_default());
    for credential in &session.credentials {
        let own = credential.is_for(&target.host, target.port);
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
    ways: Arc<Ways>,
    theirs: Option<hyper::upgrade::OnUpgrade>,
    mut answer: Response<Incoming>,
    mut wish: Wish,
) -> Result<Response<Body>, Refusal> {
    let Some(theirs) = theirs else {
        return Err(Refusal::unreachable("the host upgrades without being asked"));
    };
    let ours = hyper::upgrade::on(&mut answer);
    tokio::spawn(async move {
        if let (Ok(theirs), Ok(ours)) = (theirs.await, ours.await) {
            let (mut theirs, mut ours) = (TokioIo::new(theirs), TokioIo::new(ours));
            if let Ok((sent, received)) = copy_bidirectional(&mut theirs, &mut ours).await {
                (wish.sent, wish.received) = (sent, received);
            }
        }
        ways.session.note(&wish, Outcome::Allow, "websocket");
    });
    let (parts, _) = answer.into_parts();
    Ok(Response::from_parts(parts, crate::answer::empty()))
}

/// What was seen of a body on its way.
#[derive(Debug, Default)]
struct Found {
    bytes: AtomicU64,
    stray: AtomicBool,
}

/// A body that is looked at while it goes.
struct Watched {
    body: Incoming,
    session: Arc<Session>,
    /// The credentials that are not of this host.
    strangers: Vec<usize>,
    /// The end of what went before, in which a placeholder may have begun.
    tail: Vec<u8>,
    longest: usize,
    found: Arc<Found>,
}

impl Watched {
    fn new(body: Incoming, session: &Arc<Session>, target: &Target, found: &Arc<Found>) -> Self {
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
            this.found.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
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
    body: Incoming,
    reading: Option<Reading>,
    session: Arc<Session>,
    wish: Wish,
    found: Arc<Found>,
    rule: String,
}

impl http_body::Body for Metered {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            this.wish.received += data.len() as u64;
            if let Some(reading) = &mut this.reading {
                reading.read(data);
            }
        }
        Poll::Ready(frame.map(|result| result.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        if let Some(reading) = &mut self.reading {
            reading.end();
        }
        self.wish.sent = self.found.bytes.load(Ordering::Relaxed);
        self.session.note(&self.wish, Outcome::Allow, &self.rule);
    }
}
