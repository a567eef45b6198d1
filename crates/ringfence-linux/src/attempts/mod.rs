//! Attempts to break each promise of a sandbox, made from inside. `ringfence probe` lays out bait and starts this.
//!
//! An attempt does no harm where it succeeds: it opens and does not write, sets what is so already, takes back what it
//! made, and reaches nothing but bait. What must not be here: how the sandbox is made. An attempt that knew would only
//! try what is known to fail.

mod files;
mod kernel;
mod network;
mod processes;
mod resources;
mod shared_memory;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ringfence_core::capability::Promise;
use serde::{Deserialize, Serialize};

pub use shared_memory::SharedMemory;

/// What was laid out, in paths of the host where nothing else is said.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bait {
    /// A name that nothing else has, for what is written.
    pub name: String,
    /// The workspace as the run sees it.
    pub workspace: PathBuf,
    /// A directory outside of the workspace, with `file.txt` and a listening `socket`.
    pub outside: PathBuf,
    /// A file in the state directory, which is in the user's own home, with a listening `socket` beside it.
    pub at_home: PathBuf,
    /// A directory that may be read, with `open.txt`, `secret.txt` and its second name `alias.txt`.
    pub shown: PathBuf,
    /// A process of the host.
    pub pid: i32,
    /// A listening port of the host on 127.0.0.1.
    pub tcp: u16,
    /// The same on ::1, if the host has it.
    pub tcp6: Option<u16>,
    /// A port on 127.0.0.1 that answers to what is sent to it.
    pub udp: u16,
    /// The name of a listening abstract socket.
    pub abstract_socket: String,
    /// A terminal of the host.
    pub terminal: PathBuf,
    /// A segment of the host's shared memory.
    pub shared_memory: i32,
    /// The name of a variable of the host.
    pub variable: String,
    /// A descriptor that the host left open.
    pub descriptor: i32,
    /// How much the run may have, for attempts to take more.
    pub limits: Bounded,
}

/// How much a run may have. What is not bounded is tried all the same, with these numbers.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Bounded {
    pub memory: u64,
    pub disk: u64,
    pub pids: u32,
    pub cpus: u32,
}

/// What came of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome", content = "detail")]
pub enum Outcome {
    /// It failed: so.
    Held(String),
    /// It succeeded: so.
    Broken(String),
    /// Something was written. Whether it was on the host, the host can tell.
    Wrote(PathBuf),
    /// It cannot be tried here.
    NotTried(String),
}

/// What attempts write, so that the host knows it again.
pub const MARK: &[u8] = b"# ringfence probe\n";

/// One attempt, with what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    pub group: String,
    pub promise: Promise,
    pub what: String,
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// One thing to try.
struct Attempt {
    group: &'static str,
    promise: Promise,
    what: &'static str,
    attempt: fn(&Bait) -> Outcome,
}

/// Makes every attempt and tells of each on `out`, one a line.
pub fn make_all(bait: &Bait, mut out: impl Write) -> io::Result<()> {
    let all =
        [files::ATTEMPTS, processes::ATTEMPTS, kernel::ATTEMPTS, network::ATTEMPTS, resources::ATTEMPTS];
    for attempt in all.into_iter().flatten() {
        let tried = Tried {
            group: attempt.group.to_owned(),
            promise: attempt.promise,
            what: attempt.what.to_owned(),
            outcome: (attempt.attempt)(bait),
        };
        serde_json::to_writer(&mut out, &tried)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

/// How many attempts there are.
pub fn count() -> usize {
    [files::ATTEMPTS, processes::ATTEMPTS, kernel::ATTEMPTS, network::ATTEMPTS, resources::ATTEMPTS]
        .iter()
        .map(|group| group.len())
        .sum()
}

/// Held if it failed.
fn refused<T>(result: io::Result<T>) -> Outcome {
    match result {
        Ok(_) => Outcome::Broken("it worked".into()),
        Err(error) => Outcome::Held(error.to_string()),
    }
}

/// Held if the file cannot be read or holds nothing: a mask is an empty file.
fn unreadable(path: &Path) -> Outcome {
    match std::fs::read(path) {
        Ok(bytes) if bytes.is_empty() => Outcome::Held("it is empty".into()),
        Ok(bytes) => Outcome::Broken(format!("{} bytes were read", bytes.len())),
        Err(error) => Outcome::Held(error.to_string()),
    }
}

/// Held if the directory cannot be listed or is empty: a mask is an empty directory.
fn unlisted(path: &Path) -> Outcome {
    match std::fs::read_dir(path).and_then(|mut entries| entries.next().transpose()) {
        Ok(None) => Outcome::Held("it is empty".into()),
        other => refused(other),
    }
}

/// A system call as the kernel has it. Only for calls whose arguments are numbers or null, or live longer than the call.
fn call(number: libc::c_long, arguments: [usize; 5]) -> io::Result<libc::c_long> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: every caller passes numbers, null, or the addresses of values that outlive the call.
    let done = unsafe { libc::syscall(number, a, b, c, d, e) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

/// Held if the kernel refuses for lack of rights. Any other answer shows that it got as far as looking at the arguments.
fn denied(number: libc::c_long, arguments: [usize; 5]) -> Outcome {
    match call(number, arguments) {
        Ok(_) => Outcome::Broken("it worked".into()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => Outcome::Held(error.to_string()),
            _ => Outcome::Broken(format!("the kernel only complains of the arguments: {error}")),
        },
    }
}

/// Does something in a process of its own and tells how that ended: for what changes the process that does it.
fn apart(action: impl FnOnce() -> Outcome) -> Outcome {
    let Ok((mut read, mut write)) = std::io::pipe() else { return Outcome::NotTried("no pipe".into()) };
    // SAFETY: the program that makes attempts has one thread, so its copy is whole.
    match unsafe { libc::fork() } {
        -1 => Outcome::NotTried(format!("no process: {}", io::Error::last_os_error())),
        0 => {
            let outcome = action();
            let _ = serde_json::to_writer(&mut write, &outcome);
            // SAFETY: ends the copy at once.
            unsafe { libc::_exit(0) }
        }
        pid => {
            drop(write);
            let mut text = String::new();
            let _ = io::Read::read_to_string(&mut read, &mut text);
            // SAFETY: waits for the child that was just made; a null status is allowed.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
            serde_json::from_str(&text).unwrap_or_else(|_| Outcome::Held("it was killed for it".into()))
        }
    }
}
