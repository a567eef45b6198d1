//! What stands before every request: who it is, how often, how long, and what the answer says to a browser.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};

use crate::access::{Carried, Denial, Need, Peer, Seen, Who};
use crate::app::App;
use crate::problem::Problem;
use crate::sessions::{COOKIE, Sessions};

/// Where a connection comes from.
#[derive(Debug, Clone)]
pub(crate) struct From {
    /// As access sees it.
    pub(crate) peer: Peer,
    /// By what clients are told apart.
    pub(crate) client: String,
}

/// The browser that asks, by its cookie.
#[derive(Debug, Clone)]
pub(crate) struct Browser(pub(crate) String);

/// What nobody's host, origin or key is.
const WRONG: &str = "\u{0}";
/// How long an answer may take, and one that tries things out.
const PATIENCE: Duration = Duration::from_secs(60);
const LONG_PATIENCE: Duration = Duration::from_secs(300);

/// What a route asks for.
pub(crate) fn need(method: &Method, path: &str) -> Need {
    let reads = [Method::GET, Method::HEAD].contains(method);
    let mut parts = path.trim_start_matches('/').split('/');
    match (parts.next().unwrap_or_default(), parts.next().unwrap_or_default()) {
        ("health" | "openapi.json" | "assets", _) | ("ui", "login") => Need::Nothing,
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
pub(crate) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let page = request.uri().path().starts_with("/ui");
    let name = cookie_name(request.headers());
    let (browser, new) = browser(request.headers(), &name, page);
    let answer = match admit(&app, &request, browser.as_deref()) {
        Ok(who) => {
            request.extensions_mut().insert(who);
            if let Some(name) = &browser {
                request.extensions_mut().insert(Browser(name.clone()));
            }
            let patience = patience(request.uri().path());
            let answer = match tokio::time::timeout(patience, next.run(request)).await {
                Ok(answer) => answer,
                Err(_) => {
                    let detail = "the answer took too long";
                    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "timeout", detail).into_response()
                }
            };
            // Who is turned away keeps the name that they have, which may not have been sent along.
            with_cookie(answer, &name, browser.filter(|_| new).as_deref())
        }
        Err(refused) => refused.answer(&request, page),
    };
    app.metrics.answered(answer.status().as_u16());
    dressed(answer)
}

/// Why a request does not get through.
enum Refused {
    Denied(Denial),
    TooOften(Duration),
}

impl Refused {
    fn answer(self, request: &Request, page: bool) -> Response {
        match self {
            // A person is asked, a program is told.
            Refused::Denied(denial)
                if page && denial.is_unauthenticated() && request.method() == Method::GET =>
            {
                Redirect::to("/ui/login").into_response()
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

fn admit(app: &App, request: &Request, browser: Option<&str>) -> Result<Who, Refused> {
    let path = request.uri().path();
    let unknown = From { peer: Peer::Elsewhere, client: String::new() };
    let from = request.extensions().get::<From>().unwrap_or(&unknown);
    let need = need(request.method(), path);
    if path != "/health" && from.peer != Peer::Socket {
        app.rates.request(&from.client).map_err(Refused::TooOften)?;
    }
    let headers = request.headers();
    // One that is not text is one that is wrong, and so are two.
    let text = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (None, _) => None,
            (Some(value), None) => Some(value.to_str().unwrap_or(WRONG)),
            (Some(_), Some(_)) => Some(WRONG),
        }
    };
    // Who comes by way of somebody else is not here, wherever that one is.
    let forwarded = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"];
    let forwarded = forwarded.iter().any(|name| headers.contains_key(*name));
    let seen = Seen {
        peer: if forwarded && from.peer == Peer::Loopback { Peer::Elsewhere } else { from.peer },
        host: text(&header::HOST),
        origin: text(&header::ORIGIN),
        fetch_site: text(&HeaderName::from_static("sec-fetch-site")),
        navigates: request.method() == Method::GET
            && path.starts_with("/ui")
            && text(&HeaderName::from_static("sec-fetch-mode")) == Some("navigate")
            && text(&HeaderName::from_static("sec-fetch-dest")) == Some("document"),
        carried: Carried {
            key: text(&HeaderName::from_static("x-api-key")),
            bearer: text(&header::AUTHORIZATION).map(|value| {
                value.strip_prefix("Bearer ").or(value.strip_prefix("bearer ")).unwrap_or(value)
            }),
            session: browser.is_some_and(|name| app.sessions.is_open(name)),
        },
    };
    let tries = seen.carried.key.is_some() || seen.carried.bearer.is_some();
    if tries && need != Need::Nothing {
        app.rates.may_try(&from.client).map_err(Refused::TooOften)?;
    }
    app.access.decide(need, &seen).map_err(|denial| {
        if matches!(denial, Denial::WrongKey | Denial::WrongToken) {
            app.rates.wrong(&from.client);
        }
        Refused::Denied(denial)
    })
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
    // A link from elsewhere may lead here; what is changed needs the token of the page besides.
    let text = name.map(|name| format!("{cookie}={name}; Path=/; HttpOnly; SameSite=Lax"));
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
