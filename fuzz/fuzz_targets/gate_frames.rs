//! Runs `gate_frames` of the harness.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringfence_fuzz::gate_frames::check(data));
