//! Waiting for others, and seeing to it that nobody else does the same.
#![expect(clippy::disallowed_methods, reason = "files of the state directory, which no run sees")]

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::fs::{FlockOperation, flock};

/// The lock of a file or directory that nobody has. It is over when the result is dropped, or the process ends.
pub(crate) fn locked(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Lets some time pass.
pub(crate) fn pause(time: Duration) {
    let time = Timespec::try_from(time).ok();
    let _ = poll(&mut [], time.as_ref());
}
