//! Plan and survey → the steps of a sandbox. Pure.

use std::path::{Path, PathBuf};

use ringfence_core::backend::LaunchError;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::paths::HostPath;
use ringfence_core::plan::{Plan, Request};
use ringfence_core::policy::{NetworkMode, Reach, WorkspaceAccess};
use ringfence_gate::Spec;
use ringfence_linux::{Access, Grant, Placeholder, Sandbox, StandIn, Step};

use super::survey::{Survey, System};
use crate::shared::run;

/// What the gate is told.
pub(super) fn spec(plan: &Plan, survey: &Survey) -> Result<Spec, LaunchError> {
    let request = &plan.request;
    let sandbox = sandbox(request, survey);
    let sandbox = serde_json::to_value(&sandbox).map_err(|error| {
        LaunchError::Runtime(Failure::new(
            FailureClass::Unknown,
            format!("the sandbox cannot be told: {error}"),
        ))
    })?;
    let program = HostPath::new(&survey.program).ok().and_then(|path| request.workspace.to_guest(&path));
    let program = program.map_or_else(|| survey.program.clone(), PathBuf::from);
    Ok(run::spec(request, &program, request.workspace.guest().as_path(), Some(sandbox)))
}

struct Builder {
    steps: Vec<Step>,
    grants: Vec<Grant>,
}

impl Builder {
    fn memory(&mut self, target: &Path, mode: u32, size: &str) {
        self.steps.push(Step::Memory { target: target.to_owned(), mode, size: size.to_owned() });
        self.grant(target, Access::Write);
    }

    fn bind(&mut self, source: &Path, target: &Path, access: Access) {
        self.steps.push(Step::Bind { source: source.to_owned(), target: target.to_owned(), access });
        self.grant(target, access);
    }

    fn grant(&mut self, path: &Path, access: Access) {
        self.grants.push(Grant { path: path.to_owned(), access });
    }
}

fn sandbox(request: &Request, survey: &Survey) -> Sandbox {
    let files = &request.policy.files;
    let mut builder = Builder { steps: Vec::new(), grants: Vec::new() };
    system(survey, &mut builder);
    // Memory that the watchdog does not see, so it is bounded by itself.
    let size = files_in_memory(request);
    builder.memory(Path::new("/tmp"), 0o1777, &size);
    builder.memory(Path::new("/var/tmp"), 0o1777, SMALL);
    builder.memory(Path::new("/run"), 0o755, SMALL);
    if let Some(home) =
        request.env.get("HOME").map(Path::new).filter(|home| home.is_absolute() && *home != Path::new("/"))
    {
        builder.memory(home, 0o700, &size);
    }
    if let Some(tree) = &survey.program_tree
        && !tree.starts_with(request.workspace.host().as_path())
    {
        builder.bind(tree, tree, Access::Read);
    }
    for (path, write) in &survey.shown {
        builder.bind(path, path, if *write { Access::Write } else { Access::Read });
    }
    let access = match files.workspace {
        WorkspaceAccess::ReadWrite => Access::Write,
        WorkspaceAccess::ReadOnly => Access::Read,
    };
    builder.bind(request.workspace.host().as_path(), request.workspace.guest().as_path(), access);
    shut(request, survey, &mut builder);
    builder.steps.extend([Step::Devices, Step::Processes]);
    builder.grant(Path::new("/dev"), Access::Write);
    builder.grant(Path::new("/proc"), Access::Write);
    builder.grant(Path::new("/"), Access::List);
    Sandbox {
        workspace: request.workspace.host().as_path().to_owned(),
        identity: survey.identity,
        own_network: request.policy.network.mode != NetworkMode::Open,
        steps: builder.steps,
        grants: builder.grants,
        cwd: request.workspace.guest().as_path().to_owned(),
        placeholders: placeholders(request, survey),
    }
}

/// What stands in for protected paths that are not there.
pub(super) fn placeholders(request: &Request, survey: &Survey) -> Vec<Placeholder> {
    if request.policy.files.workspace == WorkspaceAccess::ReadOnly {
        return Vec::new();
    }
    let stand_in = |(path, kind): &(PathBuf, StandIn)| Placeholder { path: path.clone(), kind: kind.clone() };
    survey.missing.iter().map(stand_in).collect()
}

fn system(survey: &Survey, builder: &mut Builder) {
    for part in &survey.system {
        match part {
            System::Directory(path) => builder.bind(path, path, Access::Read),
            System::Link(path, to) => builder.steps.push(Step::Link { target: path.clone(), to: to.clone() }),
        }
    }
}

/// What is protected or hidden, over everything that was shown before, wherever it is seen. What nobody sees needs no
/// cover.
fn shut(request: &Request, survey: &Survey, builder: &mut Builder) {
    let seen: Vec<(PathBuf, PathBuf, Access)> = builder
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Bind { source, target, access } => Some((source.clone(), target.clone(), *access)),
            _ => None,
        })
        .collect();
    let places = |path: &Path, of: &dyn Fn(Access) -> bool| -> Vec<PathBuf> {
        let at = |(source, target, access): &(PathBuf, PathBuf, Access)| {
            let rest = path.strip_prefix(source).ok().filter(|_| of(*access))?;
            Some(target.join(rest).components().collect())
        };
        seen.iter().filter_map(at).collect()
    };
    let anchors = survey.anchors.iter().map(|path| (path, Access::Write));
    let protected = survey.protected.iter().map(|path| (path, Access::Read));
    for (path, access) in anchors.chain(protected) {
        for target in places(path, &|access| access == Access::Write) {
            builder.steps.push(Step::Bind { source: path.clone(), target, access });
        }
    }
    if request.policy.files.reach == Reach::Workspace {
        for (path, directory) in &survey.hidden {
            for target in places(path, &|_| true) {
                builder.steps.push(match directory {
                    true => Step::MaskDirectory { target },
                    false => Step::MaskFile { target },
                });
            }
        }
    }
}

const SMALL: &str = "64m";

/// How much each of the home and `/tmp` takes: a quarter of the run's memory, or of the machine's.
fn files_in_memory(request: &Request) -> String {
    match request.policy.limits.memory {
        Some(memory) => (memory.bytes() / 4).to_string(),
        None => "25%".to_owned(),
    }
}
