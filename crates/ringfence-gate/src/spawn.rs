//! Starting the program: its own session, no descriptor but its three, its limits.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, ioctl_tiocsctty, set_parent_process_death_signal, setrlimit, setsid,
};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::wire::{Limit, Spec, StartProblem, Status};

/// Starts what the gate supervises.
pub trait Spawner {
    /// Makes ready what does not depend on what is started. What goes wrong is told when it is started.
    fn prepare(&mut self, what: &str);

    /// Starts it. An error means that nothing runs.
    fn spawn(&mut self, spec: Spec, stdin: Option<OwnedFd>) -> Result<Spawned, StartFailure>;

    /// How the program ended, where the process that was started is not the program itself.
    fn last_word(&mut self) -> Option<Status>;

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
pub struct Plain;

impl Spawner for Plain {
    fn prepare(&mut self, _: &str) {}

    fn spawn(&mut self, spec: Spec, stdin: Option<OwnedFd>) -> Result<Spawned, StartFailure> {
        spawn_program(&spec, stdin).map_err(|error| StartFailure::from(&error))
    }

    fn last_word(&mut self) -> Option<Status> {
        None
    }

    fn exhausted(&self) -> Option<Limit> {
        None
    }
}

/// Starts a program in a session of its own.
pub fn spawn_program(spec: &Spec, stdin: Option<OwnedFd>) -> io::Result<Spawned> {
    let (program, args) = spec.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(&spec.env).current_dir(&spec.cwd);
    let terminal = spec.terminal.map(open_terminal).transpose()?;
    let outer = match terminal {
        None => {
            command.stdin(stdin.map_or_else(Stdio::null, Stdio::from));
            None
        }
        Some((outer, inner)) => {
            command.stdin(inner.try_clone()?).stdout(inner.try_clone()?).stderr(inner);
            Some(outer)
        }
    };
    let at_terminal = outer.is_some();
    let (memory, processes) = (spec.memory_limit, spec.process_limit);
    // SAFETY: between fork and exec only system calls are made; nothing allocates, locks or unwinds.
    unsafe { command.pre_exec(move || prepare(at_terminal, memory, processes)) };
    let child = command.spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    Ok(Spawned { pid: pid.ok_or(io::ErrorKind::InvalidData)?, terminal: outer })
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

fn prepare(at_terminal: bool, memory: Option<u64>, processes: Option<u32>) -> io::Result<()> {
    setsid()?;
    if at_terminal {
        // The terminal of the new session, so that Ctrl-C and job control work.
        ioctl_tiocsctty(rustix::stdio::stdin())?;
    }
    set_parent_process_death_signal(Some(Signal::KILL))?;
    limit(Resource::Core, 0)?;
    if let Some(bytes) = memory {
        limit(Resource::Data, bytes)?;
    }
    if let Some(count) = processes {
        limit(Resource::Nproc, u64::from(count))?;
    }
    close_other_descriptors()
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// What the host's own parents left open must not reach the agent.
fn close_other_descriptors() -> io::Result<()> {
    // SAFETY: marks descriptors from 3 on close-on-exec; none is closed under the feet of this process.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
