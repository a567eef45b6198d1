//! `ringfence runs`: what happened.

use std::fmt::Write;
use std::process::ExitCode;

use ringfence_core::event::GitRef;
use ringfence_core::ids::RunId;
use ringfence_core::record::Record;
use ringfence_engine::Observer;
use ringfence_server::desk::{Desk, RunView};
use serde::Serialize;

use crate::desk::told;
use crate::installation::Installation;
use crate::render::Human;
use crate::terminal;

/// Look at past and present runs.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// List runs, the newest first
    List {
        /// How many
        #[arg(short = 'n', long, default_value_t = 20)]
        limit: usize,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one run: what was asked, what was in force, how it ended
    Show {
        /// Its id, the beginning or end of it, or `last`
        id: String,
        /// Also what happened, event by event
        #[arg(long)]
        log: bool,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what a run reached, and what it was denied
    Net {
        /// Its id, the beginning or end of it, or `last`
        id: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn runs(verb: Verb, installation: &Installation) -> anyhow::Result<ExitCode> {
    let desk = &*installation.desk()?;
    match verb {
        Verb::List { limit, json } => list(desk, limit, json)?,
        Verb::Show { id, log, json } => show(desk, desk.run(&id).map_err(told)?, log, json)?,
        Verb::Net { id, json } => net(desk, &desk.run(&id).map_err(told)?.record.run, json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(desk: &dyn Desk, limit: usize, json: bool) -> anyhow::Result<()> {
    let rows = desk.runs(None, limit).map_err(told)?;
    let none_yet = rows.is_empty() && limit > 0;
    if json {
        return terminal::json(&rows);
    }
    if none_yet {
        terminal::line("No runs yet. Try `ringfence demo`.");
        return Ok(());
    }
    let mut table = vec![["RUN", "STATUS", "AGENT", "MODE", "TIME", ""].map(str::to_owned).to_vec()];
    table.extend(rows.into_iter().map(|row| {
        let time = row.duration_ms.map(|ms| format!("{:.1} s", ms as f64 / 1000.0));
        vec![
            row.run.to_string(),
            row.status,
            row.agent.unwrap_or_default(),
            row.mode.unwrap_or_default(),
            time.unwrap_or_default(),
            row.failure.unwrap_or_default(),
        ]
    }));
    terminal::table(&table);
    Ok(())
}

fn net(desk: &dyn Desk, id: &RunId, json: bool) -> anyhow::Result<()> {
    let entries = desk.net(id).map_err(told)?;
    if json {
        return terminal::json(&entries);
    }
    if entries.is_empty() {
        terminal::line("Nothing: the run asked for no host.");
        return Ok(());
    }
    let mut table = vec![
        ["DECISION", "HOST", "REQUEST", "STATUS", "SENT", "RECEIVED", "TIME", "RULE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    table.extend(entries.into_iter().map(|entry| {
        let request = [entry.method.unwrap_or_default(), entry.path.unwrap_or_default()].join(" ");
        let request = match entry.count {
            Some(count) => format!("{count} requests"),
            None if request.trim().is_empty() => entry.way,
            None => request,
        };
        let ended = if entry.begun { ", not ended" } else { "" };
        let decision = format!("{:?}{ended}", entry.decision).to_lowercase();
        vec![
            decision,
            format!("{}:{}", shortened(&entry.host), entry.port),
            request,
            entry.status.map(|status| status.to_string()).unwrap_or_default(),
            entry.sent.to_string(),
            entry.received.to_string(),
            format!("{:.1} s", entry.duration_ms as f64 / 1000.0),
            rule(entry.rule, entry.credential.as_deref(), &entry.removed_headers),
        ]
    }));
    terminal::table(&table);
    Ok(())
}

/// The rule that decided, with the credential that was used and the headers that were removed.
fn rule(mut rule: String, credential: Option<&str>, removed: &[String]) -> String {
    if let Some(credential) = credential {
        let _ = write!(rule, " ({credential})");
    }
    if !removed.is_empty() {
        let _ = write!(rule, ", removed: {}", removed.join(", "));
    }
    rule
}

/// A host as it is shown in a table: `--json` shows all of one that no name can be as long as.
fn shortened(host: &str) -> String {
    const LONGEST: usize = 64;
    match host.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &host[..end]),
        None => host.to_owned(),
    }
}

#[derive(Serialize)]
struct Shown {
    status: String,
    record: Record,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<ringfence_core::event::RunResult>,
}

/// Prints a run as one document whose log is written as it is read: it may be larger than the memory.
fn print_with_log(desk: &dyn Desk, shown: &Shown) -> anyhow::Result<()> {
    let run = serde_json::to_string_pretty(shown)?;
    let open = run.strip_suffix("\n}").unwrap_or(&run);
    terminal::print_json(&format!("{open},\n  \"log\": ["))?;
    let (mut wrong, mut comma) = (None, "");
    desk.log(&shown.record.run, false, &mut |line| {
        let text = serde_json::to_string(&line).map_err(anyhow::Error::from);
        let printed = text.and_then(|text| Ok(terminal::print_json(&format!("    {comma}{text}"))?));
        comma = ",";
        wrong = printed.err();
        wrong.is_none()
    })
    .map_err(told)?;
    wrong.map_or(Ok(()), Err)?;
    Ok(terminal::print_json("  ]\n}")?)
}

fn show(desk: &dyn Desk, view: RunView, log: bool, json: bool) -> anyhow::Result<()> {
    let RunView { status, record, result, .. } = view;
    if json {
        let shown = Shown { status, record, result };
        return if log { print_with_log(desk, &shown) } else { terminal::json(&shown) };
    }
    let mut rows = vec![
        vec!["run".into(), record.run.to_string()],
        vec!["status".into(), status],
        vec!["started".into(), record.started_at.clone()],
        vec!["agent".into(), format!("{} ({})", record.agent, record.cli)],
        vec!["mode".into(), record.mode.to_string()],
        vec!["policy".into(), record.policy.clone()],
        vec!["workspace".into(), record.workspace.host().to_string()],
        vec!["command".into(), record.argv.join(" ")],
        vec!["variables".into(), record.env_names.join(" ")],
    ];
    rows.extend(
        record.versions.iter().map(|(name, version)| vec![format!("{name} version"), version.clone()]),
    );
    rows.extend(record.notices.iter().map(|notice| vec!["notice".into(), notice.clone()]));
    if let Some(result) = &result {
        rows.push(vec!["exit code".into(), result.exit_code.to_string()]);
        rows.extend(result.session.iter().map(|session| vec!["session".into(), session.to_string()]));
        rows.extend(
            result
                .failure
                .iter()
                .map(|failure| vec!["failure".into(), format!("{}: {}", failure.class, failure.message)]),
        );
        rows.extend(result.git_refs.iter().map(|git_ref| vec!["git ref".into(), describe_ref(git_ref)]));
        rows.extend(result.executed_later.iter().map(|file| {
            let names: Vec<&str> =
                file.git_ref.iter().chain(&file.more_git_refs).map(String::as_str).collect();
            let commits = (!names.is_empty()).then(|| format!(", in commits of {}", names.join(", ")));
            let text = format!("{} ({}{})", file.path, file.why, commits.unwrap_or_default());
            vec!["executed later".into(), text]
        }));
    }
    terminal::table(&rows);
    terminal::line("");
    show_promises(&record);
    if log {
        terminal::line("");
        desk.log(&record.run, false, &mut |line| Human.event(&line.event).is_ok()).map_err(told)?;
    }
    Ok(())
}

/// A ref that a run changed, on one line.
fn describe_ref(git_ref: &GitRef) -> String {
    let GitRef { name, from, to, kept_as, from_kept_as, .. } = git_ref;
    let id = |id: &Option<String>| id.as_deref().unwrap_or("nothing").to_owned();
    let kept = kept_as.iter().map(|kept| format!(", kept as {kept}"));
    let before = from_kept_as.iter().map(|kept| format!(", what it named before is kept as {kept}"));
    format!("{name}: {} → {}{}", id(from), id(to), kept.chain(before).collect::<String>())
}

/// What a run was promised to be kept from, and by what.
pub(crate) fn show_promises(record: &Record) {
    terminal::line("Promises in force, and by what");
    for (promise, mechanism) in &record.mechanisms {
        terminal::line(format!("  ✓ {} ({mechanism})", promise.describe()));
    }
    for why in &record.not_enforced {
        terminal::line(format!("  – {why}"));
    }
}
