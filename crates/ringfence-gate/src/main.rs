//! The gate as a program of its own. The `ringfence` binary carries the same code for modes that share its file system.

use std::process::ExitCode;

fn main() -> ExitCode {
    match ringfence_gate::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringfence-gate: {error}");
            ExitCode::from(125)
        }
    }
}
