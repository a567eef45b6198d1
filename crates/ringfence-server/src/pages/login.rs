//! The login of the dashboard: by a one-time code that `ringfence open` prints, or by a token or a key.
//!
//! No session is opened under an address of loopback, nor under another name that led there: browsers send its cookie to every
//! port of it. A browser that logs in under one is led to the name of its own session (`dashboard_name`).

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use serde::Deserialize;

use super::view::Page;
use super::{Form, Nothing, Site, Visitor, Wrong};
use crate::access::{Denial, Who};
use crate::app::App;
use crate::dashboard_name::is_shared_with_this_machine;
use crate::guard::{From, cookie_name, host, is_of_owner, with_cookie};
use crate::login_codes::{self, Bearer, Terms};
use crate::loopback_peer::LISTS_OWNERS;
use crate::problem::Problem;
use crate::revocation::Epoch;
use crate::sessions::{SessionOrigin, Sessions};

/// A login code, in the address that `ringfence open` prints.
#[derive(Deserialize)]
struct Code {
    code: Option<String>,
}

/// The login code in an address.
pub(crate) fn login_code(uri: &Uri) -> Option<String> {
    Query::<Code>::try_from_uri(uri).ok().and_then(|Query(Code { code })| code)
}

/// The form, or the redemption of a code: once, for a session, and on to an address without the code.
pub(super) async fn page(
    State(app): Site,
    visitor: Visitor,
    Extension(from): Extension<From>,
    method: Method,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Wrong> {
    // Only a GET redeems: a program that looks whether the page is there does not use the code up.
    let Some(code) = login_code(&uri).filter(|_| method == Method::GET) else {
        let is_other_name =
            from.is_direct_on_loopback(&headers) && !is_shared_with_this_machine(host(&headers));
        return Ok(form(&visitor, is_other_name).into_response());
    };
    // A code that this connection may not redeem stays for the one that may.
    let terms = match app.login_codes.terms(&code) {
        Some(terms) if may_redeem(terms.bearer, &app, &from).await => Some(terms),
        Some(_) => {
            app.rates.request(&from.client).map_err(too_often)?;
            return Err(not_for_this_browser().into());
        }
        None => None,
    };
    let host = host(&headers);
    if let Some(Terms { name, .. }) = &terms
        && needs_own_name(&from, &headers)
        && !name.is_host(host)
    {
        return Ok(Redirect::to(&name.address(host, &login_codes::path(&code))).into_response());
    }
    match terms.and_then(|_| app.login_codes.take(&code)) {
        Some(terms) => Ok(begin(&app, &from, &headers, terms.epoch).await?),
        None if visitor.who == Who::Session => Ok(Redirect::to("/ui").into_response()),
        None => {
            app.rates.request(&from.client).map_err(too_often)?;
            Err(invalid_code().into())
        }
    }
}

/// Opens a session under the host of the request, and leads to the first page. The browser gets a new name: one that another
/// site may have given to it is worth nothing.
async fn begin(app: &App, from: &From, headers: &HeaderMap, epoch: Epoch) -> Result<Response, Problem> {
    let name = Sessions::name().ok_or_else(Problem::no_random_bytes)?;
    let origin = SessionOrigin { host: host(headers).to_owned(), of_owner: is_of_owner(app, from).await };
    if !app.sessions.open(&name, origin, epoch) {
        return Err(Denial::Nothing.into());
    }
    Ok(with_cookie(Redirect::to("/ui").into_response(), &cookie_name(headers), Some(&name)))
}

/// Whether a session would be opened under a name at which other programs of this machine serve pages too.
fn needs_own_name(from: &From, headers: &HeaderMap) -> bool {
    is_shared_with_this_machine(host(headers)) || from.is_direct_on_loopback(headers)
}

/// Leads a browser that has logged in under an address of loopback to a name of its own, by a new login code.
async fn continue_under_own_name(
    app: &App,
    from: &From,
    headers: &HeaderMap,
    epoch: Epoch,
) -> Result<Response, Problem> {
    let bearer = if is_of_owner(app, from).await { Bearer::Owner } else { Bearer::Anybody };
    let issued = app.login_codes.issue(bearer, epoch).ok_or_else(Problem::no_random_bytes)?;
    Ok(super::forward(&issued.name.address(host(headers), &issued.path())))
}

/// Whether a connection may redeem a code. Other users and runs can see one that is on a command line or in a log. Where the system does not
/// tell whose connections are, all are taken for the owner's.
async fn may_redeem(bearer: Bearer, app: &App, from: &From) -> bool {
    !LISTS_OWNERS || !is_for_owner(bearer, from) || is_of_owner(app, from).await
}

/// Whether a code is for the owner alone on this connection. What a proxy on this machine says of others is not looked at: every
/// user of the machine can say it.
fn is_for_owner(bearer: Bearer, from: &From) -> bool {
    match bearer {
        Bearer::Owner => true,
        Bearer::OwnerOrElsewhere => from.is_of_this_machine(),
        Bearer::Anybody => false,
    }
}

fn not_for_this_browser() -> Problem {
    let detail = "this login address is for browsers of the daemon's owner on the daemon's machine alone, outside of runs";
    Problem::new(StatusCode::FORBIDDEN, "not_owner", detail).with_remedy(
        "for a browser of another user or machine, or behind a proxy, run `ringfence open --for-anyone`",
    )
}

fn invalid_code() -> Problem {
    let detail = "this login address was used, has expired or is wrong";
    Problem::new(StatusCode::FORBIDDEN, "invalid_login_code", detail)
        .with_remedy("run `ringfence open` for a new one")
}

fn too_often(wait: std::time::Duration) -> Problem {
    let detail = format!("too many requests: try again in {} s", wait.as_secs() + 1);
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", detail)
}

/// The login page. Under a name that is neither the dashboard's own nor a usual one of loopback, it tells what comes next.
fn form(visitor: &Visitor, is_other_name: bool) -> Page {
    let said = visitor.app.sessions.told(&visitor.name);
    let body = html! {
        section.card.door {
            h1 { "ringfence" }
            @if let Some(said) = said { p.said.bad role="alert" { (said) } }
            form.stack method="post" action="/ui/login" {
                (visitor.token())
                // Password managers want to know whose it is.
                input type="text" name="user" value="ringfence" autocomplete="username" hidden;
                label { "Token or key" input type="password" name="key" autocomplete="current-password" required autofocus; }
                button.primary type="submit" { "Log in" }
            }
            p { "On the daemon's machine, " code { "ringfence open" } " opens this dashboard without asking." }
            @if is_other_name {
                p {
                    "Other programs of the daemon's machine serve pages under this name too, so the dashboard does not stay here: it opens on that machine, as with "
                    code { "ringfence open" } ", under a name below localhost. If a proxy led here, it has to send " code { "X-Forwarded-For" } "."
                }
            }
            p { small { "The token is in api.token in the daemon's state directory; API_SECRET and API_KEYS are as the daemon was started with." } }
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
    Extension(epoch): Extension<Epoch>,
    headers: HeaderMap,
    Form(given): Form<Key>,
) -> Result<Response, Wrong> {
    let identity = app.access().recognises(given.key.trim());
    let _presented = identity.filter(|identity| !identity.guessable).and_then(|_| from.presented());
    let said = match (identity, app.rates.may_try(&from.client)) {
        (Some(identity), _) if !identity.guessable => None,
        (_, Err(wait)) => Some(format!("Too many wrong keys: try again in {} s.", wait.as_secs() + 1)),
        (Some(_), Ok(())) => None,
        (None, Ok(())) => {
            app.rates.wrong(&from.client);
            Some("That is no key of this daemon.".to_owned())
        }
    };
    if let Some(said) = said {
        visitor.tell(said);
        return Ok(Redirect::to("/ui/login").into_response());
    }
    Ok(match needs_own_name(&from, &headers) {
        true => continue_under_own_name(&app, &from, &headers, epoch).await?,
        false => begin(&app, &from, &headers, epoch).await?,
    })
}

pub(super) async fn leave(State(app): Site, visitor: Visitor, Form(Nothing {}): Form<Nothing>) -> Response {
    app.sessions.close(&visitor.name);
    Redirect::to("/ui/login").into_response()
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue, header};

    use super::{Bearer, From, is_for_owner, needs_own_name};
    use crate::access::Peer;
    use crate::loopback_peer::Ends;

    fn from(peer: &str) -> From {
        let ends = Ends::unconnected(peer, "192.0.2.1:4301");
        From { peer: Peer::Elsewhere, client: String::new(), ends: Some(ends), connection: None }
    }

    #[test]
    fn code_for_other_machines_is_the_owners_alone_on_this_one() {
        let socket = From { ends: None, ..from("127.0.0.1:9") };
        for here in [from("127.0.0.1:9"), from("[::1]:9"), from("[::ffff:127.0.0.1]:9"), socket] {
            assert!(is_for_owner(Bearer::OwnerOrElsewhere, &here) && is_for_owner(Bearer::Owner, &here));
            assert!(!is_for_owner(Bearer::Anybody, &here));
        }
        let far = from("198.51.100.7:9");
        assert!(is_for_owner(Bearer::Owner, &far) && !is_for_owner(Bearer::OwnerOrElsewhere, &far));
    }

    #[test]
    fn session_under_another_name_of_loopback_needs_a_name_of_its_own() {
        let at = |local: &str| {
            let ends = Ends::unconnected("127.0.0.1:9", local);
            From { ends: Some(ends), ..from("127.0.0.1:9") }
        };
        let mut headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("box:4301"))]);
        for local in ["127.0.0.1:4301", "127.0.1.1:4301", "[::1]:4301", "[::ffff:127.0.0.1]:4301"] {
            assert!(needs_own_name(&at(local), &headers), "{local}");
        }
        assert!(!needs_own_name(&at("192.0.2.1:4301"), &headers));
        headers.insert("x-forwarded-for", HeaderValue::from_static("198.51.100.7"));
        assert!(!needs_own_name(&at("127.0.0.1:4301"), &headers), "a proxy's name");
        headers.insert(header::HOST, HeaderValue::from_static("127.0.0.1:4301"));
        assert!(needs_own_name(&at("127.0.0.1:4301"), &headers), "whatever a proxy says");
    }
}
