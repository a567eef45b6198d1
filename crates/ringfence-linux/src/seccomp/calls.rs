//! Which system calls a run may make, and each difference from the default profiles of docker and podman.
//!
//! The filter lets through what no table refuses, for one reason: an agent runs compilers, test suites and package
//! managers that are not known beforehand. Calls that did not exist when the tables were written are absent
//! ([`FIRST_UNKNOWN`]), so a newer kernel adds nothing that a run could use.
//!
//! The comparison is with `seccomp/default.json` of moby/profiles (August 2026) and `pkg/seccomp/seccomp.json` of
//! containers/common (August 2025), as they apply on `x86_64` to a container without capabilities. A row is needed where
//! one of the two differs from this filter in whether a call passes. Which error a refused call gets is no difference:
//! the profiles answer EPERM or ENOSYS, and this filter answers ENOSYS where programs have an older way to do the same.
//! Calls of 32-bit programs and of the x32 interface, which the profiles admit, end the program or are absent.

use Verdict::{Absent, Allowed, ByArgument, Refused, Unsupported};

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It reaches the kernel.
    Allowed,
    /// Its arguments decide.
    ByArgument,
    /// EPERM.
    Refused,
    /// ENOSYS: programs take it for an older kernel, and do without it.
    Absent,
    /// EOPNOTSUPP: programs take it for a file system without that, and do without it.
    Unsupported,
}

/// A call that this filter treats otherwise than docker or podman does.
#[derive(Debug)]
pub(super) struct Difference {
    /// Its number.
    pub(super) call: i64,
    /// Its name.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by people and tests"))]
    pub(super) name: &'static str,
    /// What docker's default profile does.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by people and tests"))]
    pub(super) docker: Verdict,
    /// What podman's default profile does.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by people and tests"))]
    pub(super) podman: Verdict,
    /// What this filter does.
    pub(super) here: Verdict,
    /// Why.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by people and tests"))]
    pub(super) why: &'static str,
}

const fn row(
    call: i64,
    name: &'static str,
    docker: Verdict,
    podman: Verdict,
    here: Verdict,
    why: &'static str,
) -> Difference {
    Difference { call, name, docker, podman, here, why }
}

const SET_ID_FILES: &str =
    "a file that runs as its owner or its group could be started by other users of the host";

const NODES: &str = "as chmod; and a device with the number 0, which any user may make, is a mark of an overlay that a file is deleted";

const ATTRIBUTES: &str = "a default access control list, which no mode and no umask takes back, opens what is made in a directory later to other users of the host; a filter cannot see which attribute is set";

/// The first number that no kernel used when the tables were written; it and all above are absent. The x32 interface
/// has numbers from 0x4000_0000 on, and 512 to 547 among its own.
pub(super) const FIRST_UNKNOWN: u32 = 470;

/// Refused by docker, podman and this filter.
pub(super) const REFUSED_EVERYWHERE: &[i64] = &[
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_chroot,
    libc::SYS_open_by_handle_at,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_vhangup,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    467, // open_tree_attr
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
];

/// Absent here and refused by docker and podman, by name or because their lists do not have it. Most are gone from the
/// kernel; those that are not tell of file systems and security modules, or are newer than the profiles.
pub(super) const ABSENT_EVERYWHERE: &[i64] = &[
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    450, // set_mempolicy_home_node
    459, // lsm_get_self_attr
    460, // lsm_set_self_attr
    461, // lsm_list_modules
    468, // file_getattr
    469, // file_setattr
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ustat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_sysfs,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
    #[cfg(target_arch = "x86_64")]
    174, // create_module
    #[cfg(target_arch = "x86_64")]
    177, // get_kernel_syms
    #[cfg(target_arch = "x86_64")]
    178, // query_module
    #[cfg(target_arch = "x86_64")]
    libc::SYS_getpmsg,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_putpmsg,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_afs_syscall,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_tuxcall,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_security,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vserver,
];

/// The C library's own list does not have it.
const IO_PGETEVENTS: i64 = if cfg!(target_arch = "x86_64") { 333 } else { 292 };

