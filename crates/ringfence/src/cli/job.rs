//! Flags + settings → a job and its backend.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use ringfence_backends::{Surroundings, entry};
use ringfence_core::backend::Backend;
use ringfence_core::capability::Capabilities;
use ringfence_core::config::{AgentSettings, Layers, PolicyChoice, Settings, WorkspaceKind};
use ringfence_core::event::{RunResult, Usage};
use ringfence_core::failure::Failure;
use ringfence_core::ids::RunId;
use ringfence_core::mode::Mode;
use ringfence_core::paths::{HostPath, PathMapping, PathMappingMode};
use ringfence_core::plan::Stdin;
use ringfence_core::policy::{self, Files, Network, NetworkMode, Policy, Preset};
use ringfence_core::units::Seconds;
use ringfence_engine::{Cancel, Job, Observer, Outside, Work};
use ringfence_store::runs::Runs;

use super::options::Options;
use crate::asking::Person;
use crate::governing::{Chosen, Named, Writable};
use crate::grants;
use crate::installation::{Installation, read_governing_text};
use crate::queue::server_address;
use crate::render::{Human, Json, Nobody, Through};
use crate::report::advise;
use crate::signals::{Hearing, Signals};
use crate::terminal;
use crate::typing::{self, AtTerminal};
use crate::workspace::Workspace;

/// How long after its time a run's output may still be waiting for its reader.
const READER_GRACE: Duration = Duration::from_secs(1);

/// How a person sees the run.
pub(crate) enum Face {
    /// Rendered.
    Human,
    /// Its own output, untouched; at a terminal, with a terminal of its own.
    Through,
    /// A terminal of its own, for as long as a person likes.
    Conversation,
}

/// What is asked for, with the settings that apply.
pub(crate) struct Asked<'a> {
    pub(crate) installation: &'a Installation,
    pub(crate) layers: &'a Layers,
    pub(crate) settings: &'a Settings,
    pub(crate) options: &'a Options,
    /// The agent of the settings, if it is one.
    pub(crate) agent: Option<&'a AgentSettings>,
    /// Its name, or the agent CLI's.
    pub(crate) name: &'a str,
    /// The directory to work in, if it is known already.
    pub(crate) workspace: Option<Workspace>,
}

/// What is said of every run in a mode without a boundary.
fn without_boundary(mode: Mode, policy_name: &str) -> String {
    format!("mode {mode} has no boundary: the run can reach all that you can (policy {policy_name})")
}

