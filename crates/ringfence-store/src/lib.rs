//! Durable state, which survives crashes.
//!
//! Each noun has a module and a trait; [`sqlite`] implements all of them in one file. The store makes no decisions: the step
//! function in core computes the next state of a task.

mod active;
pub mod atomic;
mod config;
mod dead_letters;
mod deliveries;
mod error;
mod events;
mod notify;
mod processes;
pub mod runs;
pub mod sqlite;
mod tasks;

pub use active::{ActiveRun, LostRun};
pub use config::SystemConfig;
pub use dead_letters::{DeadLetter, DeadLetters};
pub use deliveries::{Deliveries, Delivery, DeliveryState};
pub use error::StoreError;
pub use events::{Events, NewEvent, StoredEvent};
pub use notify::{ChangeNotifier, FileWatcher};
pub use processes::{ProcessRow, ProcessStatus, Processes};
pub use tasks::{
    Added, AgentRow, Change, Changed, Claim, Counts, Filter, Lease, NewTask, Now, Span, Task, TaskPolicy,
    TaskRun, Tasks,
};

/// The store of a queue.
pub trait Store: Tasks + Events + DeadLetters + Deliveries + Processes + SystemConfig + Send + Sync {}
impl<T: Tasks + Events + DeadLetters + Deliveries + Processes + SystemConfig + Send + Sync> Store for T {}
