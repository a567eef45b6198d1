//! What every mode offers: look, promise, stage, start.
//!
//! The trait is synchronous on purpose. A run is one process tree and one thread; a backend that talks to an engine
//! over a socket brings its own runtime and hides it here.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::capability::Capabilities;
use crate::event::Stream;
use crate::failure::{Failure, FailureClass};
use crate::locations::Locations;
use crate::mode::Mode;
use crate::plan::{Plan, Request, TerminalSize};
use crate::policy::Limits;

/// The code of one mode.
pub trait Backend: Send + Sync {
    /// The mode.
    fn mode(&self) -> Mode;

    /// What it can keep on this machine.
    fn capabilities(&self) -> Capabilities;

    /// The versions of what it runs by, for the record.
    fn versions(&self) -> Vec<(String, String)>;

    /// Bounds a run as the mode's own settings say, where the policy does not.
    fn bound(&self, _: &mut Limits) {}

    /// The limits that a run has by default in a mode with a boundary and that this machine cannot enforce, and why.
    fn not_enforced(&self, _: &Limits) -> Vec<String> {
        Vec::new()
    }

    /// The name by which a run reaches services of the host, where its own loopback is another and there is a way.
    fn host_name(&self, _: &Request) -> Option<&'static str> {
        None
    }

    /// What a person should know of a run in it.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }

    /// Builds all that a plan needs and starts nothing of it. It may go on after this returns.
    fn stage(&self, plan: &Plan) -> Result<Box<dyn Staged>, LaunchError>;

    /// Starts a plan. An error means that nothing was started.
    fn launch(&self, plan: &Plan) -> Result<Box<dyn Sandbox>, LaunchError> {
        self.stage(plan)?.start()
    }
}

/// A sandbox in which nothing runs yet. Dropping it takes it away.
pub trait Staged: Send {
    /// What a user should know of what was found in the workspace.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }

    /// Those of the notices that a user should read wherever standard error leads.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Where directories were in the trees that it scanned, by the root of each, once.
    fn locations(&mut self) -> Vec<(PathBuf, Locations)> {
        Vec::new()
    }

    /// Paths of the host that the run does not see though a directory above them is shown, once.
    fn hidden(&mut self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Stub files and directories that reserve names in the workspace while the run lasts, once: the path of each, and its content,
    /// or `None` for a directory.
    fn stubs(&mut self) -> Vec<(PathBuf, Option<String>)> {
        Vec::new()
    }

    /// Files that commands of git's configuration may lead to, where the run may write, once.
    fn programs(&mut self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Starts the program of its plan. An error means that nothing was started.
    fn start(self: Box<Self>) -> Result<Box<dyn Sandbox>, LaunchError>;
}

/// Why nothing was started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// The program is not there.
    #[error("`{program}` was not found")]
    NotFound {
        /// The program.
        program: String,
    },
    /// The program is there and cannot be executed.
    #[error("`{program}` cannot be executed: {why}")]
    NotExecutable {
        /// The program.
        program: String,
        /// Why.
        why: String,
    },
    /// The mode failed.
    #[error("{}", .0.message)]
    Runtime(Failure),
}

impl LaunchError {
    /// As the failure of a run.
    pub fn failure(&self) -> Failure {
        match self {
            LaunchError::NotFound { .. } | LaunchError::NotExecutable { .. } => {
                Failure::new(FailureClass::CliMissing, self.to_string())
            }
            LaunchError::Runtime(failure) => failure.clone(),
        }
    }
}

/// A run that was started. Dropping it ends all that belongs to it.
pub trait Sandbox: Send {
    /// Waits for the next thing to happen, until the given time at the latest. A wish to end it is something: it
    /// wakes whoever waits.
    fn next(&mut self, until: Instant) -> Result<Happening, Failure>;

    /// Waits until nothing of it is left, once it has ended. Why not, if something went wrong; the end was as it was told.
    fn clear(&mut self) -> Option<Failure> {
        None
    }

    /// What to end it by, from any thread.
    fn stopper(&self) -> Arc<dyn Stopper>;

    /// Where the run comes to the broker, once: the doors that the plan asked for, each with its port inside.
    fn doors(&mut self) -> Vec<(u16, Door)> {
        Vec::new()
    }

    /// What to type on, once, if the plan asked for a terminal. What it prints comes as output.
    fn terminal(&mut self) -> Option<Box<dyn Terminal>> {
        None
    }
}

/// Where a run comes to the broker: a listener that nobody but the run can reach.
#[derive(Debug)]
pub enum Door {
    /// At an address of the run's own network.
    Tcp(TcpListener),
    /// At a path that the run, or its gate, sees.
    Unix(UnixListener),
}

/// The outer end of the terminal of a run.
pub trait Terminal: Send {
    /// Types.
    fn type_in(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Tells the run that the window has another size.
    fn resize(&mut self, size: TerminalSize) -> io::Result<()>;
}

/// What can happen to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// It printed something.
    Output(Stream, Vec<u8>),
    /// Its first process ended, and all that could be ended with it.
    Ended(Exit),
    /// Nothing until the given time, or somebody's wish.
    Nothing,
}

/// How the first process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// By itself or by a signal.
    pub status: ExitStatus,
    /// Processes that were still there then, and were ended.
    pub leftovers: u32,
    /// Processes that could not be ended.
    pub survivors: u32,
    /// What the backend itself ended it for, if it did.
    pub limit: Option<Limit>,
}

/// What a run can use up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Its time.
    Time,
    /// Its memory.
    Memory,
    /// Its processes.
    Processes,
}

impl Exit {
    /// An end with nothing remarkable about it.
    pub fn plain(status: ExitStatus) -> Self {
        Self { status, leftovers: 0, survivors: 0, limit: None }
    }
}

/// By itself or by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// With this code.
    Code(u8),
    /// By this signal.
    Signal(u8),
}

/// How hard to end a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// As Ctrl-C does.
    Interrupt,
    /// Politely.
    Terminate,
    /// At once.
    Kill,
}

/// Ends a sandbox from any thread. Asking twice, or after its end, is harmless.
pub trait Stopper: Send + Sync {
    /// Asks for the end.
    fn stop(&self, how: Stop);
}

/// One thing that doctor looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at.
    pub subject: String,
    /// How it is.
    pub state: FindingState,
    /// What was seen.
    pub detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// How a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingState {
    /// As it should be.
    Ok,
    /// Not here, and only needed by those who choose it.
    Absent,
    /// Chosen, and it will not work.
    Broken,
}

impl Finding {
    /// As it should be.
    pub fn ok(subject: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { subject: subject.into(), state: FindingState::Ok, detail: detail.into(), remedy: None }
    }

    /// Not here, and how to get it.
    pub fn absent(subject: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            state: FindingState::Absent,
            detail: detail.into(),
            remedy: Some(remedy.into()),
        }
    }

    /// The same, where the settings depend on it.
    pub fn required(mut self) -> Self {
        if self.state == FindingState::Absent {
            self.state = FindingState::Broken;
        }
        self
    }
}
