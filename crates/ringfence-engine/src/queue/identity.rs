//! Who a process is: its number, and when it began, for numbers are used again.
#![expect(clippy::disallowed_methods, reason = "the kernel's own files")]

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// So long is what stands in a lock, whoever holds it: to write it over takes no more of a disk that may be full.
const LENGTH: usize = 40;

/// A process, as it says in a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its number.
    pub pid: Pid,
    began: u64,
}

impl Identity {
    /// This process.
    pub(super) fn own() -> io::Result<Self> {
        let pid = rustix::process::getpid();
        let began = began(pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { pid, began })
    }

    /// Something to watch and to signal it by, if it still lives.
    pub fn open(self) -> Option<OwnedFd> {
        let process = pidfd_open(self.pid, PidfdFlags::empty()).ok()?;
        // Looked at once it is held, so that it cannot become another meanwhile.
        (began(self.pid) == Some(self.began)).then_some(process)
    }

    /// Writes into a lock who holds it; nobody yet, if nobody is named.
    pub(super) fn write(identity: Option<Self>, mut lock: &File) -> io::Result<()> {
        let text = match identity {
            Some(Self { pid, began }) => format!("{} {began}", pid.as_raw_nonzero()),
            None => String::new(),
        };
        lock.rewind()?;
        lock.write_all(format!("{text:<width$}\n", width = LENGTH - 1).as_bytes())
    }

    /// Who stands in a lock.
    pub(super) fn read(mut lock: &File) -> io::Result<Option<Self>> {
        let mut text = String::new();
        lock.rewind()?;
        lock.take(LENGTH as u64).read_to_string(&mut text)?;
        let mut words = text.split_whitespace();
        let pid = words.next().and_then(|word| word.parse().ok()).and_then(Pid::from_raw);
        let began = words.next().and_then(|word| word.parse().ok());
        Ok(pid.zip(began).map(|(pid, began)| Self { pid, began }))
    }
}

/// When a process began, in the kernel's own count; one that has ended and was not waited for is none.
fn began(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name stands in brackets and may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    if words.next()? == "Z" {
        return None;
    }
    words.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::Identity;

    #[test]
    fn a_process_that_is_gone_is_not_taken_for_another() {
        let lock = tempfile::tempfile().unwrap();
        Identity::write(None, &lock).unwrap();
        assert_eq!(Identity::read(&lock).unwrap(), None);
        let own = Identity::own().unwrap();
        Identity::write(Some(own), &lock).unwrap();
        assert_eq!(Identity::read(&lock).unwrap(), Some(own));
        assert!(own.open().is_some());
        assert!(Identity { began: own.began + 1, ..own }.open().is_none(), "the number of somebody else");
        let mut child = Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        child.wait().unwrap();
        assert!(Identity { pid, began: own.began }.open().is_none());
    }
}
