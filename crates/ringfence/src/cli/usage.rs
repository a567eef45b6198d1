//! `ringfence usage`: what runs have used, summed.

use std::collections::BTreeMap;
use std::process::ExitCode;

use ringfence_core::event::Usage;
use ringfence_store::Tasks;
use ringfence_store::runs::Progress;
use serde_json::{Value, json};

use crate::installation::Installation;
use crate::report::unstored;
use crate::terminal;

/// What runs have used, summed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// By what to sum
    #[arg(long, default_value = "day", value_parser = ["day", "agent", "model", "task", "run"])]
    by: String,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn usage(args: &Args, installation: &Installation) -> anyhow::Result<ExitCode> {
    let mut sums: BTreeMap<String, Usage> = BTreeMap::new();
    let runs = installation.runs();
    // Only who asks for tasks needs the queue.
    let tasks = match args.by.as_str() {
        "task" => installation.store()?.tasks_of_runs().map_err(unstored)?,
        _ => BTreeMap::new(),
    };
    for id in runs.list()? {
        // A run that is damaged or goes on has no sum yet.
        let (Ok(record), Ok(Progress::Ended(result))) = (runs.record(&id), runs.progress(&id)) else {
            continue;
        };
        // What was seen on the wire is worth more than what a CLI tells.
        let told = BTreeMap::from([(record.cli.clone(), result.usage)]);
        let used = if result.metered.is_empty() { told } else { result.metered.clone() };
        for (model, usage) in used.into_iter().filter(|(_, usage)| *usage != Usage::default()) {
            let key = match args.by.as_str() {
                "agent" => record.agent.clone(),
                "model" => model,
                "run" => id.to_string(),
                "task" => tasks.get(&id).map_or_else(|| "none".to_owned(), ToString::to_string),
                _ => record.started_at.chars().take(10).collect(),
            };
            let sum = sums.entry(key).or_default();
            *sum = sum.plus(usage);
        }
    }
    if args.json {
        let rows: Vec<Value> =
            sums.iter().map(|(key, usage)| json!({ args.by.as_str(): key, "usage": usage })).collect();
        terminal::json(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    if sums.is_empty() {
        terminal::line("Nothing was used yet.");
        return Ok(ExitCode::SUCCESS);
    }
    let heading = args.by.to_uppercase();
    let mut table = vec![vec![heading, "INPUT".into(), "OUTPUT".into(), "CACHED".into(), "COST".into()]];
    for (key, usage) in sums {
        let cost = usage.cost_usd.map_or_else(|| "not known".into(), |cost| format!("${cost:.4}"));
        let tokens =
            [usage.input_tokens, usage.output_tokens, usage.cached_tokens].map(|count| count.to_string());
        table.push([vec![key], tokens.to_vec(), vec![cost]].concat());
    }
    terminal::table(&table);
    Ok(ExitCode::SUCCESS)
}
