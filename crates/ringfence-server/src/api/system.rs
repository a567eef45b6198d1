//! Control of the system: processes, modes, checks.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::desk::{FindingGroup, LoginCheck, ProcessAnswer};
use crate::input::{Asked, Asker, Named, bounded};
use crate::problem::Problem;
use crate::wire;
use crate::works::Work;

/// The daemon and the queue.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusBody {
    /// The process of the daemon.
    daemon: Option<u32>,
    /// Where it listens.
    address: Option<String>,
    #[schema(value_type = Option<wire::Environment>)]
    execution_environment: Option<Value>,
    #[schema(value_type = Option<wire::Mode>)]
    mode: Option<Value>,
    /// Why the settings cannot be read.
    settings_error: Option<String>,
    /// How many tasks there are of each state.
    tasks: BTreeMap<String, u64>,
    processes: Vec<wire::Process>,
}

/// The daemon, its processes and the queue.
#[utoipa::path(get, path = "/system/status", tag = "system", responses((status = 200, body = StatusBody, description = "Here it is.")))]
pub(super) async fn status(State(app): State<App>) -> Result<Json<StatusBody>, Problem> {
    let status = app.ask(|house| house.status()).await?;
    Ok(Json(StatusBody {
        daemon: status.daemon,
        address: status.address,
        execution_environment: status.execution_environment.map(|value| json!(value)),
        mode: status.mode.map(|value| json!(value)),
        settings_error: status.settings_error,
        tasks: wire::counts(&status.tasks),
        processes: status.processes.into_iter().map(Into::into).collect(),
    }))
}

/// The processes.
#[derive(Serialize, ToSchema)]
pub(super) struct Processes {
    processes: Vec<wire::Process>,
}

/// One process.
#[derive(Serialize, ToSchema)]
pub(super) struct ProcessBody {
    process: wire::Process,
}

/// What came of it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Started {
    process: wire::Process,
    /// It ran before.
    already_running: bool,
    /// It is not started here, and why: in `sandbox` each task has a sandbox of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<String>,
}

impl From<ProcessAnswer> for Started {
    fn from(answer: ProcessAnswer) -> Self {
        let ProcessAnswer { process, already_running, skipped } = answer;
        Self { process: process.into(), already_running, skipped }
    }
}

/// All processes that were ever started, and the dispatcher.
#[utoipa::path(get, path = "/system/processes", tag = "system", responses((status = 200, body = Processes, description = "All of them.")))]
pub(super) async fn processes(State(app): State<App>) -> Result<Json<Processes>, Problem> {
    let rows = app.ask(|house| house.processes()).await?;
    Ok(Json(Processes { processes: rows.into_iter().map(Into::into).collect() }))
}

/// One process.
#[utoipa::path(get, path = "/system/processes/{name}", tag = "system", params(("name" = String, Path, description = "Such as `worker-1`.")), responses((status = 200, body = ProcessBody, description = "Here it is.")))]
pub(super) async fn process(
    State(app): State<App>,
    Named(name): Named<String>,
) -> Result<Json<ProcessBody>, Problem> {
    let rows = app.ask(|house| house.processes()).await?;
    let row = rows.into_iter().find(|row| row.name == name);
    let row = row.ok_or_else(|| Problem::not_found("Process not found"))?;
    Ok(Json(ProcessBody { process: row.into() }))
}

/// Starts a process: `dispatcher`, `worker-N`, `tester-N`, `docser-N`.
#[utoipa::path(post, path = "/system/processes/{name}/start", tag = "system", params(("name" = String, Path, description = "Such as `worker-1`.")), responses((status = 200, body = Started, description = "It runs, or is skipped.")))]
pub(super) async fn start(
    State(app): State<App>,
    Asker(who): Asker,
    Named(name): Named<String>,
) -> Result<Json<Started>, Problem> {
    Ok(Json(app.start_process(who, name).await?.into()))
}

