//! System: where tasks run, who takes them, who has a login, what works on this machine.

use axum::extract::{Path, State};
use axum::response::Response;
use futures_util::future::join_all;
use maud::{Markup, html};
use ringfence_core::mode::ExecutionEnvironment;
use serde::Deserialize;

use super::overview::word;
use super::view::{Page, act as button, ago, badge, later};
use super::{Form, Nothing, Site, Visitor, Wrong, back};
use crate::app::{App, CLIS};
use crate::desk::{FindingGroup, LoginCheck, Status};
use crate::input::{Asked, Named};
use crate::problem::Problem;

const HERE: &str = "/ui/system";

pub(super) async fn page(State(app): Site, visitor: Visitor) -> Result<Page, Wrong> {
    let status = app.ask(|house| house.status()).await?;
    let body = html! {
        h1 { "System" }
        section.card { (selector(&visitor, &status)) }
        section.card id="processes" data-live { (processes(&visitor, &status)) }
        // Last what comes late, so that nothing moves away from under a finger.
        section.card {
            h2 { "Logins" }
            div.columns { @for cli in CLIS { (later(&visitor, &format!("login-{cli}"), &format!("/ui/system/logins?cli={cli}"), &format!("Look for the login of {cli}"), cli)) } }
            p { small { a href="/ui/system/logins?environment=host" { "All on the host" } " · " a href="/ui/system/logins?environment=sandbox" { "all in the sandbox" } } }
        }
        section.card { h2 { "Modes and agent CLIs" } p { small { "What each mode keeps here, and what it costs: " a href="/ui/compare" { "Compare" } } } (later(&visitor, "doctor", "/ui/system/doctor", "Look at every mode and agent CLI", "doctor")) }
    };
    Ok(Page::new(&visitor, HERE, "System", &body))
}

fn selector(visitor: &Visitor, status: &Status) -> Markup {
    let now = status.execution_environment.map(ExecutionEnvironment::as_str);
    html! {
        h2 { label for="environment" { "Execution_Environment" } }
        form.line method="post" action="/ui/system/environment" {
            (visitor.token())
            select id="environment" name="environment" {
                @for name in ExecutionEnvironment::NAMES { option value=(name) selected[now == Some(name)] { (name) } }
            }
            button.primary type="submit" { "Switch" }
        }
        p { small { "host: tasks run as processes of the host. sandbox: each task runs in a sandbox of its own, in the mode that the settings name, or docker." } }
        dl.facts {
            dt { "In force" } dd { (now.unwrap_or("unknown")) @if let Some(mode) = status.mode { " · mode " (mode) } }
            dt { "Takes effect" } dd { "from the next task" }
        }
    }
}

