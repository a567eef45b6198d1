//! Namespaces, system calls, devices and the kernel's own files: all that gives more rights.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use ringfence_core::capability::Promise;

use super::{Attempt, Bait, Outcome, apart, call, denied, refused, unlisted, unreadable};

const fn attempt(group: &'static str, what: &'static str, attempt: fn(&Bait) -> Outcome) -> Attempt {
    Attempt { group, promise: Promise::PrivilegesDropped, what, attempt }
}

/// A user that nobody is.
const SOMEBODY: u32 = 31_337;

pub(super) const ATTEMPTS: &[Attempt] = &[
    attempt("namespaces", "make a user namespace (unshare)", |_| apart(|| unshare(libc::CLONE_NEWUSER))),
    attempt("namespaces", "make a user namespace (clone)", |_| clone(libc::CLONE_NEWUSER)),
    attempt("namespaces", "make a mount namespace", |_| apart(|| unshare(libc::CLONE_NEWNS))),
    attempt("namespaces", "make a network namespace", |_| apart(|| unshare(libc::CLONE_NEWNET))),
    attempt("namespaces", "make one by the newer call (clone3)", |_| clone3()),
    attempt("namespaces", "enter a namespace", |_| {
        let own = fs::File::open("/proc/self/ns/uts");
        let Ok(own) = own else { return Outcome::NotTried("there is none to enter".into()) };
        let number = std::os::fd::AsRawFd::as_raw_fd(&own).unsigned_abs() as usize;
        apart(move || denied(libc::SYS_setns, [number, 0, 0, 0, 0]))
    }),
    attempt("namespaces", "mount memory", mount_memory),
    attempt("namespaces", "open the read-only system for writing (mount_setattr)", |_| {
        // Takes nothing away and sets nothing: only whether it may.
        let attributes = [0u64; 4];
        denied(
            libc::SYS_mount_setattr,
            [at_fdcwd(), c"/usr".as_ptr() as usize, 0, attributes.as_ptr() as usize, 32],
        )
    }),
    attempt("namespaces", "take a mount (open_tree)", |_| {
        denied(libc::SYS_open_tree, [at_fdcwd(), c"/".as_ptr() as usize, 1, 0, 0])
    }),
    attempt("namespaces", "change the root (chroot)", |_| {
        apart(|| denied(libc::SYS_chroot, [c"/".as_ptr() as usize, 0, 0, 0, 0]))
    }),
    attempt("syscalls", "make a program that runs as its owner (chmod)", |_| {
        denied(libc::SYS_fchmodat, [at_fdcwd(), c"/nonexistent".as_ptr() as usize, 0o4755, 0, 0])
    }),
    attempt("syscalls", "make a program that runs as its owner (open)", |_| {
        let flags = (libc::O_CREAT | libc::O_WRONLY).unsigned_abs() as usize;
        denied(libc::SYS_openat, [at_fdcwd(), c"/nonexistent/x".as_ptr() as usize, flags, 0o4755, 0])
    }),
    attempt("syscalls", "load a program into the kernel (bpf)", |_| denied(libc::SYS_bpf, [11, 0, 0, 0, 0])),
    attempt("syscalls", "open a ring (io_uring)", |_| {
        let mut parameters = [0u8; 120];
        denied(libc::SYS_io_uring_setup, [1, parameters.as_mut_ptr() as usize, 0, 0, 0])
    }),
    attempt("syscalls", "handle page faults (userfaultfd)", |_| {
        denied(libc::SYS_userfaultfd, [0, 0, 0, 0, 0])
    }),
    attempt("syscalls", "watch the machine (perf_event_open)", |_| {
        let mut event = [0u8; 128];
        event[0] = 1; // a software event
        event[4] = 128;
        denied(libc::SYS_perf_event_open, [event.as_ptr() as usize, 0, usize::MAX, usize::MAX, 0])
    }),
    attempt("syscalls", "use the kernel's keys (keyctl)", |_| {
        denied(libc::SYS_keyctl, [0, usize::MAX - 3, 0, 0, 0])
    }),
    attempt("syscalls", "open a file by its handle", |_| {
        denied(libc::SYS_open_by_handle_at, [at_fdcwd(), 0, 0, 0, 0])
    }),
    attempt("syscalls", "load a module", |_| denied(libc::SYS_init_module, [0, 0, 0, 0, 0])),
    attempt("syscalls", "load another kernel", |_| denied(libc::SYS_kexec_load, [0, 0, 0, usize::MAX, 0])),
    attempt("syscalls", "restart the machine (with a wrong password)", |_| {
        denied(libc::SYS_reboot, [0, 0, 0, 0, 0])
    }),
    attempt("syscalls", "add swap", |_| {
        denied(libc::SYS_swapon, [c"/nonexistent".as_ptr() as usize, 0, 0, 0, 0])
    }),
    attempt("syscalls", "read the kernel's log", |_| denied(libc::SYS_syslog, [10, 0, 0, 0, 0])),
    attempt("syscalls", "rename the machine to what it is called", |_| {
        let name = rustix::system::uname();
        let name = name.nodename();
        denied(libc::SYS_sethostname, [name.as_ptr() as usize, name.count_bytes(), 0, 0, 0])
    }),
    attempt("syscalls", "use the x32 interface", |_| {
        if cfg!(not(target_arch = "x86_64")) {
            return Outcome::NotTried("this processor has none".into());
        }
        // getpid, by its other number.
        refused(call(0x4000_0000 + libc::SYS_getpid, [0; 5]))
    }),
    attempt("syscalls", "use the interface of 32-bit programs (int 0x80)", |_| old_interface()),
    attempt("syscalls", "make data executable by default (personality)", |_| {
        const READ_IMPLIES_EXEC: usize = 0x40_0000;
        apart(|| denied(libc::SYS_personality, [READ_IMPLIES_EXEC, 0, 0, 0, 0]))
    }),
    attempt("syscalls", "learn where memory of the machine is (get_mempolicy)", |_| {
        denied(libc::SYS_get_mempolicy, [0; 5])
    }),
    attempt("syscalls", "place memory of the machine (mbind)", |_| denied(libc::SYS_mbind, [0; 5])),
    attempt("syscalls", "give pages to a pipe (vmsplice)", |_| {
        denied(libc::SYS_vmsplice, [usize::MAX, 0, 0, 0, 0])
    }),
    attempt("syscalls", "learn which files others have read (cachestat)", |_| {
        denied(CACHESTAT, [usize::MAX, 0, 0, 0, 0])
    }),
    attempt("syscalls", "list mounts of the host (listmount)", |_| denied(LISTMOUNT, [0; 5])),
    attempt("syscalls", "list the kernel's security modules", |_| denied(LSM_LIST_MODULES, [0; 5])),
    attempt("syscalls", "make a handle of a file", |_| denied(libc::SYS_name_to_handle_at, [0; 5])),
    attempt("syscalls", "ask for file systems by calls of old (sysfs, ustat)", |_| old_calls()),
    attempt("syscalls", "set flags of a file that only the host takes back (ioctl)", |bait| {
        // Without a value, so that nothing is set.
        const FS_IOC_FSSETXATTR: usize = 0x401c_5820;
        request(bait, FS_IOC_FSSETXATTR)
    }),
    attempt("syscalls", "copy the workspace with what lies below mounts (a snapshot of btrfs)", |bait| {
        const BTRFS_IOC_SNAP_CREATE: usize = 0x5000_9401;
        request(bait, BTRFS_IOC_SNAP_CREATE)
    }),
    attempt(
        "syscalls",
        "open what is made later to other users (a default access control list)",
        default_list,
    ),
    attempt("privileges", "have any capability", |_| none_of("CapEff")),
    attempt("privileges", "have any capability left to gain", |_| match no_new_privileges() {
        true => Outcome::Held("no_new_privs is set".into()),
        false => none_of("CapBnd"),
    }),
    attempt("privileges", "gain privileges by executing a program", |_| match no_new_privileges() {
        true => Outcome::Held("no_new_privs is set".into()),
        false => Outcome::Broken("no_new_privs is not set".into()),
    }),
    attempt("privileges", "run without a filter of system calls", |_| {
        // SAFETY: only asks.
        match unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) } {
            2 => Outcome::Held("a filter is in place".into()),
            _ => Outcome::Broken("there is none".into()),
        }
    }),
    attempt("privileges", "have programs of the system run with their owner's rights", |_| {
        honours_setuid("/usr")
    }),
    attempt("privileges", "become another user", |_| {
        apart(|| refused(call(libc::SYS_setuid, [SOMEBODY as usize, 0, 0, 0, 0])))
    }),
    attempt("privileges", "give a file to another user", |bait| {
        let file = bait.workspace.join("given");
        let made = fs::File::create(&file);
        refused(made.and_then(|_| std::os::unix::fs::chown(&file, Some(SOMEBODY), None)))
    }),
    attempt("privileges", "dump core, or have the host's root do it", |_| dump_core()),
    attempt("privileges", "have a processor before all other programs (SCHED_FIFO)", |_| {
        let priority = 1i32;
        let fifo = libc::SCHED_FIFO.unsigned_abs() as usize;
        apart(move || {
            refused(call(libc::SYS_sched_setscheduler, [0, fifo, (&raw const priority) as usize, 0, 0]))
        })
    }),
    attempt("devices", "make a device", |bait| device(bait, libc::S_IFBLK, 0x700)),
    attempt("devices", "make a mark of an overlay (a device with the number 0)", |bait| {
        device(bait, libc::S_IFCHR, 0)
    }),
    attempt("devices", "change the permissions of a device of the host to what they are", |_| {
        if has_own_devices() {
            return Outcome::Held("the devices are not the host's".into());
        }
        let same = fs::metadata("/dev/null").map(|data| data.permissions());
        refused(same.and_then(|same| fs::set_permissions("/dev/null", same)))
    }),
    attempt("devices", "open a disk", |_| {
        let disks = fs::read_dir("/dev").into_iter().flatten().flatten().filter(|entry| {
            use std::os::unix::fs::FileTypeExt;
            entry.file_type().is_ok_and(|kind| kind.is_block_device())
        });
        let open = disks.map(|entry| entry.path()).find(|path| fs::File::open(path).is_ok());
        open.map_or_else(
            || Outcome::Held("there is none that can be opened".into()),
            |path| Outcome::Broken(path.display().to_string()),
        )
    }),
    attempt("devices", "open the memory of the machine", |_| refused(fs::File::open("/dev/mem"))),
    attempt("devices", "open the kernel's log", |_| refused(fs::File::open("/dev/kmsg"))),
    attempt("devices", "open the virtual machine of the kernel", |_| refused(fs::File::open("/dev/kvm"))),
    attempt("devices", "open the console", |_| refused(open_terminal("/dev/console"))),
    attempt("proc", "set what runs after a crash (core_pattern)", |_| {
        writable("/proc/sys/kernel/core_pattern")
    }),
    attempt("proc", "set what loads modules", |_| writable("/proc/sys/kernel/modprobe")),
    attempt("proc", "press the magic key", |_| writable("/proc/sysrq-trigger")),
    attempt("proc", "read the memory of the kernel", |_| unreadable_start("/proc/kcore")),
    attempt("proc", "read the kernel's keys", |_| unreadable(Path::new("/proc/keys"))),
    attempt("proc", "see the kernel's devices in /sys", |_| unlisted(Path::new("/sys/kernel"))),
];

