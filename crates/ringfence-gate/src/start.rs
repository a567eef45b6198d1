//! Two ways to start a gate: as a program, or as a copy of this process that was made before it knew anything.

use std::ffi::c_char;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::sweep::adopt;

/// A gate that waits for its orders.
#[derive(Debug)]
pub struct Started {
    /// Its process.
    pub pid: Pid,
    /// The host's end of its socket.
    pub control: UnixStream,
    /// What the run prints.
    pub stdout: OwnedFd,
    /// What the run complains of.
    pub stderr: OwnedFd,
}

/// The file of the running program, in the process that executes it: a path of the host could lead to another file by now.
pub const OWN_FILE: &str = "/proc/self/exe";

/// A command that executes the file of this process, which `ps` shows by `name`.
pub fn own_command(name: &Path) -> Command {
    let mut command = Command::new(OWN_FILE);
    command.arg0(name);
    command
}

/// Starts a program that is a gate. It sees no variables; those of the run come with the order to start.
pub fn exec(mut command: Command) -> io::Result<Started> {
    // What a killed gate leaves behind has to come to us, or nobody could find it.
    adopt()?;
    let (control, theirs) = UnixStream::pair()?;
    command.env_clear().stdin(OwnedFd::from(theirs));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    Ok(Started { pid, control, stdout: stdout.into(), stderr: stderr.into() })
}

/// Copies this process, and makes the copy the gate: faster than a program by all that starting one takes.
///
/// To be called before this process has read anything that is nobody else's business, and before its second thread:
/// then it is an error. The copy forgets its variables.
///
/// The copy starts off the processor of this process, if there is another, and so does what it copies itself into. The
/// kernel likes to leave a copy in the queue of the processor that copies, and to wake those who are spoken to on the
/// processor of the speaker: they would take turns on one while the others are idle. Where no other is idle the kernel chooses.
pub fn fork(gate: impl FnOnce(Elsewhere) -> u8) -> io::Result<Started> {
    // SAFETY: asks for what is so already, and fails if it is not so.
    if unsafe { libc::unshare(libc::CLONE_THREAD) } != 0 {
        return Err(io::Error::last_os_error());
    }
    adopt()?;
    let (control, theirs) = UnixStream::pair()?;
    let (stdout, their_stdout) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let (stderr, their_stderr) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let elsewhere = Elsewhere::look();
    // SAFETY: with one thread the copy is whole.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // Whichever of the two goes on first.
            elsewhere.go(None);
            drop((control, stdout, stderr));
            let ends = [OwnedFd::from(theirs), their_stdout, their_stderr];
            let code = become_gate(ends).map_or(125, |()| gate(elsewhere));
            // SAFETY: ends the copy at once; destructors are those of the process that it was copied from.
            unsafe { libc::_exit(i32::from(code)) }
        }
        pid => {
            let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
            elsewhere.go(Some(pid));
            Ok(Started { pid, control, stdout, stderr })
        }
    }
}

/// The processors that a process may use, and that of the host, while it uses some of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Elsewhere(Option<(CpuSet, usize)>);

impl Elsewhere {
    /// Looks whether another processor has time, of those that this process may use.
    fn look() -> Self {
        let Ok(all) = sched_getaffinity(None) else { return Self(None) };
        let has_room = Load::read().is_some_and(|load| load.has_room(all.count()));
        Self(has_room.then(|| (all, sched_getcpu())))
    }

    /// Takes a process away from the host's processor, if there is another.
    fn go(self, pid: Option<Pid>) {
        let Some((mut others, host)) = self.0 else { return };
        others.unset(host);
        if others.count() > 0 {
            let _ = sched_setaffinity(pid, &others);
        }
    }

    /// The same for this process, before it copies itself.
    pub fn again(self) {
        self.go(None);
    }

    /// Lets this process use all of them again.
    pub fn over(self) {
        if let Some((all, _)) = self.0 {
            let _ = sched_setaffinity(None, &all);
        }
    }
}

/// How busy the machine is.
struct Load {
    /// Threads that ran or waited for a processor, in the mean of the last minute.
    last_minute: f64,
    /// Threads that run or wait for a processor now, this one included.
    now: u32,
}

impl Load {
    fn read() -> Option<Self> {
        let mut text = [0; 64];
        let length = std::fs::File::open("/proc/loadavg").and_then(|mut file| file.read(&mut text)).ok()?;
        let mut words = std::str::from_utf8(&text[..length]).ok()?.split_ascii_whitespace();
        let last_minute = words.next()?.parse().ok()?;
        let now = words.nth(2)?.split('/').next()?.parse().ok()?;
        Some(Self { last_minute, now })
    }

    /// Whether one of several processors is idle, or will be soon: what the kernel itself has to do after the last run takes
    /// less time than waiting for the host does.
    fn has_room(&self, processors: u32) -> bool {
        self.now < processors || self.last_minute < f64::from(processors)
    }
}

/// Gives the copy its three descriptors and takes its variables.
fn become_gate(ends: [OwnedFd; 3]) -> io::Result<()> {
    // Above the three that are replaced now, whatever numbers they were given.
    let above: Vec<OwnedFd> =
        ends.iter().map(|end| rustix::io::fcntl_dupfd_cloexec(end, 3)).collect::<Result<_, _>>()?;
    drop(ends);
    for (number, end) in above.iter().enumerate() {
        // SAFETY: replaces the standard descriptors of the copy, which nothing in it uses yet.
        if unsafe { libc::dup2(end.as_raw_fd(), i32::try_from(number).unwrap_or(-1)) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // What others see of it in a list of processes.
    rustix::thread::set_name(c"ringfence-gate")?;
    forget_environment();
    Ok(())
}

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
    /// The first word of the command line, where the kernel has put it.
    static mut program_invocation_name: *mut c_char;
}

/// What is seen of the gate's command line: nothing of the host's.
const NAME: &[u8] = b"ringfence-gate";
/// The kernel takes no longer command lines.
const LONGEST_COMMAND_LINE: usize = 6 << 20;

/// Overwrites the command line and the variables where they are, so that no look into this process finds them.
fn forget_environment() {
    // SAFETY: `environ` is a list of strings that ends with null, all of them this process's own to write; the strings
    // keep their terminators, and with one thread nobody reads them meanwhile. The command line lies before the first
    // variable, without a gap, and all of it is written or nothing.
    unsafe {
        let first = if environ.is_null() { std::ptr::null_mut() } else { *environ };
        let length = (first as usize).wrapping_sub(program_invocation_name as usize);
        if !first.is_null() && (NAME.len() + 1..LONGEST_COMMAND_LINE).contains(&length) {
            std::ptr::write_bytes(program_invocation_name, 0, length);
            std::ptr::copy_nonoverlapping(NAME.as_ptr().cast(), program_invocation_name, NAME.len());
        }
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            std::ptr::write_bytes(*entry, 0, libc::strlen(*entry));
            entry = entry.add(1);
        }
        libc::clearenv();
    }
}
