//! `ringfence dead-letter`: tasks that ended without being done.

use std::process::ExitCode;

use ringfence_server::desk::Desk;
use ringfence_store::DeadLetter;

use super::task::run_row;
use crate::desk::told;
use crate::installation::Installation;
use crate::render::ago;
use crate::report::print;
use crate::terminal;

/// Tasks that ended without being done.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// List them, the newest first, and webhooks that were given up
    List {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one: why, what was tried, what it asks for
    Show {
        /// The number of its task
        id: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Put them into the queue again
    Retry(Which),
    /// Throw them away; the tasks stay dead
    Discard(Which),
}

/// Which ones.
#[derive(clap::Args)]
pub(crate) struct Which {
    /// The numbers of their tasks
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<String>,
    /// All of them
    #[arg(long)]
    all: bool,
}

pub(crate) fn dead_letter(verb: &Verb, installation: &Installation) -> anyhow::Result<ExitCode> {
    let desk = &*installation.desk()?;
    match verb {
        Verb::List { json } => list(desk, *json)?,
        Verb::Show { id, json } => show(desk, id, *json)?,
        Verb::Retry(which) => return all(desk, which, retry),
        Verb::Discard(which) => return all(desk, which, discard),
    }
    Ok(ExitCode::SUCCESS)
}

fn list(desk: &dyn Desk, as_json: bool) -> anyhow::Result<()> {
    let all = desk.dead_letters(None, usize::MAX).map_err(told)?;
    if as_json {
        return terminal::json(&all);
    }
    let (letters, webhooks) = (&all.tasks, &all.webhooks);
    if letters.is_empty() && webhooks.is_empty() {
        terminal::line("No dead letters.");
        return Ok(());
    }
    let mut table = vec![["TASK", "CLASS", "TRIES", "DIED", ""].map(str::to_owned).to_vec()];
    table.extend(letters.iter().map(|letter| {
        vec![
            letter.task.id.to_string(),
            letter.failure.class.to_string(),
            letter.runs.len().to_string(),
            ago(letter.at_ms),
            letter.failure.message.one_line(),
        ]
    }));
    table.extend(webhooks.iter().map(|webhook| {
        vec![
            webhook.task.to_string(),
            "webhook".to_owned(),
            webhook.attempts.to_string(),
            String::new(),
            format!("{}: {}", webhook.url, webhook.error.as_deref().unwrap_or_default()),
        ]
    }));
    terminal::table(&table);
    Ok(())
}

fn show(desk: &dyn Desk, id: &str, as_json: bool) -> anyhow::Result<()> {
    let letter = desk.dead_letter(&id.parse()?).map_err(told)?;
    if as_json {
        return terminal::json(&letter);
    }
    let DeadLetter { task, at_ms, failure, runs } = letter;
    let mut rows = vec![
        vec!["task".into(), task.id.to_string()],
        vec!["died".into(), ago(at_ms)],
        vec!["failure".into(), format!("{}: {}", failure.class, failure.message)],
    ];
    rows.extend(failure.remedy.map(|remedy| vec!["remedy".into(), remedy.into()]));
    rows.extend([
        vec!["prompt".into(), task.spec.prompt],
        vec!["retried".into(), format!("{} times", task.lifecycle.retries)],
    ]);
    terminal::table(&rows);
    if !runs.is_empty() {
        terminal::line("");
        terminal::table(&runs.iter().map(run_row).collect::<Vec<_>>());
    }
    terminal::about(format!("`ringfence dead-letter retry {0}` tries it again", task.id));
    Ok(())
}

/// Does something to each, also when one cannot be done.
fn all(
    desk: &dyn Desk,
    which: &Which,
    act: fn(&dyn Desk, &str) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let ids = if which.all {
        let letters = desk.dead_letters(None, usize::MAX).map_err(told)?;
        letters.tasks.into_iter().map(|letter| letter.task.id.to_string()).collect()
    } else {
        which.ids.clone()
    };
    let mut failed = 0;
    for id in &ids {
        if let Err(error) = act(desk, id) {
            let failure = crate::report::as_failure(&error);
            print(&failure.message, failure.remedy.as_deref());
            failed += 1;
        }
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn retry(desk: &dyn Desk, id: &str) -> anyhow::Result<()> {
    let letter = desk.dead_letter(&id.parse()?).map_err(told)?;
    desk.retry(&letter.task.id).map_err(told)?;
    terminal::line(format!("task {} is in the queue again", letter.task.id));
    Ok(())
}

fn discard(desk: &dyn Desk, id: &str) -> anyhow::Result<()> {
    desk.discard(&id.parse()?).map_err(told)?;
    terminal::line(format!("the letter of task {id} is gone"));
    Ok(())
}
