//! `ringfence events`: what happened to tasks, processes and settings.

use std::process::ExitCode;
use std::time::Duration;

use ringfence_store::StoredEvent;

use crate::desk::told;
use crate::installation::Installation;
use crate::render::clock;
use crate::terminal;

/// What happened to tasks, processes and settings.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Go on as things happen
    #[arg(short, long)]
    follow: bool,
    /// Only those after this one
    #[arg(long, value_name = "ID")]
    since: Option<u64>,
    /// How many of the last ones, without --since
    #[arg(short = 'n', long, default_value_t = 50)]
    limit: u64,
    /// Print one event a line as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn events(args: &Args, installation: &Installation) -> anyhow::Result<ExitCode> {
    let desk = installation.desk()?;
    let last = desk.last_event().map_err(told)?;
    let mut seen = args.since.unwrap_or(last.saturating_sub(args.limit));
    let wait = if args.follow { LOOK_AGAIN } else { Duration::ZERO };
    loop {
        let page = desk.events(seen, 1000, wait).map_err(told)?;
        page.iter().try_for_each(|entry| tell(entry, args.json))?;
        seen = page.last().map_or(seen, |newest| newest.id);
        if terminal::unprinted().is_some() || (!args.follow && page.is_empty()) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Nobody waits longer for an event before looking again.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

fn tell(entry: &StoredEvent, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        terminal::json_line(entry)?;
        return Ok(());
    }
    let happened = &entry.event;
    let task = happened.task.as_ref().map(|task| format!(" task {task}")).unwrap_or_default();
    let data = if happened.data.is_null() { String::new() } else { format!(" {}", happened.data) };
    terminal::line(format!("{} {}{task}{data}", clock(entry.at_ms), happened.kind));
    Ok(())
}
