//! The first process of a sandbox: builds the root, shuts itself in, starts the program, reaps.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use ringfence_gate::{Spec, Status, spawn_program, write_frame};
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, set_dumpable_behavior, set_parent_process_death_signal, wait,
};

use crate::confine::confine;
use crate::kernel::{Linux, build};
use crate::layout::Sandbox;
use crate::spawn::Word;

/// What the first process needs.
pub(crate) struct First<'a> {
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) spec: &'a Spec,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) line: UnixStream,
    /// The user and group outside, which are the same inside.
    pub(crate) ids: (u32, u32),
}

/// Does all of it. Returns only the exit code of the first process.
pub(crate) fn run(first: First<'_>) -> i32 {
    let line = &first.line;
    let say = |word: &Word| write_frame(line, word).is_ok();
    let program = match prepare(&first) {
        Ok(program) => program,
        Err(failure) => {
            say(&failure);
            return 125;
        }
    };
    if !say(&Word::Started) {
        return 125;
    }
    let status = reap_until(program);
    say(&Word::Ended(status));
    match status {
        Status::Code(code) => i32::from(code),
        Status::Signal(signal) => 128 + i32::from(signal),
    }
}

fn prepare(first: &First<'_>) -> Result<Pid, Word> {
    let wrong = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| Word::Failed(format!("could not {what}: {error}"))
    };
    keep_only(&first.line, first.stdin.as_ref()).map_err(wrong("close the descriptors of the host"))?;
    // The gate is shut off from its own user, and so is its copy; as such it could not write its own maps.
    set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(|error| wrong("open itself")(error.into()))?;
    map_ids(first.ids).map_err(wrong("map the user"))?;
    if first.sandbox.own_network {
        loopback().map_err(wrong("bring up the loopback"))?;
    }
    rustix::system::sethostname(b"ringfence").map_err(|error| wrong("set its name")(error.into()))?;
    build(&mut Linux, &first.sandbox.steps).map_err(|error| Word::Failed(error.to_string()))?;
    rustix::process::chdir(&first.sandbox.cwd).map_err(|error| wrong("enter the workspace")(error.into()))?;
    same_directory(first.sandbox.identity).map_err(wrong("find the workspace that was looked at"))?;
    confine(&first.sandbox.grants).map_err(|error| Word::Failed(error.to_string()))?;
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| wrong("follow the gate")(error.into()))?;
    let stdin = first.stdin.as_ref().map(OwnedFd::try_clone).transpose().map_err(wrong("pass its input"))?;
    // Before the program lives: it is of the same user. A program that is executed is open again.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| wrong("shut itself off")(error.into()))?;
    spawn_program(first.spec, stdin)
        .map_err(|error| Word::CannotStart { os_error: error.raw_os_error().unwrap_or(libc::EIO) })
}

/// The gate's own descriptors have no business inside: its socket, its signal pipes.
fn keep_only(line: &UnixStream, stdin: Option<&OwnedFd>) -> io::Result<()> {
    let null = fs::File::open("/dev/null")?;
    // SAFETY: descriptor 0 is the gate's socket, which nothing here uses.
    if unsafe { libc::dup2(null.as_raw_fd(), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    drop(null);
    let mut kept: Vec<i32> =
        [Some(line.as_raw_fd()), stdin.map(AsRawFd::as_raw_fd)].into_iter().flatten().collect();
    kept.sort_unstable();
    let mut from = 3;
    for descriptor in kept.into_iter().chain([i32::MAX]) {
        if from < descriptor {
            // SAFETY: closes what this process was given by the gate and does not use.
            unsafe { libc::syscall(libc::SYS_close_range, from, descriptor - 1, 0) };
        }
        from = descriptor.saturating_add(1);
    }
    Ok(())
}

/// The workspace may have been replaced by a link between the look and the mount.
fn same_directory((device, number): (u64, u64)) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let here = fs::metadata(".")?;
    if (here.dev(), here.ino()) == (device, number) {
        return Ok(());
    }
    Err(io::Error::other("another directory stands in its place"))
}

/// One user, the same inside as outside.
fn map_ids((user, group): (u32, u32)) -> io::Result<()> {
    write_file("/proc/self/setgroups", "deny")?;
    write_file("/proc/self/uid_map", &format!("{user} {user} 1\n"))?;
    write_file("/proc/self/gid_map", &format!("{group} {group} 1\n"))
}

fn write_file(path: &str, text: &str) -> io::Result<()> {
    use io::Write;
    fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// Programs expect to reach themselves.
fn loopback() -> io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: `ifreq` is plain data; all zeroes is a valid value of it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(b"lo") {
        *place = *byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request is a whole `ifreq` with a name and flags, as this call wants it.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits for whoever ends, until the program does. The kernel ends the rest with this process.
fn reap_until(program: Pid) -> Status {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == program => return ringfence_gate::status_of(status),
            Err(rustix::io::Errno::CHILD) => return Status::Signal(9),
            _ => {}
        }
    }
}
