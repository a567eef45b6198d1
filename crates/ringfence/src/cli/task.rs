//! `ringfence task`: work that is done in its turn, with or without somebody looking on.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser, ValueParser};
use ringfence_core::config::WorkspaceKind;
use ringfence_core::ids::{AgentId, RunId, TaskId};
use ringfence_core::mode::Mode;
use ringfence_core::policy::HostRule;
use ringfence_core::task::{Incident, Role, State, StateName, TaskSpec};
use ringfence_core::units::{Cpus, MemorySize, Seconds};
use ringfence_engine::Observer;
use ringfence_engine::queue::{Holder, Premises, RunLocks, write_letters};
use ringfence_store::runs::LogLine;
use ringfence_store::sqlite::Sqlite;
use ringfence_store::{
    Added, Attempt, Change, Counts, DeadLetter, Filter, Listener, NewTask, Rules, Task, Tasks,
};
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::{Value, json};

use super::options::{Options, mode_parser, url, workspace_parser};
use super::run::Wish;
use crate::installation::Installation;
use crate::queue::Office;
use crate::render::{Human, ago};
use crate::report::{advise, unstored};
use crate::terminal;

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
    /// What to do; `-` reads it from standard input, where a JSON object or list of objects is one or more whole tasks
    prompt: Option<String>,
    /// Every line of standard input is a task: a prompt, or a JSON object
    #[arg(long, conflicts_with = "prompt")]
    lines: bool,
    /// An agent of your settings, or an agent CLI; else the one of the role
    #[arg(short, long, value_name = "AGENT")]
    agent: Option<String>,
    /// Who does it
    #[arg(long, value_parser = role_parser(), default_value = "worker")]
    role: Role,
    /// The larger, the sooner
    #[arg(short, long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
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
    state: Vec<StateName>,
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
    PossibleValuesParser::new(StateName::NAMES)
        .try_map(|name| StateName::parse(&name).ok_or("there is no such state"))
        .into()
}

pub(crate) fn task(verb: Verb, installation: &Installation) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Add(args) => return add(*args, installation),
        Verb::List(args) => list(args, &*installation.store()?)?,
        Verb::Show { id, json } => show(&*installation.store()?, &id, json)?,
        Verb::Cancel { ids } => each(&ids, |id| cancel(installation, id))?,
        Verb::Retry { ids } => each(&ids, |id| retry(installation, id))?,
        Verb::Logs { id, follow, json } => logs(installation, &id, follow, json)?,
        Verb::Wait { ids, timeout, json } => return wait(installation, &ids, timeout, json),
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
pub(crate) fn find(store: &Sqlite, text: &str) -> anyhow::Result<Task> {
    if text == "last" {
        let newest = store.tasks(&Filter { limit: 1, ..Filter::default() }).map_err(unstored)?;
        return newest.into_iter().next().context("there is no task yet; `ringfence task add` makes one");
    }
    let id: TaskId = text.parse()?;
    store.task(&id).map_err(unstored)
}

fn add(args: AddArgs, installation: &Installation) -> anyhow::Result<ExitCode> {
    let (wait_for_it, as_json) = (args.wait, args.json);
    let specs = specs(args, installation)?;
    let mut seen = Seen::default();
    let new = specs
        .into_iter()
        .map(|spec| accepted(spec, installation, &mut seen))
        .collect::<Result<Vec<_>, _>>()?;
    let store = installation.store()?;
    let added = store.add(&new, installation.clock().now()).map_err(unstored)?;
    if wait_for_it {
        let ids: Vec<String> = added.iter().map(|added| added.task.to_string()).collect();
        return wait(installation, &ids, None, as_json);
    }
    if as_json {
        terminal::json(&added)?;
        return Ok(ExitCode::SUCCESS);
    }
    for Added { task, existed } in &added {
        terminal::line(format!("task {task}{}", if *existed { " (it was there already)" } else { "" }));
    }
    if !super::serve::is_running(installation) {
        terminal::about(NO_DAEMON);
    }
    Ok(ExitCode::SUCCESS)
}

const NO_DAEMON: &str = "The daemon does not run, so nothing happens yet: `ringfence start` starts it.";

