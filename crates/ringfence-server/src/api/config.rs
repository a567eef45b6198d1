//! Settings of the running system.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::app::App;
use crate::deeds::{Settled, is_changeable};
use crate::desk::Setting;
use crate::input::{Asker, Body};
use crate::problem::Problem;
use crate::wire::plain;

/// The settings.
#[derive(Serialize, ToSchema)]
pub(super) struct ConfigBody {
    /// By key, and by the names that the documents give them.
    config: BTreeMap<String, String>,
    /// Each with where it comes from.
    settings: Vec<SettingRow>,
}

/// A setting with where it comes from.
#[derive(Serialize, ToSchema)]
pub(super) struct SettingRow {
    /// Such as `sandbox.mode`.
    key: String,
    /// Its value.
    #[schema(value_type = Value)]
    value: Value,
    /// Which layer won.
    layer: String,
    /// What it is for.
    doc: String,
    /// What may stand there.
    expects: String,
    /// Whether it can be changed here.
    changeable: bool,
}

/// What to change.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Updates {
    /// By key, or by the names that the documents give them; `null` takes a change back.
    #[schema(value_type = BTreeMap<String, Option<String>>, example = json!({"EXECUTION_ENVIRONMENT": "sandbox"}))]
    updates: BTreeMap<String, Option<String>>,
}

/// The settings after the change.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Changed {
    config: BTreeMap<String, String>,
    /// Whether it is in force only after a restart of the daemon; most are from the next task on.
    requires_restart: bool,
    warnings: Vec<String>,
}

fn config(settings: &[Setting]) -> BTreeMap<String, String> {
    let named = settings.iter().flat_map(|setting| {
        let variables = setting.variables.iter().filter(|name| !name.starts_with("RINGFENCE_"));
        variables.chain([&setting.key]).map(|name| (name.clone(), plain(&setting.value)))
    });
    named.collect()
}

/// The settings in force, and where each comes from.
#[utoipa::path(get, path = "/config", tag = "config", responses((status = 200, body = ConfigBody, description = "All of them.")))]
pub(super) async fn show(State(app): State<App>) -> Result<Json<ConfigBody>, Problem> {
    let settings = app.ask(|house| house.settings()).await?;
    let config = config(&settings);
    let rows = settings.into_iter().map(|setting| SettingRow {
        changeable: is_changeable(&setting.key),
        key: setting.key,
        value: setting.value,
        layer: setting.layer,
        doc: setting.doc,
        expects: setting.expects,
    });
    Ok(Json(ConfigBody { config, settings: rows.collect() }))
}

/// Changes settings of the running system, all or none. They are in force from the next task.
#[utoipa::path(patch, path = "/config", tag = "config", request_body = Updates, responses((status = 200, body = Changed, description = "They are changed.")))]
pub(super) async fn change(
    State(app): State<App>,
    Asker(who): Asker,
    Body(Updates { updates }): Body<Updates>,
) -> Result<Json<Changed>, Problem> {
    let settled = app.change_settings(who, updates.into_iter().collect()).await?;
    let settings = app.ask(|house| house.settings()).await?;
    let Settled { requires_restart, warnings } = settled;
    Ok(Json(Changed { config: config(&settings), requires_restart, warnings }))
}
