//! One clone into new namespaces, and the gate's side of what follows.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_core::paths::STAND_IN_MARK;
use ringfence_gate::{Limit, Spec, Status, WireError, read_frame, receive, send};
use rustix::fs::{CWD, FlockOperation, flock};
use rustix::process::{Pid, getegid, geteuid};
use serde::{Deserialize, Serialize};

use crate::cgroup::{CgroupError, Groups, own_exhausted};
use crate::init::run;
use crate::layout::{Base, Placeholder, Sandbox, StandIn};

/// How long building a root may take.
const BUILD_PATIENCE: Duration = Duration::from_secs(10);

const NAMESPACES: i32 =
    libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// What the gate says to the first process of a sandbox, once its base stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rest {
    pub(crate) sandbox: Sandbox,
    pub(crate) spec: Spec,
}

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

/// A sandbox that runs. Dropping it takes away what stood in for protected paths.
#[derive(Debug)]
pub struct Child {
    /// Its first process, as the gate sees it.
    pub pid: Pid,
    line: UnixStream,
    placeholders: Vec<Placeholder>,
    /// Others see by it that somebody still stands on the stand-ins, also when the host is gone.
    lock: fs::File,
    groups: Groups,
    scope: bool,
    full: bool,
}

impl Child {
    /// What it asked for in vain.
    pub fn exhausted(&self) -> Option<Limit> {
        let counted = if self.scope { own_exhausted() } else { self.groups.exhausted() };
        counted.or_else(|| self.full.then_some(Limit::Processes))
    }

    /// How the program ended, if its first process could still say so.
    pub fn last_word(&mut self) -> Option<Status> {
        let _ = self.line.set_nonblocking(true);
        match read_frame(&self.line) {
            Ok(Some(Word::Ended { status, full })) => {
                self.full = full;
                Some(status)
            }
            _ => None,
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        remove(&self.placeholders, &self.lock);
    }
}

/// A sandbox whose base is being built, in which nothing runs. It ends when it is dropped.
#[derive(Debug)]
pub struct Prepared {
    pid: Pid,
    line: UnixStream,
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

/// Begins a sandbox.
pub fn prepare(base: &Base) -> Result<Prepared, SpawnError> {
    let (line, theirs) = UnixStream::pair().map_err(SpawnError::Namespaces)?;
    line.set_read_timeout(Some(BUILD_PATIENCE)).map_err(SpawnError::Namespaces)?;
    let ids = (geteuid().as_raw(), getegid().as_raw());
    let flags = match (base.namespaces, base.own_network) {
        (false, _) => 0,
        (true, false) => NAMESPACES,
        (true, true) => NAMESPACES | libc::CLONE_NEWNET,
    };
    // SAFETY: the gate has one thread, so the child is a whole copy of it, as after a fork.
    let cloned = unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) };
    if cloned < 0 {
        return Err(SpawnError::Namespaces(io::Error::last_os_error()));
    }
    if cloned == 0 {
        let code = run(base, &theirs, ids);
        // SAFETY: ends the child at once; nothing of the gate's may run in it, not even its destructors.
        unsafe { libc::_exit(code) };
    }
    let pid = i32::try_from(cloned).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| SpawnError::Namespaces(io::ErrorKind::InvalidData.into()))?;
    Ok(Prepared { pid, line })
}

impl Prepared {
    /// Starts a program in it. With it comes the outer end of its terminal, if it has one.
    pub fn start(
        self,
        sandbox: Sandbox,
        spec: Spec,
        stdin: Option<OwnedFd>,
    ) -> Result<(Child, Option<OwnedFd>), SpawnError> {
        let lock = share(&sandbox.workspace).map_err(SpawnError::Placeholder)?;
        let Self { pid, line } = self;
        // From here on what is placed is taken away again, whatever happens.
        let child = Child {
            pid,
            line,
            placeholders: sandbox.placeholders.clone(),
            lock,
            groups: Groups::of(sandbox.groups.clone()),
            scope: sandbox.scope,
            full: false,
        };
        place(&sandbox.placeholders).map_err(SpawnError::Placeholder)?;
        // Before it has started anything, so that nothing is outside.
        child.groups.join(child.pid.as_raw_nonzero().get())?;
        let rest = Rest { sandbox, spec };
        // One that could not build its base is gone, and has said why.
        let sent = send(&child.line, &rest, stdin.as_ref().map(AsFd::as_fd));
        match receive(&child.line)? {
            Some((Word::Started, terminal)) => Ok((child, terminal)),
            Some((Word::CannotStart { os_error }, _)) => {
                Err(SpawnError::Program(io::Error::from_raw_os_error(os_error)))
            }
            Some((Word::Failed(why), _)) => Err(SpawnError::Build(why)),
            Some((Word::Ended { .. }, _)) | None => {
                sent?;
                Err(SpawnError::Build("its first process ended at once".into()))
            }
        }
    }
}

