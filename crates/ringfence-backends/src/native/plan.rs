//! Plan and survey → the steps of a sandbox. Pure.

use std::path::{Path, PathBuf};

use ringfence_core::backend::LaunchError;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::plan::{Plan, Request, Stdin};
use ringfence_core::policy::{NetworkMode, Reach, WorkspaceAccess};
use ringfence_gate::Spec;
use ringfence_linux::{Access, Grant, Placeholder, Sandbox, Step};

use super::survey::{Survey, System};
use crate::shared::run::lifetime_ms;

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
    let mut argv = request.argv.clone();
    if let Some(first) = argv.first_mut() {
        *first = inside(request, &survey.program).display().to_string();
    }
    Ok(Spec {
        argv,
        cwd: request.workspace.guest().as_path().to_owned(),
        memory_limit: request.policy.limits.memory.map(|size| size.bytes()),
        lifetime_ms: Some(lifetime_ms(&request.policy.limits)),
        stdin: request.stdin == Stdin::Inherit,
        sandbox: Some(sandbox),
    })
}

/// Where a path of the host is seen: the workspace may be somewhere else, everything else is where it is.
fn inside(request: &Request, path: &Path) -> PathBuf {
    match path.strip_prefix(request.workspace.host().as_path()) {
        Ok(rest) => request.workspace.guest().as_path().join(rest).components().collect(),
        Err(_) => path.to_owned(),
    }
}

struct Builder {
    steps: Vec<Step>,
    grants: Vec<Grant>,
}

impl Builder {
    fn memory(&mut self, target: &Path, mode: u32) {
        self.steps.push(Step::Memory { target: target.to_owned(), mode });
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
    builder.memory(Path::new("/tmp"), 0o1777);
    builder.memory(Path::new("/var/tmp"), 0o1777);
    builder.memory(Path::new("/run"), 0o755);
    if let Some(home) =
        request.env.get("HOME").map(Path::new).filter(|home| home.is_absolute() && *home != Path::new("/"))
    {
        builder.memory(home, 0o700);
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
    let stand_in =
        |(path, directory): &(PathBuf, bool)| Placeholder { path: path.clone(), directory: *directory };
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

/// What is protected or hidden, over everything that was shown before. What nobody sees needs no cover.
fn shut(request: &Request, survey: &Survey, builder: &mut Builder) {
    let seen: Vec<PathBuf> = builder
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Bind { source, .. } => Some(source.clone()),
            _ => None,
        })
        .collect();
    if request.policy.files.workspace == WorkspaceAccess::ReadWrite {
        let anchors = survey.anchors.iter().map(|path| (path, Access::Write));
        let protected = survey.protected.iter().map(|path| (path, Access::Read));
        for (path, access) in anchors.chain(protected) {
            builder.steps.push(Step::Bind { source: path.clone(), target: inside(request, path), access });
        }
    }
    for (path, directory) in &survey.hidden {
        if seen.iter().any(|source| path.starts_with(source))
            && request.policy.files.reach == Reach::Workspace
        {
            let target = inside(request, path);
            builder.steps.push(match directory {
                true => Step::MaskDirectory { target },
                false => Step::MaskFile { target },
            });
        }
    }
}
