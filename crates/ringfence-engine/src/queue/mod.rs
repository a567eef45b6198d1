//! The queue at work: who takes tasks, who does them, who is told.
//!
//! ```text
//!   dispatcher, worker-N … ──claims──▶ task ──launches──▶ runner (one process a run) ──▶ sandbox
//!        ▲ watches, settles lost runners                   │ heartbeats, ends the task itself
//!        └──────────────── lock of the run ◀────────────────┘ held as long as anything of it lives
//! ```
//! A runner needs nobody: whoever launched it may die, and it still ends its task. Whether a runner lives is told by a
//! lock that the kernel frees, never by a clock.

mod dispatcher;
mod end;
mod held;
mod identity;
mod lease;
mod manager;
mod process;
mod waiting;
mod webhook;

pub use dispatcher::{Dispatcher, DispatcherError, Post, Premises, QueueSettings};
pub use end::{finish, incident_of, write_letters};
pub use held::{Holder, RunLocks};
pub use identity::Identity;
pub use lease::{HEARTBEAT, LEASE, keep_alive};
pub use manager::{Manager, ManagerError, ProcessCommand, RESIDENT_SKIPPED, Startable, ask_start, ask_stop};
pub use process::{ProcessLocks, ProcessName};
pub use waiting::{DRAIN, pause};
pub use webhook::{Deliverer, SIGNATURE_HEADER, sign};
