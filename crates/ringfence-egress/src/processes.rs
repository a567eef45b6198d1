//! Which processes hold a socket, and whether they belong to a run.
//!
//! A sandboxed run has its user's uid and, with an open network, the user's loopback and abstract sockets. So a process is outside
//! of every run if it is in the asker's own namespaces, without a seccomp filter, and does not descend from a `ringfence` process
//! (the gate is above every process of a run). Whatever cannot be found out is not outside.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::process_table::{ProcessTable, read_entry};

/// The namespaces of a process that has to share the asker's.
const NAMESPACES: [&str; 3] = ["user", "pid", "mnt"];
/// Longer chains of parents are not followed.
pub(crate) const MAX_ANCESTORS: usize = 1000;
/// How often a chain of parents is followed of which one ends meanwhile.
const MAX_CHAINS: usize = 10;
/// How long it is searched among the descriptors of runs for a socket: a run can have thousands of processes with thousands each.
const MAX_SEARCH: Duration = Duration::from_secs(3);
/// Processes that are looked at first, for they have held a socket that was asked for.
const MAX_RECENT_HOLDERS: usize = 8;
/// The name of every gate, and of the first process of its sandbox (`ringfence-gate`: `set_name`).
pub(crate) const GATE_NAME: &str = "ringfence-gate";

/// What a process does with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It has connected. It must not be this program: a broker dials for runs.
    Client,
    /// It has accepted, as a daemon does. It may be this program.
    Server,
}

/// Whether there are processes, and all of them are outside of every run.
pub fn are_outside_of_runs(processes: &[PathBuf], role: Role) -> bool {
    !processes.is_empty() && processes.iter().all(|process| is_outside_of_runs(process, role))
}

/// The processes that hold a socket, as directories of `/proc`. Those of other users cannot be looked into.
pub fn holders(inode: u64) -> Vec<PathBuf> {
    processes().filter(|process| holds(process, inode)).collect()
}

/// Whether all of some sockets are held by processes of runs, and none by another process. Each process is looked at once. Not if
/// that takes longer.
pub(crate) fn are_held_by_runs_alone(inodes: &HashSet<u64>, until: Instant) -> bool {
    let of_runs: HashSet<PathBuf> = ProcessTable::read().below_gates().into_iter().collect();
    let others = processes().filter(|process| !of_runs.contains(process));
    for process in others {
        // One that was started since may be of a run.
        if Instant::now() >= until
            || (sockets(&process).any(|inode| inodes.contains(&inode)) && !is_below_gate(&process))
        {
            return false;
        }
    }
    let mut held = HashSet::new();
    for process in of_runs {
        for inode in sockets(&process).filter(|inode| inodes.contains(inode)) {
            held.insert(inode);
        }
        if held.len() == inodes.len() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
    }
    false
}

/// The sockets that a process is seen to hold.
fn sockets(process: &Path) -> impl Iterator<Item = u64> {
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|entry| {
        let target = fs::read_link(entry.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    })
}

/// Whether a process is seen to hold a socket.
fn holds(process: &Path, inode: u64) -> bool {
    sockets(process).any(|held| held == inode)
}

pub(crate) fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|process| pid_of(process).is_some())
}

fn pid_of(process: &Path) -> Option<u32> {
    process.file_name()?.to_str()?.parse().ok()
}

/// Whether a process is in the asker's namespaces and has no filter of system calls, as no run in a sandbox is.
fn is_unconfined(process: &Path) -> bool {
    let own = Path::new("/proc/self");
    let namespace = |process: &Path, name: &str| fs::read_link(process.join("ns").join(name)).ok();
    let shares = |name: &&str| {
        let mine = namespace(own, name);
        mine.is_some() && namespace(process, name) == mine
    };
    NAMESPACES.iter().all(shares) && status_field(process, "Seccomp:").as_deref() == Some("0")
}

/// Whether a process is one that the owner has started, and not a run.
fn is_outside_of_runs(process: &Path, role: Role) -> bool {
    let descends = || match (role, parent(process)) {
        (Role::Client, _) => descends_from_ringfence(process),
        (Role::Server, Parent::Process(parent)) => descends_from_ringfence(&parent),
        (Role::Server, Parent::None) => false,
        (Role::Server, Parent::Unknown) => true,
    };
    is_unconfined(process) && !descends()
}

