//! Runs git on the host, with nothing of a run's in its environment, configuration or hooks, and within a time limit.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::GitError;
use crate::host_programs::{HostPrograms, SYSTEM_PATHS};

/// Most bytes of output that are kept, unless the caller says less, and of error messages.
pub(crate) const MAX_OUTPUT_BYTES: u64 = 512 << 20;
const MAX_MESSAGE_BYTES: u64 = 4096;
/// How long a killed git may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes of address space, unless the caller says less.
pub(crate) const MAX_MEMORY_BYTES: u64 = 8 << 30;
/// Starts a program with at most so many KiB of address space, the first argument, and five minutes of processor time.
const LIMITED: &str = "ulimit -v \"$1\"; shift; ulimit -t 300; exec \"$@\"";

/// Settings that keep git from executing anything that a repository names.
const SAFE: [&str; 14] = [
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.alternateRefsCommand=",
    "-c",
    "gc.auto=0",
    "-c",
    "maintenance.auto=false",
    "-c",
    "safe.directory=*",
    "-c",
    "core.untrackedCache=false",
];

/// Finds git in the system's directories, or among the programs of the host outside of `workspace`.
pub fn find(programs: &HostPrograms, workspace: &Path) -> Option<PathBuf> {
    programs.of_system_first().outside_of(workspace, Path::new("/nonexistent")).find("git")
}

/// One git directory, and how git is run on it.
#[derive(Debug, Clone)]
pub(crate) struct Git<'a> {
    pub(crate) program: &'a Path,
    pub(crate) directory: PathBuf,
    /// The directory with objects, refs and configuration. Said explicitly, or git would follow `commondir`.
    pub(crate) common: PathBuf,
    /// Directories in which it may write.
    pub(crate) writable: Vec<PathBuf>,
    /// Other index than the git directory's.
    pub(crate) index: Option<PathBuf>,
    /// User and group to run as, if not the caller's.
    pub(crate) user: Option<(u32, u32)>,
    pub(crate) deadline: Instant,
    /// Most bytes of output that are kept; the rest is dropped.
    pub(crate) max_output_bytes: u64,
    /// Most bytes of address space.
    pub(crate) max_memory_bytes: u64,
}

/// What git reads.
pub(crate) enum Input {
    Nothing,
    Text(Vec<u8>),
    File(File),
}

impl Git<'_> {
    /// Runs a command and returns what it printed.
    pub(crate) fn run(&self, words: &[&str], input: Input) -> Result<Vec<u8>, GitError> {
        self.run_to(words, input, None)
    }

    /// The same, with the output going to a file if there is one.
    pub(crate) fn run_to(
        &self,
        words: &[&str],
        input: Input,
        output: Option<File>,
    ) -> Result<Vec<u8>, GitError> {
        // Settings may come before it.
        let mut names = words.iter().filter(|word| !word.starts_with('-') && !word.contains('='));
        let command = names.next().copied().unwrap_or_default().to_owned();
        let failed =
            |error: io::Error| GitError::Git { command: command.clone(), message: error.to_string() };
        let mut child = self.start_confined(words, &input, output).map_err(failed)?;
        if let (Input::Text(text), Some(mut stdin)) = (input, child.stdin.take()) {
            // Git may end before it has read all of it; its exit status tells.
            thread::spawn(move || stdin.write_all(&text));
        }
        let output = read_aside(child.stdout.take(), self.max_output_bytes);
        let message = read_aside(child.stderr.take(), MAX_MESSAGE_BYTES);
        let Some(output) = self.wait(&output) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(GitError::TooSlow { command });
        };
        let status = self.wait_for_exit(&mut child).map_err(failed)?;
        let message = message.recv_timeout(KILL_TIMEOUT).unwrap_or_default();
        if status.success() {
            return Ok(output);
        }
        let message = String::from_utf8_lossy(&message);
        let message: String = message.trim().chars().filter(|c| !c.is_control() || *c == '\n').collect();
        Err(GitError::Git { command, message: message.replace('\n', "; ") })
    }

    /// Starts git from a thread that may write only where git has to: whatever a run has built there, nothing else is changed.
    fn start_confined(&self, words: &[&str], input: &Input, output: Option<File>) -> io::Result<Child> {
        let start = || {
            super::confine::to_directories(&self.writable)?;
            self.start(words, input, output)
        };
        let started = thread::scope(|scope| scope.spawn(start).join());
        started.unwrap_or_else(|_| Err(io::Error::other("the thread that starts git panicked")))
    }

    fn start(&self, words: &[&str], input: &Input, output: Option<File>) -> io::Result<Child> {
        // What a run made may be built to exhaust whoever reads it.
        let mut command = Command::new("/bin/sh");
        let memory_kib = (self.max_memory_bytes >> 10).to_string();
        command.args(["-c", LIMITED, "sh", &memory_kib]).arg(self.program);
        command.env_clear().env("PATH", SYSTEM_PATHS.join(":")).env("LC_ALL", "C").current_dir("/");
        for (name, value) in [
            ("HOME", "/nonexistent"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_ATTR_NOSYSTEM", "1"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_ALLOW_PROTOCOL", "none"),
            ("GIT_COMMITTER_NAME", "ringfence"),
            ("GIT_COMMITTER_EMAIL", "ringfence@localhost"),
        ] {
            command.env(name, value);
        }
        command.env("GIT_DIR", &self.directory).env("GIT_COMMON_DIR", &self.common);
        if let Some(index) = &self.index {
            command.env("GIT_INDEX_FILE", index);
        }
        if let Some((user, group)) = self.user {
            command.gid(group).uid(user);
        }
        command.stdin(match input {
            Input::Nothing => Stdio::null(),
            Input::Text(_) => Stdio::piped(),
            Input::File(file) => Stdio::from(file.try_clone()?),
        });
        command.stdout(output.map_or_else(Stdio::piped, Stdio::from)).stderr(Stdio::piped());
        command.args(SAFE).args(words).process_group(0).spawn()
    }

    /// What was read, unless the time is over first.
    fn wait(&self, output: &Receiver<Vec<u8>>) -> Option<Vec<u8>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        output.recv_timeout(left).ok()
    }

    /// A process that has closed its output may still run.
    fn wait_for_exit(&self, child: &mut Child) -> io::Result<ExitStatus> {
        let (ended, waiting) = channel::<()>();
        let pid = rustix::process::Pid::from_child(child);
        let left = self.deadline.saturating_duration_since(Instant::now());
        let guard = thread::spawn(move || {
            if let Err(RecvTimeoutError::Timeout) = waiting.recv_timeout(left) {
                // The child is not reaped before this thread was told, so the id is still its own.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        });
        let mut waited = rustix::process::WaitIdOptions::EXITED;
        waited |= rustix::process::WaitIdOptions::NOWAIT;
        let seen =
            rustix::io::retry_on_intr(|| rustix::process::waitid(rustix::process::WaitId::Pid(pid), waited));
        drop(ended);
        let _ = guard.join();
        seen?;
        child.wait()
    }
}

/// Reads on a thread of its own, at most `limit` bytes; the rest is read and dropped.
fn read_aside(from: Option<impl Read + Send + 'static>, limit: u64) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    thread::spawn(move || {
        let mut content = Vec::new();
        if let Some(mut from) = from {
            let _ = (&mut from).take(limit).read_to_end(&mut content);
            let _ = io::copy(&mut from, &mut io::sink());
        }
        // The reader has gone if the time was over.
        let _ = send.send(content);
    });
    receive
}
