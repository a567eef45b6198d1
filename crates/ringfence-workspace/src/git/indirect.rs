//! Configuration files and directories of hooks that git finds through a configuration: by `include.path`,
//! `includeIf.*.path`, `core.hooksPath` and symbolic links. Names are resolved as git and the kernel resolve them, and every
//! condition of an include counts as met.
//!
//! A run may have written some of these files, so they are read as regular files only, up to a length, without blocking, and
//! nothing of their contents but names is used.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::config;
use super::repository::{MAX_CONFIG_BYTES, MAX_POINTER_BYTES};
use crate::{Directory, DirectoryError, EntryKind, Metadata, ReadError, read_bounded};

/// Deepest include that git follows.
const MAX_INCLUDE_DEPTH: usize = 10;
/// Most configuration files that are read for one repository or user.
const MAX_FILES: usize = 64;
/// Most symbolic links that the kernel follows in one path.
const MAX_LINKS: usize = 40;
/// Most entries of a directory of hooks that are looked at, and most links among them that are followed.
const MAX_HOOKS: (usize, usize) = (10_000, 256);
/// Longest list of users that is searched for a home directory.
const MAX_USERS_BYTES: u64 = 1 << 20;

/// Where a path leads, and over which symbolic links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The links, in the order in which they are followed. No other part of their paths is a link.
    pub links: Vec<PathBuf>,
    /// Directories that a `..` leaves again: the path leads elsewhere if one of them becomes a link.
    pub passed: Vec<PathBuf>,
    /// What the path leads to, without links. It may not exist.
    pub end: PathBuf,
}

/// What git takes from some configuration files and those that they include.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    /// The files, whether they exist or not.
    pub files: Vec<Located>,
    /// The values of `core.hooksPath`, as they are written.
    pub hooks: Vec<String>,
    /// What could not be resolved or read.
    pub notices: Vec<String>,
}

impl Configuration {
    /// Reads configuration files and what they include. `home` stands for `~`.
    pub fn read(files: impl IntoIterator<Item = PathBuf>, home: &Path) -> Self {
        let mut reader = Reader { home, seen: BTreeSet::new(), found: Self::default() };
        for file in files {
            reader.file(&file, 0);
        }
        reader.found
    }

    /// The configuration files of the repository whose working tree is at `tree`, as far as its `.git` can be followed.
    pub fn files_of(tree: &Path) -> Vec<PathBuf> {
        let pointer = tree.join(".git");
        let line = |path: &Path| {
            let bytes = read_plain(path, MAX_POINTER_BYTES).ok()?;
            Some(String::from_utf8_lossy(&bytes).trim().to_owned())
        };
        let own = match line(&pointer).as_deref().and_then(|text| text.strip_prefix("gitdir:")) {
            Some(target) => tree.join(target.trim()),
            None => pointer,
        };
        let common = line(&own.join("commondir")).map_or_else(|| own.clone(), |common| own.join(common));
        vec![common.join("config"), own.join("config.worktree")]
    }

    /// The directory that a value of `core.hooksPath` names in a working tree, or why it cannot be told.
    pub fn hooks_directory(value: &str, tree: &Path, home: &Path) -> Result<Option<PathBuf>, String> {
        Ok(expand(value, home)?.map(|path| tree.join(path)))
    }
}

/// Follows a path of the host as the kernel would. Nothing is opened for reading.
pub fn locate(path: &Path) -> io::Result<Located> {
    let returns = || path.components().any(|part| part == Component::ParentDir);
    match open_plain(path, OFlags::PATH) {
        Ok(_) => Ok(plain(path)),
        Err(Errno::LOOP) => trace(path),
        // What is missing before a `..` may hide a link behind it.
        Err(Errno::NOENT | Errno::NOTDIR) if returns() => trace(path),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(plain(path)),
        Err(error) => Err(error.into()),
    }
}

/// Follows the links in a directory of hooks, and says how many are left out. `directory` has no link on its way.
pub fn linked_hooks(directory: &Path) -> io::Result<(Vec<Located>, usize)> {
    let is_none =
        |cause: &io::Error| matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    let opened = match Directory::open(directory) {
        Err(DirectoryError::Open { cause, .. }) if is_none(&cause) => return Ok((Vec::new(), 0)),
        opened => opened.map_err(io::Error::other)?,
    };
    let entries = opened.entries(MAX_HOOKS.0)?;
    let links = entries.into_iter().filter(|entry| entry.kind == EntryKind::Link);
    let links: BTreeSet<OsString> = links.map(|entry| entry.name).collect();
    let left_out = links.len().saturating_sub(MAX_HOOKS.1);
    // A link that leads nowhere, in a circle, executes nothing.
    let located = links.iter().take(MAX_HOOKS.1).filter_map(|name| locate(&directory.join(name)).ok());
    Ok((located.collect(), left_out))
}

/// A path on whose way no link is.
fn plain(path: &Path) -> Located {
    let mut located = Located { links: Vec::new(), passed: Vec::new(), end: PathBuf::new() };
    for part in path.components() {
        match part {
            Component::ParentDir => located.leave(),
            Component::CurDir => {}
            other => located.end.push(other),
        }
    }
    located
}

