//! What must hold for any bytes, one module a target: `check` panics where it does not, `seeds` are inputs to begin with.
//!
//! `cargo xtask fuzz` runs the targets; `tests/attacks/inputs.rs` includes this file and replays the seeds in the
//! ordinary test suite.

pub mod client_hello;
pub mod gate_frames;
pub mod http1;
pub mod overlay;
pub mod settings;

/// A target: its name, what it checks, and inputs to begin with.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// Every target.
pub const TARGETS: [Target; 5] = [
    ("gate_frames", gate_frames::check, gate_frames::seeds),
    ("http1", http1::check, http1::seeds),
    ("client_hello", client_hello::check, client_hello::seeds),
    ("settings", settings::check, settings::seeds),
    ("overlay", overlay::check, overlay::seeds),
];
