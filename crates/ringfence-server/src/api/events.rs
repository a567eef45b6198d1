//! Events: a page of them, or all as they happen.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::input::{Asked, bounded, last_seen, wants_stream};
use crate::problem::Problem;
use crate::stream::EventFollower;
use crate::wire;

/// Nobody is kept waiting longer.
const LONGEST_WAIT: u64 = 50;

/// Which events.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// After this id; from now on, if not said. A stream that was cut off goes on by `Last-Event-ID`.
    #[param(maximum = 9_223_372_036_854_775_807_i64)]
    after: Option<u64>,
    /// How many at most: 1 to 1000, 100 if not said. Not for streams.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// If there are none yet, wait for one: so many seconds, at most 50. Not for streams.
    #[param(maximum = 50)]
    wait: Option<u64>,
}

/// Some events, the oldest first.
#[derive(Serialize, ToSchema)]
pub(super) struct EventPage {
    events: Vec<wire::Event>,
    /// What to ask for next as `after`.
    last: u64,
}

/// What happened: a page, or with `Accept: text/event-stream` all as it happens.
#[utoipa::path(get, path = "/events", tag = "events", params(Which), responses((status = 200, description = "A page, or a stream.", content(
    (EventPage = "application/json"),
    (String = "text/event-stream"),
))))]
pub(super) async fn events(
    State(app): State<App>,
    headers: HeaderMap,
    Asked(which): Asked<Which>,
) -> Result<Response, Problem> {
    if which.after.is_some_and(|after| i64::try_from(after).is_err()) {
        return Err(Problem::invalid("`after` is no id that was told here"));
    }
    let newest = *app.last_event.borrow();
    if wants_stream(&headers) {
        let after = last_seen(&headers)?.or(which.after).unwrap_or(newest);
        return Ok(follow(&app, after).into_response());
    }
    let limit = bounded(which.limit, "limit", 100, 1000)?;
    let wait = which.wait.unwrap_or(0);
    if wait > LONGEST_WAIT {
        return Err(Problem::invalid("`wait` is a number of seconds, at most 50"));
    }
    let after = which.after.unwrap_or(newest);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(wait);
    let mut last_event = app.last_event.clone();
    let entries = loop {
        // Before looking, so that what comes meanwhile is noticed.
        last_event.borrow_and_update();
        let entries = app.ask(move |house| house.events(after, limit, Duration::ZERO)).await?;
        if !entries.is_empty() || tokio::time::timeout_at(deadline, last_event.changed()).await.is_err() {
            break entries;
        }
    };
    let last = entries.last().map_or(after, |entry| entry.id);
    Ok(Json(EventPage { events: entries.into_iter().map(Into::into).collect(), last }).into_response())
}

fn follow(app: &App, after: u64) -> impl IntoResponse + use<> {
    let follower = EventFollower::new(app, after);
    let pages =
        stream::unfold(follower, |mut follower| async move { Some((follower.next().await?, follower)) });
    let events = pages.flat_map(|page| {
        stream::iter(page.into_iter().map(|entry| {
            let event = Event::default().id(entry.id.to_string()).event(entry.event.kind.clone());
            Ok::<_, Infallible>(
                event.data(serde_json::to_string(&wire::Event::from(entry)).unwrap_or_default()),
            )
        }))
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}
