//! The state directories of a user's installations: no run of any of them sees one, wherever it is.
//!
//! The default one is known by its path. The others are in a list in the default one, which is hidden itself. The list holds the path of
//! a mark in each: an empty file whose name no run knows. So another directory that was made at the same path is not taken for it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::path_list::PathList;

/// The name of the list, in the default state directory.
const FILE_NAME: &str = "installations";
/// How the name of a mark begins; a random number follows.
const MARK: &str = "installation-";
/// Most state directories in the list. Beyond that, those that are gone are left out, then the oldest.
const MAX_LISTED: usize = 64;
/// No list is longer, in bytes.
const MAX_LIST_BYTES: u64 = 512 << 10;

/// The state directories that a user's installations have used.
#[derive(Debug, Clone)]
pub struct StateDirectories {
    default: PathBuf,
}

impl StateDirectories {
    /// Those of the user whose default state directory this is.
    pub fn new(default: PathBuf) -> Self {
        Self { default }
    }

    /// All of them that exist and belong to this user, the default one included.
    pub fn list(&self) -> Vec<PathBuf> {
        let own = rustix::process::geteuid().as_raw();
        let is_own = |path: &PathBuf| fs::metadata(path).is_ok_and(|data| data.is_dir() && data.uid() == own);
        let mut states: Vec<PathBuf> = vec![self.default.clone()];
        for state in self.marks().iter().filter_map(|mark| mark.parent()) {
            if !states.iter().any(|known| known == state) {
                states.push(state.to_owned());
            }
        }
        states.retain(is_own);
        states
    }

    /// Whether this is the default one, or one that was added and not another directory at its path.
    pub fn is_known(&self, state: &Path) -> bool {
        let own = rustix::process::geteuid().as_raw();
        let is_there =
            |mark: &PathBuf| fs::symlink_metadata(mark).is_ok_and(|data| data.is_file() && data.uid() == own);
        state == self.default
            || self.marks().iter().any(|mark| mark.parent() == Some(state) && is_there(mark))
    }

    /// Adds one that exists, unless it is known already.
    pub fn add(&self, state: &Path) -> io::Result<()> {
        if state.to_str().is_none() || self.is_known(state) {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.default)?;
        let list = self.file()?;
        let mark = state.join(mark_name());
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&mark)?;
        list.add(|_| vec![mark.clone()]).inspect_err(|_| drop(fs::remove_file(&mark)))
    }

    /// The list, in a directory of this user. With another user's home it could be anything.
    fn file(&self) -> io::Result<PathList> {
        let own = rustix::process::geteuid().as_raw();
        let directory = fs::symlink_metadata(&self.default)?;
        if !directory.is_dir() || directory.uid() != own {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(PathList {
            file: self.default.join(FILE_NAME),
            max_bytes: MAX_LIST_BYTES,
            max_paths: MAX_LISTED,
            kept_paths: MAX_LISTED,
            // Another program that holds it does not stop a run.
            waits: false,
        })
    }

    /// What is in the list. One that cannot be read names nothing.
    fn marks(&self) -> Vec<PathBuf> {
        let mut marks = self.file().and_then(|file| file.read()).unwrap_or_default();
        marks.retain(|mark| {
            mark.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(MARK))
        });
        marks
    }
}

/// A name that cannot be guessed: the keys of the hashes are random.
fn mark_name() -> String {
    let random = || RandomState::new().hash_one(MARK);
    format!("{MARK}{:016x}{:016x}", random(), random())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::{MAX_LISTED, StateDirectories};

    #[test]
    fn listed_state_directories_are_those_that_exist() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let states = StateDirectories::new(at("default"));
        assert_eq!(states.list(), [""; 0].map(std::path::PathBuf::from));
        fs::create_dir(at("one")).unwrap();
        for state in ["one", "one", "default"] {
            states.add(&at(state)).unwrap();
        }
        assert!(states.add(&at("gone")).is_err());
        assert_eq!(states.list(), [at("default"), at("one")]);
        assert_eq!(states.marks().len(), 1);
        let mode = fs::metadata(at("default/installations")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn directory_at_the_path_of_a_listed_one_is_not_known() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let states = StateDirectories::new(at("default"));
        for name in ["one", "other"] {
            fs::create_dir(at(name)).unwrap();
            states.add(&at(name)).unwrap();
            assert!(states.is_known(&at(name)));
        }
        fs::rename(at("one"), at("moved")).unwrap();
        fs::rename(at("other"), at("one")).unwrap();
        assert!(
            !states.is_known(&at("one")) && !states.is_known(&at("moved")) && !states.is_known(&at("other"))
        );
        // It is hidden all the same.
        assert_eq!(states.list(), [at("default"), at("one")]);
        states.add(&at("one")).unwrap();
        assert!(states.is_known(&at("one")));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the files are the test's own")]
    fn a_list_that_is_no_plain_file_of_the_user_is_neither_read_nor_written() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for name in ["link", "fifo", "open", "linked"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::create_dir(at("one")).unwrap();
        let victim = at("victim");
        let listed = format!("{}\0", at("one/installation-1").display());
        fs::write(&victim, &listed).unwrap();
        std::os::unix::fs::symlink(&victim, at("link/installations")).unwrap();
        fs::hard_link(&victim, at("linked/installations")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let fifo = at("fifo/installations");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        fs::write(at("open/installations"), &listed).unwrap();
        fs::set_permissions(at("open/installations"), fs::Permissions::from_mode(0o666)).unwrap();
        for name in ["link", "fifo", "open", "linked"] {
            let states = StateDirectories::new(at(name));
            assert_eq!(states.list(), [at(name)], "{name}");
            assert!(states.add(&at("one")).is_err(), "{name}");
        }
        assert_eq!(fs::read_dir(at("one")).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(&victim).unwrap(), listed);
    }

    #[test]
    fn long_list_keeps_what_exists() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let states = StateDirectories::new(at("default"));
        fs::create_dir(at("one")).unwrap();
        states.add(&at("one")).unwrap();
        for number in 0..2 * MAX_LISTED {
            let gone = at(&format!("gone{number}"));
            fs::create_dir(&gone).unwrap();
            states.add(&gone).unwrap();
            fs::remove_dir_all(&gone).unwrap();
        }
        assert!(states.marks().len() <= MAX_LISTED);
        assert_eq!(states.list(), [at("default"), at("one")]);
    }
}
