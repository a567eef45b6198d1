//! Tasks: all of them, one of them, and a new one.

use std::path::PathBuf;

use axum::extract::{Path, State};
use axum::response::Response;
use maud::{Markup, html};
use ringfence_core::ids::TaskId;
use ringfence_core::mode::Mode;
use ringfence_core::task::{Role, State as TaskState, TaskSpec, TaskStatus};
use ringfence_store::{Filter, Task, TaskRun};
use serde::Deserialize;

use super::overview::what;
use super::view::{Page, act as button, ago, badge, duration, line, state, tokens};
use super::{Form, Nothing, Site, Visitor, Wrong, back};
use crate::app::CLIS;
use crate::input::{Asked, Named};
use crate::problem::Problem;
use crate::wire::quoted;

/// So many on a page.
const PAGE: usize = 50;

#[derive(Deserialize)]
pub(super) struct Which {
    #[serde(default)]
    status: String,
    #[serde(default)]
    agent: String,
    #[serde(default)]
    role: String,
    #[serde(default)]
    before: String,
}

pub(super) async fn list(
    State(app): Site,
    visitor: Visitor,
    Asked(which): Asked<Which>,
) -> Result<Page, Wrong> {
    let filter = Filter {
        states: TaskStatus::parse(&which.status).into_iter().collect(),
        role: which.role.parse().ok(),
        agent: Some(which.agent.clone()).filter(|agent| !agent.is_empty()),
        before: which.before.parse().ok(),
        limit: PAGE,
    };
    let (tasks, counts, agents) = app
        .ask(move |house| {
            let agents = house.agents().unwrap_or_default();
            Ok((house.tasks(&filter)?, house.counts()?, agents))
        })
        .await?;
    let total: u64 = counts.values().sum();
    let older = (tasks.len() == PAGE).then(|| tasks.last().map(|task| task.id.to_string())).flatten();
    let names: Vec<String> = agents.into_iter().map(|agent| agent.row.agent).collect();
    let body = html! {
        h1 { "Tasks" }
        (form(&visitor, &names))
        section.card {
            form.filter method="get" action="/ui/tasks" role="search" aria-label="Which tasks" {
                label { "State" select name="status" {
                    option value="" { "all (" (total) ")" }
                    @for name in TaskStatus::ALL {
                        option value=(name.as_str()) selected[which.status == name.as_str()] { (name.as_str()) " (" (counts.get(&name).copied().unwrap_or(0)) ")" }
                    }
                } }
                label { "Role" select name="role" {
                    option value="" { "all" }
                    @for role in Role::NAMES { option value=(role) selected[which.role == role] { (role) } }
                } }
                label { "Agent" input name="agent" value=(which.agent) list="agents" placeholder="all"; }
                button type="submit" { "Filter" }
            }
            div.scroll id="tasks" data-live {
                @if tasks.is_empty() { p.empty { "No tasks." } } @else { (table(&visitor, &tasks)) }
            }
            @if let Some(older) = older {
                a.button rel="next" href={ "/ui/tasks?status=" (which.status) "&role=" (which.role) "&agent=" (quoted(&which.agent)) "&before=" (older) } { "Older" }
            }
        }
    };
    Ok(Page::new(&visitor, "/ui/tasks", "Tasks", &body))
}

fn table(visitor: &Visitor, tasks: &[Task]) -> Markup {
    html! {
        table {
            thead { tr { th { "Task" } th { "State" } th { "What" } th { "Agent" } th.count { "Tries" } th { "Since" } th { span.hidden { "Actions" } } } }
            tbody {
                @for task in tasks {
                    tr {
                        td { a href={ "/ui/tasks/" (task.id) } { (task.id) } }
                        td { (state(task.lifecycle.state.name())) }
                        td.what { a href={ "/ui/tasks/" (task.id) } { (line(what(task), 90)) } @if let Some(why) = failure(task) { small { (line(&why, 120)) } } }
                        td { (task.spec.agent.as_deref().unwrap_or(task.spec.role.as_str())) }
                        td.count { (task.lifecycle.attempts) }
                        td { (ago(task.changed_ms)) }
                        td.acts { (actions(visitor, task)) }
                    }
                }
            }
        }
    }
}

fn failure(task: &Task) -> Option<String> {
    let last = task.lifecycle.failures.last().filter(|_| task.lifecycle.state != TaskState::Done)?;
    Some(format!("{}: {}", last.class, last.message))
}

