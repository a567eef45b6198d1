//! Change notification: a file whose timestamp every write to the queue updates, and inotify watches on it.
//!
//! A notification without a watcher costs one system call; a watcher without a notification never wakes up.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;

/// Name of the file below the state directory.
const FILE: &str = "queue.notify";

/// Notifies all processes of an installation of changes to the queue.
#[derive(Debug)]
pub struct ChangeNotifier {
    path: PathBuf,
}

impl ChangeNotifier {
    /// Returns the notifier of a state directory, which has to exist.
    pub fn new(state: &Path) -> Self {
        Self { path: state.join(FILE) }
    }

    /// Wakes all watchers. Errors are ignored: watchers look again after a timeout.
    pub fn notify(&self) {
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

    /// Starts to watch for notifications.
    pub fn listen(&self) -> io::Result<FileWatcher> {
        self.open()?;
        FileWatcher::watch(&self.path, inotify::WatchFlags::ATTRIB)
    }
}

/// An inotify watch on a file or directory.
#[derive(Debug)]
pub struct FileWatcher {
    inotify: OwnedFd,
}

impl AsFd for FileWatcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl FileWatcher {
    /// Watches a directory for files that are closed after writing or moved into it.
    pub fn directory(path: &Path) -> io::Result<Self> {
        Self::watch(path, inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::CLOSE_WRITE)
    }

    /// Watches a file for writes.
    pub fn file(path: &Path) -> io::Result<Self> {
        Self::watch(path, inotify::WatchFlags::MODIFY | inotify::WatchFlags::CLOSE_WRITE)
    }

    fn watch(path: &Path, flags: inotify::WatchFlags) -> io::Result<Self> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&inotify, path, flags)?;
        Ok(Self { inotify })
    }

    /// Discards pending notifications.
    pub fn clear(&self) {
        let mut buffer = [0; 4096];
        while rustix::io::read(&self.inotify, &mut buffer).is_ok_and(|read| read > 0) {}
    }

    /// Blocks until a notification arrives or the timeout passes, and discards all pending ones. A notification that
    /// arrived since the last call counts.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
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

    use super::ChangeNotifier;

    #[test]
    fn notification_wakes_all_watchers_also_before_they_wait() {
        let dir = tempfile::tempdir().unwrap();
        let notifier = ChangeNotifier::new(dir.path());
        let (one, two) = (notifier.listen().unwrap(), notifier.listen().unwrap());
        notifier.notify();
        for watcher in [&one, &two] {
            let start = Instant::now();
            watcher.wait(Some(Duration::from_secs(20))).unwrap();
            assert!(start.elapsed() < Duration::from_secs(10));
            watcher.wait(Some(Duration::from_millis(10))).unwrap();
        }
    }
}
