//! What stands before every request: who it is, how often, how long, and what the answer says to a browser.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};

use crate::access::{Carried, Denial, Need, Peer, Seen, Who};
use crate::app::App;
use crate::connections::{Connection, Presented};
use crate::loopback_peer::Ends;
use crate::problem::Problem;
use crate::revocation::Revocation;
use crate::sessions::{COOKIE, Sessions};

/// Where a connection comes from.
#[derive(Clone)]
pub(crate) struct From {
    /// As access sees it.
    pub(crate) peer: Peer,
    /// By what clients are told apart.
    pub(crate) client: String,
    /// Both ends of a TCP connection.
    pub(crate) ends: Option<Ends>,
    /// The place that a TCP connection holds.
    pub(crate) connection: Option<Arc<Connection>>,
}

impl From {
    /// Whether a connection comes from this machine, by whichever of its addresses. The Unix socket is reached from nowhere else.
    pub(crate) fn is_of_this_machine(&self) -> bool {
        let is_own = |ends: &Ends| ringfence_egress::is_of_this_machine(ends.peer.ip());
        self.peer == Peer::Loopback || self.ends.as_ref().is_none_or(is_own)
    }

    /// Keeps the connection from being evicted, for a request that presents a right credential.
    pub(crate) fn presented(&self) -> Option<Presented> {
        self.connection.as_ref().and_then(Connection::presented)
    }

    /// Whether a request came to this machine's loopback without a proxy. Whatever name led there, other programs of the machine
    /// serve pages under it too.
    pub(crate) fn is_direct_on_loopback(&self, headers: &HeaderMap) -> bool {
        let is_loopback = |ends: &Ends| ends.local.ip().to_canonical().is_loopback();
        self.ends.as_ref().is_some_and(is_loopback) && !is_forwarded(headers)
    }
}

/// The browser that asks, by its cookie.
#[derive(Debug, Clone)]
pub(crate) struct Browser(pub(crate) String);

/// What nobody's host, origin or key is.
const WRONG: &str = "\u{0}";
/// Where browsers log in, by a login code in the query or by a form.
const LOGIN_PATH: &str = "/ui/login";
/// How long an answer may take, and one that tries things out.
const PATIENCE: Duration = Duration::from_secs(60);
const LONG_PATIENCE: Duration = Duration::from_secs(300);

/// What a route asks for.
pub(crate) fn need(method: &Method, path: &str) -> Need {
    let reads = reads(method);
    let mut parts = path.trim_start_matches('/').split('/');
    match (parts.next().unwrap_or_default(), parts.next().unwrap_or_default()) {
        // The root only leads to the pages.
        ("" | "health" | "openapi.json" | "assets", _) | ("ui", "login") => Need::Nothing,
        ("system", _) | ("ui", "system" | "compare") => Need::Control,
        ("config", _) if !reads => Need::Control,
        _ if reads => Need::Read,
        _ => Need::Change,
    }
}

/// How long an answer may take: longer where things are tried out, ended or waited for.
fn patience(path: &str) -> Duration {
    let slow = need(&Method::GET, path) == Need::Control || path.ends_with("/cancel");
    if slow { LONG_PATIENCE } else { PATIENCE }
}

/// Lets a request through, or not.
pub(crate) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let page = parts.uri.path().starts_with("/ui");
    let name = cookie_name(&parts.headers);
    let (browser, new) = browser(&parts.headers, &name, page);
    // Before it is decided, so that a token that is replaced meanwhile is noticed.
    let tokens = app.token_generation();
    parts.extensions.insert(app.epoch());
    // Until there is an answer: for login codes it is looked up later whose the connection is.
    let presented = presented(&app, &parts, browser.as_deref());
    let answer = match admit(&app, &parts, browser.as_deref(), presented.as_ref()).await {
        Ok(who) => {
            parts.extensions.insert(who);
            if let Some(name) = &browser {
                parts.extensions.insert(Browser(name.clone()));
            }
            let revocation = Revocation::of(&app, who, browser.as_deref(), tokens);
            let answer = respond(Request::from_parts(parts, body), next, revocation).await;
            // Who is turned away keeps the name that they have, which may not have been sent along.
            with_cookie(answer, &name, browser.filter(|_| new).as_deref())
        }
        Err(refused) => refused.answer(&parts, page),
    };
    app.metrics.answered(answer.status().as_u16());
    dressed(answer)
}