impl Asked<'_> {
    /// The workspace as the flags or the agent name it.
    fn named_workspace(&self) -> Option<PathBuf> {
        let path = self.options.cwd.as_deref().or_else(|| self.agent?.working_directory.as_deref())?;
        Some(self.installation.expand(path))
    }

    fn surroundings(&self) -> Surroundings {
        self.installation.surroundings_for(self.named_workspace().as_deref())
    }

    /// Runs the work to its end, in front of a person.
    pub(crate) fn perform(&self, work: Work<'_>, face: &Face) -> anyhow::Result<RunResult> {
        let mode = self.mode();
        let backend = backend(mode, &self.surroundings(), self.settings)?;
        let job = self.job(mode, work, face)?;
        let (mut at_terminal, mut through);
        let observer: &mut dyn Observer = match face {
            _ if self.options.json => &mut Json,
            _ if matches!(job.stdin, Stdin::Terminal(_)) => {
                at_terminal = AtTerminal::new().context("the terminal cannot be used")?;
                &mut at_terminal
            }
            Face::Human => &mut Human,
            Face::Through | Face::Conversation => {
                through = if self.options.ask { Through::plain_at_terminal() } else { Through::default() };
                &mut through
            }
        };
        if let (false, Face::Through | Face::Conversation) = (mode.isolates() || self.options.json, face) {
            observer.warning(&without_boundary(mode, &job.policy_name));
        }
        self.follow(&job, &*backend, observer)
    }

    /// Runs the work to its end before an observer, under a policy that the mode's means may change.
    pub(crate) fn observe(
        &self,
        work: Work<'_>,
        observer: &mut dyn Observer,
        change: &mut dyn FnMut(&mut Policy, &Capabilities),
    ) -> anyhow::Result<RunResult> {
        let mode = self.mode();
        let backend = backend(mode, &self.surroundings(), self.settings)?;
        let mut job = self.job(mode, work, &Face::Human)?;
        change(&mut job.policy, &backend.capabilities());
        self.follow(&job, &*backend, observer)
    }

    /// Runs the work to its end under a name, without an observer. Earlier runs of the same task have `spent` of its budget.
    pub(crate) fn attempt(
        &self,
        work: Work<'_>,
        run: RunId,
        spent: Usage,
        cancel: &Cancel,
    ) -> anyhow::Result<Result<RunResult, Failure>> {
        let mode = self.mode();
        let backend = backend(mode, &self.surroundings(), self.settings)?;
        let mut job = Job { run: Some(run), ..self.job(mode, work, &Face::Human)? };
        job.outside.spent = spent;
        let done = ringfence_engine::run(&job, &*backend, &self.installation.runs(), &mut Nobody, cancel);
        Ok(done.map_err(|error| error.failure()))
    }

    /// Asks an agent CLI something, as a run that is kept elsewhere.
    pub(crate) fn question(
        &self,
        work: Work<'_>,
        runs: &Runs,
        observer: &mut dyn Observer,
    ) -> anyhow::Result<Result<RunResult, Failure>> {
        let mode = self.mode();
        let backend = backend(mode, &self.surroundings(), self.settings)?;
        let job = self.job(mode, work, &Face::Human)?;
        let done = ringfence_engine::run(&job, &*backend, runs, observer, &Cancel::default());
        Ok(done.map_err(|error| error.failure()))
    }

    fn follow(
        &self,
        job: &Job<'_>,
        backend: &dyn Backend,
        observer: &mut dyn Observer,
    ) -> anyhow::Result<RunResult> {
        let cancel = Cancel::default();
        let signals = Signals::catch(&self.installation.interrupted).context("signals cannot be caught")?;
        let observer = &mut Hearing::new(observer, signals, &cancel);
        terminal::wait_for_readers_until(
            Instant::now() + job.policy.limits.timeout_seconds.duration() + READER_GRACE,
        );
        let runs = self.installation.runs();
        ringfence_engine::run(job, backend, &runs, observer, &cancel).map_err(|error| match error.remedy() {
            Some(remedy) => advise(error, remedy),
            None => error.into(),
        })
    }

    /// A flag wins over the agent, the agent over everything else.
    pub(crate) fn mode(&self) -> Mode {
        self.options
            .mode
            .or_else(|| self.agent.and_then(|agent| agent.sandbox_mode))
            .unwrap_or(self.settings.sandbox.mode)
    }

    fn job<'w>(&self, mode: Mode, work: Work<'w>, face: &Face) -> anyhow::Result<Job<'w>> {
        let (mut policy, policy_name) = self.policy(mode)?;
        let named = Named::by(self.layers, self.installation)?;
        if !policy.files.secrets.is_empty() {
            policy.files.secrets.extend(named.secrets());
        }
        if matches!(face, Face::Conversation) && self.options.timeout.is_none() {
            policy.limits.timeout_seconds = Seconds::MAX;
        }
        let mut notices = Vec::new();
        if !mode.isolates() {
            notices.push(without_boundary(mode, &policy_name));
        }
        let workspace = self.workspace()?;
        if mode.isolates() {
            self.refuse_home(workspace.path.as_path())?;
        }
        let (writable, chosen) = self.check_governing(mode, &mut policy, &workspace, &named)?;
        let attachments = self.attachments(&policy.files, &writable)?;
        if mode.isolates() && !self.options.home_workspace {
            self.installation.homes().iter().try_for_each(|home| grants::refuse_home(&policy.files, home))?;
        }
        let governing = self.governing(&writable, &chosen, &named)?;
        let layer = self.layer(mode)?;
        if layer {
            notices.push(
                "what is written stays apart: `ringfence diff last` shows it, `apply` and `discard` decide"
                    .into(),
            );
        }
        let (given_env, outside) = (self.options.variables(self.installation)?, self.outside(mode)?);
        writable.note()?;
        if let Some(directory) = &attachments {
            writable.note_copies(directory)?;
        }
        Ok(Job {
            run: None,
            work,
            agent: self.name.to_owned(),
            policy,
            policy_name,
            workspace: self.mapping(mode, workspace.path),
            workspace_id: workspace.id,
            layer,
            host_env: self.installation.env.clone(),
            given_env,
            outside,
            patience: self.settings.sandbox.patience_seconds,
            is_root: rustix::process::geteuid().is_root(),
            notices,
            loopback_env: self.settings.sandbox.loopback_env.clone(),
            attachments,
            governing,
            stdin: self.stdin(face)?,
        })
    }

    /// What the broker has to know.
    fn outside(&self, mode: Mode) -> anyhow::Result<Outside> {
        let mut outside = self.installation.outside(&self.settings.broker)?;
        outside.programs = self.installation.programs(self.named_workspace().as_deref());
        if self.options.ask {
            outside.ask = Some(Arc::new(Person::new(self.installation)?));
        }
        if self.options.learn && !mode.isolates() {
            return Err(advise(
                anyhow!("mode {mode} has no broker that could learn"),
                "choose a mode with a boundary (`--mode`)",
            ));
        }
        outside.learn = self.options.learn;
        Ok(outside)
    }

    /// Refuses the home, a directory above it, or one of those in it whose files programs execute, as a workspace.
    fn refuse_home(&self, workspace: &Path) -> anyhow::Result<()> {
        let homes = self.installation.homes();
        let Some(what) = homes.iter().find_map(|home| grants::part_of_home(workspace, home)) else {
            return Ok(());
        };
        if self.options.home_workspace {
            return Ok(());
        }
        Err(advise(
            anyhow!("the workspace {} is {what}", workspace.display()),
            "work in another directory, or pass --home-workspace if you mean it",
        ))
    }

    /// Where attachments are copied to.
    fn attachments(&self, files: &Files, writable: &Writable) -> anyhow::Result<Option<PathBuf>> {
        let Some(path) = &self.options.attachments else { return Ok(None) };
        let path = self.installation.expand(path);
        let directory = grants::follow(&path, writable)?;
        // A task's are kept with its run, in the state directory.
        let run = path.parent().filter(|_| path.ends_with("attachments"));
        if run.and_then(Path::parent) != Some(self.installation.runs().root()) {
            let homes = self.installation.homes();
            homes.iter().try_for_each(|home| grants::refuse_copies(&directory, files, home))?;
        }
        Ok(Some(directory))
    }

    /// Resolves what the policy names, and refuses a policy or a file of variables that a run could have written.
    pub(crate) fn check_governing(
        &self,
        mode: Mode,
        policy: &mut Policy,
        workspace: &Workspace,
        named: &Named,
    ) -> anyhow::Result<(Writable, Vec<Chosen>)> {
        let policy_file = match self.choice()? {
            Some(PolicyChoice::File(file)) => {
                Some(Chosen { path: self.installation.expand(&file), is_env: false })
            }
            _ => None,
        };
        let variables = self.options.env_files(self.installation);
        let variables = variables.map(|path| Chosen { path, is_env: true });
        let chosen: Vec<Chosen> = policy_file.into_iter().chain(variables).collect();
        let writable =
            Writable::of(self.installation, workspace.path.as_path(), &mut policy.files, mode.isolates())?;
        chosen.iter().try_for_each(|chosen| writable.check(chosen, &policy.files, named))?;
        Ok((writable, chosen))
    }

    /// What governs runs and this one could write.
    fn governing(
        &self,
        writable: &Writable,
        chosen: &[Chosen],
        named: &Named,
    ) -> anyhow::Result<Vec<HostPath>> {
        let broker = &self.settings.broker;
        let in_force = [&broker.ca_file, &broker.prices_file].into_iter().flatten();
        let in_force: Vec<PathBuf> = in_force.map(|path| self.installation.expand(path)).collect();
        let governing = writable.governing(self.installation, chosen, named, &in_force);
        Ok(governing.into_iter().map(HostPath::new).collect::<Result<_, _>>()?)
    }

    /// The policy that a flag, the agent or the settings choose.
    fn choice(&self) -> anyhow::Result<Option<PolicyChoice>> {
        let flag = self.options.policy.clone().map(PolicyChoice::try_from).transpose()?;
        let chosen = flag.or_else(|| self.agent.and_then(|agent| agent.policy.clone()));
        Ok(chosen.or_else(|| self.settings.sandbox.policy.clone()))
    }

    /// The policy with everything that changes it.
    pub(crate) fn policy(&self, mode: Mode) -> anyhow::Result<(Policy, String)> {
        let choice = self.choice()?.unwrap_or(PolicyChoice::Preset(Preset::default_of(mode)));
        let timeout = self.settings.sandbox.timeout_seconds;
        let mut policy = match &choice {
            PolicyChoice::Preset(preset) => {
                let mut policy = preset.policy();
                policy.limits.timeout_seconds = timeout;
                policy
            }
            PolicyChoice::File(file) => {
                let mut policy = read_policy(&self.installation.expand(file))?;
                // A default gives way to the file; what somebody set, here or in the project, is not exceeded.
                if self.layers.given("sandbox.timeout_seconds").is_some() {
                    policy.limits.timeout_seconds = policy.limits.timeout_seconds.min(timeout);
                }
                policy
            }
        };
        let options = self.options;
        policy.env.allow.extend(self.settings.sandbox.env_allowlist.iter().cloned());
        policy.files.read.extend(options.read.iter().map(|path| self.named_path(path)));
        policy.files.write.extend(options.write.iter().map(|path| self.named_path(path)));
        options.allow.iter().for_each(|host| policy.allow_host(host.clone()));
        policy.network.local.extend(&options.allow_local);
        // Only who asks for a port has to know which one it must not be.
        let asks = !policy.network.local.is_empty();
        let own = asks.then(|| server_address(&self.installation.state)).flatten();
        let own = own.and_then(|text| text.parse::<SocketAddr>().ok());
        if let Some(port) = own.map(|own| own.port()).filter(|port| policy.network.local.contains(port)) {
            return Err(advise(
                anyhow!("port {port} is that of ringfence's own daemon, which no run may reach"),
                "leave it out of `--allow-local` and of the policy",
            ));
        }
        if policy.network.mode == NetworkMode::Allow {
            policy.network.allow.extend(self.settings.broker.allow.iter().cloned());
        }
        if options.ask {
            policy.network.mode = NetworkMode::Allow;
            policy.network.ask = true;
        }
        if options.learn {
            policy.network = Network { mode: NetworkMode::Open, ..policy.network };
        }
        policy.limits.timeout_seconds = options.timeout.unwrap_or(policy.limits.timeout_seconds);
        policy.limits.memory = options.memory.or(policy.limits.memory);
        policy.limits.cpus = options.cpus.or(policy.limits.cpus);
        policy.limits.pids = options.pids.or(policy.limits.pids);
        Ok((policy, choice.into()))
    }

    fn named_path(&self, path: &Path) -> String {
        self.installation.expand(path).display().to_string()
    }

    /// What the run reads. The person's own terminal is never handed in: whoever has it can type on it.
    fn stdin(&self, face: &Face) -> anyhow::Result<Stdin> {
        Ok(match face {
            Face::Human => Stdin::Empty,
            // The terminal is for the answers of the person.
            _ if self.options.ask => Stdin::Empty,
            Face::Through | Face::Conversation if at_terminal() && !self.options.json => {
                Stdin::Terminal(typing::size())
            }
            Face::Through | Face::Conversation if std::io::stdin().is_terminal() => {
                if in_background() {
                    return Ok(Stdin::Empty);
                }
                typing::relay().context("the terminal cannot be read")?;
                Stdin::Inherit
            }
            Face::Through | Face::Conversation if self.mode().isolates() => {
                if typing::is_nothing() {
                    return Ok(Stdin::Empty);
                }
                typing::relay().context("standard input cannot be read")?;
                Stdin::Inherit
            }
            Face::Through | Face::Conversation => Stdin::Inherit,
        })
    }

    /// Whether the workspace is to stay untouched.
    fn layer(&self, mode: Mode) -> anyhow::Result<bool> {
        match self.options.workspace.unwrap_or(self.settings.sandbox.workspace) {
            WorkspaceKind::Bind => Ok(false),
            WorkspaceKind::Overlay => Ok(true),
            kind @ (WorkspaceKind::Worktree | WorkspaceKind::Clone) => Err(advise(
                anyhow!("mode {mode} has no workspace of kind `{kind}`"),
                "use `--workspace bind`, the directory itself, or `--workspace overlay`, a layer over it",
            )),
        }
    }

    /// The workspace as the run sees it.
    pub(crate) fn guest_workspace(&self, mode: Mode) -> anyhow::Result<PathBuf> {
        Ok(self.mapping(mode, self.workspace()?.path).guest().as_path().to_owned())
    }

    /// The directory to work in.
    pub(crate) fn workspace(&self) -> anyhow::Result<Workspace> {
        match &self.workspace {
            Some(known) => Ok(known.clone()),
            None => Workspace::of(self.installation, self.options, self.agent),
        }
    }

    fn mapping(&self, mode: Mode, host: HostPath) -> PathMapping {
        // Without a boundary there is no inside, so nothing can be mapped.
        let mapping =
            if mode.isolates() { self.settings.sandbox.path_mapping_mode } else { PathMappingMode::SamePath };
        PathMapping::new(mapping, host)
    }
}