/// Whether a process belongs to a run: a gate is above it. Its own name and namespaces tell nothing, so browsers in sandboxes of
/// their own do not. In doubt it does; one that has ended does not.
pub fn is_below_gate(process: &Path) -> bool {
    match chain(process) {
        Chain::BelowGate => true,
        Chain::Hidden => !is_unconfined(process),
        Chain::Outside | Chain::Ended => false,
    }
}

/// What is above a process.
#[derive(Debug, PartialEq, Eq)]
enum Chain {
    /// The first process of this namespace, and no gate.
    Outside,
    /// A gate, or more processes than are looked at.
    BelowGate,
    /// A process that cannot be looked at, as those of other users where `/proc` is mounted with `hidepid`.
    Hidden,
    /// The process has ended.
    Ended,
}

/// Follows the parents of a process. Where one of them ends meanwhile, its child has another parent, so all is looked at anew: a run
/// can start and end processes all the time.
fn chain(process: &Path) -> Chain {
    for _ in 0..MAX_CHAINS {
        let Some(mut entry) = read_entry(&process.join("stat")) else { return Chain::Ended };
        let mut length = 0;
        while entry.parent != 0 && length < MAX_ANCESTORS {
            let stat = Path::new("/proc").join(entry.parent.to_string()).join("stat");
            let Some(parent) = read_entry(&stat) else { break };
            if parent.is_gate {
                return Chain::BelowGate;
            }
            entry = parent;
            length += 1;
        }
        if entry.parent == 0 {
            return Chain::Outside;
        }
        if length >= MAX_ANCESTORS {
            return Chain::BelowGate;
        }
    }
    Chain::Hidden
}

/// Whether a process that has connected a socket of this inode still holds it, and no gate is above it. Where the kernel does not tell the
/// inode, it is enough that the process goes on.
pub fn is_held_outside_of_runs_by(pid: u32, inode: Option<u64>) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    // `sshd` keeps its descriptors from being listed. It is the process that the kernel says has connected.
    let still_holds = || inode.is_none_or(|inode| holds(&process, inode) || is_unlistable(&process));
    let is_outside = || match chain(&process) {
        Chain::Outside => true,
        Chain::Hidden => is_unconfined(&process),
        Chain::BelowGate | Chain::Ended => false,
    };
    // Its number may be another process's meanwhile, which does not hold the socket.
    is_outside() && still_holds() && is_outside()
}

/// A process can take any name, but not give one to those above it.
fn is_gate(process: &Path) -> bool {
    status_field(process, "Name:").as_deref() == Some(GATE_NAME)
}

/// Whether a process of a run may hold a socket: it is seen to, or there are too many descriptors to look at.
pub fn is_held_by_run(inode: u64) -> bool {
    may_be_held_by(&ProcessTable::read().below_gates(), inode)
}

fn may_be_held_by(processes: &[PathBuf], inode: u64) -> bool {
    let until = Instant::now() + MAX_SEARCH;
    processes.iter().any(|process| Instant::now() >= until || holds(process, inode))
}

/// Whether a socket of this user is in the hands of a process outside of runs, and in those of no run. A socket can be on its way in a
/// message, where no process holds it, and a run can have put it there: so a holder has to be seen.
///
/// A process can keep its descriptors from being listed, as `sshd` does. Where no holder is seen, such a process outside of runs is taken
/// for the holder, unless a run could have the socket unseen.
pub fn is_held_outside_of_runs(inode: u64) -> bool {
    let table = ProcessTable::read();
    let of_runs = table.below_gates();
    if may_be_held_by(&of_runs, inode) {
        return false;
    }
    let excluded: HashSet<&PathBuf> = of_runs.iter().collect();
    match find_holder(inode, &table.newest_first(), &excluded) {
        // A run may have taken it back meanwhile.
        Some(holder) => !is_below_gate(&holder) && (of_runs.is_empty() || !is_held_by_run(inode)),
        None => {
            let processes = table.newest_first();
            let may_be_holder = |process: &&PathBuf| {
                !excluded.contains(process) && !is_gate(process) && is_unlistable(process)
            };
            !of_runs.iter().any(|process| may_hold_unseen(process))
                && processes.iter().any(|process| may_be_holder(&process))
                && !processes.iter().any(|process| has_descriptors_under_way(process))
        }
    }
}