impl Located {
    /// Goes up, as `..` does.
    fn leave(&mut self) {
        self.passed.push(self.end.clone());
        self.end.pop();
    }
}

/// Opens what no symbolic link leads to.
fn open_plain(path: &Path, flags: OFlags) -> Result<File, Errno> {
    openat2(CWD, path, flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS).map(File::from)
}

/// Follows the links of a path one by one. From the first part that does not exist, the rest is taken as it is written.
fn trace(path: &Path) -> io::Result<Located> {
    let parts = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
    };
    let mut waiting = parts(path);
    let mut located = Located { links: Vec::new(), passed: Vec::new(), end: PathBuf::from("/") };
    while let Some(part) = waiting.pop() {
        match Path::new(&part).components().next() {
            Some(Component::Normal(name)) => located.end.push(name),
            Some(Component::ParentDir) => {
                located.leave();
                continue;
            }
            Some(Component::RootDir) => {
                located.end = PathBuf::from("/");
                continue;
            }
            _ => continue,
        }
        let Ok(target) = fs::read_link(&located.end) else { continue };
        if located.links.len() == MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        located.links.push(located.end.clone());
        located.end.pop();
        waiting.extend(parts(&target));
    }
    Ok(located)
}

/// Reads a regular file that no symbolic link leads to.
fn read_plain(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    let file =
        open_plain(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(io::Error::from)?;
    match Metadata::of(&file)?.kind() {
        EntryKind::File => read_bounded(file, limit),
        _ => Err(io::Error::other("not a regular file").into()),
    }
}

/// Reads a configuration file over whatever links lead to it. Mostly there are none.
fn read_located(path: &Path) -> io::Result<(Located, Result<Vec<u8>, ReadError>)> {
    match read_plain(path, MAX_CONFIG_BYTES) {
        Err(ReadError::Io(error)) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            let located = trace(path)?;
            let content = read_plain(&located.end, MAX_CONFIG_BYTES);
            Ok((located, content))
        }
        content => Ok((plain(path), content)),
    }
}

struct Reader<'a> {
    home: &'a Path,
    seen: BTreeSet<PathBuf>,
    found: Configuration,
}

impl Reader<'_> {
    fn file(&mut self, path: &Path, depth: usize) {
        if depth > MAX_INCLUDE_DEPTH || self.seen.len() >= MAX_FILES {
            return self.unresolved(path, "there are too many includes");
        }
        let (located, content) = match read_located(path) {
            Ok(read) => read,
            Err(error) => return self.unresolved(path, &error.to_string()),
        };
        if !self.seen.insert(located.end.clone()) {
            return;
        }
        self.found.files.push(located);
        match content {
            Ok(bytes) => self.content(path, &String::from_utf8_lossy(&bytes), depth),
            Err(error) if error.is_missing() => {}
            Err(error) => self.unresolved(path, &error.to_string()),
        }
    }

    fn content(&mut self, path: &Path, text: &str, depth: usize) {
        self.found.hooks.extend(config::values(text, "core", "hookspath"));
        // Git takes the directory of the name by which it opened the file, also if that is a link.
        let beside = path.parent().unwrap_or(Path::new("/"));
        for included in config::includes(text) {
            match expand(&included, self.home) {
                Ok(Some(included)) => self.file(&beside.join(included), depth + 1),
                Ok(None) => {}
                Err(why) => self.found.notices.push(format!("{}: {why}", path.display())),
            }
        }
    }

    fn unresolved(&mut self, path: &Path, why: &str) {
        let message = format!("git's configuration {} was not read: {why}", path.display());
        if !self.found.notices.contains(&message) {
            self.found.notices.push(message);
        }
    }
}

/// A path of a configuration with its beginning replaced as git does it: `~` by a home. `None` is a path of git's own
/// installation, or no path at all.
fn expand(value: &str, home: &Path) -> Result<Option<PathBuf>, String> {
    let value = value.strip_prefix(":(optional)").unwrap_or(value);
    if value.is_empty() || value.starts_with("%(prefix)/") {
        return Ok(None);
    }
    let Some(rest) = value.strip_prefix('~') else { return Ok(Some(PathBuf::from(value))) };
    let (user, below) = rest.split_once('/').unwrap_or((rest, ""));
    let home = match user {
        "" => home.to_owned(),
        user => home_of(user).ok_or_else(|| format!("the home directory in `{value}` is not known"))?,
    };
    Ok(Some(home.join(below.trim_start_matches('/'))))
}