/// Whether a person can type here and sees what comes of it.
pub(crate) fn at_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !in_background()
}

/// A program in the background must not take what is typed for the shell: it runs in a session of its own, so the
/// terminal would not stop it.
fn in_background() -> bool {
    let input = std::io::stdin();
    rustix::termios::tcgetpgrp(&input).is_ok_and(|group| group != rustix::process::getpgrp())
}

/// Reads a policy file.
pub(crate) fn read_policy(file: &Path) -> anyhow::Result<Policy> {
    let text =
        read_governing_text(file)?.with_context(|| format!("the policy {} is not there", file.display()))?;
    Ok(policy::parse(&text, &file.display().to_string())?)
}

/// The backend of a mode, or why there is none.
pub(crate) fn backend(
    mode: Mode,
    around: &Surroundings,
    settings: &Settings,
) -> anyhow::Result<Box<dyn Backend>> {
    match entry(mode).backend {
        Some(make) => Ok(make(around, settings)),
        None => {
            let usable: Vec<_> = ringfence_backends::ALL
                .iter()
                .filter(|entry| entry.backend.is_some())
                .map(|entry| format!("`--mode {}`", entry.mode))
                .collect();
            Err(advise(
                anyhow!(
                    "this version of ringfence cannot run anything in mode {mode} yet; nothing was started"
                ),
                format!(
                    "choose {} for this run, or with `ringfence sandbox set` for all",
                    usable.join(" or ")
                ),
            ))
        }
    }
}
