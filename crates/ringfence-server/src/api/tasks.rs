//! Tasks: work that is done in its turn.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ringfence_core::ids::TaskId;
use ringfence_core::task::TaskSpec;
use ringfence_store::Filter;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::input::{Asked, Asker, Body, Named, before, bounded};
use crate::problem::Problem;
use crate::wire;

/// One task.
#[derive(Serialize, ToSchema)]
pub(super) struct TaskBody {
    task: wire::Task,
}

/// A task that was added.
#[derive(Serialize, ToSchema)]
pub(super) struct AddedBody {
    task: wire::Task,
    /// Whether it was there already, by its key.
    existed: bool,
}

/// A task with what was tried.
#[derive(Serialize, ToSchema)]
pub(super) struct TaskWithRuns {
    task: wire::Task,
    runs: Vec<wire::TaskRun>,
}

/// Some tasks, the newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct TaskPage {
    tasks: Vec<wire::Task>,
    /// What to ask for next as `before`; left out at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Many tasks, of which all or none are added.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Batch {
    #[schema(value_type = Vec<wire::TaskSpec>, max_items = 10_000)]
    tasks: Vec<TaskSpec>,
}

/// What became of many tasks.
#[derive(Serialize, ToSchema)]
pub(super) struct BatchBody {
    added: Vec<AddedRow>,
}

/// What became of one of them.
#[derive(Serialize, ToSchema)]
pub(super) struct AddedRow {
    /// Its number.
    task: String,
    /// Whether it was there already, by its key.
    existed: bool,
}

/// Which tasks.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// In this state; several are separated by commas.
    #[param(
        example = "queued,running",
        pattern = "^(queued|running|blocked|done|failed|dead|cancelled)(,(queued|running|blocked|done|failed|dead|cancelled))*$"
    )]
    status: Option<String>,
    /// Of this role.
    #[param(inline)]
    role: Option<wire::Role>,
    /// Of this agent.
    agent: Option<String>,
    /// Added before this one: what `next` said.
    #[param(pattern = "^[0-9]{1,18}$")]
    before: Option<String>,
    /// How many at most: 1 to 1000, 50 if not said.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// The tasks, the newest first.
#[utoipa::path(get, path = "/tasks", tag = "tasks", params(Which), responses((status = 200, body = TaskPage, description = "Some of them.")))]
pub(super) async fn list(
    State(app): State<App>,
    Asked(which): Asked<Which>,
) -> Result<Json<TaskPage>, Problem> {
    let limit = bounded(which.limit, "limit", 50, 1000)?;
    let states = which.status.iter().flat_map(|text| text.split(','));
    let states = states.map(|name| {
        let known = || {
            format!("`{name}` is no state: known are {}", ringfence_core::task::TaskStatus::NAMES.join(", "))
        };
        ringfence_core::task::TaskStatus::parse(name).ok_or_else(|| Problem::invalid(known()))
    });
    let filter = Filter {
        states: states.collect::<Result<_, _>>()?,
        role: which.role.map(Into::into),
        agent: which.agent,
        before: before(which.before, "task's number")?,
        limit,
    };
    let tasks = app.ask(move |house| house.tasks(&filter)).await?;
    let next = (tasks.len() == limit).then(|| tasks.last().map(|task| task.id.to_string())).flatten();
    Ok(Json(TaskPage { tasks: tasks.into_iter().map(Into::into).collect(), next }))
}

/// Adds a task. It is on the disk when this answers.
#[utoipa::path(post, path = "/tasks", tag = "tasks", request_body = wire::TaskSpec, responses(
    (status = 201, body = AddedBody, description = "It was added."),
    (status = 200, body = AddedBody, description = "It was there already, by its key."),
))]
pub(super) async fn add(
    State(app): State<App>,
    Asker(who): Asker,
    Body(spec): Body<TaskSpec>,
) -> Result<Response, Problem> {
    let added = app.add_tasks(who, vec![spec]).await?;
    let added = added.into_iter().next().ok_or_else(|| Problem::invalid("nothing was added"))?;
    let task = app.ask(move |house| house.task(&added.task)).await?;
    let status = if added.existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(AddedBody { task: task.into(), existed: added.existed })).into_response())
}

/// Adds many tasks, all or none.
#[utoipa::path(post, path = "/tasks/batch", tag = "tasks", request_body = Batch, responses((status = 201, body = BatchBody, description = "All were added.")))]
pub(super) async fn add_many(
    State(app): State<App>,
    Asker(who): Asker,
    Body(Batch { tasks }): Body<Batch>,
) -> Result<Response, Problem> {
    let added = app.add_tasks(who, tasks).await?;
    let rows =
        added.into_iter().map(|added| AddedRow { task: added.task.to_string(), existed: added.existed });
    Ok((StatusCode::CREATED, Json(BatchBody { added: rows.collect() })).into_response())
}

/// One task, with what was tried.
#[utoipa::path(get, path = "/tasks/{id}", tag = "tasks", params(("id" = String, Path, description = "Its number.")), responses((status = 200, body = TaskWithRuns, description = "Here it is.")))]
pub(super) async fn show(
    State(app): State<App>,
    Named(id): Named<TaskId>,
) -> Result<Json<TaskWithRuns>, Problem> {
    let (task, runs) = app.ask(move |house| Ok((house.task(&id)?, house.runs_of_task(&id)?))).await?;
    Ok(Json(TaskWithRuns { task: task.into(), runs: runs.into_iter().map(Into::into).collect() }))
}

/// Takes a task out of the queue and ends its run. When this answers, nothing of the run is left.
#[utoipa::path(post, path = "/tasks/{id}/cancel", tag = "tasks", params(("id" = String, Path, description = "Its number.")), responses((status = 200, body = TaskBody, description = "It is cancelled.")))]
pub(super) async fn cancel(
    State(app): State<App>,
    Asker(who): Asker,
    Named(id): Named<TaskId>,
) -> Result<Json<TaskBody>, Problem> {
    Ok(Json(TaskBody { task: app.cancel_task(who, id).await?.into() }))
}

/// Puts a task that failed or was cancelled into the queue again.
#[utoipa::path(post, path = "/tasks/{id}/retry", tag = "tasks", params(("id" = String, Path, description = "Its number.")), responses((status = 200, body = TaskBody, description = "It is in the queue.")))]
pub(super) async fn retry(
    State(app): State<App>,
    Asker(who): Asker,
    Named(id): Named<TaskId>,
) -> Result<Json<TaskBody>, Problem> {
    Ok(Json(TaskBody { task: app.retry_task(who, id).await?.into() }))
}

/// What was deleted.
#[derive(Serialize, ToSchema)]
pub(super) struct Deleted {
    deleted: bool,
}

/// Forgets a task that has ended. Its runs stay until they are old.
#[utoipa::path(delete, path = "/tasks/{id}", tag = "tasks", params(("id" = String, Path, description = "Its number.")), responses((status = 200, body = Deleted, description = "It is forgotten.")))]
pub(super) async fn delete(
    State(app): State<App>,
    Asker(who): Asker,
    Named(id): Named<TaskId>,
) -> Result<Json<Deleted>, Problem> {
    app.delete_task(who, id).await?;
    Ok(Json(Deleted { deleted: true }))
}
