//! The first process of a sandbox: builds the root, shuts itself in, starts the program, reaps.

use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use ringfence_gate::{
    Elsewhere, Spawned, Status, dump_no_core, receive, send, spawn_program, threads_in_sight, write_frame,
};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, openat, statx};
use rustix::net::addr::SocketAddrArg;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, getpid, set_dumpable_behavior,
    set_parent_process_death_signal, setsid, wait,
};

use crate::confine::confine;
use crate::kernel::{Kernel, Linux, OLD_ROOT, build, found};
use crate::layout::{Base, Sandbox, Step, Walls};
use crate::seccomp::{Extra, Filter};
use crate::spawn::{Kind, Told, Word};

/// Does all of it. `ids` are the user and group outside, which are the same inside. Returns only the exit code of the
/// first process.
pub(crate) fn run(kind: Kind, line: &UnixStream, ids: (u32, u32), elsewhere: Elsewhere) -> i32 {
    let say = |word: &Word| write_frame(line, word).is_ok();
    let (program, most, first) = match build_and_start(kind, line, ids, elsewhere) {
        Ok(Some(Running { program, most, first })) => (program, most, first),
        // The gate is gone or wants nothing started.
        Ok(None) => return 0,
        Err(failure) => {
            say(&failure);
            return 125;
        }
    };
    if send(line, &Word::Started, program.terminal.as_ref().map(AsFd::as_fd)).is_err() {
        return 125;
    }
    drop(program.terminal);
    // While the program starts: taking it down before would delay the start, and at the end it would delay the end.
    drop(first);
    let status = reap_until(program.pid);
    // The others are still there, as many as there were when the program gave up; it was one more.
    let full = most.is_some_and(|most| threads_in_sight().is_ok_and(|count| count + 1 >= most));
    end_the_rest();
    say(&Word::Ended { status, full });
    match status {
        Status::Code(code) => i32::from(code),
        Status::Signal(signal) => 128 + i32::from(signal),
    }
}

/// What runs in a sandbox.
struct Running {
    program: Spawned,
    /// How many threads there may be.
    most: Option<u32>,
    /// The namespace in which the mounts were made, before they were locked.
    first: Option<OwnedFd>,
}

/// `None` if the gate is gone or wants nothing started.
fn build_and_start(
    kind: Kind,
    line: &UnixStream,
    ids: (u32, u32),
    elsewhere: Elsewhere,
) -> Result<Option<Running>, Word> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(wrong("follow the gate"))?;
    // The user's session has the user's terminal. In a container the first process leads one already.
    let _ = setsid();
    keep_only(line).map_err(wrong("close the descriptors of the host"))?;
    let mut kernel = begin(kind, ids)?;
    empty_stdin().map_err(wrong("open /dev/null"))?;
    // The host still scans the workspace. What most runs want; another is made if it has to be.
    let filter = Filter::new(Extra::default()).ok();
    let Some((Told::Base(base), _)) = hear(line)? else { return Ok(None) };
    if base.walls == Walls::Own {
        let built = kernel.bound(&base.size).and_then(|()| build(&mut kernel, &base.steps));
        built.map_err(|error| Word::Failed(error.to_string()))?;
    }
    let Some((Told::Rest { sandbox, spec }, stdin)) = hear(line)? else { return Ok(None) };
    elsewhere.over();
    // Before the filter, and on the loopback of the sandbox alone.
    for (index, port) in sandbox.doors.iter().enumerate() {
        let listener = open_door(*port, index > 0).map_err(wrong("open a way to the broker"))?;
        let sent = send(line, &Word::Door(*port), Some(listener.as_fd()));
        sent.map_err(|error| Word::Failed(error.to_string()))?;
    }
    let first = finish(&base, &mut kernel, (&sandbox, filter), ids)?;
    let Some((Told::Start, _)) = hear(line)? else { return Ok(None) };
    match spawn_program(&spec, stdin) {
        Ok(program) => Ok(Some(Running { program, most: spec.process_limit, first })),
        Err(error) => Err(Word::CannotStart { os_error: error.raw_os_error().unwrap_or(libc::EIO) }),
    }
}

fn hear(line: &UnixStream) -> Result<Option<(Told, Option<OwnedFd>)>, Word> {
    receive(line).map_err(|error| Word::Failed(error.to_string()))
}

fn wrong<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Word {
    move |error| Word::Failed(format!("could not {what}: {}", error.into()))
}

