//! Long work that is under way, and how far it has come.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::desk::Step;

/// Work that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Work {
    /// What is being found out: `modes`, `doctor`, `compare`, `probe`, or the login of an agent CLI.
    pub(crate) name: &'static str,
    /// So many steps are done.
    pub(crate) done: u64,
    /// So many there are; 0 while nobody knows.
    pub(crate) of: u64,
    /// The step that is under way.
    pub(crate) what: String,
}

/// All of it.
#[derive(Clone)]
pub(crate) struct Works {
    all: Arc<watch::Sender<BTreeMap<u64, Work>>>,
    last: Arc<AtomicU64>,
}

impl Default for Works {
    fn default() -> Self {
        Self { all: Arc::new(watch::Sender::default()), last: Arc::default() }
    }
}

impl Works {
    /// Begins some. It is over when the answer is dropped.
    pub(crate) fn begin(&self, name: &'static str, what: &str) -> UnderWay {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let work = Work { name, done: 0, of: 0, what: what.to_owned() };
        self.all.send_modify(|all| drop(all.insert(number, work)));
        UnderWay { works: self.clone(), number }
    }

    /// What is under way now, the oldest first.
    pub(crate) fn now(&self) -> Vec<Work> {
        self.all.borrow().values().cloned().collect()
    }

    /// That of a name.
    pub(crate) fn named(&self, name: &str) -> Option<Work> {
        self.all.borrow().values().find(|work| work.name == name).cloned()
    }

    /// Hears how things are, and of every step from then on.
    pub(crate) fn follow(&self) -> watch::Receiver<BTreeMap<u64, Work>> {
        let mut steps = self.all.subscribe();
        steps.mark_changed();
        steps
    }
}

/// One of them.
pub(crate) struct UnderWay {
    works: Works,
    number: u64,
}

impl UnderWay {
    /// It has come this far.
    pub(crate) fn at(&self, step: Step) {
        self.works.all.send_modify(|all| {
            if let Some(work) = all.get_mut(&self.number) {
                (work.done, work.of, work.what) = (step.done, step.of, step.what);
            }
        });
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.works.all.send_modify(|all| drop(all.remove(&self.number)));
    }
}

#[cfg(test)]
mod tests {
    use super::Works;
    use crate::desk::Step;

    #[test]
    fn who_is_ready_first_does_not_end_the_other() {
        let works = Works::default();
        let (one, other) = (works.begin("probe", "first"), works.begin("probe", "second"));
        drop(one);
        other.at(Step { done: 2, of: 3, what: "third".into() });
        let now = works.now();
        assert_eq!((now.len(), now[0].done, now[0].what.as_str()), (1, 2, "third"));
        drop(other);
        assert!(works.now().is_empty() && works.named("probe").is_none());
    }
}
