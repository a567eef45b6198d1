//! The way in, where keys are set.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use serde::Deserialize;

use super::view::Page;
use super::{Form, Nothing, Site, Visitor};
use crate::guard::cookie;
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
    from: axum::Extension<crate::guard::From>,
    Form(given): Form<Key>,
) -> Response {
    if !app.access.recognises(given.key.trim()) {
        visitor.tell(match app.rates.wrong(&from.client) {
            Ok(()) => "That is no key of this daemon.".to_owned(),
            Err(wait) => format!("Too many wrong keys: try again in {} s.", wait.as_secs() + 1),
        });
        return Redirect::to("/ui/login").into_response();
    }
    // Another name than before: one that somebody else may have given to this browser is worth nothing.
    let Some(name) = Sessions::name() else { return Redirect::to("/ui/login").into_response() };
    app.sessions.open(&name);
    let mut answer = Redirect::to("/ui").into_response();
    if let Some(cookie) = cookie(&name) {
        answer.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    answer
}

pub(super) async fn leave(State(app): Site, visitor: Visitor, Form(Nothing {}): Form<Nothing>) -> Response {
    app.sessions.close(&visitor.name);
    Redirect::to("/ui/login").into_response()
}