/// Podman leaves these to the kernel's own check of capabilities.
const CAPABILITY: &str =
    "needs a capability that no run has; refused before the kernel looks at its arguments";
/// Podman leaves mounts to the kernel's own check of capabilities.
const MOUNTS: &str = "mounts are the boundary of a run; a flaw in them must be out of reach";
/// Docker has it since it is in kernels; podman's list is older.
const NEWER: &str = "an ordinary call that is newer than podman's list";

/// The first process of a sandbox is the gate or its child.
const SUPERVISOR: &str = "not of process 1, which supervises the run and may have the same user";

/// The kernel starts the program of a pipe in `core_pattern` as root of the host, unless the limit is 1.
const CORE_LIMIT: &str = "the limit of core dumps stays 1, with which the kernel starts no program for them; a call that sets it does nothing";
const LIMITS: &str = "not of process 1, which supervises the run and may have the same user; the limit of core dumps stays 1, as for setrlimit";

/// The kernel lets a user change all processes of a user at once.
const ALL_OF_A_USER: &str = "not of process 1, which supervises the run and may have the same user, and not of all processes of a user";

/// Every call on which docker or podman and this filter differ.
pub(super) const DIFFERENCES: &[Difference] = &[
    row(
        libc::SYS_ioctl,
        "ioctl",
        Allowed,
        Allowed,
        ByArgument,
        "TIOCSTI and TIOCLINUX type into a terminal; requests to file systems copy what lies below mounts and set flags that only the host can take back; all else is allowed",
    ),
    row(
        libc::SYS_fcntl,
        "fcntl",
        Allowed,
        Allowed,
        ByArgument,
        "a lease, which a reader may take, has the host wait or fail where it opens the file; programs do without leases",
    ),
    row(
        libc::SYS_socket,
        "socket",
        ByArgument,
        ByArgument,
        ByArgument,
        "the profiles refuse two families, or audit alone; here only AF_UNIX, AF_INET, AF_INET6 and routing netlink pass",
    ),
    row(libc::SYS_fchmod, "fchmod", Allowed, Allowed, ByArgument, SET_ID_FILES),
    row(libc::SYS_fchmodat, "fchmodat", Allowed, Allowed, ByArgument, SET_ID_FILES),
    row(452, "fchmodat2", Allowed, Allowed, ByArgument, SET_ID_FILES),
    row(libc::SYS_mknodat, "mknodat", Allowed, Allowed, ByArgument, NODES),
    row(libc::SYS_openat, "openat", Allowed, Allowed, ByArgument, SET_ID_FILES),
    #[cfg(target_arch = "x86_64")]
    row(libc::SYS_chmod, "chmod", Allowed, Allowed, ByArgument, SET_ID_FILES),
    #[cfg(target_arch = "x86_64")]
    row(libc::SYS_creat, "creat", Allowed, Allowed, ByArgument, SET_ID_FILES),
    #[cfg(target_arch = "x86_64")]
    row(libc::SYS_mknod, "mknod", Allowed, Allowed, ByArgument, NODES),
    #[cfg(target_arch = "x86_64")]
    row(libc::SYS_open, "open", Allowed, Allowed, ByArgument, SET_ID_FILES),
    row(
        libc::SYS_openat2,
        "openat2",
        Allowed,
        Allowed,
        Absent,
        "the mode of a new file is in memory, where a filter cannot see it; programs then use openat",
    ),
    row(
        libc::SYS_socketpair,
        "socketpair",
        Allowed,
        Allowed,
        ByArgument,
        "AF_UNIX alone has pairs that programs use; other families would load a module of the kernel, and TIPC has pairs",
    ),
    row(
        libc::SYS_clone,
        "clone",
        ByArgument,
        Allowed,
        ByArgument,
        "no namespaces, as with docker; its profile lets a time namespace pass",
    ),
    row(
        libc::SYS_clone3,
        "clone3",
        Absent,
        Allowed,
        Absent,
        "its flags are in memory, where a filter cannot see them; C libraries then use clone",
    ),
    row(
        libc::SYS_personality,
        "personality",
        ByArgument,
        ByArgument,
        ByArgument,
        "the profiles' five values, and ADDR_NO_RANDOMIZE: it concerns the caller's own addresses, and sanitizers need it",
    ),
    row(libc::SYS_prlimit64, "prlimit64", Allowed, Allowed, ByArgument, LIMITS),
    row(libc::SYS_setrlimit, "setrlimit", Allowed, Allowed, ByArgument, CORE_LIMIT),
    row(libc::SYS_setpriority, "setpriority", Allowed, Allowed, ByArgument, ALL_OF_A_USER),
    row(libc::SYS_ioprio_set, "ioprio_set", Allowed, Allowed, ByArgument, ALL_OF_A_USER),
    row(libc::SYS_sched_setaffinity, "sched_setaffinity", Allowed, Allowed, ByArgument, SUPERVISOR),
    row(libc::SYS_sched_setscheduler, "sched_setscheduler", Allowed, Allowed, ByArgument, SUPERVISOR),
    row(libc::SYS_sched_setparam, "sched_setparam", Allowed, Allowed, ByArgument, SUPERVISOR),
    row(libc::SYS_sched_setattr, "sched_setattr", Allowed, Allowed, ByArgument, SUPERVISOR),
    row(
        libc::SYS_ptrace,
        "ptrace",
        Allowed,
        Allowed,
        Refused,
        "a tracer owns the memory of other programs of the run; debuggers do not work inside",
    ),
    row(
        libc::SYS_process_vm_readv,
        "process_vm_readv",
        Allowed,
        Allowed,
        Refused,
        "reads the memory of other programs of the run, as ptrace does",
    ),
    row(
        libc::SYS_process_vm_writev,
        "process_vm_writev",
        Allowed,
        Allowed,
        Refused,
        "writes the memory of other programs of the run, as ptrace does",
    ),
    row(
        libc::SYS_pidfd_getfd,
        "pidfd_getfd",
        Refused,
        Allowed,
        Refused,
        "takes descriptors out of other programs of the run, as ptrace does",
    ),
    row(
        libc::SYS_keyctl,
        "keyctl",
        Refused,
        Allowed,
        Refused,
        "keyrings are the user's and not a namespace's",
    ),
    row(
        libc::SYS_unshare,
        "unshare",
        Refused,
        Allowed,
        Refused,
        "a user namespace would give capabilities in it",
    ),
    row(libc::SYS_setns, "setns", Refused, Allowed, Refused, "namespaces are the boundary of a run"),
    row(libc::SYS_mount, "mount", Refused, Allowed, Refused, MOUNTS),
    row(libc::SYS_umount2, "umount2", Refused, Allowed, Refused, MOUNTS),
    row(libc::SYS_pivot_root, "pivot_root", Refused, Allowed, Refused, MOUNTS),
    row(libc::SYS_open_tree, "open_tree", Refused, Allowed, Refused, MOUNTS),
    row(libc::SYS_move_mount, "move_mount", Refused, Allowed, Refused, MOUNTS),
    row(libc::SYS_fsopen, "fsopen", Refused, Allowed, Refused, MOUNTS),
    row(libc::SYS_fsconfig, "fsconfig", Refused, Allowed, Refused, MOUNTS),
    row(libc::SYS_fsmount, "fsmount", Refused, Allowed, Refused, MOUNTS),
    row(libc::SYS_fspick, "fspick", Refused, Allowed, Refused, MOUNTS),
    row(libc::SYS_mount_setattr, "mount_setattr", Refused, Allowed, Refused, MOUNTS),
    row(457, "statmount", Allowed, Refused, Refused, "tells where files of the host are mounted from"),
    row(458, "listmount", Allowed, Refused, Refused, "tells where files of the host are mounted from"),
    row(
        libc::SYS_name_to_handle_at,
        "name_to_handle_at",
        Allowed,
        Allowed,
        Refused,
        "makes handles for open_by_handle_at, which all refuse",
    ),
    row(
        libc::SYS_fanotify_init,
        "fanotify_init",
        Refused,
        Allowed,
        Refused,
        "watches whole file systems; inotify stays",
    ),
    row(
        libc::SYS_fanotify_mark,
        "fanotify_mark",
        Allowed,
        Allowed,
        Refused,
        "is of no use without fanotify_init",
    ),
    row(libc::SYS_reboot, "reboot", Refused, Allowed, Refused, CAPABILITY),
    row(libc::SYS_syslog, "syslog", Refused, Allowed, Refused, "the kernel's log is the host's"),
    row(libc::SYS_adjtimex, "adjtimex", Allowed, Allowed, Refused, CAPABILITY),
    row(libc::SYS_clock_adjtime, "clock_adjtime", Allowed, Allowed, Refused, CAPABILITY),
    row(
        libc::SYS_memfd_secret,
        "memfd_secret",
        Allowed,
        Allowed,
        Refused,
        "memory that neither limits nor the host can reclaim or look at",
    ),
    row(
        libc::SYS_mbind,
        "mbind",
        Refused,
        Allowed,
        Absent,
        "places memory on nodes of the host; libnuma takes ENOSYS for a machine with one node",
    ),
    row(libc::SYS_set_mempolicy, "set_mempolicy", Refused, Allowed, Absent, "as mbind"),
    row(libc::SYS_get_mempolicy, "get_mempolicy", Refused, Allowed, Absent, "as mbind"),
    row(
        libc::SYS_vmsplice,
        "vmsplice",
        Allowed,
        Refused,
        Absent,
        "gives pages away to pipes, which flaws of the kernel needed; programs fall back to write",
    ),
    row(
        451,
        "cachestat",
        Allowed,
        Refused,
        Absent,
        "tells which pages of a shared file others have read; mincore does not any more",
    ),
    row(
        IO_PGETEVENTS,
        "io_pgetevents",
        Allowed,
        Refused,
        Allowed,
        "io_getevents with a signal mask; all allow that",
    ),
    row(libc::SYS_futex_waitv, "futex_waitv", Allowed, Refused, Allowed, NEWER),
    row(453, "map_shadow_stack", Allowed, Refused, Allowed, NEWER),
    row(454, "futex_wake", Allowed, Refused, Allowed, NEWER),
    row(455, "futex_wait", Allowed, Refused, Allowed, NEWER),
    row(456, "futex_requeue", Allowed, Refused, Allowed, NEWER),
    row(462, "mseal", Allowed, Refused, Allowed, NEWER),
    row(libc::SYS_setxattr, "setxattr", Allowed, Allowed, Unsupported, ATTRIBUTES),
    row(libc::SYS_lsetxattr, "lsetxattr", Allowed, Allowed, Unsupported, ATTRIBUTES),
    row(libc::SYS_fsetxattr, "fsetxattr", Allowed, Allowed, Unsupported, ATTRIBUTES),
    row(463, "setxattrat", Allowed, Refused, Unsupported, ATTRIBUTES),
    row(
        libc::SYS_renameat2,
        "renameat2",
        Allowed,
        Allowed,
        ByArgument,
        "RENAME_WHITEOUT leaves a device with the number 0 behind, as mknod would",
    ),
    row(464, "getxattrat", Allowed, Refused, Allowed, NEWER),
    row(465, "listxattrat", Allowed, Refused, Allowed, NEWER),
    row(466, "removexattrat", Allowed, Refused, Allowed, NEWER),
    #[cfg(target_arch = "x86_64")]
    row(
        335,
        "uretprobe",
        Allowed,
        Refused,
        Allowed,
        "works only from the kernel's own trampoline in a program that the host traces, and refusing it ends that program",
    ),
    #[cfg(target_arch = "x86_64")]
    row(336, "uprobe", Refused, Refused, Allowed, "as uretprobe; newer than both lists"),
    #[cfg(target_arch = "x86_64")]
    row(
        libc::SYS_modify_ldt,
        "modify_ldt",
        Allowed,
        Allowed,
        Refused,
        "segments of 16-bit programs: a source of flaws that no program of today needs",
    ),
];
