//! `ringfence task`: work that is done in its turn, with or without somebody looking on.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser, ValueParser};
use ringfence_core::config::{PolicyChoice, WorkspaceKind};
use ringfence_core::ids::{RunId, TaskId};
use ringfence_core::mode::Mode;
use ringfence_core::policy::HostRule;
use ringfence_core::task::{Role, State, TaskSpec, TaskStatus};
use ringfence_core::units::{Cpus, MemorySize, Seconds};
use ringfence_engine::Observer;
use ringfence_server::desk::Desk;
use ringfence_store::{Added, Counts, Filter, Task, TaskRun};
use serde_json::{Value, json};

use super::options::{mode_parser, url, workspace_parser};
use super::task_input::{Division, json_tasks, prompts, resembles_json};
use crate::desk::told;
use crate::installation::Installation;
use crate::render::{Human, ago};
use crate::report::advise;
use crate::terminal;
use crate::workspace::refuse_way_to;

/// Work that is done in its turn.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Put a task into the queue
    Add(Box<AddArgs>),
    /// List tasks, the newest first
    List(ListArgs),
    /// Show one task: what it asks for, how far it has come, what was tried
    Show {
        /// Its number, or `last`
        id: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a task out of the queue, and end its run
    Cancel {
        /// Their numbers, or `last`
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Put a task that failed or was cancelled into the queue again
    Retry {
        /// Their numbers, or `last`
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Forget a task that has ended
    Delete {
        /// Their numbers, or `last`
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Show what a task's last run does
    Logs {
        /// Its number, or `last`
        id: String,
        /// Go on until it is over
        #[arg(short, long)]
        follow: bool,
        /// Print one event a line as JSON
        #[arg(long)]
        json: bool,
    },
    /// Wait until tasks have ended; fails if one of them is not done
    Wait {
        /// Their numbers, or `last`
        #[arg(required = true)]
        ids: Vec<String>,
        /// Wait no longer than this: 90s, 10m, 2h
        #[arg(long, value_name = "TIME")]
        timeout: Option<Seconds>,
        /// Print the tasks as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Put a task into the queue.
#[derive(clap::Args)]
pub(crate) struct AddArgs {
    /// What to do; `-` reads it from standard input
    prompt: Option<String>,
    /// Every line of standard input is a task: a prompt, or with --json-tasks a JSON object
    #[arg(long, conflicts_with = "prompt")]
    lines: bool,
    /// Standard input is JSON, not text: with `-` a task or a list of tasks, with --lines a task a line. A field has effect as it stands
    /// there (`mode`, `command`, `policy`, …), so never pass on what a run has printed. Options are defaults for fields that are missing
    #[arg(long)]
    json_tasks: bool,
    /// An agent of your settings, or an agent CLI; else the one of the role
    #[arg(short, long, value_name = "AGENT")]
    agent: Option<String>,
    /// Who does it; a worker by default
    #[arg(long, value_parser = role_parser())]
    role: Option<Role>,
    /// The larger, the sooner; 0 by default
    #[arg(short, long, allow_negative_numbers = true)]
    priority: Option<i32>,
    /// Only when this task is done (repeatable)
    #[arg(long, value_name = "ID")]
    after: Vec<TaskId>,
    /// A second task with the same key is the first one
    #[arg(long)]
    key: Option<String>,
    /// Tasks of one lane are done one after another; else those of one agent are, or of one directory
    #[arg(long)]
    lane: Option<String>,
    /// Not before this time has passed: 90s, 10m, 2h
    #[arg(long, value_name = "TIME")]
    delay: Option<Seconds>,
    /// Who is told of its end
    #[arg(long, value_name = "URL", value_parser = url)]
    webhook: Option<String>,
    /// How often it is tried, instead of `sandbox.max_attempts`
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    max_attempts: Option<u32>,
    /// Which model, instead of the agent's
    #[arg(short, long)]
    model: Option<String>,
    /// Another address of the model's server
    #[arg(long, value_name = "URL", value_parser = url)]
    base_url: Option<String>,
    /// What to run, in the shell's words, as the agent CLI `command`
    #[arg(long, value_name = "WORDS")]
    command: Option<String>,
    /// Where to run
    #[arg(long, value_parser = mode_parser(), help_heading = "Isolation")]
    mode: Option<Mode>,
    /// What it may do: a preset (open, standard, locked) or a policy file
    #[arg(long, value_name = "PRESET|FILE", help_heading = "Isolation")]
    policy: Option<String>,
    /// Allow a host (repeatable)
    #[arg(long, value_name = "HOST", help_heading = "Isolation")]
    allow: Vec<HostRule>,
    /// Let it reach a port of this machine's own loopback (repeatable)
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Isolation")]
    allow_local: Vec<u16>,
    /// Pass a variable of the daemon's by its name (repeatable)
    #[arg(short, long, value_name = "KEY", help_heading = "Isolation")]
    env: Vec<String>,
    /// What the workspace is made of
    #[arg(long, value_name = "KIND", value_parser = workspace_parser(), help_heading = "Isolation")]
    workspace: Option<WorkspaceKind>,
    /// Where to work, instead of the agent's or the current directory
    #[arg(short = 'C', long, value_name = "DIR", help_heading = "Isolation")]
    cwd: Option<PathBuf>,
    /// End an attempt after this time: 90s, 10m, 2h
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    timeout: Option<Seconds>,
    /// Memory: 512m, 2g
    #[arg(long, value_name = "SIZE", value_parser = MemorySize::parse_limit, help_heading = "Limits")]
    memory: Option<MemorySize>,
    /// Processors: 0.5, 2
    #[arg(long, value_name = "COUNT", help_heading = "Limits")]
    cpus: Option<Cpus>,
    /// Processes
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    pids: Option<u32>,
    /// Wait until it has ended
    #[arg(short, long)]
    wait: bool,
    /// Print what was added as JSON
    #[arg(long)]
    json: bool,
}

/// Which tasks.
#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Only those in this state (repeatable)
    #[arg(long, value_name = "STATE", value_parser = state_parser())]
    state: Vec<TaskStatus>,
    /// Only those of this role
    #[arg(long, value_parser = role_parser())]
    role: Option<Role>,
    /// Only those of this agent
    #[arg(long)]
    agent: Option<String>,
    /// Only those that were added before this one
    #[arg(long, value_name = "ID")]
    before: Option<TaskId>,
    /// How many
    #[arg(short = 'n', long, default_value_t = 20)]
    limit: usize,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

fn role_parser() -> ValueParser {
    PossibleValuesParser::new(Role::NAMES).try_map(|name| name.parse::<Role>()).into()
}

fn state_parser() -> ValueParser {
    PossibleValuesParser::new(TaskStatus::NAMES)
        .try_map(|name| TaskStatus::parse(&name).ok_or("there is no such state"))
        .into()
}

pub(crate) fn task(verb: Verb, installation: &Installation) -> anyhow::Result<ExitCode> {
    let desk = &*installation.desk()?;
    match verb {
        Verb::Add(args) => return add(*args, installation, desk),
        Verb::List(args) => list(args, desk)?,
        Verb::Show { id, json } => show(desk, &id, json)?,
        Verb::Cancel { ids } => each(&ids, |id| {
            let task = desk.cancel(&find(desk, id)?.id).map_err(told)?;
            terminal::line(format!("task {} is cancelled", task.id));
            Ok(())
        })?,
        Verb::Retry { ids } => each(&ids, |id| {
            let task = desk.retry(&find(desk, id)?.id).map_err(told)?;
            terminal::line(format!("task {} is in the queue again", task.id));
            Ok(())
        })?,
        Verb::Delete { ids } => each(&ids, |id| {
            let task = find(desk, id)?.id;
            desk.forget(&task).map_err(told)?;
            terminal::line(format!("task {task} is forgotten"));
            Ok(())
        })?,
        Verb::Logs { id, follow, json } => logs(desk, &id, follow, json)?,
        Verb::Wait { ids, timeout, json } => return wait(installation, desk, &ids, timeout, json),
    }
    Ok(ExitCode::SUCCESS)
}

/// All of them, also when one cannot be done.
fn each(ids: &[String], act: impl Fn(&str) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut first = None;
    for id in ids {
        if let Err(error) = act(id) {
            match first {
                None => first = Some(error),
                Some(_) => crate::report::print(&format!("{error:#}"), None),
            }
        }
    }
    first.map_or(Ok(()), Err)
}

/// The task that a person means.
fn find(desk: &dyn Desk, text: &str) -> anyhow::Result<Task> {
    if text == "last" {
        let newest = desk.tasks(&Filter { limit: 1, ..Filter::default() }).map_err(told)?;
        return newest.into_iter().next().context("there is no task yet; `ringfence task add` makes one");
    }
    let id: TaskId = text.parse()?;
    desk.task(&id).map_err(told)
}

fn add(args: AddArgs, installation: &Installation, desk: &dyn Desk) -> anyhow::Result<ExitCode> {
    let (wait_for_it, as_json) = (args.wait, args.json);
    let added = desk.add(specs(args, installation)?).map_err(told)?;
    if wait_for_it {
        let ids: Vec<String> = added.iter().map(|added| added.task.to_string()).collect();
        return wait(installation, desk, &ids, None, as_json);
    }
    if as_json {
        terminal::json(&added)?;
        return Ok(ExitCode::SUCCESS);
    }
    for Added { task, existed } in &added {
        terminal::line(format!("task {task}{}", if *existed { " (it was there already)" } else { "" }));
    }
    if !installation.has_daemon() {
        terminal::about(NO_DAEMON);
    }
    Ok(ExitCode::SUCCESS)
}

const NO_DAEMON: &str = "The daemon does not run, so nothing happens yet: `ringfence start` starts it.";

/// What is asked for: by the command line alone, or on standard input.
fn specs(args: AddArgs, installation: &Installation) -> anyhow::Result<Vec<TaskSpec>> {
    let division = match args.prompt.as_deref() {
        Some("-") => Some(Division::Whole),
        None if args.lines => Some(Division::Lines),
        _ => None,
    };
    match (division, args.json_tasks) {
        (None, true) => {
            bail!("`--json-tasks` reads standard input: pass `-` too, or `--lines` for a task a line")
        }
        (None, false) => Ok(vec![base(args, installation)?]),
        (Some(division), true) => {
            let text = standard_input()?;
            json_tasks(&text, division, &options_of(args, installation)?)
        }
        (Some(division), false) => {
            let specs = prompts(&standard_input()?, division, &base(args, installation)?)?;
            if specs.iter().any(|spec| resembles_json(&spec.prompt)) {
                terminal::about(JSON_AS_PROMPT);
            }
            Ok(specs)
        }
    }
}

const JSON_AS_PROMPT: &str =
    "! Standard input looks like JSON and is taken as text, as prompts: `--json-tasks` reads tasks from it.";

fn standard_input() -> anyhow::Result<String> {
    const MAX_BYTES: u64 = 64 << 20;
    let mut text = String::new();
    std::io::stdin().take(MAX_BYTES).read_to_string(&mut text).context("standard input cannot be read")?;
    Ok(text)
}

/// The options of the command line as fields of a task, without those that were not given.
fn options_of(args: AddArgs, installation: &Installation) -> anyhow::Result<serde_json::Map<String, Value>> {
    let missing = [
        ("prompt", true),
        ("agent", args.agent.is_none()),
        ("role", args.role.is_none()),
        ("priority", args.priority.is_none()),
    ];
    let Value::Object(mut fields) = serde_json::to_value(base(args, installation)?)? else {
        bail!("a task is no object");
    };
    missing.iter().filter(|(_, is_missing)| *is_missing).for_each(|(name, _)| drop(fields.remove(*name)));
    Ok(fields)
}

fn base(args: AddArgs, installation: &Installation) -> anyhow::Result<TaskSpec> {
    let not_before =
        args.delay.map(|delay| installation.clock().now().seconds() + delay.duration().as_secs());
    if let Some(variable) = args.env.iter().find(|variable| variable.contains('=')) {
        let name = variable.split('=').next().unwrap_or_default();
        return Err(advise(
            anyhow!("`{name}` comes with a value, and values are not kept in the queue"),
            format!("set {name} where the daemon is started, and name it: `--env {name}`"),
        ));
    }
    Ok(TaskSpec {
        prompt: args.prompt.unwrap_or_default(),
        // A command needs no agent to be named.
        agent: args.agent.or_else(|| args.command.as_ref().map(|_| "command".to_owned())),
        role: args.role.unwrap_or_default(),
        priority: args.priority.unwrap_or_default(),
        lane: args.lane,
        after: args.after,
        key: args.key,
        not_before,
        directory: match args.cwd {
            // What is relative here is elsewhere there.
            Some(path) if installation.is_remote() && !path.is_absolute() => {
                bail!("`{}` is no absolute path, and the daemon is elsewhere", path.display())
            }
            path => {
                refuse_way_to(path.as_deref(), installation)?;
                path.map(|path| installation.expand(&path))
            }
        },
        workspace: args.workspace,
        mode: args.mode,
        policy: args.policy.map(|policy| named_policy(policy, installation)).transpose()?,
        allow: args.allow,
        allow_local: args.allow_local,
        env: args.env,
        model: args.model,
        base_url: args.base_url,
        command: args.command,
        timeout: args.timeout,
        memory: args.memory,
        cpus: args.cpus,
        pids: args.pids,
        max_attempts: args.max_attempts,
        webhook: args.webhook,
    })
}

/// A policy as the daemon finds it, which stands elsewhere.
fn named_policy(policy: String, installation: &Installation) -> anyhow::Result<String> {
    match PolicyChoice::try_from(policy.clone()) {
        Ok(PolicyChoice::File(file)) if installation.is_remote() && !file.is_absolute() => {
            bail!("`{}` is no absolute path, and the daemon is elsewhere", file.display())
        }
        Ok(PolicyChoice::File(file)) => Ok(installation.settled(&file).display().to_string()),
        // One that does not exist is refused with the task.
        _ => Ok(policy),
    }
}

fn list(args: ListArgs, desk: &dyn Desk) -> anyhow::Result<()> {
    let ListArgs { state, role, agent, before, limit, json } = args;
    let filter = Filter { states: state, role, agent, before, limit };
    let tasks = desk.tasks(&filter).map_err(told)?;
    if json {
        return terminal::json(&tasks);
    }
    if tasks.is_empty() && filter.limit > 0 {
        terminal::line("No tasks. `ringfence task add` makes one.");
        return Ok(());
    }
    let mut table = vec![["TASK", "STATE", "AGENT", "TRIES", "SINCE", ""].map(str::to_owned).to_vec()];
    table.extend(tasks.iter().map(|task| {
        vec![
            task.id.to_string(),
            task.lifecycle.state.name().to_string(),
            task.spec.agent.clone().unwrap_or_else(|| task.spec.role.to_string()),
            task.lifecycle.attempts.to_string(),
            ago(task.changed_ms),
            one_line(task),
        ]
    }));
    terminal::table(&table);
    terminal::about(summary(&desk.counts().map_err(told)?));
    Ok(())
}

/// How many there are of each state that has any.
pub(crate) fn summary(counts: &Counts) -> String {
    let some: Vec<String> = counts
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    if some.is_empty() { "no tasks".into() } else { some.join(" · ") }
}

fn one_line(task: &Task) -> String {
    let text = match (&task.lifecycle.state, task.lifecycle.failures.last()) {
        (State::Done, _) | (_, None) => {
            let what = if task.spec.prompt.is_empty() { task.spec.command.as_deref() } else { None };
            what.unwrap_or(&task.spec.prompt).to_owned()
        }
        (_, Some(failure)) => format!("{}: {}", failure.class, failure.message),
    };
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() > 60 { line.chars().take(59).chain(['…']).collect() } else { line }
}

fn show(desk: &dyn Desk, id: &str, as_json: bool) -> anyhow::Result<()> {
    let task = find(desk, id)?;
    let runs = desk.runs_of_task(&task.id).map_err(told)?;
    if as_json {
        return terminal::json(&json!({ "task": task, "runs": runs }));
    }
    let mut rows = vec![
        vec!["task".into(), task.id.to_string()],
        vec!["state".into(), state_text(&task)],
        vec!["role".into(), task.spec.role.to_string()],
        vec!["lane".into(), task.lane.clone()],
        vec!["added".into(), ago(task.created_ms)],
    ];
    let mut row =
        |name: &str, value: Option<String>| rows.extend(value.map(|value| vec![name.to_owned(), value]));
    row("agent", task.spec.agent.clone());
    row("directory", task.spec.directory.as_ref().map(|path| path.display().to_string()));
    row("prompt", Some(task.spec.prompt.clone()).filter(|prompt| !prompt.is_empty()));
    row("command", task.spec.command.clone());
    let waits: Vec<&str> = task.waits_for.iter().map(TaskId::as_str).collect();
    row("waits for", (!waits.is_empty()).then(|| waits.join(", ")));
    if let Some(failure) = task.lifecycle.failures.last().filter(|_| task.lifecycle.state != State::Done) {
        row("failure", Some(format!("{}: {}", failure.class, failure.message)));
        row("remedy", failure.remedy.clone().map(String::from));
    }
    row("reply", task.result.as_ref().map(|result| result.text.to_string()).filter(|text| !text.is_empty()));
    terminal::table(&rows);
    if !runs.is_empty() {
        terminal::line("");
        let mut table = vec![["RUN", "STATUS", "BY", "TIME", ""].map(str::to_owned).to_vec()];
        table.extend(runs.iter().map(run_row));
        terminal::table(&table);
    }
    Ok(())
}

fn state_text(task: &Task) -> String {
    let name = task.lifecycle.state.name();
    let clock = |seconds: u64| ringfence_core::units::Seconds::new(seconds).map(|time| time.to_string());
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
    match &task.lifecycle.state {
        State::Queued { not_before } if *not_before > now => match clock(not_before - now) {
            Some(wait) => format!("{name}, again in {wait}"),
            None => name.to_string(),
        },
        State::Blocked { until } if *until > now => match clock(until - now) {
            Some(wait) => format!("{name} by the provider's limit, for {wait}"),
            None => name.to_string(),
        },
        State::Running { run, .. } => format!("{name} as {run}"),
        _ => name.to_string(),
    }
}

pub(crate) fn run_row(attempt: &TaskRun) -> Vec<String> {
    let status = match (&attempt.status, attempt.ended_ms) {
        (Some(status), _) => {
            serde_json::to_value(status).ok().and_then(|word| word.as_str().map(str::to_owned))
        }
        (None, None) => Some("running".to_owned()),
        (None, Some(_)) => Some("given up".to_owned()),
    };
    let time = attempt
        .ended_ms
        .map(|end| format!("{:.1} s", end.saturating_sub(attempt.started_ms) as f64 / 1000.0));
    vec![
        attempt.run.to_string(),
        status.unwrap_or_default(),
        attempt.owner.clone(),
        time.unwrap_or_default(),
        attempt.class.map(|class| class.to_string()).unwrap_or_default(),
    ]
}

/// Nobody waits longer for an event before looking again.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

fn logs(desk: &dyn Desk, id: &str, follow: bool, as_json: bool) -> anyhow::Result<()> {
    let task = find(desk, id)?.id;
    let Some(run) = last_run(desk, &task, follow)? else { bail!("task {task} was not tried") };
    let mut wrong = None;
    desk.log(&run, follow, &mut |line| {
        let told = match as_json {
            true => terminal::json_line(&line).map_err(anyhow::Error::from),
            false => Human.event(&line.event).map_err(anyhow::Error::from),
        };
        wrong = told.err();
        wrong.is_none() && terminal::unprinted().is_none()
    })
    .map_err(told)?;
    wrong.map_or(Ok(()), Err)
}

/// The last run of a task, waited for if that is wanted and it may still come.
fn last_run(desk: &dyn Desk, task: &TaskId, wait: bool) -> anyhow::Result<Option<RunId>> {
    loop {
        let seen = desk.last_event().map_err(told)?;
        let over = desk.task(task).map_err(told)?.lifecycle.state.name().is_final();
        let last = desk.runs_of_task(task).map_err(told)?.pop();
        if last.is_some() || over || !wait {
            return Ok(last.map(|attempt| attempt.run));
        }
        desk.events(seen, 1, LOOK_AGAIN).map_err(told)?;
    }
}

fn wait(
    installation: &Installation,
    desk: &dyn Desk,
    ids: &[String],
    timeout: Option<Seconds>,
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    let ids = ids.iter().map(|id| Ok(find(desk, id)?.id)).collect::<anyhow::Result<Vec<_>>>()?;
    let deadline = timeout.map(|timeout| Instant::now() + timeout.duration());
    let mut warned = installation.has_daemon();
    let tasks = loop {
        let seen = desk.last_event().map_err(told)?;
        let tasks = ids.iter().map(|id| desk.task(id)).collect::<Result<Vec<_>, _>>().map_err(told)?;
        let open: Vec<&str> = tasks
            .iter()
            .filter(|task| !task.lifecycle.state.name().is_final())
            .map(|task| task.id.as_str())
            .collect();
        if open.is_empty() {
            break tasks;
        }
        if !warned {
            terminal::about(NO_DAEMON);
            warned = true;
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            terminal::about(format!("the time is over, and these are not: {}", open.join(", ")));
            return Ok(ExitCode::from(124));
        }
        desk.events(seen, 1, left.map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN))).map_err(told)?;
    };
    if as_json {
        terminal::json(&tasks)?;
    } else {
        tasks.iter().for_each(tell_end);
    }
    let all_done = tasks.iter().all(|task| task.lifecycle.state == State::Done);
    Ok(if all_done { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn tell_end(task: &Task) {
    let name = task.lifecycle.state.name();
    match (&task.lifecycle.state, task.lifecycle.failures.last()) {
        (State::Done, _) | (_, None) => terminal::line(format!("task {} is {name}", task.id)),
        (_, Some(failure)) => {
            terminal::line(format!("task {} is {name}: {}: {}", task.id, failure.class, failure.message));
        }
    }
    if let Some(result) = task.result.as_ref().filter(|result| !result.text.is_empty()) {
        terminal::line(&result.text);
    }
}
