//! Dead letters: tasks that ended without being done.

use axum::Json;
use axum::extract::State;
use ringfence_core::ids::TaskId;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::app::App;
use crate::input::{Asker, Named};
use crate::problem::Problem;
use crate::wire;

/// All of them, and the webhooks that were given up.
#[derive(Serialize, ToSchema)]
pub(super) struct Letters {
    tasks: Vec<wire::DeadLetter>,
    webhooks: Vec<wire::Delivery>,
}

/// One of them.
#[derive(Serialize, ToSchema)]
pub(super) struct LetterBody {
    letter: wire::DeadLetter,
}

/// What became of it.
#[derive(Serialize, ToSchema)]
pub(super) struct Discarded {
    discarded: bool,
}

/// The task again.
#[derive(Serialize, ToSchema)]
pub(super) struct Retried {
    task: wire::Task,
}

/// The dead letters, the newest first.
#[utoipa::path(get, path = "/dead-letter", tag = "tasks", responses((status = 200, body = Letters, description = "All of them.")))]
pub(super) async fn list(State(app): State<App>) -> Result<Json<Letters>, Problem> {
    let letters = app.ask(|house| house.letters()).await?;
    Ok(Json(Letters {
        tasks: letters.tasks.into_iter().map(Into::into).collect(),
        webhooks: letters.webhooks.into_iter().map(Into::into).collect(),
    }))
}

/// The dead letter of a task.
#[utoipa::path(get, path = "/dead-letter/{id}", tag = "tasks", params(("id" = String, Path, description = "The task's number.")), responses((status = 200, body = LetterBody, description = "Here it is.")))]
pub(super) async fn show(
    State(app): State<App>,
    Named(id): Named<TaskId>,
) -> Result<Json<LetterBody>, Problem> {
    let letter = app.ask(move |house| house.letter(&id)).await?;
    Ok(Json(LetterBody { letter: letter.into() }))
}

/// Puts the task of a dead letter into the queue again.
#[utoipa::path(post, path = "/dead-letter/{id}/retry", tag = "tasks", params(("id" = String, Path, description = "The task's number.")), responses((status = 200, body = Retried, description = "It is in the queue.")))]
pub(super) async fn retry(
    State(app): State<App>,
    Asker(who): Asker,
    Named(id): Named<TaskId>,
) -> Result<Json<Retried>, Problem> {
    let task = app
        .ask(move |house| {
            house.letter(&id)?;
            house.retry(&id)
        })
        .await?;
    app.audit(who, "dead-letter.retry", task.id.as_str(), json!("dead"), json!(task.life.state.name())).await;
    Ok(Json(Retried { task: task.into() }))
}

/// Throws a dead letter away. The task stays dead.
#[utoipa::path(delete, path = "/dead-letter/{id}", tag = "tasks", params(("id" = String, Path, description = "The task's number.")), responses((status = 200, body = Discarded, description = "It is gone.")))]
pub(super) async fn discard(
    State(app): State<App>,
    Asker(who): Asker,
    Named(id): Named<TaskId>,
) -> Result<Json<Discarded>, Problem> {
    let id = app.ask(move |house| house.discard(&id).map(|()| id)).await?;
    app.audit(who, "dead-letter.discard", id.as_str(), json!("dead"), Value::Null).await;
    Ok(Json(Discarded { discarded: true }))
}
