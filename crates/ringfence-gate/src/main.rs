//! The gate as a program of its own. The `ringfence` binary carries the same code for modes that share its file system.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    match ringfence_gate::run(&mut ringfence_gate::Plain::default()) {
        Ok(()) => ExitCode::SUCCESS,
        // Then nobody reads this either.
        Err(ringfence_gate::GateError::Unheard) => ExitCode::from(125),
        Err(error) => {
            // Standard error may be closed; the host learns of it by the end of the socket.
            let _ = writeln!(std::io::stderr(), "ringfence-gate: {error}");
            ExitCode::from(125)
        }
    }
}
