//! A run in a container: make it, wait for its gate, take it away.
#![expect(
    clippy::disallowed_methods,
    reason = "places in the state directory; the workspace was opened by its identity before"
)]

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bollard::models::{ContainerCreateBody, ContainerState, ContainerStateStatusEnum, ImageInspect};
use ringfence_core::backend::{Backend, LaunchError, Staged};
use ringfence_core::capability::Capabilities;
use ringfence_core::config::Settings;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::mode::Mode;
use ringfence_core::paths::DirectoryId;
use ringfence_core::plan::{Plan, Request};
use ringfence_core::policy::{Limits, WorkspaceAccess};
use ringfence_gate::{Order, Stream};
use ringfence_linux::{Placeholder, Preparation, Sandbox, StandIns};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use super::config::{Config, NetworkChoice};
use super::engine::{Engine, Facts};
use super::image::{self, ImageName};
use super::plan::{self, Parts, User};
use super::room::{Note, Room};
use super::warm::{Handed, Pattern};
use super::{Flavor, caps, undertaker};
use crate::shared::gate::{Body, Burial, Gate};
use crate::shared::register::{Registration, id_of};
use crate::shared::survey::{self, Survey};
use crate::shared::{probing, repositories, run};
use crate::{GateProgram, Surroundings};

/// How long a container may take until its gate speaks.
const GATE_PATIENCE: Duration = Duration::from_secs(60);
/// How often to look meanwhile whether it still lives.
const LOOK: Duration = Duration::from_millis(500);
/// How long a container whose gate is gone takes until the engine knows why.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Runs agents in containers.
pub(crate) struct Containers {
    flavor: Flavor,
    around: Surroundings,
    config: Result<Config, String>,
    engine: OnceLock<Result<Arc<Engine>, Failure>>,
    /// How many containers are kept ready.
    warm: u32,
    /// The image of the last run, for its record.
    image: Mutex<Option<String>>,
}

impl Containers {
    pub(crate) fn new(flavor: Flavor, around: Surroundings, settings: &Settings) -> Self {
        let config = Config::read(settings, flavor.mode);
        let warm = settings.sandbox.warm;
        Self { flavor, around, config, engine: OnceLock::new(), warm, image: Mutex::new(None) }
    }

    fn engine(&self) -> Result<Arc<Engine>, Failure> {
        self.engine.get_or_init(|| known(self.flavor, &self.around).map(Arc::new)).clone()
    }

    fn config(&self) -> Result<&Config, Failure> {
        self.config.as_ref().map_err(|why| Failure::new(FailureClass::Refused, why))
    }

    fn image(&self) -> Result<ImageName, Failure> {
        image::read(&self.config()?.image).map_err(|why| {
            let remedy = format!("set `sandbox.{}.image`", self.flavor.mode);
            Failure::new(FailureClass::Refused, why).with_remedy(remedy)
        })
    }

    fn network(&self) -> NetworkChoice {
        self.config.as_ref().map_or(NetworkChoice::Gate, Config::network)
    }

    /// Takes away what others have left who were killed. What cannot be taken away now is left for later.
    fn reap(&self, engine: &Engine) {
        for (mut room, note) in Room::abandoned(&self.around.state) {
            let Some(note) = note else {
                room.give_up();
                continue;
            };
            if note.engine != engine.endpoint.socket && note.engine_id != engine.facts.id {
                continue;
            }
            // One that is just ending may not be taken away at once.
            let Ok(was_there) = engine.remove_patiently(&note.container) else { continue };
            note.clear_workspace();
            // The engine may still be making what a run asked for that was killed: the next one looks again.
            if was_there || !room.is_young() {
                room.give_up();
            }
        }
    }

