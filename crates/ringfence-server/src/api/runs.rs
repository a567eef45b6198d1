//! Runs: attempts at tasks, and what came of them.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use ringfence_core::ids::RunId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io;
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::desk::{FileChange, RunRow, RunView};
use crate::input::{Asked, Named, before, bounded, last_seen, wants_stream};
use crate::problem::Problem;
use crate::stream::LogFollower;
use crate::wire;

/// A run in a list.
#[derive(Serialize, ToSchema)]
pub(super) struct Row {
    run: String,
    /// `running`, `success`, `failed`, `cancelled`, `lost` or `damaged`.
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    /// The class of its failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

impl From<RunRow> for Row {
    fn from(row: RunRow) -> Self {
        let RunRow { run, status, agent, mode, duration_ms, failure } = row;
        Self { run: run.to_string(), status, agent, mode, duration_ms, failure }
    }
}

/// Some runs, the newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct RunPage {
    runs: Vec<Row>,
    /// What to ask for next as `before`; left out at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A run.
#[derive(Serialize, ToSchema)]
pub(super) struct RunBody {
    /// `running`, `success`, `failed`, `cancelled` or `lost`.
    status: String,
    /// What was asked, what was in force and by what.
    #[schema(value_type = Object)]
    record: Value,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<wire::RunResult>,
    /// Which task it was for.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
}

/// Which runs.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Begun before this one: what `next` said.
    #[param(pattern = "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    before: Option<String>,
    /// How many at most: 1 to 1000, 50 if not said.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// The runs, the newest first.
#[utoipa::path(get, path = "/runs", tag = "runs", params(Which), responses((status = 200, body = RunPage, description = "Some of them.")))]
pub(super) async fn list(
    State(app): State<App>,
    Asked(which): Asked<Which>,
) -> Result<Json<RunPage>, Problem> {
    let limit = bounded(which.limit, "limit", 50, 1000)?;
    let before: Option<RunId> = before(which.before, "run's name")?;
    let runs = app.ask(move |house| house.runs(before.as_ref(), limit)).await?;
    let next = (runs.len() == limit).then(|| runs.last().map(|row| row.run.to_string())).flatten();
    Ok(Json(RunPage { runs: runs.into_iter().map(Into::into).collect(), next }))
}

async fn view(app: &App, run: RunId) -> Result<RunView, Problem> {
    app.ask(move |house| house.run(run.as_str())).await
}

/// One run: how far it has come, what was in force, how it ended.
#[utoipa::path(get, path = "/runs/{run}", tag = "runs", params(("run" = String, Path, description = "Its name.")), responses((status = 200, body = RunBody, description = "Here it is.")))]
pub(super) async fn show(State(app): State<App>, Named(run): Named<RunId>) -> Result<Json<RunBody>, Problem> {
    let view = view(&app, run).await?;
    Ok(Json(RunBody {
        status: view.status,
        record: serde_json::to_value(view.record).unwrap_or_default(),
        result: view.result.map(Into::into),
        task: view.task.map(|task| task.to_string()),
    }))
}

/// The record of a run: what was asked, what was in force and by what.
#[utoipa::path(get, path = "/runs/{run}/record", tag = "runs", params(("run" = String, Path, description = "Its name.")), responses((status = 200, body = Object, description = "Here it is.")))]
pub(super) async fn record(State(app): State<App>, Named(run): Named<RunId>) -> Result<Json<Value>, Problem> {
    let view = view(&app, run).await?;
    Ok(Json(serde_json::to_value(view.record).unwrap_or_default()))
}

/// Which part of a log.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Part {
    /// From this byte on: the beginning of a line.
    from: Option<u64>,
    /// No line that begins at this byte or after it.
    to: Option<u64>,
    /// Go on until the run is over.
    follow: Option<bool>,
}

/// The log of a run, one event a line; with `follow` until it is over, with `Accept: text/event-stream` as a stream that can
/// be resumed by `Last-Event-ID`.
#[utoipa::path(get, path = "/runs/{run}/log", tag = "runs", params(("run" = String, Path, description = "Its name."), Part), responses((status = 200, description = "The lines.", content(
    (String = "application/x-ndjson"),
    (String = "text/event-stream"),
))))]
pub(super) async fn log(
    State(app): State<App>,
    headers: HeaderMap,
    Named(run): Named<RunId>,
    Asked(part): Asked<Part>,
) -> Result<Response, Problem> {
    let run = view(&app, run).await?.record.run;
    if [part.from, part.to].into_iter().flatten().any(|place| i64::try_from(place).is_err()) {
        return Err(Problem::invalid("`from` and `to` are places in a log, and no log is so long"));
    }
    let from = last_seen(&headers)?.or(part.from).unwrap_or(0);
    let follower = LogFollower::new(&app, run, from, part.to, part.follow.unwrap_or(false));
    if wants_stream(&headers) {
        let parts =
            stream::unfold(follower, |mut follower| async move { Some((follower.next().await?, follower)) });
        let events = parts.map(|lines| {
            let lines = lines?;
            let text = String::from_utf8_lossy(&lines.text);
            Ok::<_, io::Error>(Event::default().id(lines.next.to_string()).data(text.trim_end_matches('\n')))
        });
        let end = stream::once(async { Ok(Event::default().event("end").data("over")) });
        return Ok(Sse::new(events.chain(end)).keep_alive(KeepAlive::default()).into_response());
    }
    let parts = stream::unfold(follower, |mut follower| async move {
        Some((follower.next().await?.map(|lines| lines.text), follower))
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(parts)).into_response())
}

