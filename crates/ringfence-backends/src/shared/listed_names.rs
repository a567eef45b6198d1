//! The names in a directory, listed once: most paths that are looked for in a home or in `/etc` do not exist.

use std::hash::{DefaultHasher, Hasher};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};

/// Most names that are listed. Looking for each path takes less time than a longer list.
const MAX_NAMES: usize = 512;

/// Bytes of names that are read with one call.
const LISTING_BYTES: usize = 8 << 10;

/// The names in a directory, if they are known: their hashes in lower case, for some file systems do not tell the cases apart.
/// Two names with the same hash make a path be looked for that does not exist, and no more.
pub(crate) struct ListedNames {
    directory: PathBuf,
    names: Option<Vec<u64>>,
}

impl ListedNames {
    /// Lists a directory. One that cannot be listed, or that has very many names, is not known.
    pub(crate) fn list(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), names: names(directory) }
    }

    /// Whether a path can exist: it is not below the directory, or the directory has a name that it begins with.
    pub(crate) fn may_exist(&self, path: &Path) -> bool {
        let (Some(names), Ok(below)) = (&self.names, path.strip_prefix(&self.directory)) else {
            return true;
        };
        match below.components().next() {
            Some(Component::Normal(first)) => names.contains(&hash(first.as_bytes())),
            _ => true,
        }
    }
}

/// The names in a home directory and in its `.config`, where most of what is looked for would be.
pub(super) struct HomeNames {
    home: ListedNames,
    configuration: Option<ListedNames>,
}

impl HomeNames {
    /// Lists a home directory.
    pub(super) fn list(path: &Path) -> Self {
        let home = ListedNames::list(path);
        let configuration = path.join(".config");
        let configuration = home.may_exist(&configuration).then(|| ListedNames::list(&configuration));
        Self { home, configuration }
    }

    /// Whether a path can exist, by the names that are known.
    pub(super) fn may_exist(&self, path: &Path) -> bool {
        self.home.may_exist(path) && self.configuration.as_ref().is_none_or(|names| names.may_exist(path))
    }
}

/// Only names are read, of the user's own home or the system.
fn names(directory: &Path) -> Option<Vec<u64>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(CWD, directory, flags, Mode::empty()).ok()?;
    let mut space = [MaybeUninit::uninit(); LISTING_BYTES];
    let mut listing = RawDir::new(opened, &mut space);
    let mut names = Vec::with_capacity(MAX_NAMES);
    while let Some(entry) = listing.next() {
        let entry = entry.ok()?;
        if names.len() == MAX_NAMES {
            return None;
        }
        names.push(hash(entry.file_name().to_bytes()));
    }
    Some(names)
}

fn hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.iter().for_each(|byte| hasher.write_u8(byte.to_ascii_lowercase()));
    hasher.finish()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the files are the test's own")]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{HomeNames, MAX_NAMES};

    #[test]
    fn paths_below_a_name_that_is_missing_do_not_exist() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join(".config/gh")).unwrap();
        let names = HomeNames::list(home.path());
        assert!(names.may_exist(&home.path().join(".config/gh")));
        assert!(names.may_exist(&home.path().join(".CONFIG")));
        assert!(!names.may_exist(&home.path().join(".ssh/id_ed25519")));
        assert!(!names.may_exist(&home.path().join(".config/gcloud/credentials.db")));
        for other in [home.path(), &home.path().join("../x"), Path::new("/etc/shadow")] {
            assert!(names.may_exist(other), "{}", other.display());
        }
    }

    #[test]
    fn a_home_that_cannot_be_listed_or_is_crowded_may_have_any_name() {
        let home = tempfile::tempdir().unwrap();
        let missing = home.path().join("missing");
        assert!(HomeNames::list(&missing).may_exist(&missing.join(".ssh")));
        (0..=MAX_NAMES)
            .for_each(|number| drop(fs::File::create(home.path().join(number.to_string())).unwrap()));
        assert!(HomeNames::list(home.path()).may_exist(&home.path().join(".ssh")));
    }
}
