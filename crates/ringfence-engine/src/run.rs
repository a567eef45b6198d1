//! prompt → policy + capabilities → plan → record → sandbox → events → result.

use std::collections::BTreeMap;
use std::time::Instant;

use ringfence_agents::{AgentCli, CommandLine, Invocation, InvocationError, Outcome, Reader};
use ringfence_core::backend::{Backend, ExitStatus, LaunchError};
use ringfence_core::event::{Event, RunResult, RunStatus, Stream, Usage};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::ids::{BadName, RunId, SessionId};
use ringfence_core::paths::PathMapping;
use ringfence_core::plan::{Plan, Refusal, Request, Stdin, resolve};
use ringfence_core::policy::{BadHostRule, Credentials, HostRule, Policy};
use ringfence_core::record::{RECORD_SCHEMA, Record};
use ringfence_core::units::Seconds;
use ringfence_store::runs::{LogLine, OpenRun, Progress, Runs, RunsError};

use crate::cancel::Cancel;
use crate::environment::environment;
use crate::redact::Redactor;
use crate::watch::{Audience, Watch};
use crate::{clock, version};

/// All that makes a run.
pub struct Job<'a> {
    /// What runs.
    pub work: Work<'a>,
    /// The agent of the settings, or the agent CLI's name.
    pub agent: String,
    /// What it may do.
    pub policy: Policy,
    /// The policy's name.
    pub policy_name: String,
    /// The workspace outside and inside.
    pub workspace: PathMapping,
    /// The variables of the host.
    pub host_env: BTreeMap<String, String>,
    /// Variables that were given explicitly.
    pub given_env: BTreeMap<String, String>,
    /// How long an agent CLI may go on retrying.
    pub patience: Seconds,
    /// Whether the host's user is root.
    pub is_root: bool,
    /// What a person should know of it.
    pub notices: Vec<String>,
}

/// What runs.
pub enum Work<'a> {
    /// An agent CLI on a prompt.
    Agent {
        /// Which.
        cli: &'static dyn AgentCli,
        /// What to do.
        prompt: &'a str,
        /// With which model.
        model: Option<&'a str>,
        /// At which address.
        base_url: Option<&'a str>,
        /// In which conversation.
        session: Option<SessionId>,
        /// With `command`: its words.
        command: Option<&'a str>,
        /// The `ringfence` binary.
        own_program: &'a str,
    },
    /// A program with its arguments, reading what `ringfence` reads.
    Program(Vec<String>),
}

impl Work<'_> {
    fn cli(&self) -> Option<&'static dyn AgentCli> {
        match self {
            Work::Agent { cli, .. } => Some(*cli),
            Work::Program(_) => None,
        }
    }

    fn session(&self) -> Option<&SessionId> {
        match self {
            Work::Agent { session, .. } => session.as_ref(),
            Work::Program(_) => None,
        }
    }
}

/// Who watches a run.
pub trait Observer {
    /// Something happened.
    fn event(&mut self, event: &Event);
    /// The run printed something, as it is.
    fn raw(&mut self, stream: Stream, bytes: &[u8]);
}

