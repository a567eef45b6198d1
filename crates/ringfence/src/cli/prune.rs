//! `ringfence prune`: takes away what is old.

use std::process::ExitCode;

use ringfence_core::units::MemorySize;

use crate::installation::Installation;
use crate::queue::{BySize, Kept, Swept, sweep};
use crate::terminal;

/// Take away what is old: tasks, runs, sandboxes that nobody waits for, images that were replaced.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only show what would go
    #[arg(long)]
    dry_run: bool,
    /// Keep so many days, instead of `queue.keep_days`
    #[arg(long, value_name = "DAYS")]
    days: Option<u32>,
    /// Keep so much of runs, instead of `queue.keep_size`
    #[arg(long, value_name = "SIZE")]
    size: Option<MemorySize>,
    /// Also layers that nobody has applied or discarded
    #[arg(long)]
    layers: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn prune(args: &Args, installation: &Installation) -> anyhow::Result<ExitCode> {
    let settings = installation.settings()?;
    let mut kept = Kept::of(&settings.queue);
    kept.days = args.days.unwrap_or(kept.days);
    if let Some(size) = args.size {
        (kept.bytes, kept.by_size) = (size.bytes(), BySize::Runs);
    }
    kept.layers = !args.layers;
    let swept = sweep(installation, &*installation.store()?, &kept, args.dry_run)?;
    if args.json {
        terminal::json(&swept)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Swept { tasks, runs, trimmed, bytes, sandboxes, images } = &swept;
    let verb = if args.dry_run { "would go" } else { "went" };
    terminal::line(format!(
        "{tasks} tasks, {} runs and the logs of {} others ({} KiB), {} sandboxes and {} images {verb}",
        runs.len(),
        trimmed.len(),
        bytes / 1024,
        sandboxes.len(),
        images.len()
    ));
    let names = runs.iter().chain(trimmed).map(ToString::to_string);
    for name in names.chain(sandboxes.iter().cloned()).chain(images.iter().cloned()) {
        terminal::line(format!("  {name}"));
    }
    Ok(ExitCode::SUCCESS)
}
