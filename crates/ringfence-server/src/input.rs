//! What comes in: bodies, queries and paths, with errors that name what is wrong.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::access::Denial;
use crate::problem::Problem;
use crate::revocation::is_revoked;

/// How long a body may take to come.
const READ: Duration = Duration::from_secs(30);

/// A JSON document.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_json = kind.is_some_and(|kind| {
            let kind = kind.split(';').next().unwrap_or_default().trim();
            kind.eq_ignore_ascii_case("application/json")
        });
        if !is_json {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "not_json",
                "the body is not said to be application/json",
            ));
        }
        let read = tokio::time::timeout(READ, Bytes::from_request(request, state)).await;
        let late = |_| Problem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", "the body did not come in time");
        let bytes = read.map_err(late)?.map_err(|error| unread(&error))?;
        // A list would do as well for the library, with the fields in order; nobody was told so.
        if bytes.trim_ascii_start().first() == Some(&b'[') {
            return Err(Problem::invalid("the body does not fit: it is a list, and not an object"));
        }
        let Json(document) = Json::<T>::from_bytes(&bytes).map_err(|error| {
            let text = error.body_text();
            let text = text.split_once(": ").map_or(text.as_str(), |(_, rest)| rest);
            // Some of what is JSON, and not what is expected, is also told as if it were none.
            let text_of = std::str::from_utf8(&bytes).ok();
            match text_of.and_then(|body| serde_json::from_str::<IgnoredAny>(body).ok()) {
                Some(_) => Problem::invalid(format!("the body does not fit: {text}")),
                None => {
                    Problem::new(StatusCode::BAD_REQUEST, "malformed", format!("the body is no JSON: {text}"))
                }
            }
        })?;
        Ok(Body(document))
    }
}

fn unread(error: &BytesRejection) -> Problem {
    match error.status() {
        _ if is_revoked(error) => Denial::Nothing.into(),
        StatusCode::PAYLOAD_TOO_LARGE => {
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the body is too large")
        }
        _ => Problem::new(StatusCode::BAD_REQUEST, "malformed", "the body cannot be read"),
    }
}

/// What stands after the question mark.
pub(crate) struct Asked<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Query(query) =
            Query::<T>::from_request_parts(parts, state).await.map_err(|error: QueryRejection| {
                let text = error.body_text();
                let text = text.split_once(": ").map_or(text.as_str(), |(_, rest)| rest);
                Problem::invalid(format!("the query does not fit: {text}"))
            })?;
        Ok(Asked(query))
    }
}

/// A name in the path. One that could be nobody's is nobody's.
pub(crate) struct Named<T>(pub(crate) T);

impl<S: Send + Sync, T: std::str::FromStr> FromRequestParts<S> for Named<T>
where
    T::Err: std::fmt::Display,
{
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let unknown = |why: String| Problem::not_found(why);
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|error| unknown(error.body_text()))?;
        text.parse().map(Named).map_err(|error: T::Err| unknown(error.to_string()))
    }
}

/// Who asks, as the guard has found out.
pub(crate) struct Asker(pub(crate) crate::access::Who);

impl<S: Send + Sync> FromRequestParts<S> for Asker {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let who = parts.extensions.get::<crate::access::Who>();
        who.copied()
            .map(Asker)
            .ok_or_else(|| Problem::new(StatusCode::FORBIDDEN, "not_local", "nobody knows who asks"))
    }
}

/// Where somebody was cut off. What cannot be read is told: who believes to go on would else miss something.
pub(crate) fn last_seen(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    id.map(Some).ok_or_else(|| Problem::invalid("`Last-Event-ID` is no number that was told here"))
}

/// How many are wanted: from one to the most, or as many as are told if nobody says.
pub(crate) fn bounded(
    asked: Option<usize>,
    name: &str,
    unsaid: usize,
    most: usize,
) -> Result<usize, Problem> {
    let count = asked.unwrap_or(unsaid);
    if (1..=most).contains(&count) {
        return Ok(count);
    }
    Err(Problem::invalid(format!("`{name}` is a number from 1 to {most}")))
}

/// Before which one, if that is said.
pub(crate) fn before<T: std::str::FromStr>(asked: Option<String>, what: &str) -> Result<Option<T>, Problem> {
    let wrong = |_| Problem::invalid(format!("`before` is no {what}"));
    asked.map(|text| text.parse().map_err(wrong)).transpose()
}

/// Whether somebody wants to be told as it happens.
pub(crate) fn wants_stream(headers: &HeaderMap) -> bool {
    let kinds = headers.get(header::ACCEPT).and_then(|kinds| kinds.to_str().ok());
    kinds.is_some_and(|kinds| kinds.contains("text/event-stream"))
}
