//! What keeps pages up to date: a word whenever something happens, and the lines of a log.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{StreamExt, stream};
use ringfence_core::ids::RunId;
use serde::Deserialize;

use super::{Site, Wrong, log as lines};
use crate::input::{Asked, Named, last_seen};
use crate::stream::LogFollower;
use crate::works::Work;

/// Pages are made anew no more often.
const CALM: Duration = Duration::from_millis(500);
/// Steps of long work are shown no more often.
const SMOOTH: Duration = Duration::from_millis(100);

#[derive(Deserialize)]
pub(super) struct Since {
    #[serde(default)]
    after: u64,
}

/// Says that something has changed since a page was made, as often as it is good to look, and how far long work has come.
pub(super) async fn changes(
    State(app): Site,
    headers: HeaderMap,
    Asked(since): Asked<Since>,
) -> Result<impl IntoResponse, Wrong> {
    let seen = last_seen(&headers)?.unwrap_or(since.after);
    let ticks = stream::unfold((app.last_event.clone(), seen), |(mut last, seen)| async move {
        last.wait_for(|id| *id != seen).await.ok()?;
        tokio::time::sleep(CALM).await;
        let id = *last.borrow_and_update();
        let event = Event::default().id(id.to_string()).event("changed").data(id.to_string());
        Some((Ok::<_, Infallible>(event), (last, id)))
    });
    let works = stream::unfold(app.works.follow(), |mut works| async move {
        works.changed().await.ok()?;
        tokio::time::sleep(SMOOTH).await;
        let now: Vec<Work> = works.borrow_and_update().values().cloned().collect();
        let event = Event::default().event("work").json_data(now).ok()?;
        Some((Ok::<_, Infallible>(event), works))
    });
    Ok(Sse::new(stream::select(ticks, works)).keep_alive(KeepAlive::default()))
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
    let from = last_seen(&headers)?.unwrap_or(part.from);
    let follower = LogFollower::new(&app, run, from, None, true);
    let parts =
        stream::unfold(follower, |mut follower| async move { Some((follower.next().await?, follower)) });
    let events = parts.map(|part| {
        let part = part?;
        let page = lines::lines(&part.text).into_string();
        Ok::<_, io::Error>(Event::default().id(part.next.to_string()).data(page))
    });
    let end = stream::once(async { Ok(Event::default().event("end").data("over")) });
    Ok(Sse::new(events.chain(end)).keep_alive(KeepAlive::default()))
}
