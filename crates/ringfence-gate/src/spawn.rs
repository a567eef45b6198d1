//! Starting the program: its own session, no descriptor but its three, its limits.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::process::Pid;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::program::Program;
use crate::wire::{Limit, Spec, StartProblem, Status};

/// Starts what the gate supervises.
pub trait Spawner {
    /// Makes ready what does not depend on what is started. What goes wrong is told when it is started.
    fn prepare(&mut self, what: &[u8]);

    /// Makes all ready to start this. It may go on after this returns; what goes wrong is told when it is started.
    fn build(&mut self, spec: Spec, stdin: Option<OwnedFd>);

    /// Starts it. An error means that nothing runs.
    fn start(&mut self) -> Result<Spawned, StartFailure>;

    /// What can be read when the program has ended, where the process that was started is not the program itself.
    fn line(&self) -> Option<BorrowedFd<'_>>;

    /// How the program ended, in that case. To be asked when the line can be read or the process has ended.
    fn last_word(&mut self) -> Option<Status>;

    /// Whether nothing else of the run is left by then than the process that was started, which is about to end.
    fn ends_all(&self) -> bool;

    /// Takes away what a run needs no more of which nothing is left.
    fn clear(&mut self);

    /// What the program asked for in vain, if that is known.
    fn exhausted(&self) -> Option<Limit>;
}

/// What was started.
#[derive(Debug)]
pub struct Spawned {
    /// The process.
    pub pid: Pid,
    /// The outer end of its terminal, if it has one.
    pub terminal: Option<OwnedFd>,
    /// The listeners at which it comes to the broker, with their ports.
    pub doors: Vec<(u16, OwnedFd)>,
}

/// Why nothing runs.
#[derive(Debug)]
pub struct StartFailure {
    /// What kind of problem.
    pub problem: StartProblem,
    /// The system's words.
    pub message: String,
}

impl From<&io::Error> for StartFailure {
    fn from(error: &io::Error) -> Self {
        Self { problem: problem(error), message: error.to_string() }
    }
}

/// Starts the program as it is.
#[derive(Debug, Default)]
pub struct Plain {
    built: Option<(Spec, Option<OwnedFd>)>,
}

impl Spawner for Plain {
    fn prepare(&mut self, _: &[u8]) {}

    fn build(&mut self, spec: Spec, stdin: Option<OwnedFd>) {
        self.built = Some((spec, stdin));
    }

    fn start(&mut self) -> Result<Spawned, StartFailure> {
        let built = self.built.take().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput));
        let spawned = built.and_then(|(spec, stdin)| spawn_program(&spec, stdin));
        spawned.map_err(|error| StartFailure::from(&error))
    }

    fn line(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn last_word(&mut self) -> Option<Status> {
        None
    }

    fn ends_all(&self) -> bool {
        false
    }

    fn clear(&mut self) {}

    fn exhausted(&self) -> Option<Limit> {
        None
    }
}

/// Starts a program in a session of its own.
pub fn spawn_program(spec: &Spec, stdin: Option<OwnedFd>) -> io::Result<Spawned> {
    let terminal = spec.terminal.map(open_terminal).transpose()?;
    let (outer, inner) = terminal.map_or((None, None), |(outer, inner)| (Some(outer), Some(inner)));
    let stdin = match (&inner, stdin) {
        (Some(_), _) => None,
        (None, Some(stdin)) => Some(stdin),
        (None, None) => Some(File::open("/dev/null")?.into()),
    };
    let program = Program::new(spec, find(spec)?, stdin.as_ref(), inner.as_ref())?;
    Ok(Spawned { pid: program.start()?, terminal: outer, doors: Vec::new() })
}

/// Where the program is. A directory that depends on where one stands is not searched: the workspace is the agent's to
/// write.
fn find(spec: &Spec) -> io::Result<PathBuf> {
    let missing = || io::Error::from_raw_os_error(libc::ENOENT);
    let name = spec.argv.first().filter(|name| !name.is_empty()).ok_or_else(missing)?;
    if name.contains('/') {
        return Ok(name.into());
    }
    let path = spec.env.get("PATH").map(String::as_str).unwrap_or_default();
    let all = std::env::split_paths(path).filter(|directory| directory.is_absolute());
    let is_program = |file: &PathBuf| {
        file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    let found = all.map(|directory| directory.join(name)).find(is_program);
    found.ok_or_else(missing)
}

/// A new terminal: its outer and its inner end.
fn open_terminal((rows, columns): (u16, u16)) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let outer = openpt(flags)?;
    unlockpt(&outer)?;
    // By the outer end itself: the name may lead elsewhere in this root.
    let inner = ioctl_tiocgptpeer(&outer, flags)?;
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&inner, size)?;
    Ok((outer, inner))
}

/// What kind of problem an error at the start is.
fn problem(error: &io::Error) -> StartProblem {
    match error.kind() {
        io::ErrorKind::NotFound => StartProblem::NotFound,
        io::ErrorKind::PermissionDenied => StartProblem::NotExecutable,
        _ if error.raw_os_error() == Some(libc::ENOEXEC) => StartProblem::NotExecutable,
        _ => StartProblem::Other,
    }
}
