//! All processes that descend from this one, and how to end them.
//!
//! The gate is a subreaper: whoever is orphaned below it becomes its child. So as long as anything of the run lives,
//! there is a child to wait for, and "no child left" means that nothing is left, whatever sessions, groups or double
//! forks were used to get away.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, pidfd_open, pidfd_send_signal, wait,
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

fn status_of(status: WaitStatus) -> Status {
    let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    match status.terminating_signal() {
        Some(signal) => Status::Signal(byte(signal)),
        None => Status::Code(byte(status.exit_status().unwrap_or(i32::MAX))),
    }
}

/// Sends a signal to every descendant. Returns how many there were.
pub(crate) fn signal_all(signal: Signal) -> io::Result<u32> {
    let parents = living()?;
    let mut count = 0;
    for pid in descendants(&parents, getpid().as_raw_nonzero().get()) {
        let Some(target) = Pid::from_raw(pid) else { continue };
        // The descriptor pins the process: if the number was taken over by a stranger in between, the parent differs.
        let Ok(handle) = pidfd_open(target, PidfdFlags::empty()) else { continue };
        if parent_of(pid).is_some_and(|parent| parents.contains_key(&parent))
            && pidfd_send_signal(&handle, signal).is_ok()
        {
            count += 1;
        }
    }
    Ok(count)
}

/// The living processes with their parents. A process that has ended and waits to be reaped is not living.
fn living() -> io::Result<BTreeMap<i32, i32>> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        if let Some(pid) = name.to_str().and_then(|name| name.parse().ok())
            && let Some(parent) = parent_of(pid)
        {
            parents.insert(pid, parent);
        }
    }
    Ok(parents)
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, also parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (state != "Z" && state != "X").then_some(parent)
}

fn descendants(parents: &BTreeMap<i32, i32>, root: i32) -> Vec<i32> {
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(parents.iter().filter(|(_, of)| **of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::descendants;

    #[test]
    fn descendants_are_found_over_generations_and_nobody_else_is() {
        let parents = BTreeMap::from([(1, 0), (10, 1), (11, 10), (12, 11), (20, 1), (21, 20)]);
        assert_eq!(descendants(&parents, 10), vec![11, 12]);
    }
}
