//! A runner's word that it lives.

use std::sync::Arc;
use std::time::Duration;

use ringfence_core::backend::Stop;
use ringfence_core::ids::TaskId;
use ringfence_core::task::{RetryRule, TaskEvent};
use ringfence_store::{Change, Store, StoreError, TaskPolicy};

use super::waiting::pause;
use crate::cancel::Cancel;
use crate::clock::Clock;

/// How long a lease holds after each heartbeat.
pub const LEASE: Duration = Duration::from_secs(60);
/// How often a runner says that it lives.
pub const HEARTBEAT: Duration = Duration::from_secs(15);

/// Says so again and again, until the process ends. A runner whose lease is not its own any more ends its run.
pub fn keep_alive(
    store: Arc<dyn Store>,
    task: TaskId,
    fence: u64,
    clock: Clock,
    cancel: Cancel,
) -> std::io::Result<()> {
    let rules = TaskPolicy { retry: RetryRule::DEFAULT, webhook: None };
    std::thread::Builder::new().name("heartbeat".into()).spawn(move || {
        loop {
            pause(HEARTBEAT);
            let now = clock.now();
            let event = TaskEvent::Heartbeat { fence, until: now.seconds() + LEASE.as_secs() };
            let change =
                Change { task: &task, event, rules: &rules, jitter: 0, result: None, workspace: None };
            // Any other error, such as a full disk, says nothing about the lease.
            if let Err(StoreError::Step { .. } | StoreError::NoTask(_)) = store.change(&change, now) {
                // Whoever took the lease away has asked for the end as well; this is for those who could not.
                cancel.request(Stop::Interrupt);
                return;
            }
        }
    })?;
    Ok(())
}
