//! A run by Apple's command: a process of the host that stands for a container, which is taken away by name.
#![expect(clippy::disallowed_methods, reason = "files of the state directory, which no run sees")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ringfence_core::backend::{
    Backend, Exit, ExitStatus, Happening, LaunchError, Sandbox, Staged, Stopper, Terminal,
};
use ringfence_core::capability::Capabilities;
use ringfence_core::event::Stream;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::mode::Mode;
use ringfence_core::plan::{Plan, Request};
use ringfence_core::policy::Limits;
use ringfence_gate::Spec;

use super::command::{Program, ask, find};
use super::config::Config;
use super::{caps, plan};
use crate::Surroundings;
use crate::shared::covers::{Cover, covers, shown};
use crate::shared::register::Registration;
use crate::shared::waiting::locked;
use crate::shared::{run, survey};

/// What the runtime ends with when it could not start the program.
const RUNTIME_FAILED: u8 = 1;
/// So much of its complaints is kept.
const LONGEST: usize = 4096;

/// Runs agents in containers of Apple's runtime.
pub(super) struct Apple {
    around: Surroundings,
    config: Result<Config, String>,
}

impl Apple {
    pub(super) fn new(around: Surroundings, config: Result<Config, String>) -> Self {
        Self { around, config }
    }

    fn config(&self) -> Result<&Config, LaunchError> {
        let refused = |why: &String| LaunchError::Runtime(Failure::new(FailureClass::Refused, why));
        self.config.as_ref().map_err(refused)
    }
}

/// A container by its name, and the file of its variables. Both go when this is dropped.
struct Named {
    program: Program,
    name: String,
    directory: PathBuf,
    /// Tells others that somebody lives in it.
    lock: Option<File>,
    /// Tells others what the run sees.
    _registered: Option<Arc<Registration>>,
}

