//! Dead letters: tasks that ended without being done.

use axum::Json;
use axum::extract::State;
use ringfence_core::ids::TaskId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::input::{Asked, Asker, Named, before, bounded};
use crate::problem::Problem;
use crate::wire;

/// All of them, and the webhooks that were given up.
#[derive(Serialize, ToSchema)]
pub(super) struct Letters {
    tasks: Vec<wire::DeadLetter>,
    webhooks: Vec<wire::Delivery>,
    /// What to ask for next as `before`; left out at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Which of them.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Of tasks that were added before this one: what `next` said.
    #[param(pattern = "^[0-9]{1,18}$")]
    before: Option<String>,
    /// How many at most: 1 to 1000, 50 if not said.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
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
#[utoipa::path(get, path = "/dead-letter", tag = "tasks", params(Which), responses((status = 200, body = Letters, description = "All of them.")))]
pub(super) async fn list(
    State(app): State<App>,
    Asked(which): Asked<Which>,
) -> Result<Json<Letters>, Problem> {
    let limit = bounded(which.limit, "limit", 50, 1000)?;
    let before: Option<TaskId> = before(which.before, "task's number")?;
    let letters = app.ask(move |house| house.dead_letters(before.as_ref(), limit)).await?;
    let next = letters
        .tasks
        .last()
        .filter(|_| letters.tasks.len() == limit)
        .map(|letter| letter.task.id.to_string());
    Ok(Json(Letters {
        tasks: letters.tasks.into_iter().map(Into::into).collect(),
        webhooks: letters.webhooks.into_iter().map(Into::into).collect(),
        next,
    }))
}

/// The dead letter of a task.
#[utoipa::path(get, path = "/dead-letter/{id}", tag = "tasks", params(("id" = String, Path, description = "The task's number.")), responses((status = 200, body = LetterBody, description = "Here it is.")))]
pub(super) async fn show(
    State(app): State<App>,
    Named(id): Named<TaskId>,
) -> Result<Json<LetterBody>, Problem> {
    let letter = app.ask(move |house| house.dead_letter(&id)).await?;
    Ok(Json(LetterBody { letter: letter.into() }))
}

/// Puts the task of a dead letter into the queue again.
#[utoipa::path(post, path = "/dead-letter/{id}/retry", tag = "tasks", params(("id" = String, Path, description = "The task's number.")), responses((status = 200, body = Retried, description = "It is in the queue.")))]
pub(super) async fn retry(
    State(app): State<App>,
    Asker(who): Asker,
    Named(id): Named<TaskId>,
) -> Result<Json<Retried>, Problem> {
    Ok(Json(Retried { task: app.retry_letter(who, id).await?.into() }))
}

/// Throws a dead letter away. The task stays dead.
#[utoipa::path(delete, path = "/dead-letter/{id}", tag = "tasks", params(("id" = String, Path, description = "The task's number.")), responses((status = 200, body = Discarded, description = "It is gone.")))]
pub(super) async fn discard(
    State(app): State<App>,
    Asker(who): Asker,
    Named(id): Named<TaskId>,
) -> Result<Json<Discarded>, Problem> {
    app.discard_letter(who, id).await?;
    Ok(Json(Discarded { discarded: true }))
}
