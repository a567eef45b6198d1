//! All processes that descend from one, and how to end them.
//!
//! The gate is a subreaper: whoever is orphaned below it becomes its child. So as long as anything of the run lives,
//! there is a child to wait for, and "no child left" means that nothing is left, whatever sessions, groups or double
//! forks were used to get away.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, pidfd_open, pidfd_send_signal, wait,
};

use crate::wire::Status;

/// What came of waiting for children.
pub(crate) enum Reaped {
    /// Children live.
    SomeLeft,
    /// No child is left, so nothing is.
    NoneLeft,
}

/// Waits for every child that has ended, and tells of each.
pub(crate) fn reap(mut ended: impl FnMut(Pid, Status)) -> io::Result<Reaped> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => ended(pid, status_of(status)),
            Ok(None) => return Ok(Reaped::SomeLeft),
            Err(rustix::io::Errno::CHILD) => return Ok(Reaped::NoneLeft),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// All threads that can be seen. In a namespace of its own, those are the run's.
pub fn threads_in_sight() -> io::Result<u32> {
    Ok(Census::take()?.0.values().map(|member| member.threads).sum())
}

/// How a process ended.
pub fn status_of(status: WaitStatus) -> Status {
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    match status.terminating_signal() {
        Some(signal) => Status::Signal(byte(signal)),
        None => Status::Code(byte(status.exit_status().unwrap_or(i32::MAX))),
    }
}

/// A process, as far as families are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) parent: i32,
    pub(crate) session: i32,
    /// It has ended and only waits to be reaped.
    pub(crate) ended: bool,
    pub(crate) threads: u32,
}

/// The processes of the machine at one moment.
#[derive(Debug, Default)]
pub(crate) struct Census(BTreeMap<i32, Member>);

impl Census {
    pub(crate) fn take() -> io::Result<Self> {
        let mut members = BTreeMap::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            if let Some(pid) = name.to_str().and_then(|name| name.parse().ok())
                && let Some(member) = look_at(pid)
            {
                members.insert(pid, member);
            }
        }
        Ok(Self(members))
    }

    /// Everyone below a process.
    pub(crate) fn below(&self, root: i32) -> Vec<i32> {
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for (pid, member) in &self.0 {
            children.entry(member.parent).or_default().push(*pid);
        }
        let mut found = vec![root];
        let mut next = 0;
        while let Some(parent) = found.get(next) {
            found.extend(children.get(parent).into_iter().flatten().copied());
            next += 1;
        }
        found.split_off(1)
    }

    /// The session of a process: 0 if its leader is outside of this pid namespace, where its number means nothing.
    pub(crate) fn session(&self, pid: i32) -> i32 {
        self.0.get(&pid).map_or(0, |member| member.session)
    }

    /// The children of a process that belong to another session.
    pub(crate) fn strangers(&self, parent: i32, session: i32) -> impl Iterator<Item = i32> + '_ {
        self.0
            .iter()
            .filter(move |(_, member)| member.parent == parent && member.session != session)
            .map(|(pid, _)| *pid)
    }

    pub(crate) fn lives(&self, pid: i32) -> bool {
        self.0.get(&pid).is_some_and(|member| !member.ended)
    }

    /// Sends a signal to each of these. Returns how many of them live.
    ///
    /// Also to those that look ended: a process whose first thread has gone looks so while its others work on.
    pub(crate) fn signal(&self, pids: &[i32], root: i32, signal: Signal) -> u32 {
        let family: BTreeSet<i32> = pids.iter().copied().chain([root]).collect();
        let mut living = 0;
        for pid in pids {
            let Some(target) = Pid::from_raw(*pid) else { continue };
            // The descriptor pins the process: if the number was taken over by a stranger in between, its parent is
            // not of this family.
            let Ok(handle) = pidfd_open(target, PidfdFlags::empty()) else { continue };
            let of_family = look_at(*pid).is_some_and(|member| family.contains(&member.parent));
            if of_family && pidfd_send_signal(&handle, signal).is_ok() && self.lives(*pid) {
                living += 1;
            }
        }
        living
    }

    /// All threads of these.
    pub(crate) fn threads(&self, pids: &[i32]) -> u32 {
        pids.iter().filter_map(|pid| self.0.get(pid)).map(|member| member.threads).sum()
    }

    /// Bytes of memory that the living of these hold. Shared memory counts for each that has it.
    pub(crate) fn memory(&self, pids: &[i32]) -> u64 {
        pids.iter().filter(|pid| self.lives(**pid)).map(|pid| memory_of(*pid)).sum()
    }
}

