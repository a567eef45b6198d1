//! Places for TCP connections. One that has not authenticated yet holds none of the places of those that have: it is
//! closed after a short time, and earlier when newer ones arrive.
//!
//! ```text
//! unauthenticated ──a right credential──▶ presented ──it counts on this connection──▶ authenticated
//!        ▲                                    │
//!        └────────────it does not─────────────┘
//! ```
//!
//! Finding out whose a connection is takes time, and newer connections do not evict it meanwhile: else a flood of connections without
//! a credential would evict those of the owner.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::app::lock;

/// Authenticated connections at once, as long as there are descriptors for many more: the queue needs some of its own.
const MAX_AUTHENTICATED: usize = 2048;
/// Connections at once that have not authenticated; the oldest is closed first.
const MAX_UNAUTHENTICATED: usize = 256;
/// Connections at once that have presented a right credential while it is looked up whose they are.
const MAX_PRESENTED: usize = 256;
/// Descriptors that are not for connections.
const RESERVED_DESCRIPTORS: usize = 256;
/// That of its stream, and one to ask its socket (`loopback_peer`).
const DESCRIPTORS_PER_CONNECTION: usize = 2;
/// How long a connection may be open without having authenticated.
const UNAUTHENTICATED_LIFETIME: Duration = Duration::from_secs(15);

/// All TCP connections of a server.
pub(crate) struct Connections {
    unauthenticated: Mutex<VecDeque<Arc<Connection>>>,
    max_unauthenticated: usize,
    presented: Arc<Semaphore>,
    authenticated: Arc<Semaphore>,
}

/// One TCP connection.
pub(crate) struct Connection {
    evicted: Notify,
    place: OnceLock<OwnedSemaphorePermit>,
    all: Arc<Connections>,
}

/// Keeps a connection from being evicted, until it is dropped.
pub(crate) struct Presented {
    connection: Arc<Connection>,
    _place: OwnedSemaphorePermit,
}

/// Ends the bookkeeping of a connection when it is dropped.
pub(crate) struct Entry(pub(crate) Arc<Connection>);

impl Connections {
    /// With as many places as the process has descriptors for.
    pub(crate) fn new() -> Arc<Self> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let available = limit.saturating_sub(RESERVED_DESCRIPTORS) / DESCRIPTORS_PER_CONNECTION;
        let all = available.clamp(16, MAX_AUTHENTICATED + MAX_PRESENTED + MAX_UNAUTHENTICATED);
        let (unauthenticated, presented) = (MAX_UNAUTHENTICATED.min(all / 4), MAX_PRESENTED.min(all / 8));
        Self::with(unauthenticated, presented, all - unauthenticated - presented)
    }

    fn with(max_unauthenticated: usize, presented: usize, authenticated: usize) -> Arc<Self> {
        Arc::new(Self {
            unauthenticated: Mutex::default(),
            max_unauthenticated,
            presented: Arc::new(Semaphore::new(presented)),
            authenticated: Arc::new(Semaphore::new(authenticated)),
        })
    }

    /// Takes in a new connection. If there are too many that have not authenticated, the oldest of them ends.
    pub(crate) fn accept(self: &Arc<Self>) -> Entry {
        let new =
            Arc::new(Connection { evicted: Notify::new(), place: OnceLock::new(), all: Arc::clone(self) });
        self.enqueue(Arc::clone(&new));
        Entry(new)
    }

    /// Makes a connection the newest of those that have not authenticated.
    fn enqueue(&self, connection: Arc<Connection>) {
        let mut waiting = lock(&self.unauthenticated);
        waiting.push_back(connection);
        if waiting.len() > self.max_unauthenticated
            && let Some(oldest) = waiting.pop_front()
        {
            oldest.evicted.notify_one();
        }
    }
}

impl Connection {
    /// Keeps the connection from being evicted while it is looked up whose it is: a request on it has presented a right credential that
    /// cannot be guessed. `None` if it has authenticated, was evicted, or too many others are looked up.
    pub(crate) fn presented(self: &Arc<Self>) -> Option<Presented> {
        if self.is_authenticated() {
            return None;
        }
        let place = Arc::clone(&self.all.presented).try_acquire_owned().ok()?;
        self.leave().then(|| Presented { connection: Arc::clone(self), _place: place })
    }

    /// Gives the connection a place among the authenticated ones. If there is none, it stays as it is.
    pub(crate) fn authenticated(&self, presented: Option<&Presented>) {
        if self.is_authenticated() {
            return;
        }
        let Ok(place) = Arc::clone(&self.all.authenticated).try_acquire_owned() else { return };
        if presented.is_some() || self.leave() {
            let _ = self.place.set(place);
        }
    }