/// Stops a process. The task that it does goes back into the queue.
#[utoipa::path(post, path = "/system/processes/{name}/stop", tag = "system", params(("name" = String, Path, description = "Such as `worker-1`.")), responses((status = 200, body = ProcessBody, description = "It is stopped.")))]
pub(super) async fn stop(
    State(app): State<App>,
    Asker(who): Asker,
    Named(name): Named<String>,
) -> Result<Json<ProcessBody>, Problem> {
    Ok(Json(ProcessBody { process: app.stop_process(who, name).await?.process.into() }))
}

/// What came of stopping all.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct StoppedAll {
    stopped: Vec<String>,
    skipped: Vec<String>,
    cancelled_runs: u64,
    requeued_tasks: u64,
    message: String,
}

/// Stops all processes. Their runs are ended, their tasks go back into the queue.
#[utoipa::path(post, path = "/system/processes/stop-all", tag = "system", responses((status = 200, body = StoppedAll, description = "They are stopped.")))]
pub(super) async fn stop_all(State(app): State<App>, Asker(who): Asker) -> Result<Json<StoppedAll>, Problem> {
    let done = app.stop_all(who).await?;
    Ok(Json(StoppedAll {
        message: format!("Stopped {} process(es)", done.stopped.len()),
        stopped: done.stopped,
        skipped: done.skipped,
        cancelled_runs: done.cancelled_runs,
        requeued_tasks: done.requeued_tasks,
    }))
}

/// How much of a log.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Much {
    /// How many lines at most: 1 to 2000, 200 if not said.
    #[param(minimum = 1, maximum = 2000)]
    lines: Option<usize>,
}

/// What a process says, as it is in its log.
#[utoipa::path(get, path = "/system/processes/{name}/logs", tag = "system", params(("name" = String, Path, description = "Such as `worker-1`, or `daemon`."), Much), responses((status = 200, body = String, content_type = "text/plain", description = "The end of it.")))]
pub(super) async fn process_logs(
    State(app): State<App>,
    Named(name): Named<String>,
    Asked(much): Asked<Much>,
) -> Result<Response, Problem> {
    let lines = bounded(much.lines, "lines", 200, 2000)?;
    Ok(app.ask(move |house| house.process_log(&name, lines)).await?.into_response())
}

/// A mode.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ModeRow {
    #[schema(value_type = wire::Mode)]
    mode: Value,
    /// What stands between the agent and the machine.
    boundary: String,
    /// What it needs.
    needs: String,
    /// Whether agents can run in it.
    available: bool,
    /// Whether the settings use it.
    in_use: bool,
    /// Each promise that it keeps here, and by what.
    promises: BTreeMap<String, String>,
    /// What to change on this machine for more.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// The modes.
#[derive(Serialize, ToSchema)]
pub(super) struct Modes {
    modes: Vec<ModeRow>,
}

/// Where agents can run, and what each mode keeps on this machine.
#[utoipa::path(get, path = "/system/modes", tag = "system", responses((status = 200, body = Modes, description = "All of them.")))]
pub(super) async fn modes(State(app): State<App>) -> Result<Json<Modes>, Problem> {
    let modes = app.modes().await?;
    let rows = modes.into_iter().map(|mode| ModeRow {
        mode: json!(mode.mode),
        boundary: mode.boundary,
        needs: mode.needs,
        available: mode.available,
        in_use: mode.in_use,
        promises: mode.promises.into_iter().collect(),
        hint: mode.hint,
    });
    Ok(Json(Modes { modes: rows.collect() }))
}

/// Long work that is under way.
#[derive(Serialize, ToSchema)]
pub(super) struct WorkList {
    work: Vec<Work>,
}

/// How far checks, measurements and probes have come that somebody has asked for.
#[utoipa::path(get, path = "/system/work", tag = "system", responses((status = 200, body = WorkList, description = "The oldest first.")))]
pub(super) async fn work(State(app): State<App>) -> Json<WorkList> {
    Json(WorkList { work: app.works.now() })
}

