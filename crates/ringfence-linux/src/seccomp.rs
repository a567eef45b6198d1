//! The system calls that no agent needs and every escape wants.
//!
//! One program that finds a call by halving, instead of comparing it with each rule in turn: the kernel tries every
//! call once when a filter is put up, and a long list of rules makes that a tenth of what a sandbox costs.

use std::collections::BTreeMap;

use libc::sock_filter as Op;

/// Refused whatever their arguments are.
const DENIED: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_vhangup,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_name_to_handle_at,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_memfd_secret,
    libc::SYS_quotactl_fd,
    457, // statmount
    458, // listmount
    467, // open_tree_attr
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// The flags of `clone` that make a namespace.
const NEW_NAMESPACES: [i32; 8] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
    0x80, // CLONE_NEWTIME
];

/// What puts words into a terminal as if a person had typed them.
const TYPING: [u32; 2] = [0x5412, 0x541c];

/// The families of sockets that programs need; all others talk to the kernel, the host or hardware.
const FAMILIES: [i32; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SeccompError {
    /// Nobody has written one for this processor.
    #[error("there is no filter of system calls for this processor ({})", std::env::consts::ARCH)]
    Processor,
    /// The kernel did not take it.
    #[error("the filter of system calls could not be installed: {0}")]
    Install(#[source] std::io::Error),
}

/// The number by which the kernel calls the processor in a filter.
const PROCESSOR: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else {
    None
};

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const DENY: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
/// A program that is told that a call does not exist uses the old one, whose flags can be seen.
const ABSENT: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// System calls of the x32 interface have this bit set in their numbers and would pass every other rule.
const X32: u32 = 0x4000_0000;

/// Where things are in what a filter is given.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const fn low_half_of_argument(index: u32) -> u32 {
    16 + 8 * index
}

fn load(offset: u32) -> Op {
    Op { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

fn answer(action: u32) -> Op {
    Op { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: action }
}

/// Compares with `k`: skips one operation if it is not so.
fn unless_skip(comparison: u32, k: u32) -> Op {
    Op { code: (libc::BPF_JMP | comparison | libc::BPF_K) as u16, jt: 0, jf: 1, k }
}

/// What some are refused besides.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Extra {
    /// One who is pinned to processors stays there.
    pub(crate) pinned: bool,
    /// One who has no namespaces shares the host's network, sockets, shared memory and processes: none can be used.
    pub(crate) alone: bool,
}

/// Calls that reach what namespaces would keep apart.
const SHARED: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_semget,
    libc::SYS_msgget,
    libc::SYS_mq_open,
    // Landlock does not keep anybody from changing the owner, permissions, times and marks of a file.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    452, // fchmodat2
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    463, // setxattrat
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    466, // removexattrat
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
];
/// Calls that change a process by its number, and which of their arguments is the number; one's own is 0.
const OTHERS: &[(i64, u32)] = &[
    (libc::SYS_setpriority, 1),
    (libc::SYS_ioprio_set, 1),
    (libc::SYS_prlimit64, 0),
    (libc::SYS_sched_setaffinity, 0),
    (libc::SYS_sched_setscheduler, 0),
    (libc::SYS_sched_setparam, 0),
    (libc::SYS_sched_setattr, 0),
];

/// The filter.
pub(crate) fn filter(extra: Extra) -> Result<Vec<Op>, SeccompError> {
    let processor = PROCESSOR.ok_or(SeccompError::Processor)?;
    let mut program = vec![load(ARCHITECTURE)];
    program.extend([unless_skip(libc::BPF_JEQ, processor), skip(1), answer(KILL), load(NUMBER)]);
    if cfg!(target_arch = "x86_64") {
        program.extend([unless_skip(libc::BPF_JGE, X32), answer(ABSENT)]);
    }
    let mut rules = rules();
    if extra.alone {
        rules.extend(SHARED.iter().map(|call| (number(*call), vec![answer(DENY)])));
        rules.extend(OTHERS.iter().map(|(call, argument)| {
            let own = unless_skip(libc::BPF_JEQ, 0);
            (number(*call), vec![load(low_half_of_argument(*argument)), own, answer(ALLOW), answer(DENY)])
        }));
    }
    if extra.pinned {
        rules.insert(number(libc::SYS_sched_setaffinity), vec![answer(DENY)]);
    }
    let rules: Vec<(u32, Vec<Op>)> = rules.into_iter().collect();
    program.extend(find(&rules));
    Ok(program)
}

fn skip(count: usize) -> Op {
    // A program has at most 4096 operations.
    Op {
        code: (libc::BPF_JMP | libc::BPF_JA) as u16,
        jt: 0,
        jf: 0,
        k: u32::try_from(count).unwrap_or(u32::MAX),
    }
}

/// The operations that find a call among these and do what its rule says.
fn find(rules: &[(u32, Vec<Op>)]) -> Vec<Op> {
    match rules {
        [] => vec![answer(ALLOW)],
        [(call, then)] => {
            let unequal = [unless_skip(libc::BPF_JEQ, *call), skip(1), answer(ALLOW)];
            unequal.into_iter().chain(then.iter().copied()).collect()
        }
        _ => {
            let (lower, upper) = rules.split_at(rules.len() / 2);
            let (first, lower, upper) = (upper[0].0, find(lower), find(upper));
            let split = [unless_skip(libc::BPF_JGE, first), skip(lower.len())];
            split.into_iter().chain(lower).chain(upper).collect()
        }
    }
}

fn number(call: i64) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

/// What is done with each call that is not simply allowed.
fn rules() -> BTreeMap<u32, Vec<Op>> {
    let mut rules: BTreeMap<u32, Vec<Op>> =
        DENIED.iter().map(|call| (number(*call), vec![answer(DENY)])).collect();
    rules.insert(number(libc::SYS_clone3), vec![answer(ABSENT)]);
    let namespaces = NEW_NAMESPACES.iter().fold(0, |all, flag| all | flag.unsigned_abs());
    rules.insert(
        number(libc::SYS_clone),
        vec![
            load(low_half_of_argument(0)),
            unless_skip(libc::BPF_JSET, namespaces),
            answer(DENY),
            answer(ALLOW),
        ],
    );
    let typing = TYPING.iter().flat_map(|request| [unless_skip(libc::BPF_JEQ, *request), answer(DENY)]);
    rules.insert(
        number(libc::SYS_ioctl),
        [load(low_half_of_argument(1))].into_iter().chain(typing).chain([answer(ALLOW)]).collect(),
    );
    rules.insert(number(libc::SYS_socket), sockets());
    rules
}

/// Only families that programs need, and of the kernel's own sockets only the one that tells of addresses and routes.
fn sockets() -> Vec<Op> {
    let family = |family: i32| unless_skip(libc::BPF_JEQ, family.unsigned_abs());
    let plain = FAMILIES.iter().flat_map(|name| [family(*name), answer(ALLOW)]);
    let netlink = [
        family(libc::AF_NETLINK),
        skip(1),
        answer(DENY),
        load(low_half_of_argument(2)),
        family(libc::NETLINK_ROUTE),
        answer(ALLOW),
        answer(DENY),
    ];
    [load(low_half_of_argument(0))].into_iter().chain(plain).chain(netlink).collect()
}

/// Installs a filter in this thread and all that it starts.
pub(crate) fn install(filter: &mut [Op]) -> Result<(), SeccompError> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap_or(u16::MAX),
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program points to that many operations, which live until the call returns.
    let done =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if done == 0 { Ok(()) } else { Err(SeccompError::Install(std::io::Error::last_os_error())) }
}

