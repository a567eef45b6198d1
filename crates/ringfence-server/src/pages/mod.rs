//! The dashboard: pages that are made here and can be read without a script. A script keeps them up to date.
//!
//! One file a page. A form is a POST that is answered by a redirect; it carries a token that only its own page knows.

mod agents;
mod chart;
mod compare;
mod letters;
mod live;
mod log;
mod login;
mod overview;
mod runs;
mod settings;
mod system;
mod tasks;
mod view;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{any, get, post};
use maud::{Markup, html};
use serde::de::DeserializeOwned;

use crate::access::{Denial, Who};
use crate::app::App;
use crate::guard::Browser;
use crate::problem::Problem;
use crate::revocation::is_revoked;
pub(crate) use login::login_code;
use view::Page;

const STYLE: &str = include_str!("assets/style.css");
const SCRIPT: &str = include_str!("assets/script.js");
const ICON: &str = include_str!("assets/icon.svg");
/// Longest login form: strangers may send it.
const MAX_LOGIN_BYTES: usize = 4096;

pub(crate) fn router() -> Router<App> {
    Router::new()
        .route("/", get(|| async { Redirect::to("/ui") }))
        .route("/assets/style.css", get(|| async { asset("text/css", STYLE) }))
        .route("/assets/script.js", get(|| async { asset("text/javascript", SCRIPT) }))
        .route("/assets/icon.svg", get(|| async { asset("image/svg+xml", ICON) }))
        .route("/ui/login", get(login::page).post(login::enter).layer(DefaultBodyLimit::max(MAX_LOGIN_BYTES)))
        .route("/ui/logout", post(login::leave))
        .route("/ui", get(overview::page))
        .route("/ui/live", get(live::changes))
        .route("/ui/tasks", get(tasks::list).post(tasks::add))
        .route("/ui/tasks/{id}", get(tasks::show))
        .route("/ui/tasks/{id}/{what}", post(tasks::act))
        .route("/ui/runs", get(runs::list))
        .route("/ui/runs/{run}", get(runs::show))
        .route("/ui/runs/{run}/stream", get(live::log))
        .route("/ui/agents", get(agents::page))
        .route("/ui/dead-letters", get(letters::page))
        .route("/ui/dead-letters/{id}/{what}", post(letters::act))
        .route("/ui/compare", get(compare::page))
        .route("/ui/compare/measure", post(compare::measure))
        .route("/ui/compare/probe", post(compare::probe))
        .route("/ui/system", get(system::page))
        .route("/ui/system/environment", post(system::environment))
        .route("/ui/system/processes/{name}/{what}", post(system::process))
        .route("/ui/system/processes/{name}", get(system::log))
        .route("/ui/system/start", post(system::start))
        .route("/ui/system/stop-all", post(system::stop_all))
        .route("/ui/system/logins", get(system::logins))
        .route("/ui/system/doctor", get(system::doctor))
        .route("/ui/system/settings", get(settings::page).post(settings::change))
        .route("/ui/{*rest}", any(|| async { Wrong(Problem::not_found("there is no such page")) }))
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    let head = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "max-age=60")];
    (head, text).into_response()
}

/// A page for who may not.
pub(crate) fn refused(problem: &Problem) -> Response {
    Wrong(problem.clone()).into_response()
}

/// A page that asks for the same address once more, now on behalf of the daemon's own site.
pub(crate) fn again(uri: &axum::http::Uri) -> Response {
    forward(uri.path_and_query().map_or("/ui", |path| path.as_str()))
}

/// A page that leads to an address. Browsers do not let a form be redirected to another host.
fn forward(address: &str) -> Response {
    let page = html! {
        (maud::DOCTYPE)
        meta http-equiv="refresh" content={ "0;url=" (address) };
        title { "ringfence" }
        link rel="icon" href="/assets/icon.svg" type="image/svg+xml";
        a href=(address) { "Open the dashboard" }
    };
    axum::response::Html(page.into_string()).into_response()
}