/// Why there is no result. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The policy cannot be kept here.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There is no command line for what was asked.
    #[error(transparent)]
    Invocation(#[from] InvocationError),
    /// The record could not be written, so the run does not begin.
    #[error("the run was not started, for its record cannot be kept")]
    Store(#[from] RunsError),
    /// The table of agent CLIs names something that is no host.
    #[error("the agent CLI needs a host that cannot be")]
    Host(#[from] BadHostRule),
    /// The clock makes no name.
    #[error("the run has no name")]
    Name(#[from] BadName),
}

impl RunError {
    /// What to do about it, where that is known.
    pub fn remedy(&self) -> Option<String> {
        match self {
            RunError::Refused(refusal) => Some(refusal.remedy()),
            RunError::Store(_) => {
                Some("free some space or check the permissions of the state directory".into())
            }
            RunError::Invocation(_) | RunError::Host(_) | RunError::Name(_) => None,
        }
    }
}

/// Runs a job to its end.
pub fn run(
    job: &Job<'_>,
    backend: &dyn Backend,
    runs: &Runs,
    observer: &mut dyn Observer,
    cancel: &Cancel,
) -> Result<RunResult, RunError> {
    let started = Instant::now();
    let run = clock::new_run_id()?;
    let (plan, redactor) = plan(job, backend, runs, &run)?;
    let record = record(job, backend, &plan);
    let mut open = runs.begin(&record)?;
    let mut watchers = Watchers { open: &mut open, observer };
    watchers.tell(Event::Started {
        run: run.clone(),
        cli: record.cli,
        mode: record.mode,
        policy: record.policy,
    })?;
    for message in &job.notices {
        watchers.tell(Event::Notice { message: message.clone() })?;
    }
    let mut reader = reader(&job.work);
    let end = attempt(job, backend, &plan, &redactor, &mut *reader, &mut watchers, cancel);
    let result = conclude(job, runs, run, end, cancel, started);
    // The run is over whatever the disk says: a result that cannot be kept is told all the same.
    let _ = watchers.tell(Event::Result(result.clone()));
    if let Err(error) = open.end(&result) {
        observer.event(&Event::Notice { message: format!("the result cannot be kept: {error}") });
    }
    Ok(result)
}

fn plan(
    job: &Job<'_>,
    backend: &dyn Backend,
    runs: &Runs,
    run: &RunId,
) -> Result<(Plan, Redactor), RunError> {
    let cli = job.work.cli();
    let mut passed = environment(&job.host_env, &job.policy, cli, &job.given_env);
    if cli.is_some() && !job.given_env.contains_key("TMPDIR") {
        // A temporary directory of its own: one that works, and that goes with the run.
        passed.env.insert("TMPDIR".into(), runs.tmp(run).display().to_string());
    }
    let line = command_line(job, &passed.env)?;
    for (name, value) in line.env {
        passed.env.entry(name).or_insert(value);
    }
    let needed: Result<Vec<HostRule>, BadHostRule> = match (cli, job.policy.credentials) {
        // Whoever works without credentials does not speak to a model.
        (None, _) | (_, Credentials::None) => Ok(Vec::new()),
        (Some(cli), _) => cli.hosts().iter().map(|host| host.parse()).collect(),
    };
    let redactor =
        Redactor::new(passed.secret.iter().filter_map(|name| passed.env.get(name)).map(String::as_str));
    let request = Request {
        run: run.clone(),
        mode: backend.mode(),
        policy: job.policy.clone(),
        argv: line.argv,
        env: passed.env,
        workspace: job.workspace.clone(),
        stdin: if cli.is_some() { Stdin::Empty } else { Stdin::Inherit },
        needed_hosts: needed?,
    };
    Ok((resolve(request, &backend.capabilities())?, redactor))
}

fn command_line(job: &Job<'_>, env: &BTreeMap<String, String>) -> Result<CommandLine, InvocationError> {
    match &job.work {
        Work::Program(argv) => Ok(CommandLine { argv: argv.clone(), env: BTreeMap::new() }),
        Work::Agent { cli, prompt, model, base_url, session, command, own_program } => {
            cli.command(&Invocation {
                prompt,
                model: *model,
                base_url: *base_url,
                session: session.as_ref(),
                command: *command,
                own_program,
                env,
                is_root: job.is_root,
            })
        }
    }
}

fn reader(work: &Work<'_>) -> Box<dyn Reader> {
    match work {
        Work::Agent { cli, .. } => cli.reader(),
        Work::Program(_) => ringfence_agents::program_reader(),
    }
}

fn record(job: &Job<'_>, backend: &dyn Backend, plan: &Plan) -> Record {
    let request = &plan.request;
    let mut versions: BTreeMap<String, String> = backend.versions().into_iter().collect();
    versions.insert("ringfence".into(), env!("CARGO_PKG_VERSION").into());
    if let Some(program) = job.work.cli().and_then(AgentCli::program) {
        let path = request.env.get("PATH").map(String::as_str).unwrap_or_default();
        let version = version::of_program(program, path).unwrap_or_else(|| "unknown".into());
        versions.insert(program.into(), version);
    }
    Record {
        schema: RECORD_SCHEMA,
        run: request.run.clone(),
        started_at: clock::now_text(),
        agent: job.agent.clone(),
        cli: job.work.cli().map_or("exec", AgentCli::name).to_owned(),
        mode: request.mode,
        policy: job.policy_name.clone(),
        requested: job.policy.clone(),
        effective: request.policy.clone(),
        mechanisms: plan.mechanisms.clone(),
        versions,
        workspace: request.workspace.clone(),
        argv: request.argv.clone(),
        env_names: request.env.keys().cloned().collect(),
        continues: job.work.session().cloned(),
        notices: job.notices.clone(),
    }
}

struct Watchers<'a> {
    open: &'a mut OpenRun,
    observer: &'a mut dyn Observer,
}

impl Watchers<'_> {
    /// The log first: what was shown can be shown again.
    fn tell(&mut self, event: Event) -> Result<(), RunsError> {
        let line = LogLine { at_ms: clock::now_ms(), event };
        let kept = self.open.append(&line);
        self.observer.event(&line.event);
        kept
    }
}

impl Audience for Watchers<'_> {
    fn event(&mut self, event: Event) -> Result<(), Failure> {
        self.tell(event).map_err(|error| {
            Failure::new(FailureClass::Unknown, format!("the log cannot be kept: {error}"))
                .with_remedy("free some space on the disk of the state directory")
        })
    }

    fn raw(&mut self, stream: Stream, bytes: &[u8]) {
        self.observer.raw(stream, bytes);
    }
}

