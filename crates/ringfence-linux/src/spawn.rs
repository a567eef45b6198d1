//! One clone into new namespaces, and the gate's side of what follows.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ringfence_gate::{Elsewhere, Limit, Spawned, Spec, Status, WireError, read_frame, receive, send};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, WaitOptions, getegid, geteuid, waitpid};
use serde::{Deserialize, Serialize};

use crate::cgroup::{CgroupError, Groups, container_exhausted, own_exhausted};
use crate::init::run;
use crate::layout::{Base, Sandbox, Walls};
use crate::stand_ins::StandIns;

/// How long building a root may take.
const BUILD_PATIENCE: Duration = Duration::from_secs(10);

const NAMESPACES: i32 =
    libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// What the gate says to the first process of a sandbox, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Told {
    /// How it begins.
    Base(Base),
    /// All the rest.
    Rest { sandbox: Box<Sandbox>, spec: Spec },
    /// That it may start the program.
    Start,
}

/// What the first process of a sandbox says to the gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Word {
    /// The listener at which the program comes to the broker, at this port. It comes along.
    Door(u16),
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
    Ended {
        /// How.
        status: Status,
        /// Whether there were as many processes then as there may be.
        full: bool,
    },
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
    /// It cannot be bounded.
    #[error(transparent)]
    Bounds(#[from] CgroupError),
    /// The first process was lost.
    #[error("the first process of the sandbox was lost: {0}")]
    Lost(#[from] WireError),
}

/// A sandbox that stands or runs. Dropping it takes away what stood in for protected paths.
#[derive(Debug)]
pub struct Child {
    /// Its first process, as the gate sees it.
    pub pid: Pid,
    line: UnixStream,
    /// Until nothing of the run is left.
    stand_ins: Option<StandIns>,
    _registered: Option<File>,
    last_word: Option<Status>,
    groups: Groups,
    scope: bool,
    walls: Walls,
    full: bool,
}

impl Child {
    /// Starts the program. With it come the outer end of its terminal and its ways to the broker, as far as it has them.
    pub fn start(&mut self) -> Result<Spawned, SpawnError> {
        let sent = send(&self.line, &Told::Start, None);
        let mut doors = Vec::new();
        let mut word = receive(&self.line)?;
        while let Some((Word::Door(port), listener)) = word {
            doors.extend(listener.map(|listener| (port, listener)));
            word = receive(&self.line)?;
        }
        match word {
            Some((Word::Started, terminal)) => Ok(Spawned { pid: self.pid, terminal, doors }),
            Some((Word::CannotStart { os_error }, _)) => {
                Err(SpawnError::Program(io::Error::from_raw_os_error(os_error)))
            }
            Some((Word::Failed(why), _)) => Err(SpawnError::Build(why)),
            Some((Word::Ended { .. } | Word::Door(_), _)) | None => {
                sent?;
                Err(SpawnError::Build("its first process ended at once".into()))
            }
        }
    }

    /// What it asked for in vain.
    pub fn exhausted(&self) -> Option<Limit> {
        let counted = match (self.walls, self.scope) {
            (Walls::Given, _) => container_exhausted(),
            (_, true) => own_exhausted(),
            (_, false) => self.groups.exhausted(),
        };
        counted.or_else(|| self.full.then_some(Limit::Processes))
    }

    /// What can be read as soon as the first process has something to say.
    pub fn line(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }

    /// How the program ended, if its first process could still say so.
    pub fn last_word(&mut self) -> Option<Status> {
        if self.last_word.is_none() {
            let _ = self.line.set_nonblocking(true);
            if let Ok(Some(Word::Ended { status, full })) = read_frame(&self.line) {
                self.full = full;
                self.last_word = Some(status);
            }
        }
        self.last_word
    }

    /// Whether it has ended all others by then: it is the first process of all of them.
    pub fn ends_all(&self) -> bool {
        self.walls == Walls::Own
    }

    /// Takes away what stood in for protected paths.
    pub fn clear(&mut self) {
        self.stand_ins = None;
    }
}

/// New namespaces with a first process that waits to be told what to build.
#[derive(Debug)]
pub struct Opened {
    kind: Kind,
    pid: Pid,
    line: UnixStream,
}

/// Which namespaces are new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// All but the network's, if the walls are its own.
    pub walls: Walls,
    /// The network's.
    pub own_network: bool,
}

