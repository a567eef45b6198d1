//! The way in, where keys are set.

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use serde::Deserialize;

use super::view::Page;
use super::{Form, Nothing, Site, Visitor};
use crate::guard::{From, cookie_name, with_cookie};
use crate::sessions::Sessions;

pub(super) async fn page(visitor: Visitor) -> Page {
    let said = visitor.app.sessions.told(&visitor.name);
    let body = html! {
        section.card.door {
            h1 { "ringfence" }
            @if let Some(said) = said { p.said.bad role="alert" { (said) } }
            form.stack method="post" action="/ui/login" {
                (visitor.token())
                label { "Key or token" input type="password" name="key" autocomplete="current-password" required autofocus; }
                button.primary type="submit" { "Log in" }
            }
            p { small { "One of API_KEYS, or API_SECRET, as the daemon was started with." } }
        }
    };
    Page::bare("Log in", &body)
}

#[derive(Deserialize)]
pub(super) struct Key {
    key: String,
}

pub(super) async fn enter(
    State(app): Site,
    visitor: Visitor,
    Extension(from): Extension<From>,
    headers: HeaderMap,
    Form(given): Form<Key>,
) -> Response {
    let said = match app.rates.may_try(&from.client) {
        Err(wait) => Some(format!("Too many wrong keys: try again in {} s.", wait.as_secs() + 1)),
        Ok(()) if app.access.recognises(given.key.trim()) => None,
        Ok(()) => {
            app.rates.wrong(&from.client);
            Some("That is no key of this daemon.".to_owned())
        }
    };
    // Another name than before: one that somebody else may have given to this browser is worth nothing.
    let name = Sessions::name().filter(|_| said.is_none());
    visitor.tell(said.unwrap_or_default());
    let Some(name) = name else { return Redirect::to("/ui/login").into_response() };
    app.sessions.open(&name);
    with_cookie(Redirect::to("/ui").into_response(), &cookie_name(&headers), Some(&name))
}

pub(super) async fn leave(State(app): Site, visitor: Visitor, Form(Nothing {}): Form<Nothing>) -> Response {
    app.sessions.close(&visitor.name);
    Redirect::to("/ui/login").into_response()
}
