//! What a backend may know of the machine. The binary reads the environment once and hands this on.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use ringfence_core::failure::{Failure, FailureClass};
use ringfence_gate::{OWN_FILE, Started};
use ringfence_workspace::HostPrograms;

/// The machine as the person who starts `ringfence` sees it.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The programs of the host.
    pub programs: HostPrograms,
    /// The person's home.
    pub home: PathBuf,
    /// The home that the list of accounts has for the person, if it is another one.
    pub login_home: Option<PathBuf>,
    /// Where ringfence keeps what lasts.
    pub state: PathBuf,
    /// The state directories of the user's other installations.
    pub other_states: Vec<PathBuf>,
    /// Where services of the person's session have their sockets.
    pub runtime: Option<PathBuf>,
    /// Variables that say where services of this machine are: those of [`VARIABLES`](crate::VARIABLES).
    pub services: BTreeMap<String, String>,
    /// How to start the gate.
    pub gate: GateProgram,
    /// Set when the user wants everything to end, also what has not started yet.
    pub interrupted: Arc<AtomicBool>,
}

/// A program that is the gate, and what makes it so.
#[derive(Debug, Clone)]
pub struct GateProgram {
    /// Its path. It is shown, and container engines mount it; a run may have put another file there.
    pub program: PathBuf,
    /// The path that a child process executes: `/proc/self/exe` for the program of this process.
    pub file: PathBuf,
    /// The arguments that make it the gate.
    pub args: Vec<String>,
    /// A gate that was started beforehand. The first run takes it.
    pub ready: Arc<Mutex<Option<Started>>>,
}

impl GateProgram {
    /// The program of this process, with its path.
    pub fn own(program: PathBuf, argument: &str, ready: Arc<Mutex<Option<Started>>>) -> Self {
        Self { program, file: OWN_FILE.into(), args: vec![argument.to_owned()], ready }
    }

    /// A command that executes it, without arguments.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        command.arg0(&self.program);
        command
    }

    /// A path by which a descendant of this process executes it, while this process lives.
    pub(crate) fn file_for_descendants(&self) -> PathBuf {
        match self.file == Path::new(OWN_FILE) {
            true => format!("/proc/{}/exe", std::process::id()).into(),
            false => self.file.clone(),
        }
    }

    /// Its path, for an engine that mounts by path, if the file there is still the one that is executed.
    pub(crate) fn unreplaced(&self) -> Result<&Path, Failure> {
        #[expect(
            clippy::disallowed_methods,
            reason = "a program outside of workspaces; only identities are compared"
        )]
        let identity = |path: &Path| std::fs::metadata(path).map(|data| (data.dev(), data.ino()));
        match (identity(&self.program), identity(&self.file)) {
            (Ok(there), Ok(own)) if there == own => Ok(&self.program),
            _ => {
                let message =
                    format!("{} was moved or replaced since this process started", self.program.display());
                let failure = Failure::new(FailureClass::Refused, message);
                Err(failure.with_remedy("restart the daemon, or start the command again"))
            }
        }
    }

    /// A gate: the one that waits, or a new one.
    pub(crate) fn start(&self) -> io::Result<Started> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner).take();
        ready.map_or_else(
            || {
                let mut command = self.command();
                command.args(&self.args);
                ringfence_gate::exec(command)
            },
            Ok,
        )
    }
}

impl Surroundings {
    /// The first program of this name that no run could have written.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        self.programs.find(name)
    }
}