/// Has a request answered within its time, and ends what is read when its credential is revoked. A change is carried out, unless
/// its credential was revoked before the whole request had come.
async fn respond(request: Request, next: Next, revocation: Revocation) -> Response {
    let reads = reads(request.method());
    let patience = patience(request.uri().path());
    let request = if reads { request } else { request.map(|body| revocation.clone().checked_after(body)) };
    let answer = tokio::time::timeout(patience, next.run(request));
    let answer = tokio::select! {
        biased;
        answer = answer => answer,
        () = revocation.clone().wait(), if reads => return Problem::from(Denial::Nothing).into_response(),
    };
    match answer {
        Ok(answer) => revocation.bound(answer),
        Err(_) => {
            let detail = "the answer took too long";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "timeout", detail).into_response()
        }
    }
}

/// Why a request does not get through.
enum Refused {
    Denied(Denial),
    TooOften(Duration),
}

impl Refused {
    fn answer(self, parts: &Parts, page: bool) -> Response {
        match self {
            // A link on another site led here, so the browser did not send the session along: it asks once more.
            Refused::Denied(Denial::Nothing) if follows_foreign_link(parts) => {
                crate::pages::again(&parts.uri)
            }
            // A browser is led to the login, a program gets an error.
            Refused::Denied(denial) if page && denial.is_unauthenticated() && parts.method == Method::GET => {
                Redirect::to(LOGIN_PATH).into_response()
            }
            Refused::Denied(denial) if page => crate::pages::refused(&denial.into()),
            Refused::Denied(denial) => Problem::from(denial).into_response(),
            Refused::TooOften(wait) => {
                let seconds = wait.as_secs() + 1;
                let problem = Problem::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    "too_many_requests",
                    "Too many requests, please try again later",
                )
                .with_remedy(format!(
                    "wait for {seconds} s; `server.rate_limit` says how many are let through"
                ));
                let mut answer = problem.into_response();
                answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
                answer
            }
        }
    }
}

fn follows_foreign_link(parts: &Parts) -> bool {
    let site = parts.headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
    navigates(parts) && matches!(site, Some("cross-site" | "same-site"))
}

/// The value of a header. One that is no text, or is given twice, is wrong.
fn only_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => None,
        (Some(value), None) => Some(value.to_str().unwrap_or(WRONG)),
        (Some(_), Some(_)) => Some(WRONG),
    }
}

/// The `Host` header; a wrong one if there is none.
pub(crate) fn host(headers: &HeaderMap) -> &str {
    only_value(headers, &header::HOST).unwrap_or(WRONG)
}

/// Whether a method only reads.
fn reads(method: &Method) -> bool {
    [Method::GET, Method::HEAD].contains(method)
}

/// Whether a proxy says that it has passed a request on.
fn is_forwarded(headers: &HeaderMap) -> bool {
    let names = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"];
    names.iter().any(|name| headers.contains_key(*name))
}

/// What is seen of a request, and what it asks for.
fn seen<'a>(app: &App, parts: &'a Parts, from: &From, browser: Option<&str>) -> Seen<'a> {
    let headers = &parts.headers;
    let text = |name: &HeaderName| only_value(headers, name);
    let host = text(&header::HOST);
    // A request that a proxy has passed on does not come from here, wherever the proxy is.
    let forwarded = is_forwarded(headers);
    Seen {
        peer: if forwarded && from.peer == Peer::Loopback { Peer::Elsewhere } else { from.peer },
        host,
        origin: text(&header::ORIGIN),
        fetch_site: text(&HeaderName::from_static("sec-fetch-site")),
        navigates: navigates(parts),
        changes: !reads(&parts.method),
        carried: Carried {
            session: browser.is_some_and(|name| app.sessions.is_open(name, host.unwrap_or_default())),
            ..carried(parts)
        },
    }
}