fn processes(visitor: &Visitor, status: &Status) -> Markup {
    html! {
        h2 { "Processes" }
        div.scroll { table {
            thead { tr { th { "Process" } th { "Status" } th { "Pid" } th { "Since" } th { "" } th { span.hidden { "Actions" } } } }
            tbody { @for row in &status.processes { tr {
                td { a href={ "/ui/system/processes/" (row.name) } { (row.name) } }
                td { (badge(word(row.status))) }
                td { @if let Some(pid) = row.pid { (pid) } }
                td { @if let Some(time) = if row.pid.is_some() { row.started_ms } else { row.finished_ms } { (ago(time)) } }
                td { @if let Some(message) = &row.message { small { (message) } } }
                td.acts {
                    @let to = |what: &str| format!("/ui/system/processes/{}/{what}", row.name);
                    @if row.pid.is_some() { (button(visitor, &to("stop"), "Stop", None)) } @else { (button(visitor, &to("start"), "Start", None)) }
                }
            } } }
        } }
        p { a href="/ui/system/processes/daemon" { "What the daemon says" } }
        div.line {
            form.line method="post" action="/ui/system/start" {
                (visitor.token())
                label { "Start" input name="name" value="worker-1" pattern="(worker|tester|docser|dispatcher)(-[1-9][0-9]*)?" required list="names"; }
                datalist id="names" { @for name in ["worker-1", "worker-2", "tester-1", "docser-1", "dispatcher"] { option value=(name) {} } }
                button type="submit" { "Start" }
            }
            form method="post" action="/ui/system/stop-all" data-confirm="Stop all processes? Their tasks go back into the queue." {
                (visitor.token())
                button type="submit" { "Stop all" }
            }
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Environment {
    environment: String,
}

pub(super) async fn environment(
    State(app): Site,
    visitor: Visitor,
    Form(wish): Form<Environment>,
) -> Response {
    let update = ("EXECUTION_ENVIRONMENT".to_owned(), Some(wish.environment.clone()));
    let settled = app.change_settings(visitor.who, vec![update]).await;
    let said = settled.map(|settled| match settled.warnings.is_empty() {
        true => format!("Execution_Environment is {} from the next task.", wish.environment),
        false => format!("✗ {}", settled.warnings.join(" ")),
    });
    back(&visitor, HERE, said)
}

#[derive(Deserialize)]
pub(super) struct Name {
    name: String,
}

pub(super) async fn start(State(app): Site, visitor: Visitor, Form(wish): Form<Name>) -> Response {
    let said = started(&app, &visitor, wish.name.trim()).await;
    back(&visitor, HERE, said)
}

pub(super) async fn process(
    State(app): Site,
    visitor: Visitor,
    Path((name, what)): Path<(String, String)>,
    Form(Nothing {}): Form<Nothing>,
) -> Result<Response, Wrong> {
    let said = match what.as_str() {
        "start" => started(&app, &visitor, &name).await,
        "stop" => {
            let stopped = app.stop_process(visitor.who, name.clone()).await;
            stopped.map(|_| format!("{name} is stopped."))
        }
        _ => return Err(Problem::not_found("there is no such button").into()),
    };
    Ok(back(&visitor, HERE, said))
}

async fn started(app: &App, visitor: &Visitor, name: &str) -> Result<String, Problem> {
    let answer = app.start_process(visitor.who, name.to_owned()).await?;
    Ok(match answer.skipped {
        Some(why) => format!("{name} {why}."),
        None if answer.already_running => format!("{name} runs already."),
        None => format!("{name} was started."),
    })
}

/// What a process says.
pub(super) async fn log(
    State(app): Site,
    visitor: Visitor,
    Named(name): Named<String>,
) -> Result<Page, Wrong> {
    let asked = name.clone();
    let text = app.ask(move |house| house.process_log(&asked, 500)).await?;
    let body = html! {
        h1 { "What " (name) " says" }
        section.card id="said" data-live { pre.text.tall { (text) } }
        p { a href=(HERE) { "Back" } }
    };
    Ok(Page::new(&visitor, HERE, &name, &body))
}

pub(super) async fn stop_all(
    State(app): Site,
    visitor: Visitor,
    Form(Nothing {}): Form<Nothing>,
) -> Response {
    let said = app.stop_all(visitor.who).await.map(|done| {
        format!(
            "Stopped {} process(es); {} task(s) went back into the queue.",
            done.stopped.len(),
            done.requeued_tasks
        )
    });
    back(&visitor, HERE, said)
}

#[derive(Deserialize)]
pub(super) struct Place {
    #[serde(default)]
    environment: String,
    /// Only that of one.
    cli: Option<String>,
}

pub(super) async fn logins(State(app): Site, visitor: Visitor, Asked(place): Asked<Place>) -> Page {
    let environment = match place.environment.as_str() {
        "host" => Some(ExecutionEnvironment::Host),
        "sandbox" => Some(ExecutionEnvironment::Sandbox),
        _ => None,
    };
    let asked = CLIS.into_iter().filter(|name| place.cli.as_ref().is_none_or(|cli| cli == name));
    let checks = join_all(asked.map(async |name| (name, app.login(name, environment).await))).await;
    let body = html! {
        h1 { "Logins" }
        section.card {
            ul.list { @for (name, check) in checks { li id={ "login-" (name) } {
                @match check {
                    Ok(check) => (login(&check)),
                    Err(problem) => { strong { (name) } " " (badge("unknown")) p { (problem.detail()) } },
                }
            } } }
            p { small { "Looked at " @if let Some(environment) = environment { "in " (environment.as_str()) } @else { "where tasks run now" } ". "
                a href="/ui/system/logins?environment=host" { "on the host" } " · " a href="/ui/system/logins?environment=sandbox" { "in the sandbox" } } }
        }
    };
    Page::new(&visitor, HERE, "Logins", &body)
}

fn login(check: &LoginCheck) -> Markup {
    let word = serde_json::to_value(check.class)
        .ok()
        .and_then(|word| word.as_str().map(str::to_owned))
        .unwrap_or_default();
    html! {
        strong { (check.cli) } " " (badge(if check.authenticated { "ok" } else { "failed" })) " " small { (word.replace('_', " ")) " · mode " (check.mode) }
        p { (check.message) }
        @if let Some(remedy) = &check.remedy { p.remedy { (remedy) } }
    }
}

pub(super) async fn doctor(State(app): Site, visitor: Visitor) -> Result<Page, Wrong> {
    let report = app.doctor().await?;
    let body = html! {
        h1 { "Doctor" }
        section.card { div id="doctor" {
            p { (badge(if report.passed { "ok" } else { "broken" })) " mode " (report.mode) }
            div.columns {
                div { h3 { "Modes" } (findings(&report.modes)) }
                div { h3 { "Agent CLIs" } (findings(&report.agent_clis)) }
            }
        } }
    };
    Ok(Page::new(&visitor, HERE, "Doctor", &body))
}

fn findings(groups: &[FindingGroup]) -> Markup {
    html! { @for group in groups {
        details open[group.required] {
            summary { (group.name) @if group.required { " " small { "in use" } } }
            ul.list { @for finding in &group.findings { li {
                @let state = format!("{:?}", finding.state).to_lowercase();
                (badge(&state)) " " strong { (finding.subject) } " " (finding.detail)
                @if let Some(remedy) = &finding.remedy { p.remedy { (remedy) } }
            } } }
        }
    } }
}
