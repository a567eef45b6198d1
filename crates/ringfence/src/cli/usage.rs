//! `ringfence usage`: what runs have used, summed.

use std::process::ExitCode;

use ringfence_server::desk::{Used, UsedBy};
use serde_json::{Value, json};

use crate::desk::told;
use crate::installation::Installation;
use crate::terminal;

/// What runs have used, summed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// By what to sum
    #[arg(long, default_value = "day", value_parser = UsedBy::NAMES)]
    by: String,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn usage(args: &Args, installation: &Installation) -> anyhow::Result<ExitCode> {
    let by = UsedBy::parse(&args.by).unwrap_or(UsedBy::Day);
    let sums = installation.desk()?.usage(by).map_err(told)?;
    if args.json {
        let rows: Vec<Value> =
            sums.iter().map(|Used { key, usage }| json!({ args.by.as_str(): key, "usage": usage })).collect();
        terminal::json(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    if sums.is_empty() {
        terminal::line("Nothing was used yet.");
        return Ok(ExitCode::SUCCESS);
    }
    let heading = args.by.to_uppercase();
    let mut table = vec![vec![heading, "INPUT".into(), "OUTPUT".into(), "CACHED".into(), "COST".into()]];
    for Used { key, usage } in sums {
        let cost = usage.cost_usd.map_or_else(|| "not known".into(), |cost| format!("${cost:.4}"));
        let tokens =
            [usage.input_tokens, usage.output_tokens, usage.cached_tokens].map(|count| count.to_string());
        table.push([vec![key], tokens.to_vec(), vec![cost]].concat());
    }
    terminal::table(&table);
    Ok(ExitCode::SUCCESS)
}