    /// Whether a request on it has authenticated.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.place.get().is_some()
    }

    /// Takes the connection out of the unauthenticated ones; `false` if it was not among them.
    fn leave(&self) -> bool {
        let mut waiting = lock(&self.all.unauthenticated);
        let found = waiting.iter().position(|other| std::ptr::eq(Arc::as_ptr(other), self));
        found.is_some_and(|index| waiting.remove(index).is_some())
    }

    /// Waits until the connection has to be closed: never, once it has authenticated.
    pub(crate) async fn expired(&self) {
        let too_late = async {
            tokio::time::sleep(UNAUTHENTICATED_LIFETIME).await;
            if self.is_authenticated() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.evicted.notified() => {}
            () = too_late => {}
        }
    }
}

impl Drop for Presented {
    fn drop(&mut self) {
        if !self.connection.is_authenticated() {
            self.connection.all.enqueue(Arc::clone(&self.connection));
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::Connections;
    use crate::app::lock;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
    }

    #[test]
    fn oldest_unauthenticated_connection_is_evicted_first() {
        runtime().block_on(async {
            let all = Connections::with(2, 1, 2);
            let [first, second, third] = [(); 3].map(|()| all.accept());
            first.0.expired().await;
            first.0.authenticated(None);
            assert!(first.0.place.get().is_none(), "an evicted connection gets no place");
            second.0.authenticated(None);
            third.0.authenticated(None);
            assert_eq!(all.authenticated.available_permits(), 0);
            assert!(lock(&all.unauthenticated).is_empty());
            let fourth = all.accept();
            fourth.0.authenticated(None);
            assert!(fourth.0.place.get().is_none(), "there is no place left");
            assert_eq!(lock(&all.unauthenticated).len(), 1);
            drop(fourth);
            assert!(lock(&all.unauthenticated).is_empty());
            drop(second);
            assert_eq!(all.authenticated.available_permits(), 1);
        });
    }

    #[test]
    fn unauthenticated_connection_ends_by_itself_and_another_does_not() {
        runtime().block_on(async {
            let all = Connections::with(2, 1, 2);
            let [idle, known] = [(); 2].map(|()| all.accept());
            known.0.authenticated(None);
            let begun = tokio::time::Instant::now();
            idle.0.expired().await;
            assert_eq!(begun.elapsed(), super::UNAUTHENTICATED_LIFETIME);
            let long = std::time::Duration::from_secs(86_400);
            assert!(tokio::time::timeout(long, known.0.expired()).await.is_err());
        });
    }

    #[test]
    fn connection_with_a_right_credential_is_not_evicted_while_it_is_looked_up() {
        runtime().block_on(async {
            let all = Connections::with(2, 1, 2);
            let [own, other] = [(); 2].map(|()| all.accept());
            let presented = own.0.presented().unwrap();
            assert!(other.0.presented().is_none(), "there is one place");
            let flood: Vec<_> = (0..100).map(|_| all.accept()).collect();
            other.0.expired().await;
            assert!(
                tokio::time::timeout(super::UNAUTHENTICATED_LIFETIME / 2, own.0.expired()).await.is_err()
            );
            own.0.authenticated(Some(&presented));
            drop(presented);
            assert!(own.0.is_authenticated());
            assert_eq!((lock(&all.unauthenticated).len(), all.presented.available_permits()), (2, 1));
            drop(flood);
            assert!(lock(&all.unauthenticated).is_empty());
        });
    }

    #[test]
    fn connection_on_which_a_credential_does_not_count_is_evicted_again() {
        runtime().block_on(async {
            let all = Connections::with(2, 1, 2);
            let own = all.accept();
            drop(own.0.presented().unwrap());
            assert_eq!((lock(&all.unauthenticated).len(), all.presented.available_permits()), (1, 1));
            let newer = [(); 2].map(|()| all.accept());
            own.0.expired().await;
            assert!(own.0.presented().is_none(), "it was evicted");
            assert_eq!(all.presented.available_permits(), 1);
            drop((own, newer));
            let held = all.accept();
            let presented = held.0.presented().unwrap();
            let begun = tokio::time::Instant::now();
            held.0.expired().await;
            assert_eq!(begun.elapsed(), super::UNAUTHENTICATED_LIFETIME, "a look-up does not last for ever");
            drop(presented);
        });
    }
}