    fn stage_in(&self, engine: &Arc<Engine>, request: &Request) -> Result<run::Built, LaunchError> {
        self.reap(engine);
        let name = self.image().map_err(LaunchError::Runtime)?.name;
        let image = engine.image(&name).map_err(LaunchError::Runtime)?;
        let id = image.id.clone().unwrap_or(name);
        *self.image.lock().unwrap_or_else(PoisonError::into_inner) = Some(id.clone());
        let ready = self.make_ready(engine, request, &id, &image)?;
        let (sandbox, (memory_limit, process_limit)) = (run::told(&ready.sandbox)?, ready.watched);
        let (mut survey, owner) = (ready.survey.clone(), ready.owner);
        let (control, container) = self.obtain(engine, request, ready)?;
        let owner = rustix::process::geteuid().is_root().then_some(owner);
        repositories::make(request, &mut survey, owner).map_err(|error| {
            let message = format!("a private git directory cannot be made: {error}");
            LaunchError::Runtime(Failure::new(FailureClass::Unknown, message))
        })?;
        let idle = connect_gate(control, container)?;
        idle.prepare(&Preparation::Base(plan::base()))?;
        let (program, env) = plan::command(request, &self.around.gate.program, &image_env(&image));
        let spec = run::spec(request, &program, request.workspace.guest().as_path(), Some(sandbox));
        let built = idle.build(ringfence_gate::Spec { env, memory_limit, process_limit, ..spec }, request)?;
        Ok(built.with_survey(survey, request))
    }

    /// Looks around, and makes all that has to be on the host before there is a container.
    fn make_ready(
        &self,
        engine: &Engine,
        request: &Request,
        id: &str,
        image: &ImageInspect,
    ) -> Result<Ready, LaunchError> {
        let workspace = request.workspace.host().as_path();
        let stand_ins = StandIns::share(workspace, Some(request.workspace_id));
        let mut stand_ins = stand_ins.map_err(|error| run::not_locked(workspace, &error))?;
        let survey = survey::look(request, &self.around, (&survey::state(&self.around), None), &mut |_| ())?;
        let room = Room::new(&self.around.state, &request.run);
        let room = room.map_err(|error| broken("make a place for the run", &error))?;
        let (seen, covers) = plan::seen(request, &survey);
        let parts = Parts {
            request,
            survey: &survey,
            seen,
            covers,
            room: &room,
            gate: self.around.gate.unreplaced().map_err(LaunchError::Runtime)?,
            image: id,
            volumes: &volumes(image),
            has_health_check: image.config.as_ref().is_some_and(|config| config.healthcheck.is_some()),
            network: &self.network(),
            user: user(workspace, &engine.facts, self.flavor)?,
            flavor: self.flavor,
            facts: &engine.facts,
            owner: &self.around.state,
        };
        parts.check()?;
        let note = Note {
            mode: self.flavor.mode,
            container: format!("ringfence-{}", request.run),
            engine: engine.endpoint.socket.clone(),
            engine_id: engine.facts.id.clone(),
            workspace: workspace.to_owned(),
            workspace_id: Some(request.workspace_id),
            placeholders: placeholders(request, &survey),
        };
        room.note(&note).map_err(|error| broken("write down what is made", &error))?;
        stand_ins.answer_for(note.placeholders.clone());
        stand_ins.place().map_err(|error| broken("hold a protected path", &error))?;
        let over = parts.texts();
        let (body, sandbox, watched) = (parts.body(), parts.sandbox()?, parts.watched());
        let covered = parts.covered();
        let owner = (parts.user.uid, parts.user.gid);
        Ok(Ready { note, body, sandbox, watched, covered, over, owner, survey, room, stand_ins })
    }

