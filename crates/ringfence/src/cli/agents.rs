//! `ringfence agents`: who there is, and what they have to do.

use std::process::ExitCode;

use ringfence_core::task::StateName;
use ringfence_store::{AgentRow, Tasks};
use serde::Serialize;

use super::serve::is_running;
use super::task::summary;
use crate::installation::Installation;
use crate::queue::Office;
use crate::render::{ago, spent};
use crate::report::unstored;
use crate::terminal;

/// The agents of your settings and of the queue: what each is doing.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// How an agent is.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Idle,
    Busy,
    /// Nobody would start it.
    Offline,
}

#[derive(Serialize)]
struct Row {
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(flatten)]
    row: AgentRow,
}

pub(crate) fn agents(args: &Args, installation: &Installation) -> anyhow::Result<ExitCode> {
    let rows = rows(installation)?;
    if args.json {
        terminal::json(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    if rows.is_empty() {
        terminal::line("No agents yet: `ringfence config set agents.NAME.cli claude` names one.");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = vec![["AGENT", "STATUS", "LAST", "TASKS", ""].map(str::to_owned).to_vec()];
    table.extend(rows.iter().map(|Row { status, name, row }| {
        let last = if row.changed_ms > 0 { ago(row.changed_ms) } else { String::new() };
        let used = spent(&row.usage).trim_start_matches(" · ").to_owned();
        let called = match name {
            Some(name) => format!("{} ({name})", row.agent),
            None => row.agent.clone(),
        };
        vec![called, format!("{status:?}").to_lowercase(), last, summary(&row.tasks), used]
    }));
    terminal::table(&table);
    Ok(ExitCode::SUCCESS)
}

/// Those of the settings, whether or not they have had a task, and all others that had one.
fn rows(installation: &Installation) -> anyhow::Result<Vec<Row>> {
    let settings = Office { installation, logs_to_files: false }.resolved()?;
    let mut known = installation.store()?.agents().map_err(unstored)?;
    for id in settings.agents.keys().map(|id| id.as_str()) {
        if !known.iter().any(|row| row.agent == id) {
            known.push(AgentRow { agent: id.to_owned(), ..AgentRow::default() });
        }
    }
    known.sort_by(|a, b| a.agent.cmp(&b.agent));
    let online = is_running(installation);
    let rows = known.into_iter().map(|row| {
        let running = row.tasks.get(&StateName::Running).is_some_and(|count| *count > 0);
        let status = match (running, online) {
            (true, _) => Status::Busy,
            (false, true) => Status::Idle,
            (false, false) => Status::Offline,
        };
        let agent = row.agent.parse().ok().and_then(|id| settings.agents.get(&id));
        Row { status, name: agent.and_then(|agent| agent.name.clone()), row }
    });
    Ok(rows.collect())
}