/// The key and the token that a request carries.
fn carried(parts: &Parts) -> Carried<'_> {
    let text = |name: &HeaderName| only_value(&parts.headers, name);
    let bearer = text(&header::AUTHORIZATION)
        .map(|value| value.strip_prefix("Bearer ").or(value.strip_prefix("bearer ")).unwrap_or(value));
    Carried { key: text(&HeaderName::from_static("x-api-key")), bearer, session: false }
}

/// Whether a browser follows a link to a page.
fn navigates(parts: &Parts) -> bool {
    let is = |name: &str, value: &str| parts.headers.get(name).is_some_and(|given| given == value);
    parts.method == Method::GET
        && parts.uri.path().starts_with("/ui")
        && is("sec-fetch-mode", "navigate")
        && is("sec-fetch-dest", "document")
}

/// Keeps the connection of a request from being evicted if the request presents a credential that is right and cannot be guessed.
fn presented(app: &App, parts: &Parts, browser: Option<&str>) -> Option<Presented> {
    let from = parts.extensions.get::<From>()?;
    let is_login_code = || app.login_codes.terms(&presented_code(parts)?);
    let carried = seen(app, parts, from, browser).carried;
    let is_right = app.access().unguessable(carried).is_some() || is_login_code().is_some();
    is_right.then(|| from.presented()).flatten()
}

/// Decides on a request. Only then it is counted, so that requests of strangers do not use up what the owner may ask.
async fn admit(
    app: &App,
    parts: &Parts,
    browser: Option<&str>,
    presented: Option<&Presented>,
) -> Result<Who, Refused> {
    let unknown = From { peer: Peer::Elsewhere, client: String::new(), ends: None, connection: None };
    let from = parts.extensions.get::<From>().unwrap_or(&unknown);
    let need = need(&parts.method, parts.uri.path());
    let decided = decide(app, need, &seen(app, parts, from, browser), from).await;
    let owners = browser.is_some_and(|name| app.sessions.is_of_owner(name));
    let decided = match decided {
        Ok(who) if !counts(app, from, who, owners).await => match need {
            Need::Nothing => Ok(Who::Anybody),
            _ => Err(Refused::Denied(Denial::NotOwner)),
        },
        decided => decided,
    };
    if let Err(refused @ Refused::TooOften(_)) = decided {
        return Err(refused);
    }
    let known = decided.as_ref().ok().filter(|who| **who != Who::Anybody);
    if is_counted(parts, from) {
        // What a run has read is no reason to count its requests with the owner's.
        let is_refused = matches!(decided, Err(Refused::Denied(Denial::NotOwner)));
        let unguessable = || app.access().unguessable(carried(parts)).filter(|_| !is_refused);
        let who = known.copied().or_else(unguessable);
        let bucket = who.map_or_else(|| from.client.clone(), |who| format!("{who} {}", from.client));
        app.rates.request(&bucket).map_err(Refused::TooOften)?;
    }
    if let (Some(_), Some(connection)) = (known, &from.connection) {
        connection.authenticated(presented);
    }
    decided
}

/// Whether a request counts for `server.rate_limit`. A login code is looked at first; a wrong one is counted where it is
/// found to be wrong.
fn is_counted(parts: &Parts, from: &From) -> bool {
    let tells_health = ["/health", "/health/ready"].contains(&parts.uri.path());
    from.peer != Peer::Socket && !tells_health && presented_code(parts).is_none()
}

/// The login code that a request redeems if it is right.
fn presented_code(parts: &Parts) -> Option<String> {
    let is_login = parts.method == Method::GET && parts.uri.path() == LOGIN_PATH;
    is_login.then(|| crate::pages::login_code(&parts.uri)).flatten()
}

