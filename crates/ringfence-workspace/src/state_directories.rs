//! The state directories of a user's installations: no run of any of them sees one, wherever it is.
//!
//! The default one is known by its path. The others are in a list in the default one, which is hidden itself.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::path_list::PathList;

/// The name of the list, in the default state directory.
const FILE_NAME: &str = "installations";
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
        std::iter::once(self.default.clone()).chain(self.listed()).filter(is_own).collect()
    }

    /// Adds one, unless it is the default one or listed already.
    pub fn add(&self, state: &Path) -> io::Result<()> {
        if state == self.default
            || state.to_str().is_none()
            || self.listed().iter().any(|known| known == state)
        {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.default)?;
        let is_new = |known: &[PathBuf]| !known.iter().any(|known| known == state);
        self.file()?.add(|known| is_new(known).then(|| state.to_owned()).into_iter().collect())
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
    fn listed(&self) -> Vec<PathBuf> {
        self.file().and_then(|file| file.read()).unwrap_or_default()
    }
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
        for state in ["one", "one", "gone", "default"] {
            states.add(&at(state)).unwrap();
        }
        assert_eq!(states.list(), [at("default"), at("one")]);
        let mode = fs::metadata(at("default/installations")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
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
        let listed = format!("{}\0", at("one").display());
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
            assert!(states.add(&at("two")).is_err(), "{name}");
        }
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
            states.add(&at(&format!("gone{number}"))).unwrap();
        }
        assert!(states.listed().len() <= MAX_LISTED);
        assert_eq!(states.list(), [at("default"), at("one")]);
    }
}
