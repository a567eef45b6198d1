//! The queue in figures: how it grows, how fast it is beside SQLite alone and BullMQ, how soon a task begins, and what a
//! daemon costs that has nothing to do. `queue-bench BINARY PEERS`, by `cargo xtask bench queue`.
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "a measurement may wait, write and print"
)]

mod daemon;
mod grouped;
mod peers;
mod store;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let binary = PathBuf::from(args.next().context("the binary is not named")?);
    let peers = PathBuf::from(args.next().context("the directory of the peers is not named")?);
    // Beside the checkout, not in memory: what is durable waits for a disk.
    let disk = tempfile::tempdir_in(&peers)?;
    store::curve(disk.path())?;
    peers::throughput(disk.path(), &peers)?;
    daemon::first_byte(&binary)?;
    daemon::idle(&binary)
}

/// The middle, and what 99 of 100 do not exceed.
fn median_and_p99(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
    (at(50), at(99))
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
