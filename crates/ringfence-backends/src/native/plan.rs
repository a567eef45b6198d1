//! Plan and survey → the steps of a sandbox. Pure.

use std::path::{Path, PathBuf};

use ringfence_core::backend::LaunchError;
use ringfence_core::paths::{DirectoryId, HostPath};
use ringfence_core::plan::{GuestFile, Plan, Request};
use ringfence_core::policy::{Limits, NetworkMode, WorkspaceAccess};
use ringfence_gate::Spec;
use ringfence_linux::{Access, Base, Covered, Grant, Placeholder, Sandbox, StandIn, Step, Walls};

use super::limits::Bounded;
use super::system::{Part, Program, System};
use crate::shared::covers::{Cover, Shown, covers, hidden, shown, stubs_of_others};
use crate::shared::survey::{Missing, Survey};
use crate::shared::{repositories, run};

/// What can be built before the workspace was looked at: the system, empty places, devices, processes.
pub(super) fn base(request: &Request, system: &System) -> Base {
    let mut builder = Builder::default();
    for part in &system.parts {
        match part {
            Part::Directory(path) => builder.bind(path, path, Access::Read),
            Part::Link(path, to) => builder.steps.push(Step::Link { target: path.clone(), to: to.clone() }),
        }
    }
    let seen = seen(&builder.steps);
    for (path, directory) in &system.secrets {
        let is_fleeting = system.fleeting.contains(path);
        builder.steps.extend(hidden(&seen, path, *directory).into_iter().map(|cover| match is_fleeting {
            true => Step::MaskSocket { target: cover.target().to_owned() },
            false => step(cover, None),
        }));
    }
    for (place, mode) in [("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/run", 0o755)] {
        builder.steps.push(Step::Private { target: place.into(), mode });
    }
    if let Some(home) = home(request) {
        builder.steps.push(Step::Private { target: home.into(), mode: 0o700 });
    }
    Base {
        walls: Walls::Own,
        own_network: request.policy.network.mode != NetworkMode::Open || request.door.is_some(),
        size: private_size(&request.policy.limits),
        steps: builder.steps,
    }
}

/// The empty home, unless it is no place of its own.
fn home(request: &Request) -> Option<&str> {
    let home = request.env.get("HOME").map(String::as_str)?;
    (home.starts_with('/') && !home.trim_matches('/').is_empty()).then_some(home)
}

/// The paths of the host that are of no use to a run if a directory above them is hidden.
pub(super) fn needed<'a>(request: &'a Request, program: &'a Program, survey: &'a Survey) -> Vec<&'a Path> {
    let shown = survey.shown.iter().map(|(path, _)| path.as_path());
    shown.chain([request.workspace.host().as_path(), program.path.as_path()]).collect()
}

/// What the gate is told.
pub(super) fn spec(
    plan: &Plan,
    base: &Base,
    (program, survey, sockets): (&Program, &Survey, Vec<PathBuf>),
    bounded: &Bounded,
) -> Result<Spec, LaunchError> {
    let registered = survey.registered.as_ref().and_then(|entry| entry.path());
    let mut sandbox = Sandbox { registered, ..sandbox(&plan.request, base, survey) };
    sandbox.steps.extend(sockets.into_iter().map(|target| Step::MaskSocket { target }));
    spec_of(plan, sandbox, program, bounded)
}

/// The same for a sandbox that was made otherwise.
pub(super) fn spec_of(
    plan: &Plan,
    sandbox: Sandbox,
    program: &Program,
    bounded: &Bounded,
) -> Result<Spec, LaunchError> {
    let request = &plan.request;
    let sandbox = Sandbox {
        groups: bounded.groups.directories().to_vec(),
        scope: bounded.scope,
        processors: bounded.processors,
        ..sandbox
    };
    let sandbox = run::told(&sandbox)?;
    let inside = HostPath::new(&program.path).ok().and_then(|path| request.workspace.to_guest(&path));
    let program = inside.map_or_else(|| program.path.clone(), PathBuf::from);
    Ok(Spec {
        memory_limit: bounded.memory,
        process_limit: bounded.user_processes,
        watched_memory: bounded.watched_memory,
        watched_processes: bounded.watched_processes,
        ..run::spec(request, &program, request.workspace.guest().as_path(), Some(sandbox))
    })
}

#[derive(Default)]
struct Builder {
    steps: Vec<Step>,
    grants: Vec<Grant>,
}

impl Builder {
    fn bind(&mut self, source: &Path, target: &Path, access: Access) {
        self.bind_known(source, target, access, (None, None));
    }