/// Calls that are newer than the C library; they have the same numbers on every processor.
const CACHESTAT: libc::c_long = 451;
const LISTMOUNT: libc::c_long = 458;
const LSM_LIST_MODULES: libc::c_long = 461;

/// Makes a device in the workspace, and removes it.
fn device(bait: &Bait, kind: libc::mode_t, number: usize) -> Outcome {
    let path = bait.workspace.join("device");
    let text = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap_or_default();
    let mode = (kind | 0o600) as usize;
    let made = call(libc::SYS_mknodat, [at_fdcwd(), text.as_ptr() as usize, mode, number, 0]);
    let _ = fs::remove_file(&path);
    refused(made)
}

/// Makes a request to the file system of the workspace, without a value. Held if the request is unknown to it, or seems so.
fn request(bait: &Bait, request: usize) -> Outcome {
    let directory = match fs::File::open(&bait.workspace) {
        Ok(directory) => directory,
        Err(error) => return Outcome::NotTried(error.to_string()),
    };
    let number = std::os::fd::AsRawFd::as_raw_fd(&directory).unsigned_abs() as usize;
    match call(libc::SYS_ioctl, [number, request, 0, 0, 0]) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => Outcome::Held(error.to_string()),
        _ => denied(libc::SYS_ioctl, [number, request, 0, 0, 0]),
    }
}