fn actions(visitor: &Visitor, task: &Task) -> Markup {
    let to = |what: &str| format!("/ui/tasks/{}/{what}", task.id);
    html! {
        @match task.lifecycle.state.name() {
            TaskStatus::Queued | TaskStatus::Blocked => (button(visitor, &to("cancel"), "Cancel", None)),
            TaskStatus::Running => (button(visitor, &to("cancel"), "Cancel", Some("End the run of this task?"))),
            TaskStatus::Dead | TaskStatus::Failed | TaskStatus::Cancelled => (button(visitor, &to("retry"), "Retry", None)),
            TaskStatus::Done => {}
        }
    }
}

fn form(visitor: &Visitor, agents: &[String]) -> Markup {
    html! {
        details.card id="add" {
            summary { "Add a task" }
            form.stack method="post" action="/ui/tasks" {
                (visitor.token())
                label { "What to do" textarea name="prompt" rows="4" required {} }
                div.fields {
                    label { "Agent" input name="agent" list="agents" placeholder="the one of the role"; }
                    label { "Directory on the daemon's machine" input name="directory" placeholder="the agent's own, or /path/to/project"; }
                    label { "Mode" select name="mode" {
                        option value="" { "as the settings say" }
                        @for mode in Mode::NAMES { option value=(mode) { (mode) } }
                    } }
                    label { "Role" select name="role" { @for role in Role::NAMES { option value=(role) { (role) } } } }
                    label { "Priority" input name="priority" type="number" value="0" min=(i32::MIN) max=(i32::MAX); }
                    label { "Command, for the agent `command`" input name="command"; }
                }
                button.primary type="submit" { "Add" }
            }
            datalist id="agents" {
                @for name in CLIS.into_iter().chain(["demo", "command"]) { option value=(name) {} }
                @for name in agents.iter().filter(|name| !CLIS.contains(&name.as_str())) { option value=(name) {} }
            }
        }
    }
}

#[derive(Deserialize)]
pub(super) struct New {
    prompt: String,
    agent: String,
    directory: String,
    mode: String,
    role: String,
    priority: String,
    command: String,
}

impl New {
    /// What it asks for. What was left out is up to the settings; what cannot be read is not.
    fn spec(&self) -> Result<TaskSpec, String> {
        let given = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let priority = given(&self.priority)
            .map(|text| text.parse().map_err(|_| format!("`{text}` is no priority: write a whole number")));
        let role = given(&self.role).map(|text| text.parse::<Role>().map_err(|error| error.to_string()));
        let mode = given(&self.mode).map(|text| text.parse::<Mode>().map_err(|error| error.to_string()));
        Ok(TaskSpec {
            agent: given(&self.agent).or_else(|| given(&self.command).map(|_| "command".to_owned())),
            directory: given(&self.directory).map(PathBuf::from),
            mode: mode.transpose()?,
            role: role.transpose()?.unwrap_or_default(),
            priority: priority.transpose()?.unwrap_or_default(),
            command: given(&self.command),
            ..TaskSpec::new(self.prompt.replace("\r\n", "\n"))
        })
    }
}

pub(super) async fn add(State(app): Site, visitor: Visitor, Form(new): Form<New>) -> Response {
    let spec = match new.spec() {
        Ok(spec) => spec,
        Err(why) => return back(&visitor, "/ui/tasks", Err(Problem::invalid(why))),
    };
    match app.add_tasks(visitor.who, vec![spec]).await.map(|added| added.into_iter().next()) {
        Ok(Some(added)) => {
            let said = format!("Task {} was added.", added.task);
            back(&visitor, &format!("/ui/tasks/{}", added.task), Ok(said))
        }
        Ok(None) => back(&visitor, "/ui/tasks", Err(Problem::invalid("nothing was added"))),
        Err(problem) => back(&visitor, "/ui/tasks", Err(problem)),
    }
}

pub(super) async fn act(
    State(app): Site,
    visitor: Visitor,
    Path((id, what)): Path<(String, String)>,
    Form(Nothing {}): Form<Nothing>,
) -> Result<Response, Wrong> {
    let id: TaskId = id.parse().map_err(|_| Problem::not_found("there is no such task"))?;
    let here = format!("/ui/tasks/{id}");
    let changed = match what.as_str() {
        "cancel" => app.cancel_task(visitor.who, id).await,
        "retry" => app.retry_task(visitor.who, id).await,
        "delete" => {
            let gone = app.delete_task(visitor.who, id).await;
            let to = if gone.is_ok() { "/ui/tasks" } else { &here };
            return Ok(back(&visitor, to, gone.map(|id| format!("Task {id} is forgotten."))));
        }
        _ => return Err(Problem::not_found("there is no such button").into()),
    };
    Ok(back(
        &visitor,
        &here,
        changed.map(|task| format!("Task {} is {}.", task.id, task.lifecycle.state.name())),
    ))
}

