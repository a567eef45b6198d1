//! Runs `http1` of the harness.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringfence_fuzz::http1::check(data));
