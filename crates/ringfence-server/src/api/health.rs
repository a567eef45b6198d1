//! Whether it works.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::problem::Problem;
use crate::wire;
use ringfence_store::Span;

/// It answers.
#[derive(Serialize, ToSchema)]
pub(super) struct Health {
    /// Always `ok`: who does not answer does not say so.
    status: &'static str,
    /// When, RFC 3339.
    timestamp: String,
}

/// Whether all that it needs works.
#[derive(Serialize, ToSchema)]
pub(super) struct Ready {
    /// `ok` or `degraded`.
    status: &'static str,
    /// Each part: `ok` or `error`.
    services: Services,
    /// What is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// When, RFC 3339.
    timestamp: String,
}

/// The parts.
#[derive(Serialize, ToSchema)]
pub(super) struct Services {
    /// The store.
    database: &'static str,
}

/// Whether the daemon answers.
#[utoipa::path(get, path = "/health", tag = "health", responses((status = 200, body = Health, description = "It answers.")))]
pub(super) async fn health() -> Json<Health> {
    Json(Health { status: "ok", timestamp: now() })
}

/// Whether the daemon can do its work.
#[utoipa::path(get, path = "/health/ready", tag = "health", responses(
    (status = 200, body = Ready, description = "It can."),
    (status = 503, body = Ready, description = "It cannot."),
))]
pub(super) async fn ready(State(app): State<App>) -> Response {
    // Where the files are is nobody's business here.
    let error = (!app.is_ready().await).then(|| "the store cannot be used".to_owned());
    let (status, code, database) = match &error {
        None => ("ok", StatusCode::OK, "ok"),
        Some(_) => ("degraded", StatusCode::SERVICE_UNAVAILABLE, "error"),
    };
    (code, Json(Ready { status, services: Services { database }, error, timestamp: now() })).into_response()
}

/// Counters, as Prometheus reads them.
#[utoipa::path(get, path = "/metrics", tag = "health", responses(
    (status = 200, body = String, content_type = "text/plain", description = "The text format, version 0.0.4."),
))]
pub(super) async fn metrics(State(app): State<App>) -> Result<Response, Problem> {
    let (status, all) = app
        .ask(|house| {
            let span = house.spans(u64::MAX, 1)?;
            Ok((house.status()?, span.first().copied().unwrap_or(Span::default())))
        })
        .await?;
    let text = app.metrics.text(&status, &all);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

fn now() -> String {
    wire::time(u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0))
}