#[cfg(test)]
mod tests {
    use super::{ABSENT, ALLOW, DENIED, DENY, Extra, KILL, Op, PROCESSOR, TYPING, X32, filter};

    /// What a filter answers to a call, worked out as the kernel does.
    fn ask(filter: &[Op], processor: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut data = vec![number, processor, 0, 0];
        data.extend(arguments.iter().flat_map(|argument| [*argument as u32, (argument >> 32) as u32]));
        let (mut at, mut loaded) = (0, 0);
        loop {
            let op = filter[at];
            at += 1;
            let code = u32::from(op.code);
            match code & 7 {
                libc::BPF_LD => loaded = data[op.k as usize / 4],
                libc::BPF_RET => return op.k,
                _ if code & 0xf0 == libc::BPF_JA => at += op.k as usize,
                _ => {
                    let so = match code & 0xf0 {
                        libc::BPF_JEQ => loaded == op.k,
                        libc::BPF_JGE => loaded >= op.k,
                        _ => loaded & op.k != 0,
                    };
                    at += usize::from(if so { op.jt } else { op.jf });
                }
            }
        }
    }

    fn answers(number: i64, arguments: [u64; 6]) -> u32 {
        ask(&filter(Extra::default()).unwrap(), PROCESSOR.unwrap(), number as u32, arguments)
    }