/// Whether a Unix socket of a process holds messages with descriptors that nobody has taken.
fn has_descriptors_under_way(process: &Path) -> bool {
    let infos = fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten();
    infos.filter_map(|info| fs::read_to_string(info.path()).ok()).any(|text| {
        let count = text.lines().find_map(|line| line.strip_prefix("scm_fds:"));
        count.is_some_and(|count| count.trim() != "0")
    })
}

/// The processes that were found to hold sockets, the last one first: mostly the same browser asks again, and the descriptors of all
/// processes are many.
static RECENT_HOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A process that holds a socket, among those that are not excluded.
fn find_holder(inode: u64, processes: &[PathBuf], excluded: &HashSet<&PathBuf>) -> Option<PathBuf> {
    let recent = RECENT_HOLDERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut all = recent.iter().chain(processes);
    let found = all.find(|process| !excluded.contains(process) && holds(process, inode))?.clone();
    let mut recent = RECENT_HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    recent.retain(|process| *process != found);
    recent.insert(0, found.clone());
    recent.truncate(MAX_RECENT_HOLDERS);
    Some(found)
}

/// Whether a process is this user's and keeps its descriptors from being listed.
fn is_unlistable(process: &Path) -> bool {
    let denied = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    fs::read_dir(process.join("fd")).is_err_and(denied) && is_of_this_user(process)
}

fn is_of_this_user(process: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw().to_string();
    status_field(process, "Uid:").is_some_and(|uids| uids.split_whitespace().next() == Some(&own))
}

/// Whether a process of a run, if it is of this user, could have a socket of this network without being seen to: its descriptors cannot be
/// listed, or it is in this network. The first process of a sandbox, a gate itself, is none: it holds no socket of a program.
fn may_hold_unseen(process: &Path) -> bool {
    let is_first = || {
        let pids = status_field(process, "NSpid:").unwrap_or_default();
        let pids: Vec<&str> = pids.split_whitespace().collect();
        let is_below_outer_gate =
            matches!(parent(process), Parent::Process(gate) if is_gate(&gate) && !is_below_gate(&gate));
        is_gate(process) && is_below_outer_gate && pids.len() > 1 && pids.last() == Some(&"1")
    };
    let network = |process: &Path| fs::read_link(process.join("ns/net")).ok();
    let is_here = || network(process).is_none_or(|at| Some(at) == network(Path::new("/proc/self")));
    let is_unseen = || fs::read_dir(process.join("fd")).is_err() || is_here();
    is_of_this_user(process) && is_unseen() && !is_first()
}

/// The process above another one.
enum Parent {
    Process(PathBuf),
    /// It is the first of its namespace.
    None,
    Unknown,
}

fn parent(process: &Path) -> Parent {
    match status_field(process, "PPid:").and_then(|parent| parent.parse::<u32>().ok()) {
        Some(0) => Parent::None,
        Some(parent) => Parent::Process(Path::new("/proc").join(parent.to_string())),
        None => Parent::Unknown,
    }
}

/// Whether a process or one of its ancestors is this program. The gate of a run cannot be looked into; its name can.
fn descends_from_ringfence(process: &Path) -> bool {
    let own = (status_field(Path::new("/proc/self"), "Name:"), program(Path::new("/proc/self")));
    let mut process = process.to_owned();
    for _ in 0..MAX_ANCESTORS {
        let Some(name) = status_field(&process, "Name:") else { return true };
        let same_program = program(&process).is_some_and(|program| Some(program) == own.1);
        if own.0.as_deref() == Some(&name) || same_program {
            return true;
        }
        match parent(&process) {
            Parent::Process(parent) => process = parent,
            Parent::None => return false,
            Parent::Unknown => return true,
        }
    }
    true
}

/// The program of a process by device and inode, also when its file was replaced.
fn program(process: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(process.join("exe")).ok().map(|data| (data.dev(), data.ino()))
}

fn status_field(process: &Path, name: &str) -> Option<String> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::status_field;

    #[test]
    fn status_of_a_process_is_read() {
        assert!(status_field(Path::new("/proc/self"), "PPid:").unwrap().parse::<u32>().is_ok());
        assert_eq!(status_field(Path::new("/proc/none"), "PPid:"), None);
    }
}
