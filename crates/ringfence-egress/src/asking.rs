//! A person who is asked for a host that the policy does not name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfence_core::policy::Host;

/// What a person says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// For this run.
    Yes,
    /// Not in this run. Also of one who says nothing in time.
    No,
}

/// Somebody who can be asked.
pub trait Ask: Send + Sync {
    /// Whether a run may reach a host. May take its time, but comes to an end.
    fn ask(&self, host: &Host, port: u16) -> Reply;
}

/// What was asked and answered.
pub(crate) struct Asking {
    person: Option<Arc<dyn Ask>>,
    answers: Mutex<HashMap<(Host, u16), Reply>>,
    /// One question at a time.
    turn: tokio::sync::Mutex<()>,
}

impl Asking {
    pub(crate) fn new(person: Option<Arc<dyn Ask>>) -> Self {
        Self { person, answers: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    fn answers(&self) -> MutexGuard<'_, HashMap<(Host, u16), Reply>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody has said yes.
    pub(crate) fn granted(&self, host: &Host, port: u16) -> bool {
        self.answers().get(&(host.clone(), port)) == Some(&Reply::Yes)
    }

    /// Asks, once for each host and port.
    pub(crate) async fn ask(&self, host: &Host, port: u16) -> Reply {
        let Some(person) = &self.person else { return Reply::No };
        let _turn = self.turn.lock().await;
        let known = self.answers().get(&(host.clone(), port)).copied();
        if let Some(reply) = known {
            return reply;
        }
        let (person, asked) = (Arc::clone(person), host.clone());
        let reply = tokio::task::spawn_blocking(move || person.ask(&asked, port)).await.unwrap_or(Reply::No);
        self.answers().insert((host.clone(), port), reply);
        reply
    }
}
