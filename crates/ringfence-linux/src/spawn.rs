//! One clone into new namespaces, and the gate's side of what follows.

use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ringfence_gate::{Spec, Status, WireError, read_frame};
use rustix::process::{Pid, getegid, geteuid};
use serde::{Deserialize, Serialize};

use crate::init::{First, run};
use crate::layout::{Placeholder, Sandbox};

/// How long building a root may take.
const BUILD_PATIENCE: Duration = Duration::from_secs(10);

const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

/// What the first process of a sandbox says to the gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Word {
    /// The program runs.
    Started,
    /// The program could not be started.
    CannotStart {
        /// The system's number for why.
        os_error: i32,
    },
    /// The sandbox could not be built.
    Failed(String),
    /// The program ended.
    Ended(Status),
}

/// Why nothing runs.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The kernel gave no namespaces.
    #[error("the kernel gives no namespaces: {0}")]
    Namespaces(#[source] io::Error),
    /// The sandbox could not be built.
    #[error("the sandbox could not be built: {0}")]
    Build(String),
    /// The sandbox stands and the program cannot be started.
    #[error("{0}")]
    Program(#[source] io::Error),
    /// A stand-in for a protected path could not be made.
    #[error("a protected path cannot be held: {0}")]
    Placeholder(#[source] io::Error),
    /// The first process was lost.
    #[error("the first process of the sandbox was lost: {0}")]
    Lost(#[from] WireError),
}

/// A sandbox that runs. Dropping it takes away what stood in for protected paths.
#[derive(Debug)]
pub struct Child {
    /// Its first process, as the gate sees it.
    pub pid: Pid,
    line: UnixStream,
    placeholders: Vec<Placeholder>,
}

impl Child {
    /// How the program ended, if its first process could still say so.
    pub fn last_word(&mut self) -> Option<Status> {
        let _ = self.line.set_nonblocking(true);
        match read_frame(&self.line) {
            Ok(Some(Word::Ended(status))) => Some(status),
            _ => None,
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        remove(&self.placeholders);
    }
}

/// Starts a program in a sandbox of its own.
pub fn spawn(sandbox: &Sandbox, spec: &Spec, stdin: Option<OwnedFd>) -> Result<Child, SpawnError> {
    let placeholders = place(&sandbox.placeholders).map_err(SpawnError::Placeholder)?;
    let undo = |error| {
        remove(&placeholders);
        error
    };
    let (line, theirs) = UnixStream::pair().map_err(|error| undo(SpawnError::Namespaces(error)))?;
    let ids = (geteuid().as_raw(), getegid().as_raw());
    let network = if sandbox.own_network { libc::CLONE_NEWNET } else { 0 };
    // SAFETY: the gate has one thread, so the child is a whole copy of it, as after a fork.
    let cloned = unsafe { libc::syscall(libc::SYS_clone, NAMESPACES | network | libc::SIGCHLD, 0, 0, 0, 0) };
    if cloned < 0 {
        return Err(undo(SpawnError::Namespaces(io::Error::last_os_error())));
    }
    if cloned == 0 {
        let code = run(First { sandbox, spec, stdin, line: theirs, ids });
        // SAFETY: ends the child at once; nothing of the gate's may run in it, not even its destructors.
        unsafe { libc::_exit(code) };
    }
    drop((theirs, stdin));
    let pid = i32::try_from(cloned).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| SpawnError::Namespaces(io::ErrorKind::InvalidData.into()))?;
    let child = Child { pid, line, placeholders };
    let patience = child.line.set_read_timeout(Some(BUILD_PATIENCE));
    patience.map_err(SpawnError::Namespaces)?;
    match read_frame(&child.line)? {
        Some(Word::Started) => Ok(child),
        Some(Word::CannotStart { os_error }) => {
            Err(SpawnError::Program(io::Error::from_raw_os_error(os_error)))
        }
        Some(Word::Failed(why)) => Err(SpawnError::Build(why)),
        Some(Word::Ended(_)) | None => Err(SpawnError::Build("its first process ended at once".into())),
    }
}

/// Makes the stand-ins that are not there. What is there already stays, and is not ours to remove.
fn place(wanted: &[Placeholder]) -> io::Result<Vec<Placeholder>> {
    let mut placed = Vec::new();
    for placeholder in wanted {
        let made = if placeholder.directory {
            fs::create_dir(&placeholder.path)
        } else {
            fs::OpenOptions::new().write(true).create_new(true).open(&placeholder.path).map(drop)
        };
        match made {
            Ok(()) => placed.push(placeholder.clone()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                remove(&placed);
                return Err(error);
            }
        }
    }
    Ok(placed)
}

/// Takes stand-ins away, the innermost first, if they are still as empty as they were made. The gate does it; the host
/// does it again, should the gate have been killed.
pub fn remove(placed: &[Placeholder]) {
    for placeholder in placed.iter().rev() {
        let _ = if placeholder.directory {
            fs::remove_dir(&placeholder.path)
        } else if is_empty(&placeholder.path) {
            fs::remove_file(&placeholder.path)
        } else {
            Ok(())
        };
    }
}

fn is_empty(path: &std::path::Path) -> bool {
    let file =
        fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file).and_then(|_| fs::File::open(path).ok());
    file.is_some_and(|mut file| matches!(file.read(&mut [0]), Ok(0)))
}