    /// A container that waits already, or a new one; with the connection to its gate.
    fn obtain(
        &self,
        engine: &Arc<Engine>,
        request: &Request,
        ready: Ready,
    ) -> Result<(UnixStream, Box<Container>), LaunchError> {
        let gate = self.around.gate.clone();
        let Ready { note, body, covered, over, survey, room, stand_ins, .. } = ready;
        let git = survey.git.len();
        let _registered = survey.registered.clone();
        let furnished =
            |done: io::Result<()>| done.map_err(|error| broken("furnish the place of the run", &error));
        let pattern = (self.warm > 0).then(|| {
            let own = (&body, &room, request.run.as_str());
            Pattern::of(self.flavor, engine, own, (&note, &covered, over.len(), git), self.warm)
        });
        let pattern = pattern.flatten();
        let handed = pattern.as_ref().and_then(|pattern| pattern.take(&self.around.state));
        let obtained = if let Some(Handed { name, room, control }) = handed {
            let refurnished = room.refurnish(&over);
            let container =
                Container { engine: engine.clone(), name, room, gate, _stand_ins: stand_ins, _registered };
            let gone = Dropped(Some(Box::new(container)));
            furnished(refurnished)?;
            (control, gone.taken()?)
        } else {
            furnished(room.furnish(&over, git))?;
            let listener = room.listen().map_err(|error| broken("listen for the gate", &error))?;
            let name = note.container.clone();
            let container =
                Container { engine: engine.clone(), name, room, gate, _stand_ins: stand_ins, _registered };
            // From here on whatever goes wrong takes the container away.
            let gone = Dropped(Some(Box::new(container)));
            let control = start(engine, &note.container, body, &listener).map_err(LaunchError::Runtime)?;
            (control, gone.taken()?)
        };
        if let Some(pattern) = &pattern {
            // A run goes on without; the next one is as slow as this one.
            let _ = pattern.keep(&self.around.gate, &self.around.state);
        }
        // The engine mounts by path, so the paths have to lead where they did when they were scanned.
        let moved = |(path, id): (&PathBuf, &DirectoryId)| id_of(path).ok() != Some(*id);
        if let Some((path, _)) = survey.ids.iter().find(|(path, id)| moved((path, id))) {
            let gone = Dropped(Some(obtained.1));
            drop(gone);
            let message = format!("{} was moved or replaced while the run started", path.display());
            let failure = Failure::new(FailureClass::Unknown, message).with_remedy("start the run again");
            return Err(LaunchError::Runtime(failure));
        }
        hand_over_git(request, &survey, &obtained.1.room)?;
        Ok(obtained)
    }
}

/// Moves the empty git directories, which are mounted already, to where the run keeps them.
fn hand_over_git(request: &Request, survey: &Survey, room: &Room) -> Result<(), LaunchError> {
    for number in 0..survey.git.len() {
        let place = repositories::private(request, number);
        let moved = place.parent().map_or(Ok(()), std::fs::create_dir_all);
        let moved = moved.and_then(|()| std::fs::rename(room.git(number), &place));
        moved.map_err(|error| broken("keep a git directory", &error))?;
    }
    Ok(())
}

/// All that a run needs of the host before it has a container. The stand-ins go last.
struct Ready {
    note: Note,
    body: ContainerCreateBody,
    sandbox: Sandbox,
    /// What the gate bounds: memory and processes.
    watched: (Option<u64>, Option<u32>),
    /// What is covered on the host.
    covered: Vec<PathBuf>,
    over: Vec<String>,
    /// User and group of the run, as the host knows them.
    owner: (u32, u32),
    survey: Survey,
    room: Room,
    stand_ins: StandIns,
}

fn image_env(image: &ImageInspect) -> Vec<String> {
    image.config.as_ref().and_then(|config| config.env.clone()).unwrap_or_default()
}

fn volumes(image: &ImageInspect) -> Vec<String> {
    image.config.as_ref().and_then(|config| config.volumes.clone()).unwrap_or_default()
}

/// The engine as it was known a while ago, if it was.
fn known(flavor: Flavor, around: &Surroundings) -> Result<Engine, Failure> {
    Engine::known(flavor, (flavor.endpoint)(around)?, &around.state)
}

pub(super) fn connect(flavor: Flavor, around: &Surroundings) -> Result<Engine, Failure> {
    Engine::connect(flavor, (flavor.endpoint)(around)?)
}

fn broken(what: &str, error: &io::Error) -> LaunchError {
    LaunchError::Runtime(Failure::new(FailureClass::Unknown, format!("could not {what}: {error}")))
}

