//! prompt → policy + capabilities → plan → record → sandbox → events → result.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_agents::{AgentCli, CommandLine, Invocation, InvocationError, Outcome, Reader};
use ringfence_core::backend::{Backend, Door, ExitStatus, LaunchError, Sandbox, Staged, Stop, Terminal};
use ringfence_core::capability::Promise;
use ringfence_core::event::{Event, RunResult, RunStatus, Stream, Usage};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::ids::{InvalidId, RunId, SessionId};
use ringfence_core::mode::Mode;
use ringfence_core::paths::{DirectoryId, GUEST_HOME, HostPath, InvalidPath, PathMapping};
use ringfence_core::plan::{GuestFile, Plan, Refusal, Request, Stdin, resolve};
use ringfence_core::policy::{
    BadHostRule, Credentials, GitAccess, NetworkMode, Policy, Reach, WorkspaceAccess,
};
use ringfence_core::record::{RECORD_SCHEMA, Record};
use ringfence_core::text::PlainText;
use ringfence_core::units::{MemorySize, Seconds};
use ringfence_egress::{Broker, Meter, Session, SessionError};
use ringfence_store::runs::{Appended, LogLine, OpenRun, Progress, Runs, RunsError};
use ringfence_store::{ActiveRun, LostRun};
use ringfence_workspace::{Directory, DirectoryError};

use crate::attachments::{self, Places, Unreadable};
use crate::cancel::Cancel;
use crate::causes::causes;
use crate::environment::environment;
use crate::executed::Trees;
use crate::git::ImportedRefs;
use crate::growth::Growth;
use crate::layer::{Layer, LayerError};
use crate::logins::{self, Copies};
use crate::loopback::{self, Local};
use crate::outside::{self, Outside, OutsideError};
use crate::redact::Redactor;
use crate::watch::{Audience, Watch, too_much_output};
use crate::{clock, executed, git, version};

/// A longer reply is cut in the result; the log has it whole.
const MAX_REPLY_BYTES: usize = 1 << 20;
/// Most bytes of a reply that are kept where the disk has no space for more.
const SHORT_REPLY_BYTES: usize = 64 << 10;

/// All that makes a run.
pub struct Job<'a> {
    /// Its name, if it was given one beforehand.
    pub run: Option<RunId>,
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
    /// The workspace's directory when the work was accepted.
    pub workspace_id: DirectoryId,
    /// Whether what is written there goes to a layer of its own.
    pub layer: bool,
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
    /// What the broker has to know besides the policy.
    pub outside: Outside,
    /// More variables that hold addresses of services of the host.
    pub loopback_env: Vec<String>,
    /// Where to copy the files to that the agent names in its last word.
    pub attachments: Option<PathBuf>,
    /// Files that govern it: its policy, variables and settings.
    pub governing: Vec<HostPath>,
    /// What a program reads. Agent CLIs read nothing but what a person types at a terminal.
    pub stdin: Stdin,
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
    /// Something that an agent CLI is asked about itself, with what it would have for a prompt.
    Question {
        /// Which.
        cli: &'static dyn AgentCli,
        /// Its program, and what it is asked.
        argv: Vec<String>,
    },
}

impl Job<'_> {
    /// Whether a person sits at the run's terminal.
    fn at_terminal(&self) -> bool {
        matches!(self.stdin, Stdin::Terminal(_))
    }
}

impl Work<'_> {
    pub(crate) fn cli(&self) -> Option<&'static dyn AgentCli> {
        match self {
            Work::Agent { cli, .. } | Work::Question { cli, .. } => Some(*cli),
            Work::Program(_) => None,
        }
    }

    /// Whether its last word may name files to attach.
    fn names_files(&self) -> bool {
        matches!(self, Work::Agent { .. })
    }

    fn session(&self) -> Option<&SessionId> {
        match self {
            Work::Agent { session, .. } => session.as_ref(),
            Work::Program(_) | Work::Question { .. } => None,
        }
    }
}

