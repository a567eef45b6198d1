//! The host's second line: ending a run whose gate was killed, stopped or has lost its way.
//!
//! The host is a subreaper too, so what a dead gate leaves behind becomes the host's child. It is told apart from the
//! host's own children by its session: the gate leads one of its own, and nobody can come back from there.

use std::collections::BTreeSet;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, set_child_subreaper, waitid, waitpid,
};

use crate::family::Census;

/// How often to look again for processes that were born while others were being ended.
const AGAIN: Duration = Duration::from_millis(10);

/// From now on orphans of the runs of this process come to it. Needed once, harmless again.
///
/// Not where others' orphans would come too: in a process that was given children by whoever it was before, or in the
/// first process of a container. There the gate alone has to do.
pub fn adopt() -> io::Result<()> {
    if adopting() {
        set_child_subreaper(Some(getpid()))?;
    }
    Ok(())
}

/// Whether every child in another session is of our runs. Decided before the first run.
fn adopting() -> bool {
    static ADOPTING: OnceLock<bool> = OnceLock::new();
    *ADOPTING.get_or_init(|| getpid().as_raw_nonzero().get() != 1 && !has_children())
}

/// Whether this process has any child at all, ended ones too.
fn has_children() -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, look), Err(rustix::io::Errno::CHILD))
}

/// Ends what is below a gate and what dead gates have left, but not what is below the other gates. Returns how many
/// live after all that patience.
pub fn sweep(gate: u32, other_gates: &BTreeSet<u32>, patience: Duration) -> io::Result<u32> {
    if !has_children() {
        return Ok(0);
    }
    let deadline = Instant::now() + patience;
    let me = getpid().as_raw_nonzero().get();
    let number = |pid: &u32| i32::try_from(*pid).unwrap_or(0);
    let spared: BTreeSet<i32> = other_gates.iter().chain([&gate]).map(number).collect();
    loop {
        let census = Census::take()?;
        let session = census.session(me);
        let below_gate = census.below(number(&gate));
        let mut living = census.signal(&below_gate, number(&gate), Signal::KILL);
        let orphans = census.strangers(me, session).filter(|pid| adopting() && !spared.contains(pid));
        for orphan in orphans {
            let family: Vec<i32> = census.below(orphan).into_iter().chain([orphan]).collect();
            living += census.signal(&family, me, Signal::KILL);
            let _ = Pid::from_raw(orphan).map(|pid| waitpid(Some(pid), WaitOptions::NOHANG));
        }
        if living == 0 || Instant::now() >= deadline {
            return Ok(living);
        }
        pause(AGAIN);
    }
}

/// Lets the kernel do its work.
fn pause(time: Duration) {
    let time = Timespec::try_from(time).ok();
    let _ = poll(&mut [] as &mut [PollFd<'_>], time.as_ref());
}
