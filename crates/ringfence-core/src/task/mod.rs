//! Tasks: what is to be done, and how far it has come.

mod life;
mod spec;

pub use life::{Incident, Life, RetryRule, State, StateName, StepError, Time};
pub use spec::{BadSpec, Role, TaskSpec};
