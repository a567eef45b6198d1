//! The filter of system calls. `calls.rs` says which calls a run may make.
//!
//! The program finds a call by halving instead of comparing it with each rule in turn: the kernel evaluates a filter for
//! every call once when it is installed, and with a linear list that took a tenth of the time that a sandbox takes.

mod calls;

use std::collections::BTreeMap;

use libc::sock_filter as Op;

use calls::{ABSENT_EVERYWHERE, DIFFERENCES, FIRST_UNKNOWN, REFUSED_EVERYWHERE, Verdict};

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

/// The limit that stays as it was set when the run began.
#[allow(clippy::unnecessary_cast, reason = "C libraries differ in its type")]
const CORE_LIMIT: u32 = libc::RLIMIT_CORE as u32;
/// The types of the requests by which `ioctl` acts on file systems and on files as these keep them. Such requests copy whole trees
/// with what lies below mounts, set flags that only the host can take back, lock encrypted files, freeze or end a file system. Which
/// of them a file system has, and what each asks of its caller, differs; so all are refused but [`FILE_REQUESTS`].
const FILE_SYSTEM_TYPES: [u8; 11] = [
    0x94, // btrfs, and what all file systems have taken over from it
    b'f', // flags of files, ext4, encryption, verity
    b'X', // XFS, attributes of files, freezing, trimming, shutting down
    b'v', // versions of files
    b'n', // NILFS
    b'o', // OCFS2
    0x93, // autofs
    0x97, // Ceph
    0xbc, // bcachefs
    0xcf, // SMB
    0xf5, // F2FS
];

/// The requests of these types that pass: copying between two open files, and questions about one.
const FILE_REQUESTS: [u32; 10] = [
    0x4004_9409, // FICLONE
    0x4020_940d, // FICLONERANGE
    0xc018_9436, // FIDEDUPERANGE
    0x8008_6601, // FS_IOC_GETFLAGS
    0x8004_6601, // FS_IOC32_GETFLAGS
    0xc020_660b, // FS_IOC_FIEMAP
    0x8008_7601, // FS_IOC_GETVERSION
    0x8004_7601, // FS_IOC32_GETVERSION
    0x801c_581f, // FS_IOC_FSGETXATTR
    0x800c_581e, // XFS_IOC_DIOINFO
];

/// What `fcntl` does to have others wait until they may open a file: leases, and delegations of newer kernels.
const LEASES: [u32; 2] = [1024, 1040];

/// The values of `personality` that pass: Linux, 32-bit `uname`, the version number of 2.6, both, fixed addresses, and
/// the question for the current value.
const PERSONALITIES: [u32; 6] = [0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff];

/// The protocols of the internet's sockets that programs need: that of the type, TCP, UDP and the echo of ICMP. Others (MPTCP, SCTP,
/// UDP-Lite, L2TP, SMC) are much code of the kernel that few programs use.
const PROTOCOLS: [i32; 5] =
    [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_ICMP, libc::IPPROTO_ICMPV6];
