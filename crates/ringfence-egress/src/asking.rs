//! A person who is asked for a host that the policy does not name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfence_core::policy::Host;

/// Questions in one run. Every further host is denied: a run must not ask until the user gives in.
const MAX_QUESTIONS: u32 = 32;
/// Questions in succession that nobody answered. Then nobody is there, and each would hold the run's output for its whole time.
const MAX_UNANSWERED: u32 = 3;

/// What a person says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// For this run.
    Yes,
    /// Not in this run.
    No,
    /// Nothing in time, which is no.
    Unanswered,
}

/// Somebody who can be asked.
pub trait Ask: Send + Sync {
    /// Whether a run may reach a host. May take its time, but comes to an end.
    fn ask(&self, host: &Host, port: u16) -> Reply;

    /// Says once that this host and all later ones of the run are denied without a question.
    fn ask_no_more(&self, host: &Host, port: u16);
}

/// What was asked and answered.
pub(crate) struct Asking {
    person: Option<Arc<dyn Ask>>,
    answers: Mutex<HashMap<(Host, u16), Reply>>,
    /// One question at a time.
    turn: tokio::sync::Mutex<Questions>,
}

/// How many questions a run has caused.
#[derive(Debug, Default)]
struct Questions {
    asked: u32,
    unanswered: u32,
    ended: bool,
}

impl Questions {
    fn may_ask(&self) -> bool {
        self.asked < MAX_QUESTIONS && self.unanswered < MAX_UNANSWERED
    }

    fn count(&mut self, reply: Reply) {
        self.asked += 1;
        self.unanswered = if reply == Reply::Unanswered { self.unanswered + 1 } else { 0 };
    }
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
        let mut questions = self.turn.lock().await;
        let known = self.answers().get(&(host.clone(), port)).copied();
        if let Some(reply) = known {
            return reply;
        }
        let (person, asked) = (Arc::clone(person), host.clone());
        if !questions.may_ask() {
            if !std::mem::replace(&mut questions.ended, true) {
                let _ = tokio::task::spawn_blocking(move || person.ask_no_more(&asked, port)).await;
            }
            // Not remembered: a run can name any number of hosts.
            return Reply::No;
        }
        let reply = tokio::task::spawn_blocking(move || person.ask(&asked, port)).await.unwrap_or(Reply::No);
        questions.count(reply);
        self.answers().insert((host.clone(), port), reply);
        reply
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use ringfence_core::policy::Host;

    use super::{Ask, Asking, MAX_QUESTIONS, MAX_UNANSWERED, Reply};

    /// Always says the same, and counts.
    struct Person {
        reply: Reply,
        questions: AtomicU32,
        ends: AtomicU32,
    }

    impl Ask for Person {
        fn ask(&self, _: &Host, _: u16) -> Reply {
            self.questions.fetch_add(1, Ordering::Relaxed);
            self.reply
        }

        fn ask_no_more(&self, _: &Host, _: u16) {
            self.ends.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often somebody is asked for many hosts, how often told that there are no more questions, and the last reply.
    fn flood(reply: Reply) -> (u32, u32, Reply) {
        let person = Arc::new(Person { reply, questions: AtomicU32::new(0), ends: AtomicU32::new(0) });
        let asking = Asking::new(Some(Arc::clone(&person) as Arc<dyn Ask>));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let last = runtime.block_on(async {
            let mut last = Reply::No;
            for number in 0..100 {
                last = asking.ask(&Host::Name(format!("host-{number}.test")), 443).await;
            }
            assert!(asking.answers().len() <= MAX_QUESTIONS as usize);
            last
        });
        (person.questions.load(Ordering::Relaxed), person.ends.load(Ordering::Relaxed), last)
    }

    #[test]
    fn flood_of_questions_is_bounded_and_then_denied() {
        assert_eq!(flood(Reply::Yes), (MAX_QUESTIONS, 1, Reply::No));
        assert_eq!(flood(Reply::No), (MAX_QUESTIONS, 1, Reply::No));
    }

    #[test]
    fn nobody_is_asked_who_does_not_answer() {
        assert_eq!(flood(Reply::Unanswered), (MAX_UNANSWERED, 1, Reply::No));
    }
}
