//! A segment of shared memory as bait.

use std::io;

/// A segment that goes when this is dropped.
#[derive(Debug)]
pub struct SharedMemory(i32);

impl SharedMemory {
    /// One page, for everybody.
    pub fn new() -> io::Result<Self> {
        // SAFETY: makes a segment and maps nothing.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, libc::IPC_CREAT | 0o666) };
        if id < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(id)) }
    }

    /// Its number.
    pub fn id(&self) -> i32 {
        self.0
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: removes the segment that this made; nobody here has it mapped.
        unsafe { libc::shmctl(self.0, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}
