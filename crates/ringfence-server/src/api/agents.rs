//! Agents, and what was used.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::desk::UsedBy;
use crate::input::Asked;
use crate::problem::Problem;
use crate::wire;

/// Who there is.
#[derive(Serialize, ToSchema)]
pub(super) struct Agents {
    agents: Vec<wire::Agent>,
}

/// The agents of the settings, and all others that had a task.
#[utoipa::path(get, path = "/agents", tag = "agents", responses((status = 200, body = Agents, description = "All of them.")))]
pub(super) async fn list(State(app): State<App>) -> Result<Json<Agents>, Problem> {
    let agents = app.ask(|house| house.agents()).await?;
    Ok(Json(Agents { agents: agents.into_iter().map(Into::into).collect() }))
}

/// Which sums.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// By what to sum; by day if not said.
    #[param(inline)]
    by: Option<UsedBy>,
}

/// What was used.
#[derive(Serialize, ToSchema)]
pub(super) struct Sums {
    usage: Vec<Sum>,
}

/// What was used by one of them.
#[derive(Serialize, ToSchema)]
pub(super) struct Sum {
    /// The day, agent, model, task or run.
    key: String,
    usage: wire::Usage,
}

/// What runs have used, summed.
#[utoipa::path(get, path = "/usage", tag = "agents", params(Which), responses((status = 200, body = Sums, description = "The sums.")))]
pub(super) async fn usage(State(app): State<App>, Asked(which): Asked<Which>) -> Result<Json<Sums>, Problem> {
    let by = which.by.unwrap_or(UsedBy::Day);
    let used = app.ask(move |house| house.usage(by)).await?;
    let usage = used.into_iter().map(|used| Sum { key: used.key, usage: used.usage.into() });
    Ok(Json(Sums { usage: usage.collect() }))
}
