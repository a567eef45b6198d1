//! Durable state: what must be there after a crash.
//!
//! One module a noun, one trait a noun; [`sqlite`] keeps them all in one file. What must not be here: decisions. What
//! becomes of a task is said by the step function in core; the store keeps what it is given and gives it back.

mod active;
pub mod atomic;
mod bell;
mod config;
mod dead_letters;
mod deliveries;
mod error;
mod events;
mod processes;
pub mod runs;
pub mod sqlite;
mod tasks;

pub use active::{ActiveRun, LostRun};
pub use bell::{Bell, Listener};
pub use config::SystemConfig;
pub use dead_letters::{DeadLetter, DeadLetters};
pub use deliveries::{Deliveries, Delivery, DeliveryState};
pub use error::StoreError;
pub use events::{Entry, Events, Happened};
pub use processes::{ProcessRow, ProcessStatus, Processes};
pub use tasks::{
    Added, AgentRow, Attempt, Change, Changed, Claim, Counts, Filter, Lease, NewTask, Now, Rules, Span, Task,
    Tasks,
};

/// All that is kept of a queue.
pub trait Store: Tasks + Events + DeadLetters + Deliveries + Processes + SystemConfig + Send + Sync {}
impl<T: Tasks + Events + DeadLetters + Deliveries + Processes + SystemConfig + Send + Sync> Store for T {}
