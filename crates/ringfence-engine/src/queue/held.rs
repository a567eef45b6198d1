//! Locks of runs: held by whoever works on a run and by all that it started, freed by the kernel.
#![expect(clippy::disallowed_methods, reason = "locks are in the state directory")]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ringfence_core::ids::RunId;
use ringfence_store::atomic;
use rustix::fs::{FlockOperation, flock};

use super::identity::Identity;

/// The locks of an installation's runs.
#[derive(Debug, Clone)]
pub struct RunLocks {
    directory: PathBuf,
}

/// Who holds the lock of a run.
#[derive(Debug)]
pub enum Holder {
    /// Nobody: all that worked on it is gone. Now it is held by who asked, if there is anything to hold.
    Nobody(Option<File>),
    /// This process, or what it has left.
    Runner(Identity),
    /// Somebody who has not said who it is yet, or who is about to be gone.
    Unnamed,
}

impl RunLocks {
    /// Below a state directory.
    pub fn new(state: &Path) -> Self {
        Self { directory: state.join("queue").join("running") }
    }

    fn path(&self, run: &RunId) -> PathBuf {
        self.directory.join(run.as_str())
    }

    /// Takes the lock of a run that nobody knows yet.
    pub fn take(&self, run: &RunId) -> io::Result<File> {
        atomic::private_dir(&self.directory)?;
        let path = self.path(run);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let taken = Self::hold(&file, &path);
        if taken.is_err() {
            self.forget(run);
        }
        taken.map(|()| file)
    }

    fn hold(file: &File, path: &Path) -> io::Result<()> {
        flock(file, FlockOperation::NonBlockingLockExclusive)?;
        // Whoever sweeps may have taken it for a forgotten one before it was locked.
        let (mine, there) = (file.metadata()?, fs::metadata(path)?);
        if (mine.dev(), mine.ino()) != (there.dev(), there.ino()) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Identity::write(None, file)
    }

    /// Says who holds a lock.
    pub fn sign(lock: &File) -> io::Result<()> {
        Identity::write(Some(Identity::own()?), lock)
    }

    /// Who holds the lock of a run.
    pub fn holder(&self, run: &RunId) -> io::Result<Holder> {
        let file = match OpenOptions::new().read(true).write(true).open(self.path(run)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Holder::Nobody(None)),
            other => other?,
        };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(Holder::Nobody(Some(file)));
        }
        Ok(Identity::read(&file)?.map_or(Holder::Unnamed, Holder::Runner))
    }

    /// Forgets a run. To be called by who holds its lock.
    pub fn forget(&self, run: &RunId) {
        let _ = fs::remove_file(self.path(run));
    }

    /// Forgets the runs that nobody holds and that are not among these: their runners were killed after all was done.
    pub fn sweep(&self, leased: &[&RunId]) {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let runs = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<RunId>().ok());
        for run in runs.filter(|run| !leased.contains(&run)) {
            if let Ok(Holder::Nobody(_lock)) = self.holder(&run) {
                self.forget(&run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Holder, RunLocks};

    #[test]
    fn a_lock_tells_who_works_on_a_run_and_that_nobody_does() {
        let dir = tempfile::tempdir().unwrap();
        let locks = RunLocks::new(dir.path());
        let run = "r".parse().unwrap();
        let lock = locks.take(&run).unwrap();
        assert!(matches!(locks.holder(&run), Ok(Holder::Unnamed)));
        RunLocks::sign(&lock).unwrap();
        assert!(
            matches!(locks.holder(&run), Ok(Holder::Runner(who)) if who.pid == rustix::process::getpid())
        );
        let copy = lock.try_clone().unwrap();
        drop(lock);
        assert!(matches!(locks.holder(&run), Ok(Holder::Runner(_))), "what it started holds it as well");
        drop(copy);
        assert!(matches!(locks.holder(&run), Ok(Holder::Nobody(_))));
        assert!(locks.take(&run).is_err(), "a run's name is used once");
        locks.forget(&run);
        assert!(matches!(locks.holder(&run), Ok(Holder::Nobody(None))));
    }
}