/// Takes away what others have left who were killed: containers, and files of variables.
fn reap(program: &Program, all: &Path) {
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        if locked(&entry.path()).is_ok() {
            let name = format!("ringfence-{}", entry.file_name().to_string_lossy());
            let _ = ask(program, &["delete", "--force", &name]);
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Named {
    fn new(program: Program, request: &Request, around: &Surroundings) -> Result<Self, LaunchError> {
        let all = around.state.join("apple");
        reap(&program, &all);
        let directory = all.join(request.run.as_str());
        let mut named = Self { program, name: plan::name(request), directory, lock: None, _registered: None };
        let text = plan::variables(request)?;
        let made = fs::create_dir_all(&all)
            .and_then(|()| fs::DirBuilder::new().mode(0o700).create(&named.directory))
            .and_then(|()| {
                named.lock = Some(locked(&named.directory)?);
                Ok(())
            })
            .and_then(|()| {
                fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(named.variables())
            })
            .and_then(|mut file| file.write_all(text.as_bytes()));
        made.map_err(|error| {
            let message = format!("the variables cannot be written: {error}");
            LaunchError::Runtime(Failure::new(FailureClass::Unknown, message))
        })?;
        Ok(named)
    }

    fn variables(&self) -> PathBuf {
        self.directory.join("variables")
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // The end of the command is not the end of the container. One that is gone already is what is wanted.
        let _ = ask(&self.program, &["delete", "--force", &self.name]);
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The command, started or not. In this order: the command goes first.
struct Contained<T: ?Sized> {
    run: Box<T>,
    named: Named,
    /// What the runtime itself may have complained of.
    complaints: Vec<u8>,
    /// Whether the program has said something.
    spoke: bool,
}

impl Staged for Contained<run::Built> {
    fn start(self: Box<Self>) -> Result<Box<dyn Sandbox>, LaunchError> {
        let Self { run, named, complaints, spoke } = *self;
        Ok(Box::new(Contained { run: run.start()?, named, complaints, spoke }))
    }
}

impl Sandbox for Contained<dyn Sandbox> {
    fn next(&mut self, until: Instant) -> Result<Happening, Failure> {
        let happened = self.run.next(until)?;
        match &happened {
            Happening::Output(Stream::Stdout, _) => self.spoke = true,
            Happening::Output(Stream::Stderr, bytes) if self.complaints.len() < LONGEST => {
                self.complaints.extend(bytes.iter().take(LONGEST));
            }
            Happening::Ended(Exit { status: ExitStatus::Code(RUNTIME_FAILED), .. }) => {
                if let Some(failure) = self.failure_of_runtime() {
                    return Err(failure);
                }
            }
            _ => {}
        }
        Ok(happened)
    }

    fn stopper(&self) -> Arc<dyn Stopper> {
        self.run.stopper()
    }

    fn terminal(&mut self) -> Option<Box<dyn Terminal>> {
        self.run.terminal()
    }
}

impl Contained<dyn Sandbox> {
    /// The runtime ends with the code of the program; its own failures are one line that begins with `Error:`, and are
    /// all that was said.
    fn failure_of_runtime(&self) -> Option<Failure> {
        let text = String::from_utf8_lossy(&self.complaints);
        let words = text.trim().strip_prefix("Error:")?.trim();
        if self.spoke || words.contains('\n') {
            return None;
        }
        let says = |any: &[&str]| any.iter().any(|part| words.to_ascii_lowercase().contains(part));
        let failure = |class, remedy: &str| Some(Failure::new(class, words).with_remedy(remedy));
        if says(&["xpc", "system start", "apiserver"]) {
            return failure(FailureClass::DaemonDown, "run `container system start`");
        }
        if says(&["image"]) && says(&["not found", "notfound"]) {
            let remedy = "build it with `ringfence sandbox build-image --mode apple`";
            return failure(FailureClass::ImageMissing, remedy);
        }
        if says(&["failed to find target executable", "executable file not found"]) {
            return failure(FailureClass::CliMissing, "put it into the image, or name another image");
        }
        failure(FailureClass::Unknown, &format!("the container was {}", self.named.name))
    }
}

impl Backend for Apple {
    fn mode(&self) -> Mode {
        Mode::Apple
    }

    fn capabilities(&self) -> Capabilities {
        caps::capabilities()
    }

    fn bound(&self, limits: &mut Limits) {
        let Ok(config) = &self.config else { return };
        limits.memory.get_or_insert(config.memory);
        limits.cpus.get_or_insert(config.cpus);
    }

    fn versions(&self) -> Vec<(String, String)> {
        let program =
            self.config.as_ref().ok().and_then(|config| find(&self.around, &config.runtime_command).ok());
        let version = program.and_then(|program| ask(&program, &["--version"]).ok());
        version.map(|version| ("container".to_owned(), version.trim().to_owned())).into_iter().collect()
    }

    fn stage(&self, plan: &Plan) -> Result<Box<dyn Staged>, LaunchError> {
        let (config, request) = (self.config()?, &plan.request);
        let program = find(&self.around, &config.runtime_command).map_err(LaunchError::Runtime)?;
        let mut named = Named::new(program.clone(), request, &self.around)?;
        let words = plan::words(request, config, &named.variables())?;
        let survey = survey::look(request, &self.around, (&survey::state(&self.around), None), &mut |_| ())?;
        survey.refuse_governing(request)?;
        let hidden = covers(&survey, &shown(request, &survey)).into_iter().find_map(|cover| match cover {
            Cover::Hide { source, .. } => Some(source),
            _ => None,
        });
        if let Some(path) = hidden {
            let message = format!("{} cannot be hidden in this mode", path.display());
            let failure = Failure::new(FailureClass::Refused, message);
            return Err(LaunchError::Runtime(failure.with_remedy("work in a directory without secrets")));
        }
        named._registered = survey.registered;
        let workspace = request.workspace.host().as_path();
        let spec = run::spec(request, &program.file, workspace, None);
        let argv = std::iter::once(program.file.display().to_string()).chain(words).collect();
        // The command is the person's own program: what it needs is a home, and where its helpers are.
        let path = self.around.programs.path().to_string_lossy().into_owned();
        let home = self.around.home.display().to_string();
        let env = BTreeMap::from([("HOME".to_owned(), home), ("PATH".to_owned(), path)]);
        let idle = run::Idle::new(&self.around.gate)?;
        let built = idle.build(Spec { argv, env, memory_limit: None, ..spec }, request)?;
        Ok(Box::new(Contained { run: Box::new(built), named, complaints: Vec::new(), spoke: false }))
    }
}
