//! The names in a directory, listed once: most paths that are looked for in a home or in `/etc` do not exist.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Most names that are listed. Looking for each path takes less time than a longer list.
const MAX_NAMES: usize = 512;

/// The names in a directory, if they are known, in lower case: some file systems do not tell the cases apart.
pub(crate) struct ListedNames {
    directory: PathBuf,
    names: Option<HashSet<OsString>>,
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
            Some(Component::Normal(first)) => names.contains(&first.to_ascii_lowercase()),
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

fn names(directory: &Path) -> Option<HashSet<OsString>> {
    #[expect(
        clippy::disallowed_methods,
        reason = "only names are read, of the user's own home or the system"
    )]
    let entries = fs::read_dir(directory).ok()?;
    let mut names = HashSet::new();
    for entry in entries {
        if names.len() == MAX_NAMES {
            return None;
        }
        names.insert(entry.ok()?.file_name().to_ascii_lowercase());
    }
    Some(names)
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
