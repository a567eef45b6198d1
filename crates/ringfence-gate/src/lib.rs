//! The gate: the first process of every run.
//!
//! It starts the agent CLI in a session of its own, adopts whatever that leaves behind, and ends only when nothing of
//! it is alive. The host speaks to it over its standard input, a socket: when the host's end closes, by intent or
//! because the host was killed, everything ends.
//!
//! What must not be here: policy, settings, knowledge of agent CLIs. The gate does as it is told by the wire.

mod descriptors;
mod family;
mod program;
mod spawn;
mod start;
mod supervise;
mod sweep;
mod wire;

pub use descriptors::raise_descriptor_limit;
pub use family::{status_of, threads_in_sight};
pub use program::dump_no_core;
pub use spawn::{Plain, Spawned, Spawner, StartFailure, spawn_program};
pub use start::{Elsewhere, OWN_FILE, Started, exec, fork, own_command};
pub use supervise::{GateError, run, run_at};
pub use sweep::{adopt, sweep};
pub use wire::{
    Limit, Order, Report, Signal, Spec, StartProblem, Status, Stream, WireError, decode, encode, read_frame,
    receive, send, write_frame,
};
