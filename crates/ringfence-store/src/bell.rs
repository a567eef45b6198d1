//! A bell: whoever changes the queue rings it, whoever waits for work hears it. Without a listener it costs nothing, and
//! without a sound it wakes nobody.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;

/// The bell of an installation.
#[derive(Debug)]
pub struct Bell {
    path: PathBuf,
}

impl Bell {
    /// Below a state directory, which has to exist.
    pub fn new(state: &Path) -> Self {
        Self { path: state.join("bell") }
    }

    /// Rings. Nobody is worse off if that fails: it is only later that they look.
    pub fn ring(&self) {
        let now = rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
            last_modification: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        };
        if let Ok(file) = self.open() {
            let _ = rustix::fs::futimens(&file, &now);
        }
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.path)
    }

    /// From now on hears every ring.
    pub fn listen(&self) -> io::Result<Listener> {
        self.open()?;
        Listener::watch(&self.path, inotify::WatchFlags::ATTRIB)
    }
}

/// Somebody who hears the bell.
#[derive(Debug)]
pub struct Listener {
    inotify: OwnedFd,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl Listener {
    /// Hears of every file that is put into a directory whole.
    pub fn directory(path: &Path) -> io::Result<Self> {
        Self::watch(path, inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::CLOSE_WRITE)
    }

    /// Hears of everything that is written to a file.
    pub fn file(path: &Path) -> io::Result<Self> {
        Self::watch(path, inotify::WatchFlags::MODIFY | inotify::WatchFlags::CLOSE_WRITE)
    }

    fn watch(path: &Path, what: inotify::WatchFlags) -> io::Result<Self> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&inotify, path, what)?;
        Ok(Self { inotify })
    }

    /// Forgets the rings so far.
    pub fn clear(&self) {
        let mut buffer = [0; 4096];
        while rustix::io::read(&self.inotify, &mut buffer).is_ok_and(|read| read > 0) {}
    }

    /// Waits for a ring, or as long as this. Rings since the last time count.
    pub fn wait(&self, at_most: Option<Duration>) -> io::Result<()> {
        let at_most = at_most.and_then(|time| Timespec::try_from(time).ok());
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        match poll(&mut fds, at_most.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Bell;

    #[test]
    fn a_ring_wakes_all_who_listen_and_a_ring_before_waiting_counts() {
        let dir = tempfile::tempdir().unwrap();
        let bell = Bell::new(dir.path());
        let (one, two) = (bell.listen().unwrap(), bell.listen().unwrap());
        bell.ring();
        for listener in [&one, &two] {
            let start = Instant::now();
            listener.wait(Some(Duration::from_secs(20))).unwrap();
            assert!(start.elapsed() < Duration::from_secs(10));
            listener.wait(Some(Duration::from_millis(10))).unwrap();
        }
    }
}
