//! `ringfence agents`: who there is, and what they have to do.

use std::process::ExitCode;

use ringfence_server::desk::Agent;

use super::task::summary;
use crate::desk::told;
use crate::installation::Installation;
use crate::render::{ago, spent};
use crate::terminal;

/// The agents of your settings and of the queue: what each is doing.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn agents(args: &Args, installation: &Installation) -> anyhow::Result<ExitCode> {
    let rows = installation.desk()?.agents().map_err(told)?;
    if args.json {
        terminal::json(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    if rows.is_empty() {
        terminal::line("No agents yet: `ringfence config set agents.NAME.cli claude` names one.");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = vec![["AGENT", "STATUS", "LAST", "TASKS", ""].map(str::to_owned).to_vec()];
    table.extend(rows.iter().map(|Agent { status, name, row }| {
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
