//! Runs git on the host, with nothing of a run's in its environment, configuration or hooks, unable to execute other programs, and
//! within limits of time and memory.

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
/// The least memory that git gets for an import, and what each of its threads may take for its stack.
const MIN_DATA_BYTES: u64 = 256 << 20;
const THREAD_BYTES: u64 = 16 << 20;
/// Most seconds of processor time.
const MAX_CPU_SECONDS: u64 = 300;

/// Most bytes that git may allocate for what a run of this memory limit made, at most half of the machine's memory.
pub(crate) fn data_limit(of_run: Option<u64>) -> u64 {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let most = of_run.unwrap_or(u64::MAX).max(MIN_DATA_BYTES).min(machine_bytes() / 2);
    most.saturating_add(threads * THREAD_BYTES)
}

#[cfg(target_os = "linux")]
fn machine_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    #[allow(clippy::unnecessary_cast, reason = "the field differs in width between platforms")]
    let total = machine.totalram as u64;
    total.saturating_mul(u64::from(machine.mem_unit))
}

#[cfg(not(target_os = "linux"))]
fn machine_bytes() -> u64 {
    u64::MAX
}

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
    /// Made by Ringfence, with a configuration of its own.
    pub(crate) directory: PathBuf,
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
    /// Most bytes that it may allocate.
    pub(crate) max_data_bytes: u64,
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
        let mut child = self.start_confined(words, &input, output)?.map_err(failed)?;
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

    /// Starts git from a thread that may execute git alone and write only where git has to: whatever a run has built there, nothing
    /// else is started or changed. The outer error is a kernel that cannot confine git.
    fn start_confined(
        &self,
        words: &[&str],
        input: &Input,
        output: Option<File>,
    ) -> Result<io::Result<Child>, GitError> {
        let start = || {
            super::confine::to_git(self.program, &self.writable).map_err(GitError::NotConfined)?;
            Ok(self.start(words, input, output).and_then(|child| self.limited(child)))
        };
        let started = thread::scope(|scope| scope.spawn(start).join());
        started.unwrap_or_else(|_| Ok(Err(io::Error::other("the thread that starts git panicked"))))
    }

    /// Limits a process that has just been started: what a run made may be built to exhaust whoever reads it.
    #[cfg(target_os = "linux")]
    fn limited(&self, mut child: Child) -> io::Result<Child> {
        use rustix::process::{Resource, Rlimit, prlimit};
        let pid = rustix::process::Pid::from_child(&child);
        // The user may have a lower one, which cannot be raised.
        let of = |resource, most: u64| {
            let own = rustix::process::getrlimit(resource).maximum;
            let most = own.map_or(most, |own| most.min(own));
            Rlimit { current: Some(most), maximum: Some(most) }
        };
        let limits = [
            (Resource::As, self.max_memory_bytes),
            (Resource::Data, self.max_data_bytes),
            (Resource::Cpu, MAX_CPU_SECONDS),
        ];
        for (resource, most) in limits {
            match prlimit(Some(pid), resource, of(resource, most)) {
                Ok(_) => {}
                // Root without the capability cannot limit another user's process, which has its time limit.
                Err(rustix::io::Errno::PERM) if self.user.is_some() => {}
                Err(error) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(error.into());
                }
            }
        }
        Ok(child)
    }

    #[cfg(not(target_os = "linux"))]
    fn limited(&self, child: Child) -> io::Result<Child> {
        Ok(child)
    }

    fn start(&self, words: &[&str], input: &Input, output: Option<File>) -> io::Result<Child> {
        let mut command = Command::new(self.program);
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
        command.env("GIT_DIR", &self.directory).env("GIT_COMMON_DIR", &self.directory);
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

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::disallowed_methods, reason = "tests write files of their own")]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::{Git, Input, MAX_MEMORY_BYTES, MAX_OUTPUT_BYTES, find};
    use crate::HostPrograms;

    #[test]
    fn git_executes_no_other_program() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("x.git");
        let program = find(&HostPrograms::new(""), Path::new("/nonexistent")).unwrap();
        let git = Git {
            program: &program,
            directory: directory.clone(),
            writable: vec![place.path().to_owned()],
            index: None,
            user: None,
            deadline: Instant::now() + Duration::from_secs(60),
            max_output_bytes: MAX_OUTPUT_BYTES,
            max_memory_bytes: MAX_MEMORY_BYTES,
            max_data_bytes: MAX_MEMORY_BYTES,
        };
        git.run(&["init", "-q", "--bare"], Input::Nothing).unwrap();
        let mark = place.path().join("executed");
        for command in [format!("!touch {}", mark.display()), format!("!/usr/bin/touch {}", mark.display())] {
            assert!(git.run(&["-c", &format!("alias.x={command}"), "x"], Input::Nothing).is_err());
        }
        // It may write there, so only the program is what is missing.
        fs::write(directory.join("writable"), "").unwrap();
        git.run(&["config", "a.b", "c"], Input::Nothing).unwrap();
        assert!(!mark.exists());
        let outside = Git { writable: Vec::new(), ..git };
        assert!(outside.run(&["config", "a.b", "d"], Input::Nothing).is_err());
    }
}