impl From<&Base> for Kind {
    fn from(base: &Base) -> Self {
        Self { walls: base.walls, own_network: base.own_network }
    }
}

/// Whether namespaces are given to this user, with the right to mount in them. Tried in a process of its own.
pub fn try_namespaces() -> io::Result<()> {
    // SAFETY: the child makes system calls alone, whatever threads this process has, and ends.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        // SAFETY: plain system calls with constant strings; the child then ends at once.
        unsafe {
            let parted = libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) == 0;
            let flags = libc::MS_REC | libc::MS_PRIVATE;
            let none = std::ptr::null();
            let mounted = parted && libc::mount(none, c"/".as_ptr(), none, flags, none.cast()) == 0;
            libc::_exit(if mounted { 0 } else { *libc::__errno_location() });
        }
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    match libc::WEXITSTATUS(status) {
        0 if libc::WIFEXITED(status) => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Begins a sandbox. It stays where it is until it is about to start something.
pub fn open(kind: Kind, elsewhere: Elsewhere) -> Result<Opened, SpawnError> {
    let (line, theirs) = UnixStream::pair().map_err(SpawnError::Namespaces)?;
    line.set_read_timeout(Some(BUILD_PATIENCE)).map_err(SpawnError::Namespaces)?;
    let ids = (geteuid().as_raw(), getegid().as_raw());
    let flags = match (kind.walls, kind.own_network) {
        (Walls::Given | Walls::None, _) => 0,
        (Walls::Own, false) => NAMESPACES,
        (Walls::Own, true) => NAMESPACES | libc::CLONE_NEWNET,
    };
    // SAFETY: the gate has one thread, so the child is a whole copy of it, as after a fork.
    let cloned = unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) };
    if cloned < 0 {
        return Err(SpawnError::Namespaces(io::Error::last_os_error()));
    }
    if cloned == 0 {
        let code = run(kind, &theirs, ids, elsewhere);
        // SAFETY: ends the child at once; nothing of the gate's may run in it, not even its destructors.
        unsafe { libc::_exit(code) };
    }
    // It makes stub files while the host scans and the child builds: on whichever processor waits for something.
    elsewhere.over();
    let pid = i32::try_from(cloned).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| SpawnError::Namespaces(io::ErrorKind::InvalidData.into()))?;
    Ok(Opened { kind, pid, line })
}

impl Opened {
    /// Which namespaces are new.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Tells it how the root begins.
    pub fn begin(&self, base: Base) {
        // One that is gone is noticed when it is to start something.
        let _ = send(&self.line, &Told::Base(base), None);
    }

    /// Ends it, for nothing is to run in it.
    pub fn dismiss(self) {
        let Self { pid, line, .. } = self;
        drop(line);
        let _ = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
    }

    /// Tells it all the rest, short of starting the program. `early` are stub files that were made before.
    pub fn build(
        self,
        sandbox: Sandbox,
        (spec, stdin): (Spec, Option<OwnedFd>),
        early: Option<StandIns>,
    ) -> Result<Child, SpawnError> {
        let stand_ins = early.map_or_else(|| StandIns::share(&sandbox.workspace, sandbox.workspace_id), Ok);
        let mut stand_ins = stand_ins.map_err(SpawnError::Placeholder)?;
        stand_ins.answer_for(sandbox.placeholders.clone());
        stand_ins.place().map_err(SpawnError::Placeholder)?;
        let registered = sandbox.registered.as_ref().map(|path| {
            let file = File::open(path)?;
            flock(&file, FlockOperation::NonBlockingLockShared)?;
            Ok(file)
        });
        let registered = registered.transpose().map_err(SpawnError::Placeholder)?;
        let Self { pid, line, kind } = self;
        let child = Child {
            _registered: registered,
            pid,
            line,
            stand_ins: Some(stand_ins),
            last_word: None,
            groups: Groups::of(sandbox.groups.clone()),
            scope: sandbox.scope,
            walls: kind.walls,
            full: false,
        };
        // Before it has started anything, so that nothing is outside.
        child.groups.join(child.pid.as_raw_nonzero().get())?;
        let rest = Told::Rest { sandbox: Box::new(sandbox), spec };
        // One that could not build its base is gone, and has said why.
        let _ = send(&child.line, &rest, stdin.as_ref().map(AsFd::as_fd));
        Ok(child)
    }
}
