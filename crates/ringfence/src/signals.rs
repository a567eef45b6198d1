//! Ctrl-C and its kin: the first asks the whole run to end, the second ends it.

use std::io::Read;
use std::os::unix::net::UnixStream;

use ringfence_core::backend::Stop;
use ringfence_engine::Cancel;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::terminal;

/// From now on a signal cancels the run.
pub(crate) fn cancel_on_signal(cancel: &Cancel) -> std::io::Result<()> {
    let (mut wait, wake) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, wake.try_clone()?)?;
    }
    let cancel = cancel.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut byte = [0];
        if wait.read_exact(&mut byte).is_ok() {
            cancel.request(Stop::Interrupt);
            // Saying so comes second, and may fail: the terminal may be what has gone.
            terminal::about("\nringfence: ending the run and all that it started (again to kill it at once)");
            // The engine waits only so long; a second signal does not wait at all.
            while wait.read_exact(&mut byte).is_ok() {
                cancel.request(Stop::Kill);
            }
        }
    })?;
    Ok(())
}