/// What is asked for: by flags, or whole on standard input.
fn specs(args: AddArgs, installation: &Installation) -> anyhow::Result<Vec<TaskSpec>> {
    const MOST: u64 = 64 << 20;
    let whole = || -> anyhow::Result<String> {
        let mut text = String::new();
        std::io::stdin().take(MOST).read_to_string(&mut text).context("standard input cannot be read")?;
        Ok(text)
    };
    let lines = args.lines;
    let given = match args.prompt.as_deref() {
        Some("-") => Some(whole()?),
        None if lines => Some(whole()?),
        _ => None,
    };
    let base = base(args, installation)?;
    let with_prompt = |text: &str| TaskSpec { prompt: text.to_owned(), ..base.clone() };
    let Some(text) = given else { return Ok(vec![base]) };
    if lines {
        let numbered = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let specs = numbered.map(|(number, line)| match line.trim_start().starts_with('{') {
            true => {
                serde_json::from_str(line).with_context(|| format!("line {} of standard input", number + 1))
            }
            false => Ok(with_prompt(line)),
        });
        let specs: Vec<TaskSpec> = specs.collect::<Result<_, _>>()?;
        if specs.is_empty() {
            bail!("there is no line on standard input");
        }
        return Ok(specs);
    }
    match serde_json::from_str::<Value>(&text) {
        Ok(value @ Value::Object(_)) => Ok(vec![serde_json::from_value(value).context("standard input")?]),
        Ok(value @ Value::Array(_)) => Ok(serde_json::from_value(value).context("standard input")?),
        _ => Ok(vec![with_prompt(&text)]),
    }
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
        role: args.role,
        priority: args.priority,
        lane: args.lane,
        after: args.after,
        key: args.key,
        not_before,
        directory: args.cwd.map(|path| installation.expand(&path)),
        workspace: args.workspace,
        mode: args.mode,
        policy: args.policy,
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

/// Where tasks work, by all that says so: many tasks of one batch say the same.
type Seen = BTreeMap<String, (Option<AgentId>, PathBuf)>;

/// A task that can be done as far as one can tell now: its agent is known, its directory is there.
fn accepted(mut spec: TaskSpec, installation: &Installation, seen: &mut Seen) -> anyhow::Result<NewTask> {
    spec.check()?;
    if let Some(command) = &spec.command
        && shlex::split(command).is_none_or(|words| words.is_empty())
    {
        bail!("`{command}` is not a command in the shell's words");
    }
    let options = Options::of_task(&spec);
    let key = format!("{:?}", (&spec.agent, spec.role, &spec.directory, spec.mode, &spec.policy));
    let (agent, directory) = match seen.get(&key) {
        Some(known) => known.clone(),
        None => {
            let found = Wish::of_task(&spec, &options).fulfil(installation, |asked, _| {
                asked.policy(asked.mode())?;
                let workspace = super::job::workspace_path(installation, &options, asked.agent)?;
                let agent = asked.name.parse().ok().filter(|id| asked.settings.agents.contains_key(id));
                Ok((agent, workspace.as_path().to_owned()))
            })?;
            seen.entry(key).or_insert(found).clone()
        }
    };
    let lane = lane(spec.lane.as_deref(), agent.as_ref(), &directory);
    // The daemon stands elsewhere.
    spec.directory = Some(directory);
    Ok(NewTask { spec, lane })
}

/// Who has to wait for whom: an agent's tasks for each other, and where no agent of the settings is named those of one
/// directory, for two agents in one directory are in each other's way.
fn lane(named: Option<&str>, agent: Option<&AgentId>, directory: &std::path::Path) -> String {
    match (named, agent) {
        (Some(lane), _) => format!("lane {lane}"),
        (None, Some(agent)) => format!("agent {agent}"),
        (None, None) => format!("directory {}", directory.display()),
    }
}

fn list(args: ListArgs, store: &Sqlite) -> anyhow::Result<()> {
    let ListArgs { state, role, agent, before, limit, json } = args;
    let filter = Filter { states: state, role, agent, before, limit };
    let tasks = store.tasks(&filter).map_err(unstored)?;
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
            task.life.state.name().to_string(),
            task.spec.agent.clone().unwrap_or_else(|| task.spec.role.to_string()),
            task.life.attempts.to_string(),
            ago(task.changed_ms),
            one_line(task),
        ]
    }));
    terminal::table(&table);
    let counts = store.counts().map_err(unstored)?;
    terminal::about(summary(&counts));
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
    let text = match (&task.life.state, task.life.failures.last()) {
        (State::Done, _) | (_, None) => {
            let what = if task.spec.prompt.is_empty() { task.spec.command.as_deref() } else { None };
            what.unwrap_or(&task.spec.prompt).to_owned()
        }
        (_, Some(failure)) => format!("{}: {}", failure.class, failure.message),
    };
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() > 60 { line.chars().take(59).chain(['…']).collect() } else { line }
}