/// What does not depend on what is wanted.
fn begin(kind: Kind, ids: (u32, u32)) -> Result<Linux, Word> {
    let mut kernel = Linux::default();
    if kind.walls == Walls::Given {
        // Where a container runs out of memory the gate has to stay, which tells.
        let opened = set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(std::io::Error::from);
        opened.and_then(|()| fs::File::open("/proc/self")).iter().for_each(be_killed_first);
    }
    if kind.walls != Walls::Own {
        return Ok(kernel);
    }
    // The gate is shut off from its own user, and so is its copy; as such it could not write its own maps.
    set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(wrong("open itself"))?;
    let process = fs::File::open("/proc/self").map_err(wrong("find itself"))?;
    map_ids(&process, ids).map_err(wrong("map the user"))?;
    be_killed_first(&process);
    leave_half_of_inotify();
    if kind.own_network {
        bound_tcp_buffers();
        loopback().map_err(wrong("bring up the loopback"))?;
    }
    rustix::system::sethostname(b"ringfence").map_err(wrong("set its name"))?;
    found(&mut kernel).map_err(|error| Word::Failed(error.to_string()))?;
    Ok(kernel)
}

/// Has the kernel choose processes of runs before the gate, and before those of the user, where memory runs out.
fn be_killed_first(process: &fs::File) {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    // Where it cannot be said, the kernel goes by the size of processes, as for all others.
    if let Ok(file) = openat(process, "oom_score_adj", flags, Mode::empty()) {
        let _ = rustix::io::write(file, b"1000");
    }
}

/// The rest. Returns the namespace in which the mounts were made.
fn finish(
    base: &Base,
    kernel: &mut Linux,
    (sandbox, filter): (&Sandbox, Option<Filter>),
    ids: (u32, u32),
) -> Result<Option<OwnedFd>, Word> {
    let mut first = None;
    match base.walls {
        Walls::Own => first = Some(close(kernel, sandbox, ids)?),
        Walls::Given => {
            let mounted = sandbox.mounted.iter().try_for_each(|path| is_mounted(path));
            mounted.map_err(wrong("find all that has to be held or hidden"))?;
            sandbox.steps.iter().try_for_each(make_file).map_err(wrong("make its files"))?;
        }
        Walls::None => {}
    }
    rustix::process::chdir(&sandbox.cwd).map_err(wrong("enter the workspace"))?;
    if let Some(identity) = sandbox.identity {
        same_directory(Path::new("."), identity).map_err(wrong("find the workspace that was looked at"))?;
    }
    // The filter lets no process change it.
    dump_no_core().map_err(wrong("bound core dumps"))?;
    let extra = Extra { pinned: sandbox.processors.is_some(), alone: base.walls == Walls::None };
    let confined = confine(&sandbox.grants, sandbox.processors, (extra, filter));
    confined.map_err(|error| Word::Failed(error.to_string()))?;
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(wrong("follow the gate"))?;
    // Before the program lives: it is of the same user. A program that is executed is open again.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(wrong("shut itself off"))?;
    Ok(first)
}

/// Whether something is mounted at a path.
fn is_mounted(path: &Path) -> io::Result<()> {
    let data = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty())?;
    // A kernel that cannot tell has no better answer.
    let known = data.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
    if known && !data.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        let message = format!("{} was replaced on the host; try again", path.display());
        return Err(io::Error::other(message));
    }
    Ok(())
}

/// What is made in a root that somebody else has built.
fn make_file(step: &Step) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let Step::File { target, text, mode } = step else { return Err(io::ErrorKind::Unsupported.into()) };
    if let Some(directory) = target.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::OpenOptions::new().write(true).create_new(true).mode(*mode).open(target)?.write_all(text.as_bytes())
}

/// The rest of the root. Returns the namespace in which it was built.
fn close(kernel: &mut Linux, sandbox: &Sandbox, ids: (u32, u32)) -> Result<OwnedFd, Word> {
    // Only now is it in its own groups, which are to be all that it sees of them.
    // SAFETY: parts this process, which has one thread, from the groups of the host.
    if unsafe { libc::unshare(libc::CLONE_NEWCGROUP) } != 0 {
        return Err(wrong("part from the host's control groups")(io::Error::last_os_error()));
    }
    // Inside, the files by which a process maps its users cannot be written.
    let process = fs::File::open(Path::new(OLD_ROOT).join("proc/self")).map_err(wrong("find itself"))?;
    let built = build(kernel, &sandbox.steps).and_then(|()| kernel.finish());
    built.map_err(|error| Word::Failed(error.to_string()))?;
    lock_mounts(&process, ids).map_err(wrong("lock its mounts"))
}