    /// The same for a source and a target that a run could replace: both have to be what they were.
    fn bind_known(
        &mut self,
        source: &Path,
        target: &Path,
        access: Access,
        (id, over): (Option<DirectoryId>, Option<Covered>),
    ) {
        self.steps.push(Step::Bind {
            source: source.to_owned(),
            target: target.to_owned(),
            access,
            id,
            over,
        });
        self.grant(target, access);
    }

    fn grant(&mut self, path: &Path, access: Access) {
        self.grants.push(Grant { path: path.to_owned(), access });
    }
}

fn sandbox(request: &Request, base: &Base, survey: &Survey) -> Sandbox {
    let mut builder = Builder { grants: granted(base), ..Builder::default() };
    // The variable may name the home by a link, or name another directory.
    let real_home = survey.home.as_ref().filter(|home| is_shown_by(base, home));
    builder.steps.extend(real_home.map(|home| Step::Private { target: home.clone(), mode: 0o700 }));
    for file in &request.files {
        let GuestFile { path, text, mode, over } = file.clone();
        builder.steps.push(match over {
            true => Step::Text { target: path, text },
            false => Step::File { target: path, text, mode },
        });
    }
    builder
        .steps
        .extend(survey.link_back.iter().map(|(at, to)| Step::Link { target: at.clone(), to: to.clone() }));
    for Shown { source, target, write, id, .. } in shown(request, survey) {
        match layer(request).filter(|_| target == request.workspace.guest().as_path()) {
            None => builder.bind_known(&source, &target, access(write), (id, None)),
            Some(layer) => {
                builder.grant(&target, Access::Write);
                let layer = layer.to_owned();
                builder.steps.push(Step::Overlay { lower: source, identity: survey.identity, layer, target });
            }
        }
    }
    let empty = private_places(base.steps.iter().chain(&builder.steps));
    let named = seen(&builder.steps);
    // A private place hides what the system has there, unless that is shown again.
    let is_seen = |cover: &Cover| {
        !empty.iter().any(|place| cover.target().starts_with(place))
            || named.iter().any(|shown| cover.target().starts_with(&shown.target))
    };
    let seen = seen(base.steps.iter().chain(&builder.steps));
    let private = |number| repositories::private(request, number);
    for Shown { source, target, write, id, over } in
        repositories::mounts(request, survey, &private, repositories::Modules::InPlace)
    {
        let over = over.map(|(path, id)| Covered { id, below: layer(request).is_some().then_some(path) });
        builder.bind_known(&source, &target, access(write), (id, over));
    }
    let covered = |cover: &Cover| {
        let in_layer =
            layer(request).is_some() && cover.target().starts_with(request.workspace.guest().as_path());
        let id = *survey.ids.get(cover.source())?;
        Some(Covered { id, below: in_layer.then(|| cover.source().to_owned()) })
    };
    // A stub of another run may be gone when it is to be covered, and needs no cover then.
    let covers = covers(survey, &seen).into_iter();
    let is_stub = |cover: &Cover| {
        matches!(cover, Cover::Hold { .. }) && survey.stubs_of_others.contains(cover.source())
    };
    let covers = covers.filter(|cover| !is_stub(cover) && is_seen(cover));
    let covers = covers.map(|cover| {
        let covered = covered(&cover);
        step(cover, covered)
    });
    // The base has masked its own already.
    let is_masked = |cover: &Step| {
        base.steps.contains(cover)
            || matches!(cover, Step::MaskFile { target, covered: None }
                if base.steps.contains(&Step::MaskSocket { target: target.clone() }))
    };
    builder.steps.extend(covers.filter(|cover| !is_masked(cover)));
    let stubs = stubs_of_others(survey, &seen).into_iter().map(|target| Step::HoldStub { target });
    builder.steps.extend(stubs);
    Sandbox {
        groups: Vec::new(),
        scope: false,
        processors: None,
        workspace: lock(request).to_owned(),
        workspace_id: lock_id(request),
        identity: layer(request).is_none().then_some(survey.identity),
        steps: builder.steps,
        grants: builder.grants,
        cwd: request.workspace.guest().as_path().to_owned(),
        placeholders: placeholders(request, survey),
        registered: None,
        doors: run::doors(request),
        mounted: Vec::new(),
    }
}

/// Whether a part of the system shows a directory, over which no private place is.
fn is_shown_by(base: &Base, directory: &Path) -> bool {
    let private = private_places(&base.steps);
    let is_part = |step: &Step| match step {
        Step::Bind { target, .. } => directory.starts_with(target) && directory != target,
        _ => false,
    };
    base.steps.iter().any(is_part) && !private.iter().any(|place| directory.starts_with(place))
}