fn show(store: &Sqlite, id: &str, as_json: bool) -> anyhow::Result<()> {
    let task = find(store, id)?;
    let attempts = store.attempts(&task.id).map_err(unstored)?;
    if as_json {
        return terminal::json(&json!({ "task": task, "attempts": attempts }));
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
    if let Some(failure) = task.life.failures.last().filter(|_| task.life.state != State::Done) {
        row("failure", Some(format!("{}: {}", failure.class, failure.message)));
        row("remedy", failure.remedy.clone());
    }
    row("reply", task.result.as_ref().map(|result| result.text.clone()).filter(|text| !text.is_empty()));
    terminal::table(&rows);
    if !attempts.is_empty() {
        terminal::line("");
        let mut table = vec![["RUN", "STATUS", "BY", "TIME", ""].map(str::to_owned).to_vec()];
        table.extend(attempts.iter().map(attempt_row));
        terminal::table(&table);
    }
    Ok(())
}

fn state_text(task: &Task) -> String {
    let name = task.life.state.name();
    let clock = |seconds: u64| ringfence_core::units::Seconds::new(seconds).map(|time| time.to_string());
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
    match &task.life.state {
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

pub(crate) fn attempt_row(attempt: &Attempt) -> Vec<String> {
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

/// How long a run gets to end by itself.
const GRACE: Duration = Duration::from_secs(15);

/// The rules of the settings, or those of who has set nothing: a mistake in the settings keeps nobody from stopping anything.
fn rules(installation: &Installation) -> anyhow::Result<Rules> {
    let settings = Office { installation, logs_to_files: false }.resolved();
    Ok(Office::rules(&settings.or_else(|_| Installation::default_settings())?))
}

fn cancel(installation: &Installation, id: &str) -> anyhow::Result<()> {
    let store = installation.store()?;
    let task = find(&store, id)?.id;
    let rules = rules(installation)?;
    let change = Change { task: &task, incident: Incident::Cancel, rules: &rules, jitter: 0, result: None };
    let changed = store.change(&change, installation.clock().now()).map_err(unstored)?;
    write_letters(&*store, &installation.state, &changed.died);
    if let State::Running { run, .. } = &changed.before.state {
        let office = Office { installation, logs_to_files: false };
        end_run(installation, &office, run)?;
        store.release(&task, run, installation.clock().now()).map_err(unstored)?;
    }
    terminal::line(format!("task {task} is cancelled"));
    Ok(())
}

/// Ends a run, whoever started it, and waits until nothing of it is left.
fn end_run(installation: &Installation, office: &Office<'_>, run: &RunId) -> anyhow::Result<()> {
    let locks = RunLocks::new(&installation.state);
    let begun = Instant::now();
    let (_kept, never) = std::sync::mpsc::channel::<()>();
    let mut asked = false;
    loop {
        match locks.holder(run)? {
            Holder::Nobody(_lock) => {
                office.clear(run).map_err(crate::report::failed)?;
                locks.forget(run);
                return Ok(());
            }
            Holder::Runner(who) => {
                let late = begun.elapsed() >= GRACE;
                if (late || !asked)
                    && let Some(process) = who.open()
                {
                    let _ = pidfd_send_signal(&process, if late { Signal::KILL } else { Signal::TERM });
                    asked = true;
                }
            }
            Holder::Unnamed => {}
        }
        if begun.elapsed() >= GRACE * 2 {
            bail!("the run {run} does not end; `ps` shows its processes");
        }
        let _ = never.recv_timeout(Duration::from_millis(20));
    }
}

/// Puts a task into the queue again.
pub(crate) fn retry(installation: &Installation, id: &str) -> anyhow::Result<()> {
    let store = installation.store()?;
    let task = find(&store, id)?.id;
    let rules = rules(installation)?;
    let change = Change { task: &task, incident: Incident::Retry, rules: &rules, jitter: 0, result: None };
    store.change(&change, installation.clock().now()).map_err(unstored)?;
    DeadLetter::remove(&installation.state, &task);
    terminal::line(format!("task {task} is in the queue again"));
    Ok(())
}

fn logs(installation: &Installation, id: &str, follow: bool, as_json: bool) -> anyhow::Result<()> {
    let store = installation.store()?;
    let task = find(&store, id)?;
    let bell = store.bell().listen()?;
    let run = loop {
        let last = store.attempts(&task.id).map_err(unstored)?.pop();
        let over = store.task(&task.id).map_err(unstored)?.life.state.name().is_final();
        match last {
            Some(attempt) => break attempt.run,
            None if follow && !over => bell.wait(None)?,
            None => bail!("task {} was not tried", task.id),
        }
    };
    let file = installation.runs().log_file(&run);
    let mut tail = Tail { file, place: 0 };
    let tell = |line: &LogLine| -> anyhow::Result<()> {
        if as_json {
            terminal::line(serde_json::to_string(line)?);
        } else {
            Human.event(&line.event)?;
        }
        Ok(())
    };
    loop {
        let over = store
            .attempts(&task.id)
            .map_err(unstored)?
            .iter()
            .any(|one| one.run == run && one.ended_ms.is_some());
        let written = Listener::file(&tail.file);
        for line in tail.more()? {
            tell(&line)?;
        }
        if over || !follow {
            return Ok(());
        }
        match written {
            Ok(written) => wait_for_either(&written, &bell)?,
            // It has not begun yet.
            Err(_) => bell.wait(Some(Duration::from_millis(100)))?,
        }
    }
}

/// Waits for whichever comes first.
fn wait_for_either(one: &Listener, other: &Listener) -> anyhow::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut fds = [PollFd::new(one, PollFlags::IN), PollFd::new(other, PollFlags::IN)];
    match poll(&mut fds, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    other.clear();
    Ok(())
}

/// A log that is read as it grows.
struct Tail {
    file: PathBuf,
    place: u64,
}

impl Tail {
    /// The whole lines that have come since the last time.
    fn more(&mut self) -> anyhow::Result<Vec<LogLine>> {
        let Ok(mut file) = std::fs::File::open(&self.file) else { return Ok(Vec::new()) };
        file.seek(std::io::SeekFrom::Start(self.place))?;
        let mut reader = BufReader::new(file);
        let mut lines = Vec::new();
        let mut line = String::new();
        while reader.read_line(&mut line)? > 0 && line.ends_with('\n') {
            self.place += line.len() as u64;
            lines.extend(serde_json::from_str::<LogLine>(&line).ok());
            line.clear();
        }
        Ok(lines)
    }
}

fn wait(
    installation: &Installation,
    ids: &[String],
    timeout: Option<Seconds>,
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    let store = installation.store()?;
    let ids = ids.iter().map(|id| Ok(find(&store, id)?.id)).collect::<anyhow::Result<Vec<_>>>()?;
    let deadline = timeout.map(|timeout| Instant::now() + timeout.duration());
    let open = |id| store.task(id).is_ok_and(|task| !task.life.state.name().is_final());
    if !super::serve::is_running(installation) && ids.iter().any(open) {
        terminal::about(NO_DAEMON);
    }
    let bell = store.bell().listen()?;
    let tasks = loop {
        let tasks = ids.iter().map(|id| store.task(id)).collect::<Result<Vec<_>, _>>().map_err(unstored)?;
        if tasks.iter().all(|task| task.life.state.name().is_final()) {
            break tasks;
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            let open: Vec<&str> = tasks
                .iter()
                .filter(|task| !task.life.state.name().is_final())
                .map(|task| task.id.as_str())
                .collect();
            terminal::about(format!("the time is over, and these are not: {}", open.join(", ")));
            return Ok(ExitCode::from(124));
        }
        bell.wait(left)?;
    };
    if as_json {
        terminal::json(&tasks)?;
    } else {
        for task in &tasks {
            let name = task.life.state.name();
            match (&task.life.state, task.life.failures.last()) {
                (State::Done, _) | (_, None) => terminal::line(format!("task {} is {name}", task.id)),
                (_, Some(failure)) => {
                    terminal::line(format!(
                        "task {} is {name}: {}: {}",
                        task.id, failure.class, failure.message
                    ));
                }
            }
            if let Some(result) = task.result.as_ref().filter(|result| !result.text.is_empty()) {
                terminal::line(&result.text);
            }
        }
    }
    let all_done = tasks.iter().all(|task| task.life.state == State::Done);
    Ok(if all_done { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