/// What a run reached.
#[derive(Serialize, ToSchema)]
pub(super) struct Net {
    entries: Vec<wire::NetEntry>,
}

/// What a run reached, and what it was denied.
#[utoipa::path(get, path = "/runs/{run}/net", tag = "runs", params(("run" = String, Path, description = "Its name.")), responses((status = 200, body = Net, description = "Every wish.")))]
pub(super) async fn net(State(app): State<App>, Named(run): Named<RunId>) -> Result<Json<Net>, Problem> {
    let run = view(&app, run).await?.record.run;
    let entries = app.ask(move |house| house.net(&run)).await?;
    Ok(Json(Net { entries: entries.into_iter().map(Into::into).collect() }))
}

/// A file that was changed.
#[derive(Serialize, ToSchema)]
pub(super) struct ChangedFile {
    /// From the workspace. What is invisible, steers or is no text is escaped. Empty in a note about all changes.
    path: String,
    /// What was done.
    change: String,
    /// The lines, in the unified form, where the file is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    diff: Option<String>,
    /// Why there are no lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    omitted: Option<String>,
    /// Why it cannot be applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    conflict: Option<String>,
}

/// What a run wrote.
#[derive(Serialize, ToSchema)]
pub(super) struct Diff {
    changes: Vec<ChangedFile>,
}

/// What a run wrote in a workspace of kind `overlay`.
#[utoipa::path(get, path = "/runs/{run}/diff", tag = "runs", params(("run" = String, Path, description = "Its name.")), responses((status = 200, body = Diff, description = "File by file."), (status = 409, body = Problem, content_type = "application/problem+json", description = "It has no layer.")))]
pub(super) async fn diff(State(app): State<App>, Named(run): Named<RunId>) -> Result<Json<Diff>, Problem> {
    let run = view(&app, run).await?.record.run;
    let changes = app.diff(run).await?.into_iter();
    let changes = changes.map(|FileChange { path, change, diff, omitted, conflict }| ChangedFile {
        path,
        change,
        diff,
        omitted,
        conflict,
    });
    Ok(Json(Diff { changes: changes.collect() }))
}

/// A file that the agent named in its last word.
#[utoipa::path(get, path = "/runs/{run}/attachments/{number}", tag = "runs", params(
    ("run" = String, Path, description = "Its name."),
    ("number" = usize, Path, description = "Its place in the list, from 0."),
), responses((status = 200, description = "The file.", content_type = "application/octet-stream")))]
pub(super) async fn attachment(
    State(app): State<App>,
    path: Result<Path<(String, usize)>, axum::extract::rejection::PathRejection>,
) -> Result<Response, Problem> {
    let unknown = || Problem::not_found("there is no such attachment");
    let Path((run, number)) = path.map_err(|_| unknown())?;
    let run: RunId = run.parse().map_err(|_| unknown())?;
    let (file, attachment) = app.ask(move |house| house.attachment(&run, number)).await?;
    let gone = |_| Problem::new(StatusCode::NOT_FOUND, "not_found", "the attachment is no longer there");
    let file = tokio::fs::File::open(&file).await.map_err(gone)?;
    let parts = stream::unfold(file, |mut file| async move {
        use tokio::io::AsyncReadExt;
        let mut bytes = vec![0; 64 << 10];
        match file.read(&mut bytes).await {
            Ok(0) => None,
            Ok(read) => {
                bytes.truncate(read);
                Some((Ok(bytes), file))
            }
            Err(error) => Some((Err(error), file)),
        }
    });
    // Never shown by the browser itself: an agent may have written a page with a script in it.
    let name = attachment.path.file_name().and_then(|name| name.to_str()).unwrap_or("attachment");
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '_' }).collect();
    let head = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, attachment.size.to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
    ];
    Ok((head, Body::from_stream(parts)).into_response())
}
