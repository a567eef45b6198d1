//! The state directories of a user's installations: no run of any of them sees one, wherever it is.
//!
//! The default one is known by its path. The others are in a list in the default one, which is hidden itself.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::file::read_bounded;

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
        let Some(text) = state.to_str() else { return Ok(()) };
        if state == self.default || self.listed().iter().any(|known| known == state) {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.default)?;
        let file = self.open(OpenOptions::new().create(true).append(true).read(true).mode(0o600))?;
        // Another program that holds it does not stop a run.
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let mut known = self.listed();
        if known.iter().any(|known| known == state) {
            return Ok(());
        }
        if known.len() >= MAX_LISTED {
            known.retain(|path| path.is_dir());
            let surplus = (known.len() + 1).saturating_sub(MAX_LISTED);
            file.set_len(0)?;
            let kept = known.iter().skip(surplus).filter_map(|path| path.to_str());
            (&file).write_all(kept.map(|path| format!("{path}\0")).collect::<String>().as_bytes())?;
        }
        (&file).write_all(format!("{text}\0").as_bytes())
    }

    fn file(&self) -> PathBuf {
        self.default.join(FILE_NAME)
    }

    /// Opens the list: a file of this user alone, in a directory of this user. With another user's home it could be anything.
    fn open(&self, options: &mut OpenOptions) -> io::Result<File> {
        let own = rustix::process::geteuid().as_raw();
        let directory = fs::symlink_metadata(&self.default)?;
        if !directory.is_dir() || directory.uid() != own {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let file = options.custom_flags(flags.cast_signed()).open(self.file())?;
        let data = file.metadata()?;
        match data.is_file() && data.uid() == own && data.nlink() == 1 && data.mode() & 0o022 == 0 {
            true => Ok(file),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// What is in the list. One that cannot be read names nothing.
    fn listed(&self) -> Vec<PathBuf> {
        let Ok(file) = self.open(OpenOptions::new().read(true)) else { return Vec::new() };
        let text = read_bounded(file, MAX_LIST_BYTES).unwrap_or_default();
        let text = String::from_utf8(text).unwrap_or_default();
        text.split_terminator('\0').map(PathBuf::from).filter(|path| path.is_absolute()).collect()
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