/// Whether a request is let in. Keys that could be found by trying are not looked at after too many wrong ones; the
/// daemon's own token and long keys always are.
async fn decide(app: &App, need: Need, seen: &Seen<'_>, from: &From) -> Result<Who, Refused> {
    let (identity, decided) = {
        let access = app.access();
        (access.identify(seen.carried), access.decide(need, seen))
    };
    let tries = seen.carried.key.is_some() || seen.carried.bearer.is_some();
    let found_by_trying = identity.is_ok_and(|identity| identity.is_some_and(|identity| identity.guessable));
    if tries && need != Need::Nothing && (identity.is_err() || found_by_trying) {
        app.rates.may_try(&from.client).map_err(Refused::TooOften)?;
    }
    match decided {
        Err(denial @ (Denial::WrongKey | Denial::WrongToken)) => {
            app.rates.wrong(&from.client);
            Err(Refused::Denied(denial))
        }
        Ok(Who::Local) if !is_owner(app, from).await? => Err(Refused::Denied(Denial::NotOwner)),
        decided => decided.map_err(Refused::Denied),
    }
}

/// Whether a connection comes from a process of the daemon's owner on this machine, asked for each request anew. Only for requests
/// that carry something right.
pub(crate) async fn is_of_owner(app: &App, from: &From) -> bool {
    match from.ends.as_ref().filter(|_| from.is_of_this_machine()) {
        Some(ends) => app.peer_lookups.is_of_owner(ends).await,
        None => false,
    }
}

/// Whether what a request carries, which is right, counts on its connection: a session of the owner's is for processes of the owner, and on
/// this machine nothing is for runs.
async fn counts(app: &App, from: &From, who: Who, is_owners: bool) -> bool {
    match who {
        Who::Anybody | Who::Local | Who::Socket => true,
        Who::Session if is_owners => is_of_owner(app, from).await,
        Who::Session | Who::Owner | Who::Bearer | Who::Key(_) => {
            match from.ends.as_ref().filter(|_| from.is_of_this_machine()) {
                Some(ends) => app.peer_lookups.may_use_credentials(ends).await,
                None => true,
            }
        }
    }
}

/// Whether a connection without a credential is the owner's, asked for each request anew. The look-up is counted beforehand, unless
/// the connection was the owner's before: nothing is known yet of who asks.
async fn is_owner(app: &App, from: &From) -> Result<bool, Refused> {
    let Some(ends) = &from.ends else { return Ok(false) };
    if !from.connection.as_ref().is_some_and(|connection| connection.is_authenticated()) {
        app.rates.request(&format!("lookup {}", from.client)).map_err(Refused::TooOften)?;
    }
    Ok(app.peer_lookups.is_owner_outside_of_runs(ends).await)
}

/// The cookie of a daemon. Browsers do not tell ports apart, so it has the port in its name.
pub(crate) fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let port = host.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    port.map_or_else(|| COOKIE.to_owned(), |port| format!("{COOKIE}-{port}"))
}

/// The name of the browser, and whether it is a new one. Who is no browser needs none.
fn browser(headers: &HeaderMap, cookie: &str, page: bool) -> (Option<String>, bool) {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let named = pairs.find(|(name, value)| *name == cookie && is_name(value));
    match named {
        Some((_, value)) => (Some(value.to_owned()), false),
        None if page => (Sessions::name(), true),
        None => (None, false),
    }
}

fn is_name(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Gives a browser its name.
pub(crate) fn with_cookie(mut answer: Response, cookie: &str, name: Option<&str>) -> Response {
    let text = name.map(|name| format!("{cookie}={name}; Path=/; HttpOnly; SameSite=Strict"));
    if let Some(value) = text.and_then(|text| HeaderValue::from_str(&text).ok())
        && !answer.headers().contains_key(header::SET_COOKIE)
    {
        answer.headers_mut().insert(header::SET_COOKIE, value);
    }
    answer
}

/// What every answer says to a browser.
fn dressed(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    let fixed = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // Other hosts do not learn the dashboard's name. With `no-referrer`, browsers would hide the origin of its own forms too.
        (header::REFERRER_POLICY, "same-origin"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        ),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    answer
}
