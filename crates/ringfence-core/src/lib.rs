//! The vocabulary of ringfence.
//!
//! Everything here is data and pure decisions. What must not be here: IO of any kind, an async runtime, `unsafe`,
//! a clock, randomness. Whoever needs the time passes it in.
#![warn(missing_docs)]

pub mod backend;
pub mod capability;
pub mod config;
pub mod event;
pub mod failure;
pub mod ids;
pub mod json;
pub mod locations;
pub mod mode;
pub mod paths;
pub mod plan;
pub mod policy;
pub mod record;
mod suggest;
pub mod task;
pub mod text;
pub mod units;

pub use suggest::nearest;