/// How an attempt ended.
struct End {
    outcome: Outcome,
    exit_code: u8,
    leftovers: u32,
}

impl End {
    fn failed(failure: Failure, exit_code: u8) -> Self {
        Self { outcome: Outcome { failure: Some(failure), ..Outcome::default() }, exit_code, leftovers: 0 }
    }
}

/// The codes that `ringfence` ends with where the run has none of its own.
mod exit_code {
    pub(super) const FAILED: u8 = 1;
    pub(super) const TIMEOUT: u8 = 124;
    pub(super) const RUNTIME: u8 = 125;
    pub(super) const NOT_EXECUTABLE: u8 = 126;
    pub(super) const NOT_FOUND: u8 = 127;
    pub(super) const INTERRUPTED: u8 = 130;
}

fn attempt(
    job: &Job<'_>,
    backend: &dyn Backend,
    plan: &Plan,
    redactor: &Redactor,
    reader: &mut dyn Reader,
    watchers: &mut Watchers<'_>,
    cancel: &Cancel,
) -> End {
    let mut sandbox = match backend.launch(plan) {
        Ok(sandbox) => sandbox,
        Err(error) => return not_launched(job, &error),
    };
    cancel.arm(&sandbox.stopper());
    let mut watch = Watch {
        limits: &plan.request.policy.limits,
        patience: job.patience,
        redactor,
        reader: &mut *reader,
        audience: watchers,
    };
    let watched = match watch.follow(&mut *sandbox) {
        Ok(watched) => watched,
        Err(failure) => return End::failed(failure, exit_code::RUNTIME),
    };
    let mut outcome = reader.finish(watched.exit.status, clock::now_ms() / 1000);
    if watched.exit.out_of_memory {
        let failure = Failure::new(FailureClass::OutOfMemory, "the run took more memory than it may")
            .with_remedy("give it more with --memory");
        outcome.failure = Some(failure);
    }
    let mut exit_code = match watched.exit.status {
        ExitStatus::Code(0) if outcome.failure.is_some() => exit_code::FAILED,
        ExitStatus::Code(code) => code,
        ExitStatus::Signal(signal) => 128u8.saturating_add(signal),
    };
    if let Some(failure) = watched.ended_for {
        exit_code =
            if failure.class == FailureClass::Timeout { exit_code::TIMEOUT } else { exit_code::RUNTIME };
        outcome.failure = Some(failure);
    }
    End { outcome, exit_code, leftovers: watched.exit.leftovers }
}

fn not_launched(job: &Job<'_>, error: &LaunchError) -> End {
    let mut failure = error.failure();
    if failure.remedy.is_none() {
        failure.remedy = job.work.cli().map(|cli| cli.install().to_owned());
    }
    let code = match error {
        LaunchError::NotFound { .. } => exit_code::NOT_FOUND,
        LaunchError::NotExecutable { .. } => exit_code::NOT_EXECUTABLE,
        LaunchError::Runtime(_) => exit_code::RUNTIME,
    };
    End::failed(failure, code)
}

fn conclude(
    job: &Job<'_>,
    runs: &Runs,
    run: RunId,
    end: End,
    cancel: &Cancel,
    started: Instant,
) -> RunResult {
    let End { mut outcome, mut exit_code, leftovers } = end;
    let mut status = if outcome.failure.is_some() { RunStatus::Failed } else { RunStatus::Success };
    if cancel.requested() && outcome.failure.is_some() {
        status = RunStatus::Cancelled;
        exit_code = exit_code::INTERRUPTED;
        outcome.failure = Some(Failure::new(FailureClass::Cancelled, "the run was cancelled"));
    }
    let session_usage = outcome.usage_of_session.then_some(outcome.usage);
    let before = match (session_usage, &outcome.session) {
        (Some(_), Some(session)) if job.work.session() == Some(session) => usage_before(runs, session, &run),
        _ => None,
    };
    RunResult {
        run,
        status,
        exit_code,
        text: outcome.text,
        session: outcome.session,
        usage: before.map_or(outcome.usage, |before| outcome.usage.since(before)),
        session_usage,
        duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        leftover_processes: leftovers,
        failure: outcome.failure,
    }
}

/// What the conversation had used before this run.
fn usage_before(runs: &Runs, session: &SessionId, this: &RunId) -> Option<Usage> {
    let ids = runs.list().ok()?;
    ids.iter().filter(|id| *id != this).find_map(|id| match runs.progress(id).ok()? {
        Progress::Ended(result) if result.session.as_ref() == Some(session) => result.session_usage,
        _ => None,
    })
}