/// Gives a directory of its own a list by which all users may write what is made in it later.
fn default_list(bait: &Bait) -> Outcome {
    // A version; then owner, group and others, each with all rights and no id.
    const LIST: [u8; 28] = [
        2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 7, 0, 255, 255, 255, 255, 32, 0, 7, 0, 255, 255,
        255, 255,
    ];
    let path = bait.workspace.join("shared");
    if let Err(error) = fs::create_dir(&path) {
        return Outcome::NotTried(error.to_string());
    }
    let flags = rustix::fs::XattrFlags::empty();
    let set = rustix::fs::setxattr(&path, c"system.posix_acl_default", &LIST, flags);
    let _ = fs::remove_dir(&path);
    refused(set.map_err(io::Error::from))
}

/// Asks for the process's own number as a 32-bit program does.
#[cfg(target_arch = "x86_64")]
fn old_interface() -> Outcome {
    const GETPID: i64 = 20;
    apart(|| {
        let mut number = GETPID;
        // SAFETY: the call has no arguments and changes nothing but the registers that are named.
        unsafe {
            std::arch::asm!("int 0x80", inout("rax") number, out("r8") _, out("r9") _, out("r10") _, out("r11") _)
        };
        match number {
            1.. => Outcome::Broken("it works".into()),
            _ => Outcome::Held("the kernel has none".into()),
        }
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn old_interface() -> Outcome {
    Outcome::NotTried("this processor has none".into())
}

#[cfg(target_arch = "x86_64")]
fn old_calls() -> Outcome {
    const COUNT: usize = 3;
    match denied(libc::SYS_sysfs, [COUNT, 0, 0, 0, 0]) {
        Outcome::Held(_) => denied(libc::SYS_ustat, [0; 5]),
        other => other,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn old_calls() -> Outcome {
    Outcome::NotTried("this processor has none".into())
}

/// Where `core_pattern` is a pipe, the kernel has root of the host start its program by any limit but 1. So 0 is tried.
fn dump_core() -> Outcome {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let pattern = fs::read("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let is_pipe = pattern.starts_with(b"|");
    apart(move || {
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
        match getrlimit(Resource::Core).maximum {
            Some(1) => Outcome::Held("the limit is 1 and stays".into()),
            Some(0) if !is_pipe => Outcome::Held("the limit is 0".into()),
            Some(0) => Outcome::Broken("the limit is 0, which does not count for core_pattern".into()),
            _ => Outcome::Broken("nothing keeps it from it".into()),
        }
    })
}

/// Whether the device was made in a memory of the run's own.
fn has_own_devices() -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let at = |path: &str| {
        let here = |line: &&str| line.split(' ').nth(1) == Some(path);
        mounts.lines().rev().find(here).and_then(|line| line.split(' ').nth(2))
    };
    at("/dev/null").is_none() && at("/dev") == Some("tmpfs")
}

/// Without becoming its owner.
fn open_terminal(path: &str) -> io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().write(true).custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK).open(path)
}

fn at_fdcwd() -> usize {
    libc::AT_FDCWD as isize as usize
}

fn unshare(flags: i32) -> Outcome {
    refused(call(libc::SYS_unshare, [flags.unsigned_abs() as usize, 0, 0, 0, 0]))
}

/// A child in a new namespace, which ends at once.
fn clone(flags: i32) -> Outcome {
    let flags = flags | libc::SIGCHLD;
    match call(libc::SYS_clone, [flags.unsigned_abs() as usize, 0, 0, 0, 0]) {
        // SAFETY: ends the child at once.
        Ok(0) => unsafe { libc::_exit(0) },
        Ok(pid) => {
            // SAFETY: waits for the child that was just made; a null status is allowed.
            unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), 0) };
            Outcome::Broken("it worked".into())
        }
        Err(error) => Outcome::Held(error.to_string()),
    }
}