/// The empty places of these steps.
fn private_places<'a>(steps: impl IntoIterator<Item = &'a Step>) -> Vec<PathBuf> {
    let place = |step: &Step| match step {
        Step::Private { target, .. } => Some(target.clone()),
        _ => None,
    };
    steps.into_iter().filter_map(place).collect()
}

/// What Landlock lets through of a base.
fn granted(base: &Base) -> Vec<Grant> {
    let grant = |path: &Path, access| Grant { path: path.to_owned(), access };
    let of_steps = base.steps.iter().filter_map(|step| match step {
        Step::Bind { target, access, .. } => Some(grant(target, *access)),
        Step::Private { target, .. } => Some(grant(target, Access::Write)),
        _ => None,
    });
    let always = [("/dev", Access::Write), ("/proc", Access::Write), ("/", Access::List)];
    of_steps.chain(always.map(|(path, access)| grant(Path::new(path), access))).collect()
}

/// The layer, where there is something to write to it.
pub(super) fn layer(request: &Request) -> Option<&Path> {
    let writes = request.policy.files.workspace == WorkspaceAccess::ReadWrite;
    request.layer.as_ref().filter(|_| writes).map(HostPath::as_path)
}

/// The directory whose lock tells whether others stand on the same stand-ins.
pub(super) fn lock(request: &Request) -> &Path {
    layer(request).unwrap_or_else(|| request.workspace.host().as_path())
}

/// The identity of the directory that is locked. A layer is in the state directory, which no run reaches.
pub(super) fn lock_id(request: &Request) -> Option<DirectoryId> {
    layer(request).is_none().then_some(request.workspace_id)
}

/// Where a path of the workspace that is not there yet would come to be.
fn in_layer(request: &Request, path: &Path) -> PathBuf {
    let rest = path.strip_prefix(request.workspace.host().as_path()).ok();
    match (layer(request), rest) {
        (Some(layer), Some(rest)) => layer.join("upper").join(rest),
        _ => path.to_owned(),
    }
}

/// What stands in for protected paths that are not there.
pub(super) fn placeholders(request: &Request, survey: &Survey) -> Vec<Placeholder> {
    if request.policy.files.workspace == WorkspaceAccess::ReadOnly {
        return Vec::new();
    }
    let stand_in =
        |(path, kind): &(PathBuf, StandIn)| Placeholder { path: in_layer(request, path), kind: kind.clone() };
    survey.missing.iter().map(stand_in).collect()
}

/// Those of them that can be made before the scan is over: in the workspace itself, for a layer is not ready by then.
pub(super) fn early_placeholders(request: &Request, missing: &[Missing]) -> Vec<Placeholder> {
    if request.policy.files.workspace == WorkspaceAccess::ReadOnly || layer(request).is_some() {
        return Vec::new();
    }
    missing.iter().map(|(path, kind)| Placeholder { path: path.clone(), kind: kind.clone() }).collect()
}

/// What is seen of the host by these steps.
fn seen<'a>(steps: impl IntoIterator<Item = &'a Step>) -> Vec<Shown> {
    let bind = |step: &Step| match step {
        Step::Bind { source, target, access, .. } => {
            Some(Shown::new(source.clone(), target.clone(), *access == Access::Write))
        }
        Step::Overlay { lower, target, .. } => Some(Shown::new(lower.clone(), target.clone(), true)),
        _ => None,
    };
    steps.into_iter().filter_map(bind).collect()
}

fn access(write: bool) -> Access {
    if write { Access::Write } else { Access::Read }
}

fn step(cover: Cover, covered: Option<Covered>) -> Step {
    match cover {
        Cover::Hold { target, write, .. } => Step::Hold { target, access: access(write), covered },
        Cover::Hide { target, directory: true, .. } => Step::MaskDirectory { target, covered },
        Cover::Hide { target, directory: false, .. } => Step::MaskFile { target, covered },
    }
}

/// How much the home, `/tmp` and the like take together: what the policy says, else half of the run's memory, or of the
/// machine's. It is memory that the watchdog does not see, so it is bounded by itself.
fn private_size(limits: &Limits) -> String {
    match (limits.disk, limits.memory) {
        (Some(disk), _) => disk.bytes().to_string(),
        (None, Some(memory)) => (memory.bytes() / 2).to_string(),
        (None, None) => "50%".to_owned(),
    }
}