/// Who watches a run. One who cannot be told any more ends it.
pub trait Observer {
    /// Something happened.
    fn event(&mut self, event: &Event) -> io::Result<()>;
    /// The run printed something, as it is.
    fn raw(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()>;
    /// A user should know something even where notices are not shown; the event of the same words comes too.
    fn warning(&mut self, _: &str) {}
    /// The result, which comes next, cannot be kept. For those who show no failure to a user.
    fn unkept(&mut self, _: &Failure) {}
    /// The program runs.
    fn started(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// The program has run for a while, or something is done after it that may take long.
    fn goes_on(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// The run has a terminal, to be typed on.
    fn terminal(&mut self, _: Box<dyn Terminal>) {}
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
    /// There is no way out for it.
    #[error(transparent)]
    Outside(#[from] OutsideError),
    /// The table of agent CLIs names something that is no host.
    #[error("the agent CLI needs a host that cannot be")]
    Host(#[from] BadHostRule),
    /// The state directory cannot hold a layer.
    #[error("there is no place for the layer")]
    Layer(#[from] InvalidPath),
    /// There is no directory for the files that come back.
    #[error("there is no place for attachments")]
    Attachments(#[source] io::Error),
    /// The workspace is not the directory that was accepted.
    #[error(transparent)]
    Workspace(#[from] DirectoryError),
    /// The clock makes no name.
    #[error("the run has no name")]
    Name(#[from] InvalidId),
}

impl RunError {
    /// As the failure of a task.
    pub fn failure(&self) -> Failure {
        let class = match self {
            RunError::Outside(OutsideError::Session(SessionError::Uncounted(_))) => FailureClass::Refused,
            // The next try may find more space.
            RunError::Store(_) | RunError::Outside(OutsideError::Session(_)) => FailureClass::Unknown,
            RunError::Outside(OutsideError::Provider(_)) => FailureClass::AuthRequired,
            _ => FailureClass::Refused,
        };
        Failure { remedy: self.remedy().map(Into::into), ..Failure::new(class, causes(self)) }
    }

    /// What to do about it, where that is known.
    pub fn remedy(&self) -> Option<String> {
        match self {
            RunError::Refused(refusal) => Some(refusal.remedy()),
            RunError::Store(_) => {
                Some("free some space or check the permissions of the state directory".into())
            }
            RunError::Outside(OutsideError::Session(SessionError::Uncounted(_))) => Some(
                "give the model's server an address that is no port of `network.local`, or set no budget"
                    .into(),
            ),
            RunError::Outside(_) => {
                Some("log in again, or choose other credentials (`credentials` of the policy)".into())
            }
            RunError::Workspace(error) => error.remedy().map(str::to_owned),
            RunError::Invocation(_)
            | RunError::Host(_)
            | RunError::Layer(_)
            | RunError::Attachments(_)
            | RunError::Name(_) => None,
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
    let workspace = Directory::open_known(job.workspace.host().as_path(), job.workspace_id)?;
    let run = job.run.clone().map_or_else(clock::new_run_id, Ok)?;
    let Planned { plan, redactor, mut notices, uncounted, session } = plan(job, backend, runs, &run)?;
    // Before anything else of the run is on the disk: a private git directory without a locked log is a lost run's.
    let mut open = runs.open(&run)?;
    if job.layer {
        open.make_layer()?;
    }
    // Before the import, which writes in git directories.
    let (active, lost_runs) = runs.note_active(&run)?;
    let lost = take_over_lost(job, runs, &plan, &lost_runs);
    let layer = plan.request.layer.as_ref().map(HostPath::as_path);
    let protect = &plan.request.policy.files.protect;
    let places = Places::hold(&job.workspace, workspace, layer, job.attachments.as_deref(), protect);
    let places = places.map_err(RunError::Attachments)?;
    let mut unreadable = job.work.names_files().then(|| unreadable(job, &places, plan.request.mode));
    // It is built while the record is being written.
    let mut staged = backend.stage(&plan);
    let hidden = staged.as_mut().map(|staged| staged.hidden()).unwrap_or_default();
    unreadable.iter_mut().for_each(|unreadable| unreadable.add_hidden(&hidden));
    let trees = trees(job, &plan, staged.as_deref_mut().ok()).begun(runs);
    notices.extend(staged.iter().flat_map(|staged| staged.notices()));
    let warnings = staged.iter().flat_map(|staged| staged.warnings());
    let warnings: Vec<String> = warnings.chain(uncounted).collect();
    notices.extend(lost.iter().cloned());
    let record = record(job, backend, &plan, &redactor, &notices);
    open.begin(&record)?;
    if plan.request.env.get("TMPDIR").is_some_and(|tmp| runs.tmp(&run).as_os_str() == tmp.as_str()) {
        open.make_tmp()?;
    }
    open.bound_log(plan.request.policy.limits.output.bytes());
    let mut watchers = Watchers { open: &mut open, observer, max_output: plan.request.policy.limits.output };
    let begin =
        Event::Started { run: run.clone(), cli: record.cli, mode: record.mode, policy: record.policy };
    let notices = notices.into_iter().map(|message| Event::Notice { message: message.into() });
    let mut told = Ok(());
    for event in std::iter::once(begin).chain(notices) {
        told = told.and(watchers.tell(event)?.shown);
    }
    lost.iter().chain(&warnings).for_each(|message| watchers.observer.warning(message));
    // What was told of them is in the log; the next run does not tell it again.
    lost_runs.into_iter().for_each(LostRun::reported);
    let (end, remains) = match told {
        Ok(()) => match start(job, &plan.request, staged, (session, &runs.network(&run))) {
            Ok(running) => {
                // While the program starts there is nothing else to do.
                runs.remove_discarded(MAX_DISCARDED, SHORT_REMOVAL);
                attempt(job, running, &plan, &redactor, &mut *reader(job), &mut watchers, cancel)
            }
            Err(end) => (*end, None),
        },
        Err(error) => (End::stopped(unread(&error)), None),
    };
    // What was sandboxed goes while its end is being written down; a layer is read when nobody holds it any more.
    let remains = remains.filter(|_| !job.layer);
    if let Some(layer) = plan.request.layer.as_ref().map(HostPath::as_path) {
        // An overlay is read whoever hears of it.
        let _ = watchers.observer.goes_on();
        let until = post_run_deadline(&plan, started);
        let noted = note_layer(job, layer, &runs.record_file(&run), until, cancel);
        let failed = |error: LayerError| Some(format!("the layer cannot be read: {}", causes(&error)));
        if let Some(message) = noted.unwrap_or_else(failed) {
            watchers.tell_at_end(message);
        }
    }
    if let Some(message) = places.restore_rights() {
        watchers.observer.warning(&message);
        watchers.tell_at_end(message);
    }
    // Before the import, which writes in git directories of the workspace.
    let (executed_later, unsearched) = trees.search(runs, &run);
    let mut imported = ImportedRefs::default();
    if plan.request.git.is_some() && !job.layer {
        let place = (&job.outside.programs, job.workspace.host().as_path());
        let memory = plan.request.policy.limits.memory.map(|size| size.bytes());
        imported = git::import(runs, &run, place, memory);
    }
    let kept = imported.kept_notices();
    let (executed_later, left_out) = executed::merge(executed_later, imported.executed);
    if let Some(message) = executed::notice(&executed_later) {
        watchers.tell_at_end(message);
    }
    for message in imported.notices.into_iter().chain(kept).chain(left_out).chain(unsearched) {
        watchers.observer.warning(&message);
        watchers.tell_at_end(message);
    }
    let mut result = conclude(job, runs, run, end, cancel, started, &redactor);
    (result.git_refs, result.executed_later) = (imported.refs, executed_later);
    if let Some(unreadable) = unreadable {
        let until = post_run_deadline(&plan, started);
        let (text, attachments) = attachments::collect(&result.text, &places, &unreadable, until);
        (result.text, result.attachments) = (text.into(), attachments);
    }
    if !keep_result(&mut open, active, runs, &mut result) {
        result.failure.iter().for_each(|failure| observer.unkept(failure));
    }
    drop(open);
    // The run is over, whatever the disk and the reader say.
    let _ = observer.event(&Event::Result(result.clone()));
    if let Some(failure) = remains.and_then(|mut remains| remains.clear()) {
        let _ = observer.event(&Event::Notice { message: failure.message });
    }
    // A long run can afford the removal, and there may be much of it.
    if started.elapsed() > LONG_RUN {
        runs.remove_discarded(0, LONG_REMOVAL);
    }
    Ok(result)
}

/// What a run can write, as it is when its sandbox is built.
fn trees(job: &Job<'_>, plan: &Plan, mut staged: Option<&mut (dyn Staged + '_)>) -> Trees {
    let scanned = staged.as_mut().map(|staged| staged.locations()).unwrap_or_default();
    let stubs = staged.as_mut().map(|staged| staged.stubs()).unwrap_or_default();
    let programs = staged.map(|staged| staged.programs()).unwrap_or_default();
    let seen_from = (job.workspace.host().as_path(), job.outside.home.as_path());
    let layer = plan.request.layer.as_ref().map(HostPath::as_path);
    Trees::scanned(&plan.request.policy.files, seen_from, layer, scanned, &stubs).with(programs)
}

/// Searches what lost runs left and imports what they committed. Returns what the user has to know of it.
fn take_over_lost(job: &Job<'_>, runs: &Runs, plan: &Plan, lost_runs: &[LostRun]) -> Vec<String> {
    let mut lost = executed::search_lost(runs, lost_runs, &job.outside.home);
    if plan.request.git.is_some() {
        let workspace = job.workspace.host().as_path();
        lost.extend(git::import_lost(runs, &plan.request.run, &job.outside.programs, workspace));
    }
    lost
}

/// Writes down how a run ended. A disk that is full has space for that: what the run left to be removed, and what was reserved as
/// the run began. If the result cannot be kept all the same, the run has failed, and the next one searches what it left. Returns
/// whether it was kept.
fn keep_result(open: &mut OpenRun, active: ActiveRun, runs: &Runs, result: &mut RunResult) -> bool {
    let now = clock::now_ms();
    if open.end(result, now).is_ok() {
        return true;
    }
    open.remove_tmp();
    runs.remove_discarded(0, LONG_REMOVAL);
    let _ = active.release_space();
    if open.end(result, now).is_ok() {
        return true;
    }
    let shortened = RunResult { text: result.text.clone().truncated(SHORT_REPLY_BYTES), ..result.clone() };
    let Err(error) = open.end(&shortened, now) else {
        *result = shortened;
        return true;
    };
    active.leave();
    let message = format!("the result of the run cannot be kept: {}", causes(&error));
    let failure = match result.failure.take() {
        Some(failure) => Failure { message: format!("{message}; {}", failure.message).into(), ..failure },
        None => Failure::new(FailureClass::Unknown, message),
    };
    if result.status == RunStatus::Success {
        result.status = RunStatus::Failed;
    }
    result.exit_code = exit_code::RUNTIME;
    result.failure = Some(failure.with_remedy("free some space on the disk of the state directory"));
    false
}

/// What a run of this length leaves is removed at its end, what a shorter one leaves with a later run.
const LONG_RUN: Duration = Duration::from_secs(1);
/// Entries above which a short run removes them too.
const MAX_DISCARDED: u64 = 1024;
/// How long a removal may take while the program starts, whose output waits meanwhile, and at the end of a long run.
const SHORT_REMOVAL: Duration = Duration::from_millis(50);
const LONG_REMOVAL: Duration = Duration::from_secs(2);
/// How long the overlay may be looked at after the run, beyond what is left of the run's time.
const POST_RUN_GRACE: Duration = Duration::from_secs(10);
/// However much is left of the run's time, the overlay is not looked at for longer.
const POST_RUN_LONGEST: Duration = Duration::from_secs(60);

/// When the host stops looking at what a run has left.
fn post_run_deadline(plan: &Plan, started: Instant) -> Instant {
    let left = plan.request.policy.limits.timeout_seconds.duration().saturating_sub(started.elapsed());
    Instant::now() + left.min(POST_RUN_LONGEST) + POST_RUN_GRACE
}

/// Notes what lies below the files that the run has changed. A request to end that comes meanwhile ends it.
fn note_layer(
    job: &Job<'_>,
    layer: &Path,
    marker: &Path,
    deadline: Instant,
    cancel: &Cancel,
) -> Result<Option<String>, LayerError> {
    let requests = cancel.requests();
    let layer = Layer::open(layer, job.workspace.host().as_path(), job.workspace_id, marker)?;
    layer.note(deadline, &|| cancel.requests() > requests)
}

/// What a run must not read, as it is before the run.
fn unreadable(job: &Job<'_>, places: &Places, mode: Mode) -> Unreadable {
    let Outside { home, login_home, state, .. } = &job.outside;
    let homes = [Some(home), login_home.as_ref()].into_iter().flatten();
    let hidden = homes.flat_map(|home| job.policy.files.secret_paths(home)).chain([state.clone()]);
    // Globs that cannot be read were refused with the policy. Should one come here, nothing is attached.
    let unreadable = match job.policy.files.denied() {
        Ok(denied) => places.unreadable(denied, hidden),
        Err(_) => Unreadable::everything(),
    };
    unreadable.without_privileges(job.is_root && mode.isolates())
}

/// A plan, and what goes with it.
struct Planned {
    plan: Plan,
    redactor: Redactor,
    notices: Vec<String>,
    /// Of these the one about hosts that a budget does not count: a warning, too.
    uncounted: Option<String>,
    /// With the broker, if it is let out.
    session: Option<Session>,
}

fn plan(job: &Job<'_>, backend: &dyn Backend, runs: &Runs, run: &RunId) -> Result<Planned, RunError> {
    let cli = job.work.cli();
    let mode = backend.mode();
    let mut passed = environment(&job.host_env, &job.policy, cli, &job.given_env, mode.shares_system());
    if !mode.shares_system() {
        passed.env.entry("HOME".into()).or_insert_with(|| GUEST_HOME.into());
    }
    if cli.is_some() && !job.given_env.contains_key("TMPDIR") {
        // A temporary directory of its own: one that works, and that goes with the run.
        let tmp = if mode.isolates() { "/tmp".into() } else { runs.tmp(run).display().to_string() };
        passed.env.insert("TMPDIR".into(), tmp);
    }
    let base_url = match &job.work {
        Work::Agent { base_url, .. } => *base_url,
        Work::Program(_) | Work::Question { .. } => None,
    };
    let credentials = outside::credentials(job, base_url)?;
    for credential in &credentials {
        passed.env.extend(credential.inside().env.clone());
    }
    let copies = match cli.filter(|_| job.policy.credentials == Credentials::Mount) {
        Some(cli) => logins::copies(cli, job.outside.sources(&job.host_env)),
        None => Copies::default(),
    };
    let unknown = no_login(cli, job, &passed.env, credentials.is_empty() && copies.files.is_empty());
    let line = command_line(job, &passed.env)?;
    for (name, value) in line.env {
        passed.env.entry(name).or_insert(value);
    }
    for (name, value) in line.forced_env {
        if !job.given_env.contains_key(&name) {
            passed.env.insert(name, value);
        }
    }
    let needed = outside::needed_hosts(cli, &job.policy, &credentials)?;
    let secret = passed.secret.iter().filter_map(|name| passed.env.get(name));
    let redactor = Redactor::new(secret.chain(&copies.secrets).map(String::as_str));
    let home = passed.env.get("HOME").map(PathBuf::from).unwrap_or_default();
    let files = copies.files.into_iter();
    let files = files.map(|(path, text)| GuestFile { path: home.join(path), text, mode: 0o600, over: false });
    let mut policy = job.policy.clone();
    let default_limits = bound(job, backend, &mut policy, runs);
    let request = Request {
        run: run.clone(),
        mode,
        policy,
        default_limits,
        argv: line.argv,
        env: passed.env,
        workspace: job.workspace.clone(),
        workspace_id: job.workspace_id,
        layer: job.layer.then(|| HostPath::new(runs.layer(run))).transpose()?,
        git: private_git(job, mode).then(|| HostPath::new(runs.git(run))).transpose()?,
        governing: job.governing.clone(),
        stdin: if cli.is_some() && !job.at_terminal() { Stdin::Empty } else { job.stdin },
        needed_hosts: needed,
        door: None,
        files: files.collect(),
    };
    let mut plan = resolve(request, &backend.capabilities())?;
    let addresses = outside::model_addresses(base_url, &plan.request.env);
    let session = outside::session(job, &plan.request.policy, credentials, &addresses)?;
    if let Some(session) = &session {
        outside::furnish(&mut plan.request, session, &job.given_env);
    }
    let unreached = reach_host(job, backend, &mut plan.request);
    let notices = job.notices.iter().cloned().chain(line.notices).chain(backend.notices());
    let uncounted = outside::uncounted_hosts(&job.policy, session.as_ref());
    let notices = notices.chain(unreached).chain(unknown).chain(uncounted.clone());
    let notices = notices.collect();
    Ok(Planned { plan, redactor, notices, uncounted, session })
}

/// Whether a run gets private git directories.
fn private_git(job: &Job<'_>, mode: Mode) -> bool {
    let files = &job.policy.files;
    mode.isolates() && files.git == GitAccess::Private && files.workspace == WorkspaceAccess::ReadWrite
}

/// Bounds a run where its policy does not, and returns which limits nobody asked for.
fn bound(job: &Job<'_>, backend: &dyn Backend, policy: &mut Policy, runs: &Runs) -> BTreeSet<Promise> {
    let asked = policy.promises();
    backend.bound(&mut policy.limits);
    if backend.mode().isolates() && policy.limits.growth.is_none() {
        let written = if job.layer { runs.root() } else { job.workspace.host().as_path() };
        policy.limits.growth = Growth::default_limit(written);
    }
    policy.promises().difference(&asked).copied().collect()
}

/// What a person should know who has neither a key nor a login for an agent CLI that needs one.
fn no_login(
    cli: Option<&dyn AgentCli>,
    job: &Job<'_>,
    env: &BTreeMap<String, String>,
    none_found: bool,
) -> Option<String> {
    let cli = cli.filter(|cli| none_found && !cli.facts().login.env.is_empty())?;
    let login = &cli.facts().login;
    let handed = login.env.iter().any(|name| env.contains_key(*name));
    if handed || job.policy.credentials == Credentials::None || job.host_env.is_empty() {
        return None;
    }
    // Without a boundary it finds its own login.
    #[expect(clippy::disallowed_methods, reason = "a login is in the user's home, which no run writes")]
    let there = |path: &&str| job.outside.sources(&job.host_env).place(path).exists();
    if job.policy.files.reach == Reach::Host && login.paths.iter().any(there) {
        return None;
    }
    Some(format!("no login and no key of {} was found: {}", cli.facts().name, login.remedy))
}

/// Services of the host: by another name where the mode has one, through the broker where the policy names their ports. The
/// others are told.
fn reach_host(job: &Job<'_>, backend: &dyn Backend, request: &mut Request) -> Vec<String> {
    if let Some(host) = backend.host_name(request) {
        loopback::rewrite(&mut request.env, &job.loopback_env, host);
        return Vec::new();
    }
    if !request.mode.isolates()
        || (request.policy.network.mode == NetworkMode::Open && request.door.is_none())
    {
        return Vec::new();
    }
    let reached = &request.policy.network.local;
    let unreached = loopback::locals(&request.env, &job.loopback_env).into_iter();
    let unreached = unreached.filter(|local| local.port.is_none_or(|port| !reached.contains(&port)));
    let tell = |Local { name, port }| match port {
        Some(port) => format!(
            "{name} names port {port} of this machine, which a run cannot reach: `--allow-local {port}` lets it"
        ),
        None => format!("{name} names this machine, which a run cannot reach: `--allow-local PORT` lets it"),
    };
    unreached.map(tell).collect()
}

fn command_line(job: &Job<'_>, env: &BTreeMap<String, String>) -> Result<CommandLine, InvocationError> {
    match &job.work {
        Work::Program(argv) | Work::Question { argv, .. } => {
            Ok(CommandLine { argv: argv.clone(), ..CommandLine::default() })
        }
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
                interactive: job.at_terminal(),
            })
        }
    }
}

fn reader(job: &Job<'_>) -> Box<dyn Reader> {
    match &job.work {
        Work::Agent { cli, .. } if !job.at_terminal() => cli.reader(),
        Work::Agent { .. } | Work::Program(_) | Work::Question { .. } => ringfence_agents::program_reader(),
    }
}

fn record(
    job: &Job<'_>,
    backend: &dyn Backend,
    plan: &Plan,
    redactor: &Redactor,
    notices: &[String],
) -> Record {
    let request = &plan.request;
    let mut versions: BTreeMap<String, String> = backend.versions().into_iter().collect();
    versions.insert("ringfence".into(), env!("CARGO_PKG_VERSION").into());
    if let Some(program) = job.work.cli().and_then(|cli| cli.facts().program) {
        let path = request.env.get("PATH").map(String::as_str).unwrap_or_default();
        let version = version::of_program(program, path).unwrap_or_else(|| "unknown".into());
        versions.insert(program.into(), version);
    }
    Record {
        schema: RECORD_SCHEMA,
        run: request.run.clone(),
        started_at: clock::now_text(),
        agent: job.agent.clone(),
        cli: job.work.cli().map_or("exec", |cli| cli.facts().name).to_owned(),
        mode: request.mode,
        policy: job.policy_name.clone(),
        requested: job.policy.clone(),
        effective: request.policy.clone(),
        mechanisms: plan.mechanisms.clone(),
        not_enforced: backend.not_enforced(&request.policy.limits),
        versions,
        workspace: request.workspace.clone(),
        workspace_id: request.workspace_id,
        layer: request.layer.is_some(),
        argv: request.argv.iter().map(|word| redactor.clean(word.clone())).collect(),
        env_names: request.env.keys().cloned().collect(),
        continues: job.work.session().cloned(),
        notices: notices.to_vec(),
    }
}

struct Watchers<'a> {
    open: &'a mut OpenRun,
    observer: &'a mut dyn Observer,
    max_output: MemorySize,
}

impl Watchers<'_> {
    /// Writes an event to the log, then shows it: what was shown can be shown again.
    fn tell(&mut self, event: Event) -> Result<Told, RunsError> {
        let line = LogLine { at_ms: clock::now_ms(), event };
        let appended = self.open.append(&line);
        let shown = self.observer.event(&line.event);
        Ok(Told { appended: appended?, shown })
    }

    /// Writes a notice of what came of the run, and shows it. One that the disk does not take is written with the result.
    fn tell_at_end(&mut self, message: String) {
        let line = LogLine { at_ms: clock::now_ms(), event: Event::Notice { message: message.into() } };
        self.open.append_or_hold_back(&line);
        let _ = self.observer.event(&line.event);
    }
}

/// What became of an event.
struct Told {
    appended: Appended,
    /// Whether the reader took it.
    shown: io::Result<()>,
}

/// Why a run ends whose output nobody takes.
fn unread(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => {
            Failure::new(FailureClass::Cancelled, "nobody reads the output any more")
        }
        io::ErrorKind::TimedOut => {
            Failure::new(FailureClass::Timeout, "the time was over while the output waited to be read")
        }
        _ => Failure::new(FailureClass::Unknown, format!("the output cannot be written: {error}")),
    }
}

impl Audience for Watchers<'_> {
    fn event(&mut self, event: Event) -> Result<(), Failure> {
        let Told { appended, shown } = self.tell(event).map_err(|error| {
            Failure::new(FailureClass::Unknown, format!("the log cannot be kept: {}", causes(&error)))
                .with_remedy("free some space on the disk of the state directory")
        })?;
        shown.map_err(|error| unread(&error))?;
        match appended {
            Appended::Written => Ok(()),
            Appended::Truncated => Err(too_much_output(self.max_output)),
        }
    }

    fn raw(&mut self, stream: Stream, bytes: &[u8]) -> Result<(), Failure> {
        self.observer.raw(stream, bytes).map_err(|error| unread(&error))
    }

    fn goes_on(&mut self) -> Result<(), Failure> {
        self.observer.goes_on().map_err(|error| unread(&error))
    }
}

/// How an attempt ended.
struct End {
    outcome: Outcome,
    exit_code: u8,
    leftovers: u32,
    survivors: u32,
    /// What the broker saw of its usage, model by model.
    metered: BTreeMap<PlainText, Usage>,
}

impl End {
    fn failed(failure: Failure, exit_code: u8) -> Self {
        Self {
            outcome: Outcome { failure: Some(failure), ..Outcome::default() },
            exit_code,
            leftovers: 0,
            survivors: 0,
            metered: BTreeMap::new(),
        }
    }

    /// Of a run that the engine ended for this reason.
    fn stopped(failure: Failure) -> Self {
        let code = stopped_code(&failure);
        Self::failed(failure, code)
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
    pub(super) const UNREAD: u8 = 141;
}

/// A sandbox in which the program runs, and the broker at its door. The sandbox goes first.
struct Running {
    /// As the file systems were before the program was started.
    growth: Option<Growth>,
    sandbox: Box<dyn Sandbox>,
    broker: Option<Broker>,
    meter: Option<Arc<Meter>>,
    /// Whether the broker reads the requests to the model.
    reads_model: bool,
}

/// Starts the program, and lets it out as far as it may go.
fn start(
    job: &Job<'_>,
    request: &Request,
    staged: Result<Box<dyn Staged>, LaunchError>,
    (session, audit): (Option<Session>, &Path),
) -> Result<Running, Box<End>> {
    let growth = growth(request);
    let mut sandbox = staged.and_then(Staged::start).map_err(|error| Box::new(not_launched(job, &error)))?;
    let Some(session) = session else {
        return Ok(Running { growth, sandbox, broker: None, meter: None, reads_model: false });
    };
    let (meter, reads_model) = (Arc::clone(session.meter()), session.reads_model());
    let stopper = sandbox.stopper();
    meter.on_over(move || stopper.stop(Stop::Kill));
    let broker =
        openbroker(sandbox.doors(), session, audit).map_err(|failure| Box::new(End::stopped(failure)))?;
    Ok(Running { growth, sandbox, broker: Some(broker), meter: Some(meter), reads_model })
}

/// The broker at the doors of a sandbox. A sandbox without the door that it was to have is not left to itself.
fn openbroker(mut doors: Vec<(u16, Door)>, session: Session, audit: &Path) -> Result<Broker, Failure> {
    let failed = |message: String| Failure::new(FailureClass::Unknown, message);
    let front = doors.iter().position(|(port, _)| *port == outside::PORT);
    let front = front.ok_or_else(|| failed("the sandbox has no way to the broker".into()))?;
    let (_, front) = doors.swap_remove(front);
    Broker::open(front, doors, session, audit).map_err(|error| failed(causes(&error)))
}

/// Why a run failed whose requests are not all recorded.
fn audit_incomplete() -> Failure {
    let message = "the audit of the run is incomplete: the disk did not take all of its lines";
    Failure::new(FailureClass::Unknown, message)
        .with_remedy("free some space on the disk of the state directory")
}

/// Why a run ends that has used more than it may.
fn over_budget(meter: &Meter) -> Failure {
    let Usage { input_tokens, output_tokens, cost_usd, .. } = meter.total_of_task();
    let cost = cost_usd.map(|cost| format!(", ${cost:.4}")).unwrap_or_default();
    let message =
        format!("the budget was passed: {} tokens{cost}", input_tokens.saturating_add(output_tokens));
    Failure::new(FailureClass::BudgetExceeded, message)
        .with_remedy("raise `limits.tokens` or `limits.cost_usd` of the policy if that is meant")
}

/// Why a run failed whose model was refused.
fn no_price(model: &str) -> Failure {
    let message =
        format!("the price of the model `{model}` is not known, and the run has a budget in US dollars");
    Failure::new(FailureClass::Refused, message).with_remedy(
        "name the price in the file that `broker.prices_file` names, or use `limits.tokens` instead of `limits.cost_usd`",
    )
}

/// The file systems that a run can write on: that of its workspace or its overlay, that of its private git directories, and those
/// of what it may write besides.
fn growth(request: &Request) -> Option<Growth> {
    let workspace = request.layer.as_ref().unwrap_or(request.workspace.host()).as_path();
    let git = request.git.as_ref().map(HostPath::as_path);
    let named = request.policy.files.write.iter().map(Path::new);
    let most = request.policy.limits.growth?;
    Growth::begin([workspace].into_iter().chain(git).chain(named), most)
}

/// Follows a run to its end. What is left of its sandbox comes along, if it ended by itself.
fn attempt(
    job: &Job<'_>,
    running: Running,
    plan: &Plan,
    redactor: &Redactor,
    reader: &mut dyn Reader,
    watchers: &mut Watchers<'_>,
    cancel: &Cancel,
) -> (End, Option<Box<dyn Sandbox>>) {
    let Running { growth, mut sandbox, broker, meter, reads_model } = running;
    cancel.arm(&sandbox.stopper());
    if let Err(error) = watchers.observer.started() {
        return (End::stopped(unread(&error)), None);
    }
    if let Some(terminal) = sandbox.terminal() {
        watchers.observer.terminal(terminal);
    }
    let mut watch = Watch {
        limits: &plan.request.policy.limits,
        growth,
        patience: job.patience,
        at_terminal: job.at_terminal(),
        redactor,
        reader: &mut *reader,
        audience: watchers,
        cancel,
    };
    let watched = match watch.follow(&mut *sandbox) {
        Ok(watched) => watched,
        Err(failure) => return (End::stopped(failure), None),
    };
    // It waits for answers that are on their way, which count too.
    let recorded = broker.is_none_or(Broker::close);
    let metered = meter.as_ref().map(|meter| meter.by_model()).unwrap_or_default();
    let mut outcome = reader.finish(watched.exit.status, clock::now_ms() / 1000);
    let survivors = watched.exit.survivors;
    if survivors > 0 && outcome.failure.is_none() {
        let what = if survivors == 1 { "a process".to_owned() } else { format!("{survivors} processes") };
        let failure = Failure::new(FailureClass::Unknown, format!("{what} of the run could not be ended"));
        outcome.failure = Some(failure.with_remedy("look for it with `ps`"));
    }
    if !recorded && outcome.failure.is_none() {
        outcome.failure = Some(audit_incomplete());
    }
    let mut exit_code = match watched.exit.status {
        ExitStatus::Code(0) if outcome.failure.is_some() => exit_code::FAILED,
        ExitStatus::Code(code) => code,
        ExitStatus::Signal(signal) => 128u8.saturating_add(signal),
    };
    if let Some(failure) = watched.ended_for {
        exit_code = stopped_code(&failure);
        outcome.failure = Some(failure);
    }
    if reads_model && meter.as_ref().is_some_and(|meter| !meter.saw_limit()) {
        outcome.failure = outcome.failure.map(doubted);
    }
    if let Some(meter) = meter {
        let unpriced = meter.unpriced().filter(|_| outcome.failure.is_some()).map(no_price);
        if let Some(failure) = meter.is_over().then(|| over_budget(&meter)).or(unpriced) {
            exit_code = stopped_code(&failure);
            outcome.failure = Some(failure);
        }
    }
    (End { outcome, exit_code, leftovers: watched.exit.leftovers, survivors, metered }, Some(sandbox))
}

/// A failure of which the broker has seen every answer of the model, and none that speaks of a limit. Any program of the run
/// can print what looks like one, so it does not stop the task without costing an attempt.
fn doubted(failure: Failure) -> Failure {
    if failure.class != FailureClass::Quota {
        return failure;
    }
    let message = format!(
        "the agent CLI reports a limit, but no answer of the model's server did: {}",
        failure.message
    );
    Failure {
        retry_after_seconds: None,
        ..Failure { message: message.into(), class: FailureClass::AgentError, ..failure }
    }
}

/// The code of a run that the engine ended.
fn stopped_code(failure: &Failure) -> u8 {
    match failure.class {
        FailureClass::Timeout => exit_code::TIMEOUT,
        FailureClass::Cancelled => exit_code::UNREAD,
        _ => exit_code::RUNTIME,
    }
}

fn not_launched(job: &Job<'_>, error: &LaunchError) -> End {
    let mut failure = error.failure();
    if !matches!(error, LaunchError::Runtime(_)) {
        failure.remedy = job.work.cli().map(|cli| cli.facts().install.into());
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
    redactor: &Redactor,
) -> RunResult {
    let End { mut outcome, mut exit_code, leftovers, survivors, metered } = end;
    if cancel.requested() {
        // Whatever it made of the wish: a run that was told to end did not do its work.
        exit_code = exit_code::INTERRUPTED;
        outcome.failure = Some(Failure::new(FailureClass::Cancelled, "the run was cancelled"));
    }
    let status = match &outcome.failure {
        None => RunStatus::Success,
        Some(failure) if failure.class == FailureClass::Cancelled => RunStatus::Cancelled,
        Some(_) => RunStatus::Failed,
    };
    let session_usage = outcome.usage_of_session.then_some(outcome.usage);
    let before = match (session_usage, &outcome.session) {
        (Some(_), Some(session)) if job.work.session() == Some(session) => usage_before(runs, session, &run),
        _ => None,
    };
    RunResult {
        run,
        status,
        exit_code,
        text: redactor.clean_text(outcome.text).truncated(MAX_REPLY_BYTES),
        attachments: Vec::new(),
        session: outcome.session,
        usage: before.map_or(outcome.usage, |before| outcome.usage.since(before)),
        session_usage,
        metered,
        duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        leftover_processes: leftovers,
        surviving_processes: survivors,
        git_refs: Vec::new(),
        executed_later: Vec::new(),
        failure: outcome.failure.map(|failure| redactor.clean_failure(failure)),
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