fn clone3() -> Outcome {
    let mut arguments = [0u64; 11];
    arguments[0] = u64::from(libc::CLONE_NEWUSER.unsigned_abs());
    arguments[4] = u64::from(libc::SIGCHLD.unsigned_abs());
    match call(libc::SYS_clone3, [arguments.as_ptr() as usize, size_of_val(&arguments), 0, 0, 0]) {
        // SAFETY: ends the child at once.
        Ok(0) => unsafe { libc::_exit(0) },
        Ok(pid) => {
            // SAFETY: waits for the child that was just made; a null status is allowed.
            unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), 0) };
            Outcome::Broken("it worked".into())
        }
        Err(error) => Outcome::Held(error.to_string()),
    }
}

fn mount_memory(bait: &Bait) -> Outcome {
    let place = bait.workspace.join("mounted");
    let _ = fs::create_dir(&place);
    let flags = rustix::mount::MountFlags::empty();
    let mounted = rustix::mount::mount("tmpfs", &place, "tmpfs", flags, None);
    if mounted.is_ok() {
        let _ = rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH);
    }
    refused(mounted.map_err(io::Error::from))
}

fn no_new_privileges() -> bool {
    rustix::thread::no_new_privs().unwrap_or(false)
}

/// A line of this process's status.
fn status(name: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}

