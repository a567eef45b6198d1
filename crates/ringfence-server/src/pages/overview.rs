//! Overview: what runs now, what waits, how it went.

use axum::extract::State;
use maud::html;
use ringfence_core::task::{State as TaskState, TaskStatus};
use ringfence_store::Filter;

use super::view::{Page, ago, badge, line, money, number, state, tokens};
use super::{Site, Visitor, Wrong, chart};

const HOUR: u64 = 3_600_000;

pub(super) async fn page(State(app): Site, visitor: Visitor) -> Result<Page, Wrong> {
    let (status, running, next, hours, today) = app
        .ask(|house| {
            let of = |states: &[TaskStatus], limit| {
                house.tasks(&Filter { states: states.to_vec(), limit, ..Filter::default() })
            };
            Ok((
                house.status()?,
                of(&[TaskStatus::Running], 50)?,
                of(&[TaskStatus::Queued, TaskStatus::Blocked], 8)?,
                house.spans(HOUR, 24)?,
                house.spans(24 * HOUR, 1)?,
            ))
        })
        .await?;
    let today = today.first().copied().unwrap_or_default();
    let count = |name| status.tasks.get(&name).copied().unwrap_or(0);
    let body = html! {
        h1 { "Overview" }
        @if let Some(error) = &status.settings_error {
            p.said.bad role="alert" { "The settings cannot be read, so no task is taken: " (error) }
        }
        div.tiles id="tiles" data-live {
            @for name in TaskStatus::ALL {
                a.tile href={ "/ui/tasks?status=" (name.as_str()) } {
                    strong { (number(count(name))) } (state(name))
                }
            }
            div.tile { strong { (money(&today.usage)) } span { "today" } small { (tokens(&today.usage)) } }
            a.tile href="/ui/system" {
                strong { (status.execution_environment.map_or("?", |environment| environment.as_str())) }
                span { "mode " (status.mode.map(|mode| mode.to_string()).unwrap_or_default()) }
            }
        }
        div.columns {
            section.card id="running" data-live aria-label="Running now" {
                h2 { "Running now" }
                @if running.is_empty() { p.empty { "Nothing runs. " a href="/ui/tasks#add" { "Add a task" } } }
                ul.list {
                    @for task in &running {
                        li {
                            @if let TaskState::Running { run, .. } = &task.lifecycle.state {
                                a href={ "/ui/runs/" (run) } { (line(what(task), 80)) }
                            }
                            small { "task " a href={ "/ui/tasks/" (task.id) } { (task.id) } " · " (task.spec.agent.as_deref().unwrap_or(task.spec.role.as_str())) " · since " (ago(task.changed_ms)) }
                        }
                    }
                }
            }
            section.card id="next" data-live aria-label="Next" {
                h2 { "Waiting" }
                @if next.is_empty() { p.empty { "Nothing waits." } }
                ul.list {
                    @for task in &next {
                        li {
                            a href={ "/ui/tasks/" (task.id) } { (line(what(task), 80)) }
                            small { (state(task.lifecycle.state.name())) " added " (ago(task.created_ms)) " ago" }
                        }
                    }
                }
            }
        }
        section.card id="chart" data-live aria-label="The last 24 hours" {
            h2 { "The last 24 hours" }
            (chart::runs(&hours, |ms| format!("{:02}:00", ms / HOUR % 24)))
        }
        section.card id="processes" data-live aria-label="Processes" {
            h2 { "Processes" }
            ul.row {
                @for process in &status.processes {
                    li { (process.name) " " (badge(word(process.status))) }
                }
            }
        }
    };
    Ok(Page::new(&visitor, "/ui", "Overview", &body))
}

/// What a task is about.
pub(super) fn what(task: &ringfence_store::Task) -> &str {
    match (&task.spec.command, task.spec.prompt.is_empty()) {
        (Some(command), true) => command,
        _ => &task.spec.prompt,
    }
}

/// How a process is, in a word.
pub(super) fn word(status: ringfence_store::ProcessStatus) -> &'static str {
    use ringfence_store::ProcessStatus as S;
    match status {
        S::Idle => "idle",
        S::Running => "running",
        S::Completed => "completed",
        S::Failed => "failed",
        S::Stopped => "stopped",
    }
}
