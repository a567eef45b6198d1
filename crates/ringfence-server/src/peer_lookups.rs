//! Look-ups of the process at the other end of a connection, on threads of their own.
//!
//! A look-up reads the kernel's lists of sockets and processes, which other users can make long. So there is one at a time for
//! requests that carry something right (a session, a login code, a key) and one for those that carry nothing. They wait for each
//! other and hold no thread that other requests need: those on the Unix socket are never delayed. As many wait as there are
//! connections (`connections`): one that is closed meanwhile gives its turn up.

use std::io;

use ringfence_egress::processes::Role;
use tokio::sync::{mpsc, oneshot};

use crate::loopback_peer::{self, Ends};

/// Look-ups in a queue; more requests wait for a place in it.
const QUEUE_LENGTH: usize = 1;

/// What is asked about a connection.
type Question = fn(&Ends) -> bool;

/// A look-up that waits for its turn.
struct Lookup {
    ends: Ends,
    question: Question,
    answer: oneshot::Sender<bool>,
}

/// The threads that look up.
pub(crate) struct PeerLookups {
    known: mpsc::Sender<Lookup>,
    unknown: mpsc::Sender<Lookup>,
}

impl PeerLookups {
    /// Starts the threads. They end with this.
    pub(crate) fn start() -> io::Result<Self> {
        Ok(Self { known: start("peers")?, unknown: start("unknown-peers")? })
    }

    /// Whether a connection that carries something right belongs to a process of the daemon's owner, and to no run.
    pub(crate) async fn is_of_owner(&self, ends: &Ends) -> bool {
        look_up(&self.known, ends, loopback_peer::is_of_owner).await
    }

    /// Whether a connection that carries a token or a key that is right belongs to no run.
    pub(crate) async fn may_use_credentials(&self, ends: &Ends) -> bool {
        look_up(&self.known, ends, loopback_peer::may_use_credentials).await
    }

    /// Whether a connection that carries nothing belongs to a process of the daemon's owner that no run has started.
    pub(crate) async fn is_owner_outside_of_runs(&self, ends: &Ends) -> bool {
        let question: Question = |ends| loopback_peer::is_owner_outside_of_runs(ends, Role::Client);
        look_up(&self.unknown, ends, question).await
    }
}

/// Waits for the turn of a look-up and for its answer.
async fn look_up(queue: &mpsc::Sender<Lookup>, ends: &Ends, question: Question) -> bool {
    let (answer, answered) = oneshot::channel();
    let ends = ends.clone();
    queue.send(Lookup { ends, question, answer }).await.is_ok() && answered.await.unwrap_or(false)
}

fn start(name: &str) -> io::Result<mpsc::Sender<Lookup>> {
    let (sender, mut waiting) = mpsc::channel::<Lookup>(QUEUE_LENGTH);
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        while let Some(Lookup { ends, question, answer }) = waiting.blocking_recv() {
            // The connection may have ended meanwhile, and with it the request.
            if !answer.is_closed() {
                let _ = answer.send(question(&ends));
            }
        }
    })?;
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::{Ends, PeerLookups, look_up};

    /// Held while no look-up is to end.
    static TURN: Mutex<()> = Mutex::new(());
    static DONE: AtomicUsize = AtomicUsize::new(0);

    fn ends() -> Ends {
        Ends::unconnected("127.0.0.1:1", "127.0.0.1:2")
    }

    fn wait_for_turn(_: &Ends) -> bool {
        let turn = TURN.lock().is_ok();
        DONE.fetch_add(1, Ordering::SeqCst);
        turn
    }

    #[test]
    fn unknown_peers_wait_for_each_other_and_delay_no_known_one() {
        let lookups = PeerLookups::start().unwrap();
        let turn = TURN.lock().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let ends = ends();
            let many = || join_all((0..100).map(|_| look_up(&lookups.unknown, &ends, wait_for_turn)));
            let (mut left, mut staying) = (Box::pin(many()), Box::pin(many()));
            assert!(left.as_mut().now_or_never().is_none() && staying.as_mut().now_or_never().is_none());
            assert!(!lookups.is_of_owner(&ends).await, "there is no such connection");
            assert!(staying.as_mut().now_or_never().is_none());
            drop(left);
            drop(turn);
            assert_eq!(staying.await, [true; 100]);
        });
        // Of those who left, one had its turn already.
        assert!(DONE.load(Ordering::SeqCst) <= 101, "{DONE:?}");
    }
}