fn none_of(set: &str) -> Outcome {
    match status(set) {
        Some(set) if set.bytes().all(|digit| digit == b'0') => Outcome::Held("there is none".into()),
        Some(set) => Outcome::Broken(set),
        None => Outcome::NotTried("/proc does not tell".into()),
    }
}

fn honours_setuid(path: &str) -> Outcome {
    match rustix::fs::statvfs(path) {
        Ok(data) if data.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID) => {
            Outcome::Held("mounted nosuid".into())
        }
        Ok(_) if no_new_privileges() => Outcome::Held("no_new_privs is set".into()),
        Ok(_) => Outcome::Broken("setuid programs have their effect".into()),
        Err(error) => Outcome::NotTried(error.to_string()),
    }
}

/// Opens for writing and writes nothing.
fn writable(path: &str) -> Outcome {
    refused(OpenOptions::new().write(true).open(path))
}

fn unreadable_start(path: &str) -> Outcome {
    let mut byte = [0; 16];
    match fs::File::open(path).and_then(|mut file| io::Read::read(&mut file, &mut byte)) {
        Ok(0) => Outcome::Held("it is empty".into()),
        Ok(count) => Outcome::Broken(format!("{count} bytes were read")),
        Err(error) => Outcome::Held(error.to_string()),
    }
}
