//! Inputs for every parser that reads what a stranger wrote: those that fuzzing begins with, replayed.
//!
//! `cargo xtask fuzz` goes on from here. An input that it finds becomes a seed in `fuzz/src`.

#[allow(unreachable_pub, reason = "a library of its own for the fuzz targets")]
#[path = "../../fuzz/src/lib.rs"]
mod harness;

fn replay(name: &str) {
    let (_, check, seeds) = harness::TARGETS.into_iter().find(|(target, ..)| *target == name).unwrap();
    let seeds = seeds();
    assert!(seeds.len() >= 10, "{name} has few seeds");
    for seed in seeds {
        check(&seed);
        // The same cut short, and with one byte changed at a few places.
        for at in (0..seed.len()).step_by(1 + seed.len() / 16) {
            check(&seed[..at]);
            let mut changed = seed.clone();
            changed[at] ^= 1 + u8::try_from(at % 255).unwrap();
            check(&changed);
        }
    }
}

#[test]
fn gate_frames() {
    replay("gate_frames");
}

#[test]
fn http1() {
    replay("http1");
}

#[test]
fn client_hello() {
    replay("client_hello");
}

#[test]
fn settings() {
    replay("settings");
}

#[test]
fn overlay() {
    replay("overlay");
}