/// Copies the mounts into namespaces that do not own them. There the kernel keeps them together: a directory that was handed to
/// another run still has its covers when this run, and its own namespace, have ended. Returns the first namespace.
fn lock_mounts(process: &fs::File, ids: (u32, u32)) -> io::Result<OwnedFd> {
    let first = openat(process, "ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: parts this process, which has one thread, from the namespaces that it made.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    map_ids(process, ids)?;
    Ok(first)
}

/// The gate's own descriptors have no business inside: its socket, its signal pipes.
/// Standard input is replaced later, by [`empty_stdin`].
fn keep_only(line: &UnixStream) -> io::Result<()> {
    let kept = line.as_raw_fd();
    for (first, last) in [(3, kept - 1), (kept + 1, i32::MAX)] {
        if first <= last {
            // SAFETY: closes what this process was given by the gate and does not use.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
    Ok(())
}

/// Makes standard input empty. The device is that of the new root, where its mount is read-only: with a descriptor of the host's,
/// root's run could change the permissions of the host's device.
fn empty_stdin() -> io::Result<()> {
    let null = fs::File::open("/dev/null")?;
    // SAFETY: descriptor 0 is the gate's socket, which nothing here uses.
    if unsafe { libc::dup2(null.as_raw_fd(), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The workspace may have been replaced by a link between the look and the mount.
pub(crate) fn same_directory(path: &Path, (device, number): (u64, u64)) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let here = fs::metadata(path)?;
    if (here.dev(), here.ino()) == (device, number) {
        return Ok(());
    }
    Err(io::Error::other("another directory stands in its place"))
}

/// One user, the same inside as outside. `process` is its own directory in `/proc`.
fn map_ids(process: &fs::File, (user, group): (u32, u32)) -> io::Result<()> {
    let write = |name: &str, text: &str| {
        let file = openat(process, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        fs::File::from(file).write_all(text.as_bytes())
    };
    write("setgroups", "deny")?;
    write("uid_map", &format!("{user} {user} 1\n"))?;
    write("gid_map", &format!("{group} {group} 1\n"))
}

/// Bounds what the run takes of the user's inotify instances and watches to half of them. Where `/proc/sys` is read-only, as in
/// containers, they are not bounded.
fn leave_half_of_inotify() {
    for what in ["instances", "watches"] {
        let most = fs::read_to_string(format!("/proc/sys/fs/inotify/max_user_{what}"));
        if let Some(most) = most.ok().and_then(|most| most.trim().parse::<u32>().ok()) {
            let limit = fs::OpenOptions::new().write(true).open(format!("/proc/sys/user/max_inotify_{what}"));
            let _ = limit.and_then(|mut limit| limit.write_all(format!("{}\n", most / 2).as_bytes()));
        }
    }
}

/// Least, first and largest length of the buffers of a TCP connection, as the kernel reads them, for receiving and for sending. On
/// loopback, where the way is short, larger ones make nothing faster.
const TCP_BUFFERS: [(&str, &[u8]); 2] = [("rmem", b"4096 65536 262144"), ("wmem", b"4096 16384 262144")];

/// Bounds what a connection in the sandbox's own network holds of the memory for TCP, which is one for all networks of the machine.
/// Where `/proc/sys` is read-only, as in containers, the buffers are as on the host.
fn bound_tcp_buffers() {
    for (what, lengths) in TCP_BUFFERS {
        let file = fs::OpenOptions::new().write(true).open(format!("/proc/sys/net/ipv4/tcp_{what}"));
        let _ = file.and_then(|mut file| file.write_all(lengths));
    }
}

/// How many may wait to be let in.
const WAITING: i32 = 1024;

/// A listener that the broker will serve. Whoever comes earlier waits. `anywhere` is by whatever name of itself a program
/// comes: there is nobody else in this network.
fn open_door(port: u16, anywhere: bool) -> io::Result<OwnedFd> {
    let any_of_both = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
    match anywhere {
        false => listen_at(AddressFamily::INET, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)),
        // Not every kernel speaks the newer protocol.
        true => listen_at(AddressFamily::INET6, &any_of_both)
            .or_else(|_| listen_at(AddressFamily::INET, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))),
    }
}

fn listen_at(family: AddressFamily, address: &impl SocketAddrArg) -> io::Result<OwnedFd> {
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, address)?;
    listen(&socket, WAITING)?;
    Ok(socket)
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

/// Ends all others in a sandbox whose first process this is, and waits for their ends. The kernel would do it with the end
/// of this process, but nobody could be told so early.
fn end_the_rest() {
    // Anywhere else the call would end all processes of the user.
    if !getpid().is_init() {
        return;
    }
    while let Ok(()) = kill_all() {
        if matches!(wait(WaitOptions::empty()), Err(rustix::io::Errno::CHILD)) {
            return;
        }
    }
}

/// An error if there is nobody.
fn kill_all() -> io::Result<()> {
    // SAFETY: a plain system call. The first process of a namespace reaches only those in it, and not itself.
    if unsafe { libc::kill(-1, libc::SIGKILL) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits for whoever ends, until the program does.
fn reap_until(program: Pid) -> Status {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == program => return ringfence_gate::status_of(status),
            Err(rustix::io::Errno::CHILD) => return Status::Signal(9),
            _ => {}
        }
    }
}
