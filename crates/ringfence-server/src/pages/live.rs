//! What keeps pages up to date: a word whenever something happens, and the lines of a log.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{StreamExt, stream};
use ringfence_core::ids::RunId;
use serde::Deserialize;

use super::{Site, Wrong, log as lines};
use crate::input::{Asked, Named};
use crate::stream::LogFollower;

/// Pages are made anew no more often.
const CALM: Duration = Duration::from_millis(500);

/// Says that something has changed, as often as it is good to look.
pub(super) async fn changes(State(app): Site) -> impl IntoResponse {
    let mut last = app.last_event.clone();
    last.mark_unchanged();
    let ticks = stream::unfold(last, |mut last| async move {
        last.changed().await.ok()?;
        tokio::time::sleep(CALM).await;
        let id = *last.borrow_and_update();
        Some((Ok::<_, Infallible>(Event::default().event("changed").data(id.to_string())), last))
    });
    Sse::new(ticks).keep_alive(KeepAlive::default())
}

#[derive(Deserialize)]
pub(super) struct Part {
    #[serde(default)]
    from: u64,
}

/// The lines of a log, ready to be put on the page.
pub(super) async fn log(
    State(app): Site,
    headers: HeaderMap,
    Named(run): Named<RunId>,
    Asked(part): Asked<Part>,
) -> Result<impl IntoResponse, Wrong> {
    let run = app.ask(move |house| house.run(run.as_str())).await?.record.run;
    let seen = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let follower = LogFollower::new(&app, run, seen.unwrap_or(part.from), true);
    let parts =
        stream::unfold(follower, |mut follower| async move { Some((follower.next().await?, follower)) });
    let events = parts.map(|part| {
        let page = lines::lines(&part.text).into_string();
        Ok::<_, Infallible>(Event::default().id(part.next.to_string()).data(page))
    });
    let end = stream::once(async { Ok(Event::default().event("end").data("over")) });
    Ok(Sse::new(events.chain(end)).keep_alive(KeepAlive::default()))
}
