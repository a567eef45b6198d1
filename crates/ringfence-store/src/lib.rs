//! Durable state: what must be there after a crash.
//!
//! One module a noun. What must not be here: decisions. The store keeps what it is given and gives it back.

pub mod atomic;
pub mod runs;