/// Bits that none of the types of these has (streams, datagrams, raw ones): SCTP and DCCP are also chosen by a type.
const OTHER_TYPES: u32 = 0xc;

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
/// Does nothing, and says that it is done.
const IGNORE: u32 = libc::SECCOMP_RET_ERRNO;
/// Programs that try a protocol go on with the usual one.
const NO_PROTOCOL: u32 = libc::SECCOMP_RET_ERRNO | libc::EPROTONOSUPPORT as u32;
/// What file systems say to a request of `ioctl` that they do not have.
const NO_REQUEST: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOTTY as u32;
/// What file systems without extended attributes say; programs that copy files go on without them.
const UNSUPPORTED: u32 = libc::SECCOMP_RET_ERRNO | libc::EOPNOTSUPP as u32;
/// A program that is told that a call does not exist uses the old one, whose flags can be seen.
const ABSENT: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// Where things are in what a filter is given.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const fn low_half_of_argument(index: u32) -> u32 {
    16 + 8 * index
}
const fn high_half_of_argument(index: u32) -> u32 {
    low_half_of_argument(index) + 4
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semctl,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_msgget,
    // The number of a queue can be guessed, and needs not be asked for.
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    // Landlock does not keep anybody from changing the owner, permissions, times and marks of a file.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    452, // fchmodat2
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
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
/// How a process names itself in these calls.
const OWN_PROCESS: u32 = 0;
/// The supervisor of a run, in the namespace of its processes.
const FIRST_PROCESS: u32 = 1;

/// A call that changes a process by its number.
struct OfProcess {
    call: i64,
    /// The argument that is the number.
    number: u32,
    /// The values of the first argument, if it says what the number is of.
    named: Option<Named>,
}

/// What a number can be of.
struct Named {
    process: u32,
    user: u32,
}

const fn of_process(call: i64) -> OfProcess {
    OfProcess { call, number: 0, named: None }
}

/// Calls that change a process by its number.
const OF_PROCESSES: &[OfProcess] = &[
    // PRIO_PROCESS and PRIO_USER.
    OfProcess { call: libc::SYS_setpriority, number: 1, named: Some(Named { process: 0, user: 2 }) },
    // IOPRIO_WHO_PROCESS and IOPRIO_WHO_USER.
    OfProcess { call: libc::SYS_ioprio_set, number: 1, named: Some(Named { process: 1, user: 3 }) },
    of_process(libc::SYS_prlimit64),
    of_process(libc::SYS_sched_setaffinity),
    of_process(libc::SYS_sched_setscheduler),
    of_process(libc::SYS_sched_setparam),
    of_process(libc::SYS_sched_setattr),
];

/// The bits of a mode with which a program runs as the owner or the group of its file. Its mount inside ignores them, but on the host
/// any other user could start it.
const SET_IDS: u32 = libc::S_ISUID | libc::S_ISGID;

/// A bit of the type in a mode that character and block devices have, and FIFOs, sockets and regular files have not. A device with
/// the number 0 needs no capability: an overlay takes it for a mark that a file is deleted.
const DEVICE: u32 = 0o020_000;
const _: () = assert!(libc::S_IFCHR & libc::S_IFBLK & DEVICE == DEVICE);

/// A call that sets the mode of a file.
struct OfMode {
    call: i64,
    /// The argument that is the mode.
    mode: u32,
    /// The bits of it that are refused.
    refused: u32,
    /// The argument with the flags, if these decide whether a file is made; without that the mode means nothing.
    flags: Option<u32>,
}

const fn of_mode(call: i64, mode: u32) -> OfMode {
    OfMode { call, mode, refused: SET_IDS, flags: None }
}

/// The type of the file is in the mode too.
const fn makes_node(call: i64, mode: u32) -> OfMode {
    OfMode { call, mode, refused: SET_IDS | DEVICE, flags: None }
}

/// A call that makes a file only with some flags.
const fn opens(call: i64, mode: u32, flags: u32) -> OfMode {
    OfMode { call, mode, refused: SET_IDS, flags: Some(flags) }
}

/// Calls that set the mode of a file. `mkdir` ignores the bits, and directories inherit them from the one above.
const OF_MODES: &[OfMode] = &[
    of_mode(libc::SYS_fchmod, 1),
    of_mode(libc::SYS_fchmodat, 2),
    of_mode(452, 2), // fchmodat2
    makes_node(libc::SYS_mknodat, 2),
    opens(libc::SYS_openat, 3, 2),
    #[cfg(target_arch = "x86_64")]
    of_mode(libc::SYS_chmod, 1),
    #[cfg(target_arch = "x86_64")]
    of_mode(libc::SYS_creat, 1),
    #[cfg(target_arch = "x86_64")]
    makes_node(libc::SYS_mknod, 1),
    #[cfg(target_arch = "x86_64")]
    opens(libc::SYS_open, 2, 1),
];

impl OfMode {
    /// Refused with one of the bits.
    fn without_refused(&self) -> Vec<Op> {
        let creates = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)).unsigned_abs();
        let opens = self.flags.iter().flat_map(|flags| {
            [load(low_half_of_argument(*flags)), unless_skip(libc::BPF_JSET, creates), skip(1), answer(ALLOW)]
        });
        let mode = [load(low_half_of_argument(self.mode)), unless_skip(libc::BPF_JSET, self.refused)];
        opens.chain(mode).chain([answer(DENY), answer(ALLOW)]).collect()
    }
}

/// A filter that can be installed.
pub(crate) struct Filter {
    /// What it refuses besides.
    pub(crate) extra: Extra,
    program: Vec<Op>,
}

impl Filter {
    /// Makes one.
    pub(crate) fn new(extra: Extra) -> Result<Self, SeccompError> {
        Ok(Self { extra, program: filter(extra)? })
    }
}

