//! The wish to end a run, from any thread, before or after it has started.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfence_core::backend::{Stop, Stopper};

/// A wish that outlives its run. Clones share it.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    wish: Option<Stop>,
    /// How often it was requested.
    requests: u32,
    stopper: Option<Arc<dyn Stopper>>,
}

impl Cancel {
    /// Wishes for the end. A run that has not started yet will be ended as soon as it does.
    pub fn request(&self, how: Stop) {
        let stopper = {
            let mut state = self.lock();
            state.wish = Some(how);
            state.requests = state.requests.saturating_add(1);
            state.stopper.clone()
        };
        if let Some(stopper) = stopper {
            stopper.stop(how);
        }
    }

    /// Whether somebody wished for the end.
    pub fn requested(&self) -> bool {
        self.lock().wish.is_some()
    }

    /// Whether somebody wished for the end at once.
    pub(crate) fn kills(&self) -> bool {
        matches!(self.lock().wish, Some(Stop::Kill))
    }

    /// How often the end was requested.
    pub(crate) fn requests(&self) -> u32 {
        self.lock().requests
    }

    /// From now on wishes go to this run.
    pub(crate) fn arm(&self, stopper: &Arc<dyn Stopper>) {
        let wish = {
            let mut state = self.lock();
            state.stopper = Some(Arc::clone(stopper));
            state.wish
        };
        if let Some(how) = wish {
            stopper.stop(how);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
