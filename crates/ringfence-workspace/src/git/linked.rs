//! A git directory of Ringfence's own that stands for a repository's, so that git on the host reads none of the repository's
//! configuration: what that names, it executes (`hook.*.command`, filters, helpers), and a run or an archive may have made it.
//!
//! Objects, refs and reflogs are symbolic links into the real git directory, as in the directories of `git-new-workdir`. `HEAD`
//! is not: git neither reads nor writes the real one, which the import does itself.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::GitError;
use super::config;
use super::import::made;
use super::repository::MAX_CONFIG_BYTES;
use crate::{Directory, EntryKind};

/// What git finds in the real directory.
const LINKED: [&str; 5] = ["objects", "refs", "logs", "packed-refs", "shallow"];
/// The name of the directory, in a place that the caller names.
const NAME: &str = "linked";
/// Where directories are made that another user must be able to read.
const SHARED_PLACE: &str = "/tmp";
/// Most names of a git directory that are searched for parts of its index.
const MAX_LISTED: usize = 10_000;

/// The real git directory.
#[derive(Clone, Copy)]
pub(super) struct Real<'a> {
    /// The common one, and where it is.
    pub(super) common: &'a Directory,
    pub(super) path: &'a Path,
    /// That of the working tree, and where it is.
    pub(super) own: &'a Directory,
    pub(super) own_path: &'a Path,
    /// User and group that git runs as, if not the caller's.
    pub(super) user: Option<(u32, u32)>,
}

/// The directory, which is removed when it is dropped.
pub(super) struct Linked {
    pub(super) directory: PathBuf,
}

impl Linked {
    /// Makes it in `place`, a directory that no run sees, or in one that the other user can read.
    pub(super) fn make(place: &Path, real: Real<'_>) -> Result<Self, GitError> {
        let linked = Self::make_empty(place, real.user).map_err(|source| made(place, source))?;
        linked.fill(real).map_err(|source| made(&linked.directory, source))?;
        Ok(linked)
    }

    fn make_empty(place: &Path, user: Option<(u32, u32)>) -> io::Result<Self> {
        if user.is_none() {
            let directory = place.join(NAME);
            // What an import left that was killed.
            let _ = fs::remove_dir_all(&directory);
            DirBuilder::new().mode(0o700).create(&directory)?;
            return Ok(Self { directory });
        }
        let random = RandomState::new().hash_one(place);
        let directory = Path::new(SHARED_PLACE).join(format!("ringfence-git-{random:016x}"));
        // One that exists is another's.
        DirBuilder::new().mode(0o700).create(&directory)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))?;
        Ok(Self { directory })
    }

    fn fill(&self, real: Real<'_>) -> io::Result<()> {
        // Git makes all below it.
        if real.common.metadata(Path::new("logs")).is_err() {
            real.common.create_directory(Path::new("logs"), 0o777)?;
            own(&real.common.directory(Path::new("logs"))?, real.user)?;
        }
        for name in LINKED {
            symlink(real.path.join(name), self.directory.join(name))?;
        }
        // A split index has its other part there.
        let shared = real.own.entries(MAX_LISTED)?.into_iter().filter(|entry| entry.kind == EntryKind::File);
        for name in shared.filter_map(|entry| entry.name.into_string().ok()) {
            if name.starts_with("sharedindex.") {
                symlink(real.own_path.join(&name), self.directory.join(&name))?;
            }
        }
        let config = real.common.read(Path::new("config"), MAX_CONFIG_BYTES).unwrap_or_default();
        self.write("config", &configuration(&config))?;
        // No ref that an import writes: git would log for `HEAD`.
        self.write("HEAD", "ref: refs/ringfence/none\n")
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let path = self.directory.join(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Gives what was made in the repository to its owner.
pub(super) fn own(file: &impl std::os::fd::AsFd, user: Option<(u32, u32)>) -> io::Result<()> {
    user.map_or(Ok(()), |(user, group)| std::os::unix::fs::fchown(file, Some(user), Some(group)))
}

/// The configuration for git, with what objects and refs look like in the repository of this one.
fn configuration(real: &[u8]) -> String {
    let last = |section: &str, key: &str| config::values(real, section, key).pop()?.into_string().ok();
    let is_sha256 = last("extensions", "objectformat").is_some_and(|format| format == "sha256");
    let mut text = String::from("[core]\n\tbare = true\n");
    text.push_str(&format!("\trepositoryformatversion = {}\n", u8::from(is_sha256)));
    let shared = last("core", "sharedrepository").filter(|value| is_sharing(value));
    text.extend(shared.map(|value| format!("\tsharedRepository = {value}\n")));
    text.push_str(if is_sha256 { "[extensions]\n\tobjectformat = sha256\n" } else { "" });
    text
}

/// Whether a value of `core.sharedRepository` is one of git's: a word, or the permissions in octal.
fn is_sharing(value: &str) -> bool {
    value.len() <= 16 && value.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Creates the lock file of a file in a git directory, with the permissions of that file.
pub(super) fn create_lock(directory: &Directory, name: &str) -> io::Result<File> {
    let mode = directory.metadata(Path::new(name)).map_or(0o644, |data| data.permissions() & 0o777);
    let file = directory.create_file(Path::new(&format!("{name}.lock")), 0o600)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    Ok(file)
}