/// The operations of a filter.
fn filter(extra: Extra) -> Result<Vec<Op>, SeccompError> {
    let processor = PROCESSOR.ok_or(SeccompError::Processor)?;
    let mut program = vec![load(ARCHITECTURE)];
    program.extend([unless_skip(libc::BPF_JEQ, processor), skip(1), answer(KILL), load(NUMBER)]);
    program.extend([unless_skip(libc::BPF_JGE, FIRST_UNKNOWN), answer(ABSENT)]);
    let mut rules = rules();
    if extra.alone {
        rules.extend(SHARED.iter().map(|call| (number(*call), vec![answer(DENY)])));
        rules.extend(OF_PROCESSES.iter().map(|call| (number(call.call), call.of_itself_alone())));
        rules.entry(number(libc::SYS_prlimit64)).and_modify(|rule| *rule = keeping_core_limit(rule));
    }
    if extra.pinned {
        rules.insert(number(libc::SYS_sched_setaffinity), vec![answer(DENY)]);
    }
    program.extend(find(&ranges(rules)));
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

/// The first numbers of ranges of calls, and what is done with the calls of each range: neighbours with the same rule are one.
fn ranges(rules: BTreeMap<u32, Vec<Op>>) -> Vec<(u32, Vec<Op>)> {
    let mut ranges: Vec<(u32, Vec<Op>)> = vec![(0, vec![answer(ALLOW)])];
    for (call, then) in rules {
        // Between neighbours no call is left that passes.
        ranges.pop_if(|(first, _)| *first == call);
        if !ranges.last().is_some_and(|(_, last)| are_same(last, &then)) {
            ranges.push((call, then));
        }
        ranges.push((call.saturating_add(1), vec![answer(ALLOW)]));
    }
    ranges
}

fn are_same(some: &[Op], others: &[Op]) -> bool {
    let fields = |op: &Op| (op.code, op.jt, op.jf, op.k);
    some.iter().map(fields).eq(others.iter().map(fields))
}

/// The operations that find the range of a call and do what its rule says. The time to load a filter grows with its length.
fn find(ranges: &[(u32, Vec<Op>)]) -> Vec<Op> {
    match ranges {
        [] => vec![answer(ALLOW)],
        [(_, then)] => then.clone(),
        _ => {
            let (lower, upper) = ranges.split_at(ranges.len() / 2);
            let (first, lower, upper) = (upper[0].0, find(lower), find(upper));
            // A jump on a condition is at most 255 operations long.
            let split = match u8::try_from(lower.len()) {
                Ok(length) => vec![Op { jt: length, jf: 0, ..unless_skip(libc::BPF_JGE, first) }],
                Err(_) => vec![unless_skip(libc::BPF_JGE, first), skip(lower.len())],
            };
            split.into_iter().chain(lower).chain(upper).collect()
        }
    }
}

fn number(call: i64) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

/// What is done with each call that does not simply pass.
fn rules() -> BTreeMap<u32, Vec<Op>> {
    let everywhere = REFUSED_EVERYWHERE.iter().map(|call| (number(*call), vec![answer(DENY)]));
    let absent = ABSENT_EVERYWHERE.iter().map(|call| (number(*call), vec![answer(ABSENT)]));
    let differing = DIFFERENCES.iter().filter_map(|row| match row.here {
        Verdict::Refused => Some((number(row.call), vec![answer(DENY)])),
        Verdict::Absent => Some((number(row.call), vec![answer(ABSENT)])),
        Verdict::Unsupported => Some((number(row.call), vec![answer(UNSUPPORTED)])),
        Verdict::Allowed | Verdict::ByArgument => None,
    });
    everywhere.chain(absent).chain(differing).chain(by_argument()).collect()
}

impl OfProcess {
    /// Refused for the supervisor, and for all processes of a user: the supervisor may be one of them.
    fn not_of_supervisor(&self) -> Vec<Op> {
        let of_user = self.named.iter().flat_map(|named| {
            [load(low_half_of_argument(0)), unless_skip(libc::BPF_JEQ, named.user), answer(DENY)]
        });
        of_user.chain(only(self.number, &[FIRST_PROCESS], DENY, ALLOW)).collect()
    }

    /// Allowed only for the process that calls. Number 0 of a user are all processes of the user on this machine.
    fn of_itself_alone(&self) -> Vec<Op> {
        let of_others = self.named.iter().flat_map(|named| {
            let same = unless_skip(libc::BPF_JEQ, named.process);
            [load(low_half_of_argument(0)), same, skip(1), answer(DENY)]
        });
        of_others.chain(only(self.number, &[OWN_PROCESS], ALLOW, DENY)).collect()
    }
}

/// The rule for `prlimit64`: one that sets the limit of core dumps does nothing, and has to ask for nothing. Programs that hold secrets
/// set it to 0 and end if that fails. `others` is what is done with all else.
fn keeping_core_limit(others: &[Op]) -> Vec<Op> {
    let is_null = |argument: u32, then: Op| {
        let [low, high] = [low_half_of_argument(argument), high_half_of_argument(argument)].map(load);
        let has_bits = Op { jt: 2, jf: 0, ..unless_skip(libc::BPF_JSET, u32::MAX) };
        [low, has_bits, high, Op { jt: 0, jf: 1, ..has_bits }, skip(1), then]
    };
    let [new, old] = [2, 3];
    // Bits of the pointer lead over the second operation, to what follows.
    let asks_for_old = is_null(old, answer(IGNORE)).into_iter().chain([answer(DENY)]);
    let sets: Vec<Op> =
        is_null(new, skip(asks_for_old.clone().count())).into_iter().chain(asks_for_old).collect();
    let is_other = Op { jt: 1, jf: 0, ..unless_skip(libc::BPF_JEQ, CORE_LIMIT) };
    let first = [load(low_half_of_argument(1)), is_other, skip(sets.len())];
    first.into_iter().chain(sets).chain(others.iter().copied()).collect()
}

/// The rules for calls whose arguments decide.
fn by_argument() -> impl Iterator<Item = (u32, Vec<Op>)> {
    let namespaces = NEW_NAMESPACES.iter().fold(0, |all, flag| all | flag.unsigned_abs());
    let clone =
        [load(low_half_of_argument(0)), unless_skip(libc::BPF_JSET, namespaces), answer(DENY), answer(ALLOW)];
    // Leaves a device with the number 0 behind.
    let whiteout = unless_skip(libc::BPF_JSET, libc::RENAME_WHITEOUT);
    let rename = [load(low_half_of_argument(4)), whiteout, answer(DENY), answer(ALLOW)];
    let family = i32::unsigned_abs;
    [
        (number(libc::SYS_clone), clone.to_vec()),
        (number(libc::SYS_ioctl), requests()),
        (number(libc::SYS_fcntl), only(1, &LEASES, DENY, ALLOW)),
        (number(libc::SYS_setrlimit), only(0, &[CORE_LIMIT], IGNORE, ALLOW)),
        (number(libc::SYS_socket), sockets()),
        (number(libc::SYS_socketpair), only(0, &[family(libc::AF_UNIX)], ALLOW, DENY)),
        (number(libc::SYS_personality), only(0, &PERSONALITIES, ALLOW, DENY)),
        (number(libc::SYS_renameat2), rename.to_vec()),
    ]
    .into_iter()
    .chain(OF_PROCESSES.iter().map(|call| match call.call {
        libc::SYS_prlimit64 => (number(call.call), keeping_core_limit(&call.not_of_supervisor())),
        _ => (number(call.call), call.not_of_supervisor()),
    }))
    .chain(OF_MODES.iter().map(|call| (number(call.call), call.without_refused())))
}

/// Answers `listed` if an argument is one of these values, else `other`. Only the lower half is compared: the kernel
/// takes these arguments for numbers of 32 bits.
fn only(argument: u32, values: &[u32], listed: u32, other: u32) -> Vec<Op> {
    let compared = values.iter().flat_map(|value| [unless_skip(libc::BPF_JEQ, *value), answer(listed)]);
    [load(low_half_of_argument(argument))].into_iter().chain(compared).chain([answer(other)]).collect()
}

/// Requests of `ioctl`: none that types, and of those to file systems only [`FILE_REQUESTS`]. Bits 8 to 15 of a request are its type.
fn requests() -> Vec<Op> {
    let calculate = |operation: u32, k: u32| Op {
        code: (libc::BPF_ALU | operation | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let request = load(low_half_of_argument(1));
    let typing = TYPING.iter().flat_map(|value| [unless_skip(libc::BPF_JEQ, *value), answer(DENY)]);
    let kind = [calculate(libc::BPF_RSH, 8), calculate(libc::BPF_AND, 0xff)];
    // From each type to what is behind the last one and the answer for all others.
    let types = FILE_SYSTEM_TYPES.iter().zip((1..=FILE_SYSTEM_TYPES.len() as u8).rev());
    let types = types.map(|(kind, jt)| Op { jt, jf: 0, ..unless_skip(libc::BPF_JEQ, u32::from(*kind)) });
    let before = [request].into_iter().chain(typing).chain(kind).chain(types).chain([answer(ALLOW)]);
    before.chain(only(1, &FILE_REQUESTS, ALLOW, NO_REQUEST)).collect()
}

/// Only families and protocols that programs need, and of the kernel's own sockets only the one that tells of addresses and routes.
fn sockets() -> Vec<Op> {
    let is = |value: i32| unless_skip(libc::BPF_JEQ, value.unsigned_abs());
    let netlink = [
        is(libc::AF_NETLINK),
        skip(1),
        answer(DENY),
        load(low_half_of_argument(2)),
        is(libc::NETLINK_ROUTE),
        answer(ALLOW),
        answer(DENY),
    ];
    let families = [
        load(low_half_of_argument(0)),
        is(libc::AF_UNIX),
        answer(ALLOW),
        is(libc::AF_INET),
        skip(2 + netlink.len()),
        is(libc::AF_INET6),
        skip(netlink.len()),
    ];
    let types = [
        load(low_half_of_argument(1)),
        unless_skip(libc::BPF_JSET, OTHER_TYPES),
        answer(NO_PROTOCOL),
        load(low_half_of_argument(2)),
    ];
    let protocols = PROTOCOLS.iter().flat_map(|protocol| [is(*protocol), answer(ALLOW)]);
    let internet = types.into_iter().chain(protocols).chain([answer(NO_PROTOCOL)]);
    families.into_iter().chain(netlink).chain(internet).collect()
}

/// Installs a filter in this thread and all that it starts.
pub(crate) fn install(filter: &mut Filter) -> Result<(), SeccompError> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.program.len()).unwrap_or(u16::MAX),
        filter: filter.program.as_mut_ptr(),
    };
    // SAFETY: the program points to that many operations, which live until the call returns.
    let done =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if done == 0 { Ok(()) } else { Err(SeccompError::Install(std::io::Error::last_os_error())) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::calls::{ABSENT_EVERYWHERE, DIFFERENCES, FIRST_UNKNOWN, REFUSED_EVERYWHERE, Verdict};
    use super::{
        ABSENT, ALLOW, CORE_LIMIT, DENY, Extra, FILE_REQUESTS, FILE_SYSTEM_TYPES, IGNORE, KILL, LEASES,
        NO_REQUEST, OF_MODES, OF_PROCESSES, OfMode, OfProcess, Op, PERSONALITIES, PROCESSOR, TYPING,
        UNSUPPORTED, by_argument, filter,
    };

    /// System calls of the x32 interface have this bit set in their numbers.
    const X32: u32 = 0x4000_0000;
    /// How the kernel names the interface of 32-bit programs in a filter, on each processor.
    const INTERFACES_OF_32_BITS: [u32; 2] = [0x4000_0003, 0x4000_0028];

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
                libc::BPF_ALU if code & 0xf0 == libc::BPF_RSH => loaded >>= op.k,
                libc::BPF_ALU => loaded &= op.k,
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

    /// What the tables say of a call; `None` if its arguments decide.
    fn expected(call: i64) -> Option<u32> {
        let row = DIFFERENCES.iter().find(|row| row.call == call);
        match row.map(|row| row.here) {
            _ if call >= i64::from(FIRST_UNKNOWN) => Some(ABSENT),
            _ if REFUSED_EVERYWHERE.contains(&call) => Some(DENY),
            _ if ABSENT_EVERYWHERE.contains(&call) => Some(ABSENT),
            None | Some(Verdict::Allowed) => Some(ALLOW),
            Some(Verdict::Refused) => Some(DENY),
            Some(Verdict::Absent) => Some(ABSENT),
            Some(Verdict::Unsupported) => Some(UNSUPPORTED),
            Some(Verdict::ByArgument) => None,
        }
    }

    #[test]
    fn every_call_gets_the_answer_of_the_tables() {
        for call in 0..=600 {
            if let Some(expected) = expected(call) {
                for arguments in [[0; 6], [u64::MAX; 6], [libc::AF_UNIX as u64; 6]] {
                    assert_eq!(answers(call, arguments), expected, "{call} {arguments:?}");
                }
            }
        }
    }

    /// Among them 512 to 547, which some kernels took for calls of the x32 interface without its bit.
    #[test]
    fn calls_that_no_table_could_know_are_absent() {
        for call in (470..=600).chain([1023, 1024, i64::from(u32::MAX)]) {
            assert_eq!(answers(call, [0; 6]), ABSENT, "{call}");
        }
        assert_eq!(answers(libc::SYS_getpid, [0; 6]), ALLOW);
    }

    #[test]
    fn rows_are_unique_and_each_differs_from_an_engine() {
        let all = REFUSED_EVERYWHERE.iter().chain(ABSENT_EVERYWHERE);
        let all: Vec<i64> = all.copied().chain(DIFFERENCES.iter().map(|row| row.call)).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "a call is in two places");
        let passes = |verdict| match verdict {
            Verdict::Allowed => Some(true),
            Verdict::Refused | Verdict::Absent | Verdict::Unsupported => Some(false),
            // Two that look at arguments need not look for the same.
            Verdict::ByArgument => None,
        };
        for row in DIFFERENCES {
            let same = |other| passes(other).is_some() && passes(other) == passes(row.here);
            assert!(!same(row.docker) || !same(row.podman), "{} does not differ", row.name);
            assert!(row.call < i64::from(FIRST_UNKNOWN) && !row.why.is_empty(), "{}", row.name);
        }
    }

    #[test]
    fn rows_by_argument_are_the_rules_by_argument() {
        let rows = DIFFERENCES.iter().filter(|row| row.here == Verdict::ByArgument);
        let rows: BTreeSet<u32> = rows.map(|row| row.call as u32).collect();
        assert_eq!(rows, by_argument().map(|(call, _)| call).collect());
    }

    #[test]
    fn fcntl_takes_no_lease_and_does_all_else() {
        let denied: Vec<u64> =
            (0..2048).filter(|command| answers(libc::SYS_fcntl, [3, *command, 0, 0, 0, 0]) == DENY).collect();
        assert_eq!(denied, LEASES.map(u64::from));
        assert_eq!(LEASES.first(), Some(&libc::F_SETLEASE.unsigned_abs()));
    }

    #[test]
    fn the_first_process_is_not_changed() {
        for OfProcess { call, number, .. } in OF_PROCESSES {
            for (process, expected) in [(0, ALLOW), (1, DENY), (1 | 1 << 32, DENY), (2, ALLOW), (77, ALLOW)] {
                let mut arguments = [0; 6];
                arguments[*number as usize] = process;
                assert_eq!(answers(*call, arguments), expected, "{call} of {process:x}");
            }
        }
    }

    #[test]
    fn limit_of_core_dumps_is_asked_for_and_not_set() {
        let core = u64::from(CORE_LIMIT);
        let alone = filter(Extra { alone: true, ..Extra::default() }).unwrap();
        let ask_alone = |arguments| ask(&alone, PROCESSOR.unwrap(), libc::SYS_prlimit64 as u32, arguments);
        for pointer in [8, 1 << 32] {
            for limit in [core, core | 1 << 32] {
                for process in [0, 1, 77] {
                    let set = [process, limit, pointer, 0, 0, 0];
                    assert_eq!((answers(libc::SYS_prlimit64, set), ask_alone(set)), (IGNORE, IGNORE));
                    let exchange = [process, limit, pointer, pointer, 0, 0];
                    assert_eq!((answers(libc::SYS_prlimit64, exchange), ask_alone(exchange)), (DENY, DENY));
                }
                let get = [0, limit, 0, pointer, 0, 0];
                assert_eq!((answers(libc::SYS_prlimit64, get), ask_alone(get)), (ALLOW, ALLOW));
                assert_eq!(answers(libc::SYS_prlimit64, [1, limit, 0, pointer, 0, 0]), DENY);
                assert_eq!(answers(libc::SYS_setrlimit, [limit, pointer, 0, 0, 0, 0]), IGNORE);
            }
            let other = [0, u64::from(libc::RLIMIT_NOFILE), pointer, pointer, 0, 0];
            assert_eq!((answers(libc::SYS_prlimit64, other), ask_alone(other)), (ALLOW, ALLOW));
            assert_eq!(answers(libc::SYS_setrlimit, [7, pointer, 0, 0, 0, 0]), ALLOW);
        }
    }

    #[test]
    fn files_that_run_as_their_owner_or_group_are_not_made() {
        let creates = [libc::O_CREAT, libc::O_TMPFILE, libc::O_CREAT | libc::O_WRONLY];
        for OfMode { call, mode, flags, .. } in OF_MODES {
            let asked = |value: u64, flag: i32| {
                let mut arguments = [0; 6];
                arguments[*mode as usize] = value;
                if let Some(flags) = flags {
                    arguments[*flags as usize] = flag as u64;
                }
                answers(*call, arguments)
            };
            for flag in creates {
                for refused in [0o4755, 0o2755, 0o6000, 0o104_755, 0o4000 | 1 << 32] {
                    assert_eq!(asked(refused, flag), DENY, "{call} {refused:o} {flag:o}");
                }
                for allowed in [0, 0o644, 0o777, 0o1777, 0o100_644] {
                    assert_eq!(asked(allowed, flag), ALLOW, "{call} {allowed:o} {flag:o}");
                }
            }
            if flags.is_some() {
                // The argument may hold anything.
                let reads = asked(u64::MAX, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC);
                assert_eq!(reads, ALLOW, "{call}");
            }
        }
    }

    #[test]
    fn requests_to_file_systems_are_refused_but_harmless_ones() {
        let asked = |request: u32| {
            let with = |upper: u64| answers(libc::SYS_ioctl, [3, u64::from(request) | upper, 0, 0, 0, 0]);
            assert_eq!(with(0), with(1 << 32), "{request:x}: the kernel ignores the upper half");
            with(0)
        };
        for request in FILE_REQUESTS {
            assert_eq!(asked(request), ALLOW, "{request:x}");
            assert!(FILE_SYSTEM_TYPES.contains(&((request >> 8) as u8)), "{request:x} needs no row");
        }
        for (request, name) in [
            (0x5000_9401, "BTRFS_IOC_SNAP_CREATE"),
            (0x5000_9417, "BTRFS_IOC_SNAP_CREATE_V2"),
            (0x5000_940e, "BTRFS_IOC_SUBVOL_CREATE"),
            (0x5000_940f, "BTRFS_IOC_SNAP_DESTROY"),
            (0x4008_941a, "BTRFS_IOC_SUBVOL_SETFLAGS"),
            (0xc0c0_9425, "BTRFS_IOC_SET_RECEIVED_SUBVOL"),
            (0x4008_6602, "FS_IOC_SETFLAGS"),
            (0x4004_6602, "FS_IOC32_SETFLAGS"),
            (0x401c_5820, "FS_IOC_FSSETXATTR"),
            (0x4008_7602, "FS_IOC_SETVERSION"),
            (0x800c_6613, "FS_IOC_SET_ENCRYPTION_POLICY"),
            (0xc050_6617, "FS_IOC_ADD_ENCRYPTION_KEY"),
            (0xc040_6618, "FS_IOC_REMOVE_ENCRYPTION_KEY"),
            (0x4080_6685, "FS_IOC_ENABLE_VERITY"),
            (0xc028_660f, "EXT4_IOC_MOVE_EXT"),
            (0x6611, "EXT4_IOC_SWAP_BOOT"),
            (0xc004_5877, "FIFREEZE"),
            (0xc004_5878, "FITHAW"),
            (0xc018_5879, "FITRIM"),
            (0x8004_587d, "FS_IOC_SHUTDOWN"),
            (0x4018_bc10, "BCH_IOCTL_SUBVOLUME_CREATE"),
            (0xf501, "F2FS_IOC_START_ATOMIC_WRITE"),
            (0x4010_6e88, "NILFS_IOCTL_CLEAN_SEGMENTS"),
        ] {
            assert_eq!(asked(request), NO_REQUEST, "{name}");
        }
        for (request, name) in [
            (0x5401, "TCGETS"),
            (0x5413, "TIOCGWINSZ"),
            (0x541b, "FIONREAD"),
            (0x5421, "FIONBIO"),
            (0x5451, "FIOCLEX"),
            (0x8912, "SIOCGIFCONF"),
            (0x8004_5430, "TIOCGPTN"),
            (0x8208_7201, "VFAT_IOCTL_READDIR_BOTH"),
            (0xae00, "KVM_GET_API_VERSION"),
            (0, "none"),
        ] {
            assert_eq!(asked(request), ALLOW, "{name}");
        }
    }

    #[test]
    fn devices_are_not_made() {
        let mut calls = vec![(libc::SYS_mknodat, 2)];
        #[cfg(target_arch = "x86_64")]
        calls.push((libc::SYS_mknod, 1));
        for (call, mode) in calls {
            let asked = |value: u32| {
                let mut arguments = [0; 6];
                arguments[mode] = u64::from(value);
                answers(call, arguments)
            };
            for kind in [libc::S_IFCHR, libc::S_IFBLK] {
                assert_eq!(asked(kind | 0o600), DENY, "{call} {kind:o}");
            }
            for kind in [0, libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK] {
                assert_eq!(asked(kind | 0o600), ALLOW, "{call} {kind:o}");
            }
        }
        let renames = |flags: u32| answers(libc::SYS_renameat2, [0, 0, 0, 0, u64::from(flags), 0]);
        assert_eq!(renames(libc::RENAME_WHITEOUT), DENY);
        assert_eq!(renames(libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE), DENY);
        for flags in [0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE] {
            assert_eq!(renames(flags), ALLOW, "{flags}");
        }
    }

    #[test]
    fn pairs_are_made_of_unix_sockets_alone() {
        for family in 0..64 {
            let expected = if family == libc::AF_UNIX as u64 { ALLOW } else { DENY };
            for upper_half in [0, 1 << 32] {
                let arguments = [family | upper_half, 1, 0, 0, 0, 0];
                assert_eq!(answers(libc::SYS_socketpair, arguments), expected, "{family}");
            }
        }
    }

    #[test]
    fn personalities_that_weaken_memory_are_refused() {
        let asked = |value: u64| answers(libc::SYS_personality, [value, 0, 0, 0, 0, 0]);
        for value in PERSONALITIES {
            assert_eq!(asked(u64::from(value)), ALLOW, "{value:x}");
        }
        // READ_IMPLIES_EXEC, MMAP_PAGE_ZERO, ADDR_COMPAT_LAYOUT, and READ_IMPLIES_EXEC with one that passes.
        for value in [0x40_0000, 0x10_0000, 0x20_0000, 0x44_0000] {
            assert_eq!(asked(value), DENY, "{value:x}");
        }
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
    fn internet_sockets_of_other_protocols_are_refused() {
        let socket = |family: i32, kind: i32, protocol: i32| {
            answers(libc::SYS_socket, [family as u64, kind as u64, protocol as u64, 0, 0, 0])
        };
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        for family in [libc::AF_INET, libc::AF_INET6] {
            for (kind, protocol) in [
                (libc::SOCK_STREAM, 0),
                (libc::SOCK_STREAM, libc::IPPROTO_TCP),
                (libc::SOCK_DGRAM, libc::IPPROTO_UDP),
                (libc::SOCK_DGRAM, libc::IPPROTO_ICMP),
                (libc::SOCK_DGRAM, libc::IPPROTO_ICMPV6),
            ] {
                assert_eq!(socket(family, kind | flags, protocol), ALLOW, "{family} {kind} {protocol}");
            }
            // MPTCP, SCTP, UDP-Lite, DCCP, L2TP, SMC.
            for protocol in [262, 132, 136, 33, 115, 256, 255] {
                assert_eq!(
                    socket(family, libc::SOCK_STREAM | flags, protocol),
                    super::NO_PROTOCOL,
                    "{protocol}"
                );
            }
            for kind in [libc::SOCK_SEQPACKET, 6, libc::SOCK_RDM, 10] {
                assert_eq!(socket(family, kind | flags, 0), super::NO_PROTOCOL, "{kind}");
            }
        }
        assert_eq!(socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0), ALLOW);
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
        for (call, kinds) in [(libc::SYS_setpriority, 1..=2), (libc::SYS_ioprio_set, 2..=3)] {
            for kind in kinds {
                assert_eq!(asked(call, [kind, 0, 5, 0, 0, 0]), DENY, "{call}: a group or a user");
            }
        }
        assert_eq!(asked(libc::SYS_ioprio_set, [1, 0, 5, 0, 0, 0]), ALLOW, "one's own");
        for call in [libc::SYS_shmctl, libc::SYS_semop, libc::SYS_msgrcv, libc::SYS_msgctl] {
            assert_eq!(asked(call, [0; 6]), DENY, "{call} needs a number alone");
        }
        // Flags, the project of a quota, the version.
        for request in [0x4008_6602, 0x4004_6602, 0x401c_5820, 0x4008_7602] {
            assert_eq!(asked(libc::SYS_ioctl, [3, request, 0, 0, 0, 0]), NO_REQUEST, "{request:x}");
        }
        assert_eq!(asked(libc::SYS_ioctl, [0, u64::from(TYPING[0]), 0, 0, 0, 0]), DENY);
    }

    #[test]
    fn all_processes_of_a_user_are_not_changed_at_once() {
        for (call, process, user) in [(libc::SYS_setpriority, 0, 2), (libc::SYS_ioprio_set, 1, 3)] {
            for number in [0, 1, 1000] {
                assert_eq!(answers(call, [user, number, 5, 0, 0, 0]), DENY, "{call} {number}");
                assert_eq!(answers(call, [user | 1 << 32, number, 5, 0, 0, 0]), DENY, "{call} {number}");
            }
            assert_eq!(answers(call, [process, 0, 5, 0, 0, 0]), ALLOW);
            assert_eq!(answers(call, [process, 77, 5, 0, 0, 0]), ALLOW);
            assert_eq!(answers(call, [process, 1, 5, 0, 0, 0]), DENY);
        }
    }

    #[test]
    fn other_interfaces_of_the_kernel_are_shut() {
        let filter = filter(Extra::default()).unwrap();
        for call in 0..=600 {
            for interface in INTERFACES_OF_32_BITS {
                assert_eq!(ask(&filter, interface, call, [0; 6]), KILL, "{interface:x} {call}");
            }
            assert_eq!(ask(&filter, PROCESSOR.unwrap(), X32 | call, [0; 6]), ABSENT, "{call}");
        }
    }
}