fn look_at(pid: i32) -> Option<Member> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything: parentheses, line ends, half a character.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields: Vec<&str> = std::str::from_utf8(&stat[after_name..]).ok()?.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<i32>().ok();
    let gone = matches!(*fields.first()?, "Z" | "X");
    let threads = number(17)?;
    Some(Member {
        parent: number(1)?,
        session: number(3)?,
        ended: gone && threads <= 1,
        threads: u32::try_from(threads).unwrap_or(0),
    })
}

/// What counts as memory of a process: its own pages, shared ones, those that are swapped out, its page tables, and huge
/// pages of the machine's reserve, which are in none of the others.
const MEMORY: [&str; 5] = ["RssAnon:", "RssShmem:", "VmSwap:", "VmPTE:", "HugetlbPages:"];
/// Most threads that are looked at for the memory of their process.
const MAX_THREADS: usize = 64;

fn memory_of(pid: i32) -> u64 {
    let own = fs::read(format!("/proc/{pid}/status")).ok().and_then(|status| memory_in(&status));
    own.or_else(|| memory_of_threads(pid)).unwrap_or(0)
}

/// A thread that has ended tells nothing of the memory, even if it was the first one. The others do.
fn memory_of_threads(pid: i32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.take(MAX_THREADS);
    let status = |thread: io::Result<fs::DirEntry>| fs::read(thread.ok()?.path().join("status")).ok();
    threads.filter_map(status).find_map(|status| memory_in(&status))
}

/// Bytes of memory by the text that the kernel has of a thread; `None` if it has ended.
fn memory_in(status: &[u8]) -> Option<u64> {
    let status = String::from_utf8_lossy(status);
    let kilobytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let [first, rest @ ..] = MEMORY;
    let first = kilobytes(first)?;
    Some(rest.into_iter().filter_map(kilobytes).fold(first, u64::saturating_add) << 10)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Census, Member, memory_in};

    #[test]
    fn descendants_are_found_over_generations_and_nobody_else_is() {
        let members = [(1, 0), (10, 1), (11, 10), (12, 11), (20, 1), (21, 20)];
        let member = |parent| Member { parent, session: 1, ended: false, threads: 1 };
        let census = Census(BTreeMap::from(members.map(|(pid, parent)| (pid, member(parent)))));
        assert_eq!(census.below(10), vec![11, 12]);
    }

    #[test]
    fn this_very_process_is_found_with_its_parent_and_its_memory() {
        let census = Census::take().unwrap();
        let me = std::process::id() as i32;
        let parent = std::os::unix::process::parent_id() as i32;
        assert!(census.lives(me) && census.below(parent).contains(&me));
        assert!(census.memory(&[me]) > 100_000);
    }

    #[test]
    fn memory_counts_all_kinds_and_an_ended_thread_has_none() {
        let living = b"Name:\tx\nVmPTE:\t      40 kB\nRssAnon:\t 100 kB\nRssFile:\t 7 kB\nRssShmem:\t 20 kB\nVmSwap:\t 3 kB\nHugetlbPages:\t 2048 kB\n";
        assert_eq!(memory_in(living), Some((163 + 2048) << 10));
        assert_eq!(memory_in(b"Name:\tx\nState:\tZ (zombie)\nThreads:\t2\n"), None);
    }

    #[test]
    fn process_whose_first_thread_has_ended_has_its_memory() {
        let script = "import ctypes, threading, time
held = bytearray(b'x') * (64 << 20)
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)";
        let mut child = std::process::Command::new("/usr/bin/python3").args(["-c", script]).spawn().unwrap();
        let status = format!("/proc/{}/status", child.id());
        let ended = || memory_in(&std::fs::read(&status).unwrap()).is_none();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !ended() && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        let memory = super::memory_of(i32::try_from(child.id()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(memory > 64 << 20, "{memory}");
    }
}
