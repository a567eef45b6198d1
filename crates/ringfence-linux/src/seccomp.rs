//! The system calls that no agent needs and every escape wants.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition,
    SeccompFilter, SeccompRule, TargetArch,
};

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
const TYPING: [u64; 2] = [0x5412, 0x541c];

/// The families of sockets that programs need; all others talk to the kernel, the host or hardware.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SeccompError {
    /// The rules make none, or the processor is unknown.
    #[error("the filter of system calls could not be made")]
    Make(#[from] seccompiler::BackendError),
    /// The kernel did not take it.
    #[error("the filter of system calls could not be installed")]
    Install(#[from] seccompiler::Error),
}

/// The filters, to be installed in this order.
pub(crate) fn filters() -> Result<Vec<BpfProgram>, SeccompError> {
    let deny = SeccompAction::Errno(libc::EPERM as u32);
    // A program that is told that the call does not exist uses the old one, whose flags can be seen.
    let absent = SeccompAction::Errno(libc::ENOSYS as u32);
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let mut programs = vec![program(rules()?, deny)?, program(clone3, absent)?];
    if cfg!(target_arch = "x86_64") {
        programs.push(no_x32());
    }
    Ok(programs)
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    matched: SeccompAction,
) -> Result<BpfProgram, SeccompError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, matched, arch)?.try_into()?)
}

fn rules() -> Result<BTreeMap<i64, Vec<SeccompRule>>, SeccompError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = DENIED.iter().map(|call| (*call, Vec::new())).collect();
    let one = |condition: Result<Condition, _>| SeccompRule::new(vec![condition?]);
    let clone: Result<Vec<_>, _> = NEW_NAMESPACES
        .iter()
        .map(|flag| {
            let flag = u64::from(flag.unsigned_abs());
            one(Condition::new(0, Len::Qword, Op::MaskedEq(flag), flag))
        })
        .collect();
    rules.insert(libc::SYS_clone, clone?);
    let typing: Result<Vec<_>, _> =
        TYPING.iter().map(|request| one(Condition::new(1, Len::Dword, Op::Eq, *request))).collect();
    rules.insert(libc::SYS_ioctl, typing?);
    let number = |value: i32| u64::from(value.unsigned_abs());
    let none_of: Result<Vec<_>, _> =
        FAMILIES.iter().map(|family| Condition::new(0, Len::Dword, Op::Ne, number(*family))).collect();
    // Of the kernel's own sockets only the one that tells of addresses and routes.
    let other_netlink = vec![
        Condition::new(0, Len::Dword, Op::Eq, number(libc::AF_NETLINK))?,
        Condition::new(2, Len::Dword, Op::Ne, number(libc::NETLINK_ROUTE))?,
    ];
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(none_of?)?, SeccompRule::new(other_netlink)?]);
    Ok(rules)
}

/// System calls of the x32 interface have a bit set in their numbers and would pass every other rule.
fn no_x32() -> BpfProgram {
    const LOAD: u16 = 0x20;
    const AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    let refuse = 0x0005_0000 | libc::ENOSYS as u32;
    let op = |code, jt, jf, k| seccompiler::sock_filter { code, jt, jf, k };
    vec![
        op(LOAD, 0, 0, 0),
        op(AT_LEAST, 0, 1, 0x4000_0000),
        op(RETURN, 0, 0, refuse),
        op(RETURN, 0, 0, 0x7fff_0000),
    ]
}

/// Installs a filter in this thread and all that it starts.
pub(crate) fn install(program: &BpfProgram) -> Result<(), SeccompError> {
    Ok(seccompiler::apply_filter(program)?)
}

#[cfg(test)]
mod tests {
    use super::filters;

    #[test]
    fn the_filters_can_be_made_on_this_machine() {
        assert!(filters().unwrap().iter().all(|program| !program.is_empty()));
    }
}