/// What the doctor found.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Doctor {
    /// Nothing that the settings depend on is broken.
    passed: bool,
    #[schema(value_type = wire::Mode)]
    mode: Value,
    modes: Vec<Group>,
    agent_clis: Vec<Group>,
}

/// Findings of one thing.
#[derive(Serialize, ToSchema)]
pub(super) struct Group {
    name: String,
    /// Whether the settings depend on it.
    required: bool,
    findings: Vec<FindingRow>,
}

/// One finding.
#[derive(Serialize, ToSchema)]
pub(super) struct FindingRow {
    subject: String,
    /// `ok`, `absent` or `broken`.
    #[schema(value_type = String)]
    state: Value,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl From<FindingGroup> for Group {
    fn from(group: FindingGroup) -> Self {
        let findings = group.findings.into_iter().map(|finding| FindingRow {
            subject: finding.subject,
            state: json!(finding.state),
            detail: finding.detail,
            remedy: finding.remedy,
        });
        Self { name: group.name, required: group.required, findings: findings.collect() }
    }
}

/// What works on this machine, and what to do about the rest.
#[utoipa::path(get, path = "/system/doctor", tag = "system", responses((status = 200, body = Doctor, description = "What was found.")))]
pub(super) async fn doctor(State(app): State<App>) -> Result<Json<Doctor>, Problem> {
    let report = app.doctor().await?;
    Ok(Json(Doctor {
        passed: report.passed,
        mode: json!(report.mode),
        modes: report.modes.into_iter().map(Into::into).collect(),
        agent_clis: report.agent_clis.into_iter().map(Into::into).collect(),
    }))
}

/// Which mode.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Instead of the one in use.
    #[param(inline)]
    mode: Option<wire::Mode>,
}

/// Tries to break each promise of a mode, and tells what held.
#[utoipa::path(post, path = "/system/probe", tag = "system", params(Which), responses((status = 200, body = Object, description = "Promise by promise.")))]
pub(super) async fn probe(
    State(app): State<App>,
    Asker(who): Asker,
    Asked(which): Asked<Which>,
) -> Result<Json<Value>, Problem> {
    Ok(Json(app.probe(who, which.mode.map(Into::into)).await?))
}

/// Where to look.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Where {
    /// On the host or where tasks have a sandbox; the current one, if not said.
    #[param(inline)]
    environment: Option<wire::Environment>,
}

/// Whether an agent CLI has a login.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuthBody {
    cli: String,
    /// Whether it can be run there.
    available: bool,
    /// Whether it has a login that works as far as one can tell. What nobody knows is not.
    authenticated: bool,
    /// `ok`, `daemon_unavailable`, `image_missing`, `invalid_image_name`, `cli_missing`, `login_required`, `expired`, `timeout`
    /// or `unknown`.
    #[schema(value_type = String)]
    class: Value,
    /// When it was looked at, RFC 3339.
    checked_at: String,
    #[schema(value_type = wire::Environment)]
    execution_environment: Value,
    #[schema(value_type = wire::Mode)]
    mode: Value,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl From<LoginCheck> for AuthBody {
    fn from(check: LoginCheck) -> Self {
        Self {
            cli: check.cli,
            available: check.available,
            authenticated: check.authenticated,
            class: json!(check.class),
            checked_at: check.checked_at,
            execution_environment: json!(check.execution_environment),
            mode: json!(check.mode),
            message: check.message,
            remedy: check.remedy,
        }
    }
}

/// Whether an agent CLI has a login, on the host or where tasks have a sandbox. No model is asked.
#[utoipa::path(get, path = "/system/{cli}/auth", tag = "system", params(("cli" = String, Path, description = "`claude`, `codex` or `opencode`.", pattern = "^(claude|codex|opencode)$"), Where), responses((status = 200, body = AuthBody, description = "What was found.")))]
pub(super) async fn auth(
    State(app): State<App>,
    Named(cli): Named<String>,
    Asked(place): Asked<Where>,
) -> Result<Json<AuthBody>, Problem> {
    Ok(Json(app.login(&cli, place.environment.map(Into::into)).await?.into()))
}
