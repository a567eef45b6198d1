//! Whether the process that has accepted a connection on a Unix socket is of this user, outside of every run: asked by the command
//! line before it sends a credential there.
//!
//! `SO_PEERCRED` tells who listens. The processes that hold the accepted end have to be outside of runs too: a listener can be
//! passed on, and its process may have ended. Where the kernel does not tell, the answer is no.

use tokio::net::UnixStream;

/// The inode of the accepted end.
#[cfg(target_os = "linux")]
fn accepted_end(stream: &UnixStream) -> Option<u64> {
    ringfence_egress::peer_of_inode(rustix::fs::fstat(stream).ok()?.st_ino)
}

#[cfg(not(target_os = "linux"))]
fn accepted_end(_: &UnixStream) -> Option<u64> {
    None
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