/// A problem, as people read it.
pub(crate) struct Wrong(Problem);

impl From<Problem> for Wrong {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Wrong {
    fn into_response(self) -> Response {
        let problem = &self.0;
        let body = html! {
            section.card.wrong {
                h1 { (problem.status().canonical_reason().unwrap_or("Error")) }
                p { (problem.detail()) }
                @if let Some(remedy) = problem.remedy() { p.remedy { (remedy) } }
                p { a href="/ui" { "To the overview" } }
            }
        };
        let page = Page::bare("Not possible", &body);
        (problem.status(), page).into_response()
    }
}

/// The script asks with this for parts of a page.
const PARTLY: &str = "x-ringfence-live";

/// What a page may do: who looks at it, and in which browser.
pub(crate) struct Visitor {
    pub(crate) who: Who,
    pub(crate) name: String,
    /// Whether a script asks for parts of the page alone.
    partly: bool,
    app: App,
}

impl Visitor {
    /// What stands in every form.
    pub(crate) fn token(&self) -> Markup {
        html! { input type="hidden" name="token" value=(self.app.sessions.token(&self.name)); }
    }

    /// Whether somebody logged in with a key.
    fn has_session(&self) -> bool {
        self.who == Who::Session
    }

    /// Says something on the next page.
    pub(crate) fn tell(&self, text: impl Into<String>) {
        self.app.sessions.tell(&self.name, text.into());
    }
}

impl FromRequestParts<App> for Visitor {
    type Rejection = Wrong;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Wrong> {
        let nobody = || Problem::new(StatusCode::FORBIDDEN, "not_local", "nobody knows who asks");
        let who = parts.extensions.get::<Who>().copied().ok_or_else(nobody)?;
        let Browser(name) = parts.extensions.get::<Browser>().cloned().ok_or_else(nobody)?;
        Ok(Self { who, name, partly: parts.headers.contains_key(PARTLY), app: app.clone() })
    }
}

/// A form of one of our own pages.
pub(crate) struct Form<T>(pub(crate) T);

/// A form with nothing in it but a button.
#[derive(serde::Deserialize)]
pub(crate) struct Nothing {}

#[derive(serde::Deserialize)]
struct Token {
    token: String,
}

impl<T: DeserializeOwned> FromRequest<App> for Form<T> {
    type Rejection = Wrong;
    async fn from_request(request: Request, app: &App) -> Result<Self, Wrong> {
        let name = request.extensions().get::<Browser>().cloned();
        let body = axum::body::Bytes::from_request(request, app).await;
        let body = body.map_err(|error| match is_revoked(&error) {
            true => Denial::Nothing.into(),
            false => Problem::new(StatusCode::BAD_REQUEST, "malformed", "the form cannot be read"),
        })?;
        let foreign = || {
            Problem::new(StatusCode::FORBIDDEN, "foreign_form", "the form is not one of this page's own")
                .with_remedy("open the page anew and try again")
        };
        let token = serde_urlencoded::from_bytes::<Token>(&body).map_err(|_| foreign())?.token;
        if !name.is_some_and(|Browser(name)| app.sessions.is_own(&name, &token)) {
            return Err(foreign().into());
        }
        let form = serde_urlencoded::from_bytes(&body);
        Ok(Form(form.map_err(|error| Problem::invalid(format!("the form does not fit: {error}")))?))
    }
}

/// Back to a page after something was done there, with a word about it.
fn back(visitor: &Visitor, to: &str, said: Result<String, Problem>) -> Response {
    visitor.tell(match said {
        Ok(text) => text,
        Err(problem) => match problem.remedy() {
            Some(remedy) => format!("✗ {} → {remedy}", problem.detail()),
            None => format!("✗ {}", problem.detail()),
        },
    });
    Redirect::to(to).into_response()
}

/// The state of a page, for extractors.
type Site = State<App>;
