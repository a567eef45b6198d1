//! Processes of the host, their memory and terminals; what a run is handed without being given it.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use ringfence_core::capability::Promise;

use super::{Attempt, Bait, Outcome, apart, call, refused, unreadable};

const fn attempt(group: &'static str, what: &'static str, attempt: fn(&Bait) -> Outcome) -> Attempt {
    Attempt { group, promise: Promise::ProcessesSeparate, what, attempt }
}

pub(super) const ATTEMPTS: &[Attempt] = &[
    attempt("processes", "see a process of the host", |bait| {
        // Another process may have its number in a namespace of its own.
        let name = fs::read_to_string(format!("/proc/{}/comm", bait.pid)).unwrap_or_default();
        match name.trim() {
            "sleep" => Outcome::Broken("it is in /proc".into()),
            _ => Outcome::Held("it is not in /proc".into()),
        }
    }),
    attempt("processes", "signal a process of the host", |bait| {
        refused(call(libc::SYS_kill, [number(bait.pid), 0, 0, 0, 0]))
    }),
    attempt("processes", "change the priority of a process of the host", |bait| {
        refused(call(libc::SYS_setpriority, [0, number(bait.pid), 1, 0, 0]))
    }),
    attempt("processes", "trace a process of the host", |bait| trace(bait.pid)),
    attempt("processes", "trace the gate", |_| trace(parent())),
    attempt("processes", "read the gate's memory through /proc", |_| {
        refused(fs::File::open(format!("/proc/{}/mem", parent())))
    }),
    attempt("processes", "read the gate's memory by a system call", |_| read_memory(parent())),
    attempt("processes", "take a descriptor of the gate", |_| {
        let gate = number(parent());
        apart(move || match call(libc::SYS_pidfd_open, [gate, 0, 0, 0, 0]) {
            Ok(handle) => refused(call(libc::SYS_pidfd_getfd, [handle.unsigned_abs() as usize, 0, 0, 0, 0])),
            Err(error) => Outcome::Held(error.to_string()),
        })
    }),
    attempt("processes", "attach to the host's shared memory", |bait| {
        let attached = call(libc::SYS_shmat, [number(bait.shared_memory), 0, 0, 0, 0]);
        refused(attached)
    }),
    attempt("proc", "enter the root of the first process", |bait| {
        let path = bait.outside.strip_prefix("/").unwrap_or(&bait.outside).join("file.txt");
        unreadable(&Path::new("/proc/1/root").join(path))
    }),
    attempt("proc", "open what the first process has open", |_| refused(fs::File::open("/proc/1/fd/0"))),
    attempt("proc", "see where the first process works", |_| refused(fs::read_link("/proc/1/cwd"))),
    attempt("terminal", "open a terminal of the host", |bait| {
        refused(OpenOptions::new().read(true).write(true).open(&bait.terminal))
    }),
    attempt("terminal", "open the terminal that ringfence was started at", |_| {
        refused(OpenOptions::new().read(true).write(true).open("/dev/tty"))
    }),
    attempt("terminal", "type into a terminal (TIOCSTI)", |_| apart(|| type_into(0x5412))),
    attempt("terminal", "paste into a console (TIOCLINUX)", |_| apart(|| type_into(0x541c))),
    Attempt {
        group: "environment",
        promise: Promise::EnvAllowList,
        what: "see a variable that nobody passed on",
        attempt: |bait| match std::env::var(&bait.variable) {
            Ok(value) => Outcome::Broken(format!("it has {} characters", value.len())),
            Err(error) => Outcome::Held(error.to_string()),
        },
    },
    attempt("environment", "find it in the environment of another process", find_variable),
    attempt("descriptors", "use a descriptor that the host left open", |bait| {
        refused(fs::metadata(format!("/proc/self/fd/{}", bait.descriptor)))
    }),
    attempt("descriptors", "find any descriptor besides the three", |_| {
        let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        // The one by which the list is read is the first that was free.
        let found: Vec<i32> = numbers.filter(|number| *number > 3).collect();
        match found[..] {
            [] => Outcome::Held("there is none".into()),
            _ => Outcome::Broken(format!("{found:?}")),
        }
    }),
];

fn number(value: i32) -> usize {
    value.unsigned_abs() as usize
}

fn parent() -> i32 {
    // SAFETY: only asks.
    unsafe { libc::getppid() }
}

fn trace(pid: i32) -> Outcome {
    const ATTACH: usize = 16;
    const DETACH: usize = 17;
    apart(move || {
        let attached = call(libc::SYS_ptrace, [ATTACH, number(pid), 0, 0, 0]);
        if attached.is_ok() {
            // SAFETY: waits for the process that stops because of this; a null status is allowed.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) };
            let _ = call(libc::SYS_ptrace, [DETACH, number(pid), 0, 0, 0]);
        }
        refused(attached)
    })
}

/// Where something is in the memory of a process is told by its map; where the map is shut, the start of a program is
/// as good a guess as any. A wrong guess is answered otherwise than a refusal.
fn read_memory(pid: i32) -> Outcome {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: 0x40_0000 as *mut libc::c_void, iov_len: 1 };
    // SAFETY: both descriptions live until the call returns, and the local one points to a byte of this process.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        _ if read > 0 => Outcome::Broken("a byte was read".into()),
        Some(libc::EFAULT) => Outcome::Broken("only the address was wrong".into()),
        _ => Outcome::Held(error.to_string()),
    }
}

/// On a terminal of one's own, which is where the kernel would allow it.
fn type_into(request: libc::Ioctl) -> Outcome {
    let opened = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY);
    let terminal = opened.and_then(|outer| {
        rustix::pty::unlockpt(&outer)?;
        let inner = rustix::pty::ioctl_tiocgptpeer(&outer, rustix::pty::OpenptFlags::RDWR)?;
        rustix::process::setsid()?;
        rustix::process::ioctl_tiocsctty(&inner)?;
        Ok((outer, inner))
    });
    let (_outer, inner) = match terminal {
        Ok(ends) => ends,
        Err(error) => return Outcome::NotTried(format!("no terminal: {error}")),
    };
    let character = [3u8, 0];
    // SAFETY: the request reads at most two bytes, which live until the call returns.
    let done = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&inner), request, character.as_ptr()) };
    if done == 0 {
        Outcome::Broken("it worked".into())
    } else {
        Outcome::Held(io::Error::last_os_error().to_string())
    }
}

fn find_variable(bait: &Bait) -> Outcome {
    let needle = format!("{}=", bait.variable);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let found = processes.filter(|path| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(needle.as_bytes()))
    });
    match found.collect::<Vec<PathBuf>>()[..] {
        [] => Outcome::Held("no process that can be seen has it".into()),
        [ref first, ..] => Outcome::Broken(first.display().to_string()),
    }
}
