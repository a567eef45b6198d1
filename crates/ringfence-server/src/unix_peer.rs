//! Whether the process at the other end of a connection on a Unix socket is of this user, outside of every run.
//!
//! The command line asks it before it sends a credential. `SO_PEERCRED` tells who listens. The processes that hold the accepted end have to
//! be outside of runs too: a listener can be passed on, and its process may have ended. Where the kernel does not tell, the answer is no.
//!
//! The daemon asks it once for each connection: a run has its owner's uid, and may see the socket of a state directory that was made while
//! it goes on. The process that has connected must still hold its end, and no gate may be above it.

use tokio::net::UnixStream;

use crate::access::Peer;

/// The inode of the accepted end.
#[cfg(target_os = "linux")]
fn accepted_end(stream: &UnixStream) -> Option<u64> {
    ringfence_egress::peer_of_inode(rustix::fs::fstat(stream).ok()?.st_ino).ok().flatten()
}

#[cfg(not(target_os = "linux"))]
fn accepted_end(_: &UnixStream) -> Option<u64> {
    None
}

/// As what a process of this user is served that has connected. One that has closed its end, or has ended, may have been a run's.
#[cfg(target_os = "linux")]
pub(crate) fn client(stream: &UnixStream) -> Peer {
    use ringfence_egress::{peer_of_inode, processes::is_held_outside_of_runs_by};
    let pid = stream.peer_cred().ok().and_then(|peer| peer.pid()).and_then(|pid| u32::try_from(pid).ok());
    // A process of a pid namespace outside of the daemon's has no number here, and so no run's has.
    let Some(pid) = pid.filter(|pid| *pid != 0) else { return Peer::Elsewhere };
    let inode = rustix::fs::fstat(stream).map(|data| peer_of_inode(data.st_ino));
    let is_outside = match inode {
        Ok(Ok(Some(inode))) => is_held_outside_of_runs_by(pid, Some(inode)),
        // The kernel does not tell.
        Ok(Err(_)) => is_held_outside_of_runs_by(pid, None),
        Ok(Ok(None)) | Err(_) => false,
    };
    if is_outside { Peer::Socket } else { Peer::Run }
}

/// Elsewhere than on Linux the uid alone tells.
#[cfg(not(target_os = "linux"))]
pub(crate) fn client(_: &UnixStream) -> Peer {
    Peer::Socket
}

/// Whether a process has accepted the connection.
pub(crate) fn is_accepted(stream: &UnixStream) -> bool {
    accepted_end(stream).is_some()
}

/// Whether the connection leads to a process of this user that no run has started.
pub(crate) fn is_owner_outside_of_runs(stream: &UnixStream) -> bool {
    use ringfence_egress::processes::{Role, are_outside_of_runs, holders};
    let own = rustix::process::geteuid().as_raw();
    let is_own = stream.peer_cred().is_ok_and(|peer| peer.uid() == own);
    let Some(inode) = accepted_end(stream).filter(|_| is_own) else { return false };
    are_outside_of_runs(&holders(inode), Role::Server) && accepted_end(stream) == Some(inode)
}
