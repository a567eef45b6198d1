//! `ringfence events`: what happened to tasks, processes and settings.

use std::process::ExitCode;

use ringfence_store::{Entry, Events};

use crate::installation::Installation;
use crate::render::clock;
use crate::report::unstored;
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
    let store = installation.store()?;
    let bell = store.bell().listen()?;
    let last = store.last_event().map_err(unstored)?;
    let mut seen = args.since.unwrap_or(last.saturating_sub(args.limit));
    loop {
        loop {
            let page = store.events_after(seen, 1000).map_err(unstored)?;
            let Some(newest) = page.last() else { break };
            seen = newest.id;
            page.iter().try_for_each(|entry| tell(entry, args.json))?;
        }
        if !args.follow || terminal::unprinted().is_some() {
            return Ok(ExitCode::SUCCESS);
        }
        bell.wait(None)?;
    }
}

fn tell(entry: &Entry, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        terminal::line(serde_json::to_string(entry)?);
        return Ok(());
    }
    let happened = &entry.happened;
    let task = happened.task.as_ref().map(|task| format!(" task {task}")).unwrap_or_default();
    let data = if happened.data.is_null() { String::new() } else { format!(" {}", happened.data) };
    terminal::line(format!("{} {}{task}{data}", clock(entry.at_ms), happened.kind));
    Ok(())
}