pub(super) async fn show(
    State(app): Site,
    visitor: Visitor,
    Named(id): Named<TaskId>,
) -> Result<Page, Wrong> {
    let (task, runs) = app.ask(move |house| Ok((house.task(&id)?, house.runs_of_task(&id)?))).await?;
    let body = html! {
        h1 { "Task " (task.id) }
        section.card id="task" data-live {
            p { (state(task.lifecycle.state.name())) " " (when(&task)) span.acts { (actions(&visitor, &task)) @if task.lifecycle.state.name().is_final() { (button(&visitor, &format!("/ui/tasks/{}/delete", task.id), "Delete", Some("Forget this task?"))) } } }
            @if let Some(last) = task.lifecycle.failures.last().filter(|_| task.lifecycle.state != TaskState::Done) {
                div.failure { strong { (last.class) } p { (last.message) } @if let Some(remedy) = &last.remedy { p.remedy { (remedy) } } }
            }
            @if let Some(text) = task.result.as_ref().map(|result| &result.text).filter(|text| !text.is_empty()) {
                h2 { "Reply" } pre.text { (text) }
            }
        }
        section.card {
            h2 { "What it asks for" }
            pre.text { (what(&task)) }
            dl.facts {
                (fact("Agent", task.spec.agent.as_deref()))
                (fact("Role", Some(task.spec.role.as_str())))
                (fact("Directory", task.spec.directory.as_ref().and_then(|path| path.to_str())))
                (fact("Mode", task.spec.mode.map(Mode::as_str)))
                (fact("Policy", task.spec.policy.as_deref()))
                (fact("Model", task.spec.model.as_deref()))
                (fact("Command", task.spec.command.as_deref()))
                (fact("Lane", Some(&task.lane)))
                (fact("Key", task.spec.key.as_deref()))
                dt { "Added" } dd { (ago(task.created_ms)) " ago" }
                @if !task.waits_for.is_empty() {
                    dt { "Waits for" } dd { @for id in &task.waits_for { a href={ "/ui/tasks/" (id) } { (id) } " " } }
                }
            }
        }
        section.card id="runs" data-live {
            h2 { "Attempts" }
            @if runs.is_empty() { p.empty { "It was not tried yet." } } @else { (run_table(&runs)) }
        }
    };
    Ok(Page::new(&visitor, "/ui/tasks", &format!("Task {}", task.id), &body))
}

fn run_table(runs: &[TaskRun]) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th { "Run" } th { "Status" } th { "By" } th { "Began" } th { "Took" } th { "Used" } } }
            tbody { @for attempt in runs {
                tr {
                    td { a href={ "/ui/runs/" (attempt.run) } { (attempt.run) } }
                    td { (badge(ended(attempt))) @if let Some(class) = attempt.class { " " small { (class) } } }
                    td { (attempt.owner) }
                    td { (ago(attempt.started_ms)) " ago" }
                    td { @if let Some(end) = attempt.ended_ms { (duration(end.saturating_sub(attempt.started_ms))) } }
                    td { small { (tokens(&attempt.usage)) } }
                }
            } }
        } }
    }
}

fn ended(attempt: &TaskRun) -> &'static str {
    use ringfence_core::event::RunStatus;
    match (attempt.status, attempt.ended_ms) {
        (Some(RunStatus::Success), _) => "success",
        (Some(RunStatus::Failed), _) => "failed",
        (Some(RunStatus::Cancelled), _) => "cancelled",
        (None, None) => "running",
        (None, Some(_)) => "given up",
    }
}

pub(super) fn fact(name: &str, value: Option<&str>) -> Markup {
    html! { @if let Some(value) = value { dt { (name) } dd { (value) } } }
}

/// When something happens next, or happened last.
fn when(task: &Task) -> Markup {
    let at = |seconds: u64| crate::wire::time(seconds.saturating_mul(1000));
    html! {
        @match &task.lifecycle.state {
            TaskState::Queued { not_before } if *not_before > task.changed_ms / 1000 => { "tried again at " time { (at(*not_before)) } },
            TaskState::Blocked { until } => { "by the provider's limit, until " time { (at(*until)) } },
            TaskState::Running { run, .. } => { "as " a href={ "/ui/runs/" (run) } { (run) } },
            _ => { "since " (ago(task.changed_ms)) },
        }
    }
}
