//! A program about to be executed. It is started without a copy of this process's memory, which would take longer than all
//! the rest: the new process borrows the memory until it has executed the program, and this one waits so long.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::ptr;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, ioctl_tiocsctty, set_parent_process_death_signal,
    setrlimit, setsid, waitpid,
};

use crate::descriptors::descriptors_before;
use crate::wire::Spec;

/// What the few calls before the execution need, several times over.
const STACK: usize = 64 << 10;
/// The signals that Rust ignores or the gate handles.
const SIGNALS: [c_int; 5] = [libc::SIGPIPE, libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// The largest core dump.
const CORE_BYTES: u64 = 1;
/// Least and most descriptors that a process of a run can have open.
const DESCRIPTORS: RangeInclusive<u64> = 1024..=65_536;

/// All that the new process needs, made beforehand: it allocates nothing.
pub(crate) struct Program {
    file: CString,
    argv: Vec<CString>,
    env: Vec<CString>,
    cwd: CString,
    /// What becomes standard input, output and error; those that are kept have none.
    standard: [Option<RawFd>; 3],
    at_terminal: bool,
    memory: Option<u64>,
    processes: Option<u32>,
}

/// What the new process sees, and where it leaves its error.
struct Start<'a> {
    program: &'a Program,
    argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    error: c_int,
}

impl Program {
    /// Reads this, or works at this terminal.
    pub(crate) fn new(
        spec: &Spec,
        file: PathBuf,
        stdin: Option<&OwnedFd>,
        terminal: Option<&OwnedFd>,
    ) -> io::Result<Self> {
        let words = spec.argv.iter().map(|word| CString::new(word.as_str()));
        let variables = spec.env.iter().map(|(name, value)| CString::new(format!("{name}={value}")));
        let terminal = terminal.map(AsRawFd::as_raw_fd);
        Ok(Self {
            file: CString::new(file.into_os_string().into_vec())?,
            argv: words.collect::<Result<_, _>>()?,
            env: variables.collect::<Result<_, _>>()?,
            cwd: CString::new(spec.cwd.as_os_str().as_bytes())?,
            standard: [terminal.or_else(|| stdin.map(AsRawFd::as_raw_fd)), terminal, terminal],
            at_terminal: terminal.is_some(),
            memory: spec.memory_limit,
            processes: spec.process_limit,
        })
    }

    /// Starts it. An error means that nothing runs.
    pub(crate) fn start(&self) -> io::Result<Pid> {
        let mut start =
            Start { program: self, argv: pointers(&self.argv), env: pointers(&self.env), error: 0 };
        let mut stack = vec![0_u128; STACK / size_of::<u128>()];
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the new process runs on a stack of its own, whose upper end is aligned, and this thread does not go
        // on before it has executed the program or ended: until then all that it sees through `start` stays. It makes
        // system calls alone, and writes to nothing but its stack, `errno` and `start`; signals are held back from
        // before it begins, so that no handler runs in it.
        let pid = unsafe {
            let top = stack.as_mut_ptr().add(stack.len());
            let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            let pid = libc::clone(execute, top.cast(), flags, (&raw mut start).cast());
            let error = io::Error::last_os_error();
            libc::sigprocmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
            if pid < 0 {
                return Err(error);
            }
            pid
        };
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
        // SAFETY: the new process has written it, which the compiler does not see.
        let error = unsafe { (&raw const start.error).read_volatile() };
        if error == 0 {
            return Ok(pid);
        }
        let _ = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
        Err(io::Error::from_raw_os_error(error))
    }

    /// What is done in the new process before the program.
    fn prepare(&self) -> io::Result<()> {
        forget_signals();
        for (number, descriptor) in (0..).zip(self.standard) {
            let Some(descriptor) = descriptor else { continue };
            // SAFETY: replaces a standard descriptor of the new process, in which nothing uses it.
            check(unsafe { libc::dup2(descriptor, number) })?;
        }
        // SAFETY: a string that ends.
        check(unsafe { libc::chdir(self.cwd.as_ptr()) })?;
        setsid()?;
        if self.at_terminal {
            // The terminal of the new session, so that Ctrl-C and job control work.
            ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        set_parent_process_death_signal(Some(Signal::KILL))?;
        dump_no_core()?;
        // Without these a run could keep the machine's processors from other programs where the user may.
        limit(Resource::Rtprio, 0)?;
        limit(Resource::Nice, 0)?;
        leave_half(Resource::Nofile, DESCRIPTORS)?;
        leave_half(Resource::Sigpending, 0..=u64::MAX)?;
        leave_half(Resource::Msgqueue, 0..=u64::MAX)?;
        if let Some(bytes) = self.memory {
            limit(Resource::Data, bytes)?;
        }
        if let Some(count) = self.processes {
            limit(Resource::Nproc, u64::from(count))?;
        }
        close_other_descriptors()
    }
}

/// The new process. Returns only to end.
extern "C" fn execute(start: *mut c_void) -> c_int {
    // SAFETY: it is the `Start` of the thread that waits for this.
    let start = unsafe { &mut *start.cast::<Start<'_>>() };
    start.error = match start.program.prepare() {
        Ok(()) => {
            // SAFETY: lists of strings that end, and end with null.
            unsafe { libc::execve(start.program.file.as_ptr(), start.argv.as_ptr(), start.env.as_ptr()) };
            io::Error::last_os_error().raw_os_error()
        }
        Err(error) => error.raw_os_error(),
    }
    .unwrap_or(libc::EIO);
    127
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

fn check(done: c_int) -> io::Result<()> {
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// No handler of this process runs any more, and no signal is held back. The new process shares memory and not the table
/// of handlers.
fn forget_signals() {
    // SAFETY: plain system calls; all zeroes is a valid value of a set.
    unsafe {
        for signal in SIGNALS {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// Keeps this process and all that it starts from leaving core dumps. Of a limit of 0 the kernel takes no notice where `core_pattern` is
/// a pipe, whose program it starts as root of the host; with one of exactly 1 byte it starts none, and a file has no space in it.
/// One that may have no such limit keeps its own, 0.
pub fn dump_no_core() -> io::Result<()> {
    match limit(Resource::Core, CORE_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => limit(Resource::Core, 0),
        done => done,
    }
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// Lowers a limit whose use the kernel counts for the user, over all programs: a run that takes all that it can leaves half to the
/// others. The half is kept within `range`, as far as the limit lets it.
fn leave_half(resource: Resource, range: RangeInclusive<u64>) -> io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(resource);
    let most = maximum.unwrap_or(u64::MAX);
    let half = (most / 2).clamp(*range.start(), *range.end()).min(most);
    let before = match resource {
        Resource::Nofile => descriptors_before().or(current),
        _ => current,
    };
    // One without a bound is `None`, also where a number would be as good.
    let known = |limit: u64| (limit != u64::MAX).then_some(limit);
    let limits =
        Rlimit { current: known(before.map_or(half, |before| before.min(half))), maximum: known(half) };
    Ok(setrlimit(resource, limits)?)
}

/// What the host's own parents left open must not reach the agent.
fn close_other_descriptors() -> io::Result<()> {
    // SAFETY: marks descriptors from 3 on close-on-exec; none is closed under the feet of this process.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