/// Whether something stands in for a path, whoever has made it and whenever. A person's own file has no mark, however empty it is.
pub fn is_stand_in(path: &Path) -> bool {
    rustix::fs::lgetxattr(path, STAND_IN_MARK, &mut [0u8; 8]).is_ok()
}

/// Makes the stand-ins that are not there yet. Each comes with its mark: it is made aside and then put in its place, so
/// that no other run ever takes it for a person's file.
fn place(wanted: &[Placeholder]) -> io::Result<()> {
    for (index, placeholder) in wanted.iter().enumerate() {
        if fs::symlink_metadata(&placeholder.path).is_ok() {
            continue;
        }
        let name = format!(".ringfence-{}-{index}", std::process::id());
        let aside =
            Placeholder { path: placeholder.path.with_file_name(name), kind: placeholder.kind.clone() };
        let put = make(&aside).and_then(|()| {
            let flags = rustix::fs::RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(CWD, &aside.path, CWD, &placeholder.path, flags) {
                // Somebody was faster.
                Err(rustix::io::Errno::EXIST) => Err(io::ErrorKind::AlreadyExists.into()),
                other => Ok(other?),
            }
        });
        if let Err(error) = put {
            take_away(&aside);
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Makes a stand-in and marks it.
fn make(placeholder: &Placeholder) -> io::Result<()> {
    match &placeholder.kind {
        StandIn::Directory => fs::create_dir(&placeholder.path)?,
        StandIn::File(text) => {
            let file = fs::OpenOptions::new().write(true).create_new(true).open(&placeholder.path);
            file.and_then(|mut file| file.write_all(text.as_bytes()))?;
        }
    }
    rustix::fs::setxattr(&placeholder.path, STAND_IN_MARK, b"1", rustix::fs::XattrFlags::empty()).map_err(
        |error| io::Error::other(format!("this file system has no marks for files (user.*): {error}")),
    )
}

/// How long others may hold on to a workspace while they take stand-ins away.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// How often to ask again.
const LOCK_AGAIN: Duration = Duration::from_millis(2);

/// A shared lock on a workspace.
pub fn share(workspace: &Path) -> io::Result<fs::File> {
    let directory = fs::File::open(workspace)?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match flock(&directory, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(directory),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                let pause = rustix::event::Timespec::try_from(LOCK_AGAIN).ok();
                let _ = rustix::event::poll(&mut [], pause.as_ref());
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes stand-ins away if no other run stands on them: the last one does it. The host does it, or the gate if the host
/// is gone. `lock` is one's own share of the workspace; it is given up.
pub fn remove(placed: &[Placeholder], lock: &fs::File) {
    if flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
        // The innermost first.
        placed.iter().rev().filter(|placeholder| is_stand_in(&placeholder.path)).for_each(take_away);
    }
}

/// Takes something away that is as a stand-in is made.
fn take_away(placeholder: &Placeholder) {
    let _ = match &placeholder.kind {
        StandIn::Directory => fs::remove_dir(&placeholder.path),
        StandIn::File(text) if holds(&placeholder.path, text) => fs::remove_file(&placeholder.path),
        StandIn::File(_) => Ok(()),
    };
}

/// Whether a file is just what a stand-in is.
fn holds(path: &Path, text: &str) -> bool {
    let data =
        fs::symlink_metadata(path).ok().filter(|data| data.is_file() && data.len() == text.len() as u64);
    data.is_some() && fs::read(path).is_ok_and(|bytes| bytes == text.as_bytes())
}
