//! One run, from request to result.
//!
//! The engine knows backends only through the trait in core, so all of it is tested with the fake. The foreground and
//! the queue take the same way through [`run::run`].

mod attachments;
mod cancel;
mod causes;
mod clock;
mod environment;
mod executed;
pub mod git;
mod growth;
pub mod layer;
mod lines;
mod logins;
mod loopback;
mod outside;
pub mod queue;
mod redact;
pub mod run;
mod version;
mod watch;

pub use cancel::Cancel;
pub use clock::Clock;
pub use environment::{Passed, environment};
pub use executed::{ExecutedFile, notice as executed_notice, shown_path};
pub use outside::{Outside, OutsideError};
pub use run::{Job, Observer, RunError, Work, run};
