//! `ringfence sandbox list` and `rm`: what of ours the engines keep.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use ringfence_backends::keeper::{Keeper, Kept};
use ringfence_core::mode::Mode;
use serde::Serialize;

use crate::installation::Installation;
use crate::render::ago;
use crate::report::{advise, failed};
use crate::terminal;

#[derive(Serialize)]
struct Row {
    mode: Mode,
    #[serde(flatten)]
    kept: Kept,
}

/// An engine that answers, and what it keeps.
struct Engine {
    mode: Mode,
    keeper: Box<dyn Keeper>,
    kept: Vec<Kept>,
}

fn engines(installation: &Installation) -> anyhow::Result<Vec<Engine>> {
    let around = installation.surroundings();
    let reached = ringfence_backends::ALL
        .iter()
        .filter_map(|entry| Some((entry.mode, entry.keeper?(&around).ok()?)))
        .map(|(mode, keeper)| {
            let kept = keeper.list().map_err(failed)?;
            Ok(Engine { mode, keeper, kept })
        });
    reached.collect()
}

pub(crate) fn list(installation: &Installation, json: bool) -> anyhow::Result<ExitCode> {
    let engines = engines(installation)?;
    let rows = engines
        .into_iter()
        .flat_map(|Engine { mode, kept, .. }| kept.into_iter().map(move |kept| Row { mode, kept }));
    let rows: Vec<Row> = rows.collect();
    if json {
        terminal::json(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    if rows.is_empty() {
        terminal::line("No sandbox is left anywhere.");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = vec![["MODE", "NAME", "STATE", "AGE", "SIZE", ""].map(str::to_owned).to_vec()];
    table.extend(rows.iter().map(|Row { mode, kept }| {
        let orphan = if kept.orphan { "orphan" } else { "" };
        vec![
            mode.to_string(),
            kept.name.clone(),
            kept.state.clone(),
            ago(u64::try_from(kept.created).unwrap_or_default() * 1000),
            format!("{} KiB", kept.size / 1024),
            orphan.to_owned(),
        ]
    }));
    terminal::table(&table);
    Ok(ExitCode::SUCCESS)
}

/// Which sandboxes to take away.
#[derive(clap::Args)]
pub(crate) struct Which {
    /// Names, as `sandbox list` shows them, or the runs that they were made for
    #[arg(value_name = "NAME", required_unless_present = "orphans", conflicts_with = "orphans")]
    names: Vec<String>,
    /// All that nobody waits for any more
    #[arg(long)]
    orphans: bool,
}

pub(crate) fn remove(installation: &Installation, which: &Which) -> anyhow::Result<ExitCode> {
    let engines = engines(installation)?;
    let is = |kept: &Kept, name: &String| kept.name == *name || kept.run == *name;
    let all = || engines.iter().flat_map(|engine| &engine.kept);
    if let Some(name) = which.names.iter().find(|name| !all().any(|kept| is(kept, name))) {
        return Err(advise(anyhow!("there is no sandbox `{name}`"), "`ringfence sandbox list` shows them"));
    }
    let mut failures = Vec::new();
    for Engine { keeper, kept, .. } in &engines {
        let chosen = kept.iter().filter(|kept| match which.orphans {
            true => kept.orphan,
            false => which.names.iter().any(|name| is(kept, name)),
        });
        for kept in chosen {
            match keeper.remove(&kept.name) {
                Ok(()) => terminal::line(format!("✓ {} is gone", kept.name)),
                Err(failure) => failures.push(format!("{}: {}", kept.name, failure.message)),
            }
        }
    }
    if !failures.is_empty() {
        bail!("{}", failures.join("\n"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Keeps containers ready, as a process of its own. What kind is told on standard input.
pub(crate) fn keep_warm() -> anyhow::Result<()> {
    let pattern = std::io::read_to_string(std::io::stdin())?;
    let around = Installation::discover(None)?.surroundings();
    ringfence_backends::keep_warm(&pattern, &around).map_err(failed)
}

/// Clears away a container whose run is over, as a process of its own.
pub(crate) fn bury(room: &OsStr) -> anyhow::Result<()> {
    let around = Installation::discover(None)?.surroundings();
    ringfence_backends::bury(Path::new(room), &around).map_err(failed)
}
