//! Dead letters: what ended without being done, and why.

use axum::extract::{Path, State};
use axum::response::Response;
use maud::html;
use ringfence_core::ids::TaskId;

use super::overview::what;
use super::view::{Page, act as button, ago, line};
use super::{Form, Nothing, Site, Visitor, Wrong, back};
use crate::problem::Problem;

/// So many are shown.
const MOST: usize = 200;

pub(super) async fn page(State(app): Site, visitor: Visitor) -> Result<Page, Wrong> {
    let letters = app.ask(|house| house.dead_letters(None, MOST)).await?;
    let body = html! {
        h1 { "Dead letters" }
        section.card id="letters" data-live {
            @if letters.tasks.is_empty() { p.empty { "None: every task that ended was done or cancelled." } }
            @for letter in &letters.tasks {
                article.letter {
                    header {
                        a href={ "/ui/tasks/" (letter.task.id) } { "Task " (letter.task.id) } " "
                        small { (line(what(&letter.task), 90)) " · " (letter.runs.len()) " tries · died " (ago(letter.at_ms)) " ago" }
                        span.acts {
                            (button(&visitor, &format!("/ui/dead-letters/{}/retry", letter.task.id), "Retry", None))
                            (button(&visitor, &format!("/ui/dead-letters/{}/discard", letter.task.id), "Discard", Some("Throw this letter away?")))
                        }
                    }
                    div.failure { strong { (letter.failure.class) } p { (letter.failure.message) } @if let Some(remedy) = &letter.failure.remedy { p.remedy { (remedy) } } }
                }
            }
            @if letters.tasks.len() == MOST { p.empty { "Older ones: `ringfence dead-letter list`" } }
        }
        @if !letters.webhooks.is_empty() {
            section.card {
                h2 { "Webhooks that were given up" }
                ul.list { @for webhook in letters.webhooks.iter().take(MOST) { li {
                    "task " a href={ "/ui/tasks/" (webhook.task) } { (webhook.task) } " " small { (webhook.attempts) " tries: " (webhook.error.as_deref().unwrap_or_default()) }
                } } }
            }
        }
    };
    Ok(Page::new(&visitor, "/ui/dead-letters", "Dead letters", &body))
}

pub(super) async fn act(
    State(app): Site,
    visitor: Visitor,
    Path((id, what)): Path<(String, String)>,
    Form(Nothing {}): Form<Nothing>,
) -> Result<Response, Wrong> {
    let id: TaskId = id.parse().map_err(|_| Problem::not_found("there is no such letter"))?;
    let said = match what.as_str() {
        "retry" => {
            let task = app.retry_letter(visitor.who, id).await;
            task.map(|task| format!("Task {} is in the queue again.", task.id))
        }
        "discard" => {
            let gone = app.discard_letter(visitor.who, id).await;
            gone.map(|id| format!("The letter of task {id} is gone."))
        }
        _ => return Err(Problem::not_found("there is no such button").into()),
    };
    Ok(back(&visitor, "/ui/dead-letters", said))
}