/// Files that are made inside belong to whom the workspace belongs to.
fn user(workspace: &Path, facts: &Facts, flavor: Flavor) -> Result<User, LaunchError> {
    let data = std::fs::metadata(workspace).map_err(|error| broken("look at the workspace", &error))?;
    let (uid, gid) = (data.uid(), data.gid());
    let me = rustix::process::geteuid().as_raw();
    if facts.rootless {
        if uid != me {
            let message = format!(
                "{} belongs to user {uid}, and a rootless engine can only write as user {me}",
                workspace.display()
            );
            return Err(LaunchError::Runtime(
                Failure::new(FailureClass::Refused, message).with_remedy("work in a directory of your own"),
            ));
        }
        // Of groups it knows but the person's own.
        let gid = rustix::process::getegid().as_raw();
        return Ok(match flavor.keep_id {
            Some(keep_id) => User { uid, gid, userns: Some(keep_id) },
            None => User { uid: 0, gid: 0, userns: None },
        });
    }
    if uid != me && me != 0 {
        let message = format!("{} belongs to user {uid}, and not to you", workspace.display());
        return Err(LaunchError::Runtime(
            Failure::new(FailureClass::Refused, message).with_remedy("work in a directory of your own"),
        ));
    }
    Ok(User { uid, gid, userns: facts.remaps.then_some("host") })
}

/// What stands in for protected paths that are not there.
fn placeholders(request: &Request, survey: &Survey) -> Vec<Placeholder> {
    if request.policy.files.workspace == WorkspaceAccess::ReadOnly {
        return Vec::new();
    }
    let stand_in = |(path, kind): &(_, _)| Placeholder { path: Clone::clone(path), kind: Clone::clone(kind) };
    survey.missing.iter().map(stand_in).collect()
}

/// Makes a container, starts it, and waits for its gate.
pub(super) fn start(
    engine: &Engine,
    name: &str,
    body: ContainerCreateBody,
    listener: &UnixListener,
) -> Result<UnixStream, Failure> {
    match engine.start(name, body, listener)? {
        Some(control) => Ok(control),
        None => accept(listener, engine, name),
    }
}

/// Waits for the gate to speak, as long as its container lives.
fn accept(listener: &UnixListener, engine: &Engine, container: &str) -> Result<UnixStream, Failure> {
    let deadline = Instant::now() + GATE_PATIENCE;
    let failed = |message: String| Failure::new(FailureClass::Unknown, message);
    while Instant::now() < deadline {
        let wait = Timespec::try_from(LOOK).ok();
        let ready = poll(&mut [PollFd::new(listener, PollFlags::IN)], wait.as_ref());
        if ready.is_ok_and(|count| count > 0) {
            let (control, _) =
                listener.accept().map_err(|error| failed(format!("the gate was lost: {error}")))?;
            return Ok(control);
        }
        match engine.state(container)? {
            Some(state) if state.running != Some(false) => {}
            Some(state) => return Err(fault(&state)),
            None => return Err(failed("somebody took the container away".into())),
        }
    }
    Err(failed(format!("the gate did not speak in {} s", GATE_PATIENCE.as_secs())))
}

/// Gives the gate of a container its pipes.
fn connect_gate(control: UnixStream, body: Box<Container>) -> Result<run::Idle, LaunchError> {
    let gate = Gate::new(control, body).map_err(|error| broken("speak to the gate", &error))?;
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| broken("make pipes", &error.into()));
    let ((stdout, their_stdout), (stderr, their_stderr)) = (pipe()?, pipe()?);
    for (stream, end) in [(Stream::Stdout, &their_stdout), (Stream::Stderr, &their_stderr)] {
        gate.send(&Order::Print(stream), Some(end.as_fd())).map_err(|error| {
            LaunchError::Runtime(Failure::new(FailureClass::Unknown, format!("the gate was lost: {error}")))
        })?;
    }
    run::Idle::elsewhere(gate, stdout, stderr)
}

/// A container with all that belongs to it. The stand-ins go last.
struct Container {
    engine: Arc<Engine>,
    name: String,
    room: Room,
    /// Our program.
    gate: GateProgram,
    _stand_ins: StandIns,
    _registered: Option<Arc<Registration>>,
}

/// Takes a container away unless somebody else has taken it over.
struct Dropped(Option<Box<Container>>);

impl Dropped {
    fn taken(mut self) -> Result<Box<Container>, LaunchError> {
        self.0.take().ok_or_else(|| broken("keep the container", &io::ErrorKind::NotFound.into()))
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        if let Some(container) = &mut self.0 {
            container.remove();
        }
    }
}

impl Container {
    /// Whether it is gone.
    fn remove(&mut self) -> bool {
        let removed = self.engine.remove_patiently(&self.name).is_ok();
        if !removed {
            self.room.keep();
        }
        removed
    }

