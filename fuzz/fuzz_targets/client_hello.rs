//! Runs `client_hello` of the harness.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringfence_fuzz::client_hello::check(data));
