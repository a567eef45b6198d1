//! Agents: who there is, and what each does.

use axum::extract::State;
use maud::html;
use ringfence_core::task::TaskStatus;

use super::view::{Page, ago, badge, money, tokens};
use super::{Site, Visitor, Wrong};
use crate::desk::AgentStatus;
use crate::wire::quoted;

pub(super) async fn page(State(app): Site, visitor: Visitor) -> Result<Page, Wrong> {
    let agents = app.ask(|house| house.agents()).await?;
    let word = |status| match status {
        AgentStatus::Idle => "idle",
        AgentStatus::Busy => "busy",
        AgentStatus::Offline => "offline",
    };
    let body = html! {
        h1 { "Agents" }
        section.card { div.scroll id="agents" data-live {
            @if agents.is_empty() { p.empty { "No agents yet: `ringfence config set agents.NAME.cli claude` names one." } } @else { table {
                thead { tr { th { "Agent" } th { "Status" } th { "Tasks" } th { "Last" } th { "Used" } th.count { "Cost" } } }
                tbody { @for agent in &agents { tr {
                    td { a href={ "/ui/tasks?agent=" (quoted(&agent.row.agent)) } { (agent.row.agent) } @if let Some(name) = &agent.name { " " small { (name) } } }
                    td { (badge(word(agent.status))) }
                    td { @for name in TaskStatus::ALL { @if let Some(count) = agent.row.tasks.get(&name).filter(|count| **count > 0) { span.pair { (count) " " (name.as_str()) } " " } } }
                    td { @if agent.row.changed_ms > 0 { (ago(agent.row.changed_ms)) " ago" } }
                    td { small { (tokens(&agent.row.usage)) } }
                    td.count { (money(&agent.row.usage)) }
                } } }
            } }
        } }
    };
    Ok(Page::new(&visitor, "/ui/agents", "Agents", &body))
}
