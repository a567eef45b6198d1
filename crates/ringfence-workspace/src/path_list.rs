//! A list of paths in a file that several programs of one user add to.
//!
//! The file is never changed: a longer list is written beside it, under a lock, and takes its name. So a reader needs no lock, and a
//! program that is killed, or finds no room, loses nothing of the list.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::file::{ReadError, read_bounded};

/// A list of absolute paths, each ended by a zero byte.
#[derive(Debug, Clone)]
pub(crate) struct PathList {
    pub(crate) file: PathBuf,
    /// No list is longer, in bytes.
    pub(crate) max_bytes: u64,
    /// Most paths in it. Beyond that, those that are gone are left out, then the oldest.
    pub(crate) max_paths: usize,
    /// How many are left then, those that are added included.
    pub(crate) kept_paths: usize,
    /// Whether another program that adds is waited for. Otherwise nothing is added meanwhile, which is an error.
    pub(crate) waits: bool,
}

impl PathList {
    /// The paths, in the order in which they were added. A file that is missing has none.
    pub(crate) fn read(&self) -> io::Result<Vec<PathBuf>> {
        let file = match open_own(&self.file, OpenOptions::new().read(true)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        let text = match read_bounded(file, self.max_bytes) {
            Err(ReadError::Io(error)) => return Err(error),
            read => read.map_err(io::Error::other)?,
        };
        let text = String::from_utf8(text).map_err(io::Error::other)?;
        Ok(text.split_terminator('\0').map(PathBuf::from).filter(|path| path.is_absolute()).collect())
    }

    /// Adds the paths that are missing in the list, by what it holds.
    pub(crate) fn add(&self, missing: impl Fn(&[PathBuf]) -> Vec<PathBuf>) -> io::Result<()> {
        if missing(&self.read()?).is_empty() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let mut paths = self.read()?;
        let new = missing(&paths);
        if new.is_empty() {
            return Ok(());
        }
        if paths.len() + new.len() > self.max_paths {
            paths.retain(|path| path.symlink_metadata().is_ok());
            let surplus = (paths.len() + new.len()).saturating_sub(self.kept_paths);
            paths.drain(..surplus.min(paths.len()));
        }
        paths.extend(new);
        self.replace(&paths)
    }

    fn lock(&self) -> io::Result<File> {
        let options = &mut OpenOptions::new();
        let lock = open_own(&self.beside("lock"), options.create(true).append(true).mode(0o600))?;
        let operation = match self.waits {
            true => FlockOperation::LockExclusive,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        flock(&lock, operation)?;
        Ok(lock)
    }

    fn replace(&self, paths: &[PathBuf]) -> io::Result<()> {
        let new = self.beside("new");
        // One of a program that was killed.
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&new)?;
        let written = file.write_all(&encoded(paths)).and_then(|()| fs::rename(&new, &self.file));
        written.inspect_err(|_| drop(fs::remove_file(&new)))
    }

    /// A file of the list beside it.
    fn beside(&self, kind: &str) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(".");
        name.push(kind);
        name.into()
    }
}

/// Opens a file if it is a plain one of this user alone: in the place of another it could be anything.
fn open_own(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = options.custom_flags(flags.cast_signed()).open(path)?;
    let (data, own) = (file.metadata()?, rustix::process::geteuid().as_raw());
    // One that was replaced since it was opened has no name any more.
    match data.is_file() && data.uid() == own && data.nlink() <= 1 && data.mode() & 0o022 == 0 {
        true => Ok(file),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Paths that are no UTF-8 are refused before a run begins.
fn encoded(paths: &[PathBuf]) -> Vec<u8> {
    paths.iter().filter_map(|path| path.to_str()).fold(Vec::new(), |mut text, path| {
        text.extend_from_slice(path.as_bytes());
        text.push(0);
        text
    })
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the files are the test's own")]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::PathList;

    fn list(directory: &Path) -> PathList {
        PathList {
            file: directory.join("list"),
            max_bytes: 1 << 20,
            max_paths: 4,
            kept_paths: 3,
            waits: true,
        }
    }

    /// Adds a path unless it is there.
    fn add(list: &PathList, path: &str) -> std::io::Result<()> {
        let is_new = |known: &[PathBuf]| !known.contains(&path.into());
        list.add(|known| is_new(known).then(|| path.into()).into_iter().collect())
    }

    #[test]
    fn path_is_added_though_another_program_was_killed_halfway() {
        let place = tempfile::tempdir().unwrap();
        let list = list(place.path());
        add(&list, "/one").unwrap();
        fs::write(place.path().join("list.new"), "/ha").unwrap();
        assert_eq!(list.read().unwrap(), [PathBuf::from("/one")]);
        add(&list, "/two").unwrap();
        assert_eq!(list.read().unwrap(), ["/one", "/two"].map(PathBuf::from));
        assert!(!place.path().join("list.new").exists());
    }

    #[test]
    fn list_that_cannot_be_replaced_stays_whole() {
        let place = tempfile::tempdir().unwrap();
        let list = list(place.path());
        add(&list, "/one").unwrap();
        fs::create_dir(place.path().join("list.new")).unwrap();
        assert!(add(&list, "/two").is_err());
        assert_eq!(list.read().unwrap(), [PathBuf::from("/one")]);
    }

    #[test]
    fn reader_has_a_whole_list_while_others_add() {
        let place = tempfile::tempdir().unwrap();
        let list = PathList { max_paths: 1000, ..list(place.path()) };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let list = &list;
                scope.spawn(move || {
                    for number in 0..25 {
                        add(list, &format!("/path/{thread}/{number}")).unwrap();
                        let whole = |path: &PathBuf| path.components().count() == 4;
                        assert!(list.read().unwrap().iter().all(whole));
                    }
                });
            }
        });
        assert_eq!(list.read().unwrap().len(), 100);
    }

    #[test]
    fn long_list_loses_what_is_gone_and_then_the_oldest() {
        let place = tempfile::tempdir().unwrap();
        let list = list(place.path());
        let paths = ["/gone", "/", "/dev", "/proc", "/tmp", "/usr", "/new"];
        paths.iter().for_each(|path| add(&list, path).unwrap());
        assert_eq!(list.read().unwrap(), ["/tmp", "/usr", "/new"].map(PathBuf::from));
    }
}