/// The home directory of a user of this machine.
fn home_of(user: &str) -> Option<PathBuf> {
    let users = read_plain(Path::new("/etc/passwd"), MAX_USERS_BYTES).ok()?;
    let users = String::from_utf8_lossy(&users);
    let mut fields = users.lines().map(|line| line.split(':')).filter_map(|mut fields| {
        let name = fields.next()?;
        Some((name, fields.nth(4)?))
    });
    fields.find(|(name, _)| *name == user).map(|(_, home)| PathBuf::from(home))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests write files of their own")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};

    use super::{Configuration, Located, locate};

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.path().canonicalize().unwrap().join(name)
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.at(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        }

        fn read(&self, name: &str) -> Configuration {
            Configuration::read([self.at(name)], &self.at("home"))
        }
    }

    fn ends(found: &Configuration) -> Vec<&Path> {
        found.files.iter().map(|file| file.end.as_path()).collect()
    }

    #[test]
    fn includes_are_followed_from_the_file_that_names_them() {
        let place = Place::new();
        place.write("w/.git/config", "[include] path = ../conf/a\n[includeIf \"gitdir:x\"] path = ~/b\n");
        place.write("w/conf/a", "[include]\npath = deeper/c\n[core] hooksPath = ~/hooks\n");
        place.write("home/b", "[core] hooksPath = .husky\n");
        let found = place.read("w/.git/config");
        let expected = ["w/.git/config", "w/conf/a", "w/conf/deeper/c", "home/b"].map(|name| place.at(name));
        assert_eq!(ends(&found), expected);
        assert_eq!(found.hooks, ["~/hooks", ".husky"]);
        assert_eq!(found.notices, Vec::<String>::new());
    }

    #[test]
    fn links_on_the_way_to_a_configuration_are_named() {
        let place = Place::new();
        place.write("w/dot/real", "[include] path = beside\n");
        fs::create_dir(place.at("home")).unwrap();
        symlink("dot", place.at("w/way")).unwrap();
        symlink(place.at("w/way/real"), place.at("home/.gitconfig")).unwrap();
        symlink("missing", place.at("w/dangling")).unwrap();
        let found = place.read("home/.gitconfig");
        let links = vec![place.at("home/.gitconfig"), place.at("w/way")];
        assert_eq!(found.files[0], Located { links, passed: Vec::new(), end: place.at("w/dot/real") });
        // As git does: beside the link, not beside what it leads to.
        assert_eq!(found.files[1].end, place.at("home/beside"));
        let dangling = locate(&place.at("w/dangling")).unwrap();
        let links = vec![place.at("w/dangling")];
        assert_eq!(dangling, Located { links, passed: Vec::new(), end: place.at("w/missing") });
        let back = locate(&place.at("w/none/../way/../x")).unwrap();
        let passed = vec![place.at("w/none"), place.at("w/dot")];
        assert_eq!(back, Located { links: vec![place.at("w/way")], passed, end: place.at("w/x") });
    }

    #[test]
    fn what_cannot_be_read_is_reported_and_does_not_block() {
        let place = Place::new();
        place.write("config", "[include] path = fifo\n[include] path = huge\n[include] path = ring\n[include] path = ~nobody-here/x\n");
        assert!(std::process::Command::new("mkfifo").arg(place.at("fifo")).status().unwrap().success());
        fs::File::create(place.at("huge")).unwrap().set_len(3 << 30).unwrap();
        symlink("ring", place.at("ring")).unwrap();
        let found = place.read("config");
        assert_eq!(found.notices.len(), 4, "{:?}", found.notices);
        assert!(found.notices.iter().any(|notice| notice.contains("`~nobody-here/x` is not known")));
    }

    #[test]
    fn includes_in_a_circle_and_without_end_are_bounded() {
        let place = Place::new();
        place.write("config", "[include] path = config\n[include] path = 0\n");
        for number in 0..200 {
            place.write(&number.to_string(), &format!("[include] path = {}\n", number + 1));
        }
        let found = place.read("config");
        assert!(found.files.len() <= 12 && found.notices.len() == 1, "{:?}", found.notices);
    }

    #[test]
    fn values_of_hooks_path_are_resolved_in_the_working_tree() {
        let (tree, home) = (Path::new("/w"), Path::new("/h"));
        let directory = |value: &str| Configuration::hooks_directory(value, tree, home);
        for (value, expected) in [
            (".husky", "/w/.husky"),
            ("./a/../b", "/w/./a/../b"),
            ("~/x", "/h/x"),
            ("~", "/h/"),
            ("/abs", "/abs"),
        ] {
            assert_eq!(directory(value), Ok(Some(PathBuf::from(expected))), "{value}");
        }
        assert_eq!(directory("%(prefix)/x"), Ok(None));
        assert_eq!(directory("~root/x"), Ok(Some(PathBuf::from("/root/x"))));
    }

    #[test]
    fn the_configuration_of_linked_trees_is_found() {
        let place = Place::new();
        place.write("w/.git", "gitdir: ../main/.git/worktrees/w\n");
        place.write("main/.git/worktrees/w/commondir", "../..\n");
        place.write("main/.git/config", "[core] hooksPath = x\n");
        place.write("main/.git/worktrees/w/config.worktree", "[core] hooksPath = y\n");
        let found = Configuration::read(Configuration::files_of(&place.at("w")), &place.at("home"));
        assert_eq!(found.hooks, ["x", "y"]);
    }
}