    #[test]
    fn every_call_gets_the_answer_of_its_rule() {
        let special = [libc::SYS_clone, libc::SYS_clone3, libc::SYS_ioctl, libc::SYS_socket];
        for number in (0..600).filter(|number| !special.contains(number)) {
            let expected = if DENIED.contains(&number) { DENY } else { ALLOW };
            assert_eq!(answers(number, [0; 6]), expected, "{number}");
        }
        assert_eq!(answers(libc::SYS_clone3, [0; 6]), ABSENT);
    }

    #[test]
    fn arguments_are_looked_at() {
        let first = |value| [value, 0, 0, 0, 0, 0];
        assert_eq!(answers(libc::SYS_clone, first(libc::SIGCHLD as u64)), ALLOW);
        assert_eq!(answers(libc::SYS_clone, first(libc::CLONE_NEWUSER as u64)), DENY);
        assert_eq!(answers(libc::SYS_clone, first(libc::CLONE_NEWNS as u64 | libc::SIGCHLD as u64)), DENY);
        for request in TYPING {
            assert_eq!(answers(libc::SYS_ioctl, [0, u64::from(request), 0, 0, 0, 0]), DENY);
            // The upper half of the word is nothing to the kernel, so it hides nothing.
            assert_eq!(answers(libc::SYS_ioctl, [0, u64::from(request) | 1 << 32, 0, 0, 0, 0]), DENY);
        }
        assert_eq!(answers(libc::SYS_ioctl, [0, 0x5401, 0, 0, 0, 0]), ALLOW);
        let socket = |family: i32, protocol: i32| {
            answers(libc::SYS_socket, [family as u64, 0, protocol as u64, 0, 0, 0])
        };
        assert_eq!(socket(libc::AF_UNIX, 0), ALLOW);
        assert_eq!(socket(libc::AF_INET6, 0), ALLOW);
        assert_eq!(socket(libc::AF_NETLINK, libc::NETLINK_ROUTE), ALLOW);
        assert_eq!(socket(libc::AF_NETLINK, libc::NETLINK_AUDIT), DENY);
        for family in [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_BLUETOOTH] {
            assert_eq!(socket(family, 0), DENY, "{family}");
        }
    }

    #[test]
    fn only_the_pinned_have_to_stay() {
        let call = libc::SYS_sched_setaffinity as u32;
        let asked = |pinned| {
            let extra = Extra { pinned, ..Extra::default() };
            ask(&filter(extra).unwrap(), PROCESSOR.unwrap(), call, [0; 6])
        };
        assert_eq!((asked(true), asked(false)), (DENY, ALLOW));
    }

    #[test]
    fn without_namespaces_nothing_is_shared() {
        let filter = filter(Extra { alone: true, ..Extra::default() }).unwrap();
        let asked = |call: i64, arguments| ask(&filter, PROCESSOR.unwrap(), call as u32, arguments);
        assert_eq!(asked(libc::SYS_socket, [libc::AF_UNIX as u64, 1, 0, 0, 0, 0]), DENY);
        assert_eq!(asked(libc::SYS_socketpair, [libc::AF_UNIX as u64, 1, 0, 0, 0, 0]), ALLOW);
        assert_eq!(asked(libc::SYS_setpriority, [0, 0, 5, 0, 0, 0]), ALLOW, "one's own");
        assert_eq!(asked(libc::SYS_setpriority, [0, 77, 5, 0, 0, 0]), DENY);
        assert_eq!(asked(libc::SYS_prlimit64, [77, 7, 0, 0, 0, 0]), DENY);
    }

    #[test]
    fn other_interfaces_of_the_kernel_are_shut() {
        let filter = filter(Extra::default()).unwrap();
        assert_eq!(ask(&filter, 0x4000_0003, 26, [0; 6]), KILL, "calls of 32 bits");
        if cfg!(target_arch = "x86_64") {
            assert_eq!(ask(&filter, PROCESSOR.unwrap(), X32 | 2, [0; 6]), ABSENT);
        }
    }
}