    /// Why its gate went without a word, as soon as the engine knows.
    fn fault(&self) -> Failure {
        self.engine.wait_for_end(&self.name, END_PATIENCE);
        match self.engine.state(&self.name) {
            Ok(Some(state)) => fault(&state),
            Ok(None) => Failure::new(FailureClass::Unknown, "somebody took the container away")
                .with_remedy("if nobody meant to, try again"),
            Err(failure) => failure,
        }
    }
}

impl Body for Container {
    fn bury(&mut self, said_all: bool) -> Burial {
        let fault = (!said_all).then(|| self.fault());
        // Its gate has ended everything: nobody has to wait until the engine has cleared the rest away.
        if said_all && undertaker::send(&self.gate, &self.room).is_ok() {
            self.room.keep();
        } else {
            self.remove();
        }
        // The gate has ended all others before it spoke, and a container that could not be removed is found again.
        Burial { fault, survivors: 0 }
    }
}

/// What a container ended by.
fn fault(state: &ContainerState) -> Failure {
    if state.oom_killed == Some(true) {
        return Failure::new(FailureClass::OutOfMemory, "the container used more memory than it may");
    }
    let code = state.exit_code.unwrap_or_default();
    let words = state.error.as_deref().unwrap_or_default().trim();
    let words = if words.is_empty() { String::new() } else { format!(": {words}") };
    match state.status {
        Some(ContainerStateStatusEnum::RUNNING) => {
            Failure::new(FailureClass::Unknown, "the gate went and its container runs on; it was ended")
        }
        _ => Failure::new(
            FailureClass::Unknown,
            format!("the container was ended from outside (code {code}){words}"),
        )
        .with_remedy("if nobody meant to, try again"),
    }
}

impl Backend for Containers {
    fn mode(&self) -> Mode {
        self.flavor.mode
    }

    /// An engine that does not answer is not asked for less: the run fails for that reason, and not for the policy.
    fn capabilities(&self) -> Capabilities {
        let facts = match self.engine() {
            Ok(engine) => engine.facts.clone(),
            Err(_) => Facts { memory: true, cpus: true, pids: true, ..Facts::default() },
        };
        caps::capabilities(&facts, &self.network())
    }

    fn bound(&self, limits: &mut Limits) {
        let (Ok(config), Ok(engine)) = (&self.config, self.engine()) else { return };
        // The sizes of the settings are for control groups: by other means they would be too small for what reserves
        // memory that it never uses.
        let Facts { memory, cpus, pids, .. } = engine.facts;
        limits.memory = limits.memory.or(memory.then_some(config.memory));
        limits.cpus = limits.cpus.or(cpus.then_some(config.cpus));
        limits.pids = limits.pids.or(pids.then_some(config.pids_limit));
    }

    fn host_name(&self, request: &Request) -> Option<&'static str> {
        let network = plan::network_mode(&self.network(), request);
        // On the host's own network the loopback is the host's.
        (!matches!(network.as_str(), "none" | "host")).then_some(self.flavor.host_name)
    }

    fn notices(&self) -> Vec<String> {
        let image = self.image().ok().and_then(|image| image.notice);
        let network = match self.network() {
            NetworkChoice::Gate => None,
            NetworkChoice::Named(name) => Some(format!("network `{name}`: what goes out is not enforced")),
        };
        let unbound = self.engine().is_ok_and(|engine| !engine.facts.memory).then(|| {
            format!(
                "{} has no control groups here: memory, cpus and processes are bounded only where a policy or a flag \
                 says so",
                self.flavor.name
            )
        });
        image.into_iter().chain(network).chain(unbound).collect()
    }

    fn versions(&self) -> Vec<(String, String)> {
        let engine = self.engine().ok();
        let engine = engine.map(|engine| (self.flavor.mode.to_string(), engine.facts.version.clone()));
        let image = self.image.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let image = image.map(|id| ("image".to_owned(), id));
        [probing::kernel()].into_iter().chain(engine).chain(image).collect()
    }

    fn stage(&self, plan: &Plan) -> Result<Box<dyn Staged>, LaunchError> {
        let engine = self.engine().map_err(LaunchError::Runtime)?;
        Ok(Box::new(self.stage_in(&engine, &plan.request)?))
    }
}
