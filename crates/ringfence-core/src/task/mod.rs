//! Tasks: what is to be done, and how far it has come.

mod lifecycle;
mod spec;

pub use lifecycle::{Lifecycle, RetryRule, State, StepError, TaskEvent, TaskStatus, UnixSeconds};
pub use spec::{InvalidTaskSpec, Role, TaskSpec};
