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

/// How long an answer may take, and one that tries things out.
const PATIENCE: Duration = Duration::from_secs(60);
const LONG_PATIENCE: Duration = Duration::from_secs(300);

/// What a route asks for.
pub(crate) fn need(method: &Method, path: &str) -> Need {
    let reads = [Method::GET, Method::HEAD].contains(method);
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    match (first, path) {
        ("health" | "openapi.json" | "assets", _) | (_, "/ui/login") => Need::Nothing,
        ("system", _) => Need::Control,
        ("config", _) if !reads => Need::Control,
        ("ui", path) if path.starts_with("/ui/system") => Need::Control,
        _ if reads => Need::Read,
        _ => Need::Change,
    }
}

/// Lets a request through, or not.
pub(crate) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let page = request.uri().path().starts_with("/ui");
    let (browser, new) = browser(request.headers(), page);
    let answer = match admit(&app, &request, browser.as_deref()) {
        Ok(who) => {
            request.extensions_mut().insert(who);
            request.extensions_mut().extend_with(browser.clone());
            let slow = ["doctor", "probe", "cancel", "auth", "stop"]
                .iter()
                .any(|word| request.uri().path().contains(word));
            let patience = if slow { LONG_PATIENCE } else { PATIENCE };
            match tokio::time::timeout(patience, next.run(request)).await {
                Ok(answer) => answer,
                Err(_) => {
                    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "timeout", "the answer took too long")
                        .into_response()
                }
            }
        }
        Err(refused) => refused.answer(&request, page),
    };
    app.metrics.answered(answer.status().as_u16());
    dressed(answer, new.then_some(browser).flatten().as_deref())
}

/// Adds the browser to a request, if there is one.
trait ExtendWith {
    fn extend_with(&mut self, browser: Option<String>);
}

impl ExtendWith for axum::http::Extensions {
    fn extend_with(&mut self, browser: Option<String>) {
        if let Some(name) = browser {
            self.insert(Browser(name));
        }
    }
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
    let unknown = From { peer: Peer::Elsewhere, client: String::new() };
    let from = request.extensions().get::<From>().unwrap_or(&unknown);
    let need = need(request.method(), request.uri().path());
    if request.uri().path() != "/health" && from.peer != Peer::Socket {
        app.rates.request(&from.client).map_err(Refused::TooOften)?;
    }
    let headers = request.headers();
    // One that is not text is one that is wrong.
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("\u{0}"));
    let seen = Seen {
        peer: from.peer,
        // Two names are none.
        host: text(&header::HOST).filter(|_| headers.get_all(header::HOST).iter().count() == 1),
        origin: text(&header::ORIGIN),
        fetch_site: text(&HeaderName::from_static("sec-fetch-site")),
        navigates: request.method() == Method::GET
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
    app.access.decide(need, &seen).map_err(|denial| match denial {
        Denial::WrongKey | Denial::WrongToken => match app.rates.wrong(&from.client) {
            Ok(()) => Refused::Denied(denial),
            Err(wait) => Refused::TooOften(wait),
        },
        denial => Refused::Denied(denial),
    })
}

/// The name of the browser, and whether it is a new one. Who is no browser needs none.
fn browser(headers: &HeaderMap, page: bool) -> (Option<String>, bool) {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let named = pairs.find(|(name, value)| *name == COOKIE && is_name(value));
    match named {
        Some((_, value)) => (Some(value.to_owned()), false),
        None if page => (Sessions::name(), true),
        None => (None, false),
    }
}

fn is_name(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The cookie of a browser.
pub(crate) fn cookie(name: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(&format!("{COOKIE}={name}; Path=/; HttpOnly; SameSite=Strict")).ok()
}

/// What every answer says to a browser.
fn dressed(mut answer: Response, new: Option<&str>) -> Response {
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
    if let (Some(cookie), false) = (new.and_then(cookie), headers.contains_key(header::SET_COOKIE)) {
        headers.append(header::SET_COOKIE, cookie);
    }
    answer
}
