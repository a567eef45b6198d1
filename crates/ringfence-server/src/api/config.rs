//! Settings of the running system.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::access::Who;
use crate::app::App;
use crate::desk::{Refusal, RefusalKind, Setting};
use crate::input::{Asker, Body};
use crate::problem::Problem;

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
    /// Whether it is in force only after a restart. It never is: settings are in force from the next task.
    requires_restart: bool,
    warnings: Vec<String>,
}

/// Keys that say which programs the host runs, whom it trusts and where its secrets are: they are changed on the machine.
pub(crate) fn is_changeable(key: &str) -> bool {
    let mut parts = key.split('.');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("EXECUTION_ENVIRONMENT"), None, None) => true,
        (Some("sandbox" | "executor"), ..) => true,
        (Some("queue"), Some(name), None) => name != "webhook_secret_file",
        (Some("agents"), Some(_), Some(name)) => name != "command" && name != "working_directory",
        _ => false,
    }
}

fn config(settings: &[Setting]) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let named = settings.iter().flat_map(|setting| {
        let variables = setting.variables.iter().filter(|name| !name.starts_with("RINGFENCE_"));
        variables.chain([&setting.key]).map(|name| (name.clone(), text(&setting.value)))
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
    let updates = updates.into_iter().collect();
    let warnings = change_settings(&app, who, updates).await?;
    let settings = app.ask(|house| house.settings()).await?;
    Ok(Json(Changed { config: config(&settings), requires_restart: false, warnings }))
}

/// Changes settings, for the API and for the pages; the answer is what to know about it.
pub(crate) async fn change_settings(
    app: &App,
    who: Who,
    updates: Vec<(String, Option<String>)>,
) -> Result<Vec<String>, Problem> {
    let changed = app.ask(move |house| {
        let known = house.setting_keys(&updates)?;
        if let Some((name, _)) = known.iter().find(|(_, key)| !is_changeable(key)) {
            return Err(Refusal::new(RefusalKind::Forbidden, format!("Key not allowed: {name}")));
        }
        house.change_settings(&updates)
    });
    let changed = changed.await.map_err(|problem| match problem.status() {
        // As the documents have it.
        StatusCode::FORBIDDEN => Problem::new(StatusCode::BAD_REQUEST, "key_not_allowed", problem.detail())
            .with_remedy(
                "`GET /config` says which keys are changeable; the others are changed on the machine",
            ),
        _ => problem,
    })?;
    for change in &changed.changes {
        app.audit(who, "config.change", &change.key, change.before.clone(), change.after.clone()).await;
    }
    Ok(changed.warnings)
}
