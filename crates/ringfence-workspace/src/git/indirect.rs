//! Configuration files and directories of hooks that git finds through a configuration: by `include.path`,
//! `includeIf.*.path`, `core.hooksPath` and symbolic links. Names are resolved as git and the kernel resolve them, and every
//! condition of an include counts as met.
//!
//! A run may have written some of these files, so they are read as regular files only, up to a length, without blocking, and
//! nothing of their contents but names is used.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use ringfence_core::paths::DirectoryId;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::commands::ConfiguredCommand;
use super::config::{self, NamedPaths};
use super::lexical;
use super::repository::{MAX_CONFIG_BYTES, MAX_POINTER_BYTES};
use crate::{Directory, DirectoryError, EntryKind, Metadata, ReadError, read_bounded};

/// Deepest include that git follows.
const MAX_INCLUDE_DEPTH: usize = 10;
/// Most symbolic links that the kernel follows in one path.
const MAX_LINKS: usize = 40;
/// What git puts into every repository, and no program executes.
const SAMPLE_ENDING: &[u8] = b".sample";
/// Longest list of users that is searched for a home directory.
const MAX_USERS_BYTES: u64 = 1 << 20;
/// Most commands of one configuration that are looked at.
const MAX_COMMANDS: usize = 128;
/// Most notices of one configuration.
const MAX_NOTICES: usize = 16;

/// How much of git's configuration is followed: of one repository, or of all of a start together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Configuration files that are opened.
    pub files: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// Values of `include.path`, `core.hooksPath`, `core.worktree` and `init.templateDir`.
    pub values: usize,
    /// Entries of directories of hooks that are looked at.
    pub hooks: usize,
    /// Links among them that are followed.
    pub links: usize,
}

impl Budget {
    /// What the user's own files, or one repository that is the user's, may take.
    pub const OF_USER: Self = Self { files: 64, bytes: 8 << 20, values: 256, hooks: 10_000, links: 256 };
    /// What one repository may take that a run may have made.
    pub const OF_REPOSITORY: Self =
        Self { files: 8, bytes: MAX_CONFIG_BYTES, values: 16, hooks: 1000, links: 32 };

    /// The smaller part of two.
    pub fn at_most(self, other: Self) -> Self {
        Self {
            files: self.files.min(other.files),
            bytes: self.bytes.min(other.bytes),
            values: self.values.min(other.values),
            hooks: self.hooks.min(other.hooks),
            links: self.links.min(other.links),
        }
    }

    /// What is left of it after `granted` was used up to `left`.
    #[must_use]
    pub fn without(self, granted: Self, left: Self) -> Self {
        Self {
            files: self.files.saturating_sub(granted.files.saturating_sub(left.files)),
            bytes: self.bytes.saturating_sub(granted.bytes.saturating_sub(left.bytes)),
            values: self.values.saturating_sub(granted.values.saturating_sub(left.values)),
            hooks: self.hooks.saturating_sub(granted.hooks.saturating_sub(left.hooks)),
            links: self.links.saturating_sub(granted.links.saturating_sub(left.links)),
        }
    }
}

/// Where names of a configuration may lead, and what stands for `~`.
#[derive(Debug, Clone, Copy)]
pub struct Reach<'a> {
    /// The user's home.
    pub home: &'a Path,
    /// Directories beyond which nothing is looked at: those of a repository that a run may have made. `None` is everywhere.
    pub within: Option<&'a [PathBuf]>,
}

impl Reach<'_> {
    fn allows(&self, path: &Path) -> bool {
        self.within.is_none_or(|roots| roots.iter().any(|root| path.starts_with(root)))
    }

    /// Whether the kernel may be asked what is at a path: also on the way down to what is allowed.
    fn may_pass(&self, path: &Path) -> bool {
        self.allows(path) || self.within.is_some_and(|roots| roots.iter().any(|root| root.starts_with(path)))
    }

    /// Whether a path leads out without any link.
    fn leads_out(&self, path: &Path) -> bool {
        self.within.is_some() && !self.allows(&lexical(path))
    }
}

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
    /// Those of them that have several names, by device and inode.
    pub linked: Vec<DirectoryId>,
    /// The values of `core.hooksPath`, as they are written.
    pub hooks: Vec<OsString>,
    /// The values of `init.templateDir`, as they are written.
    pub templates: Vec<OsString>,
    /// The values of `core.worktree`, as they are written.
    pub worktrees: Vec<OsString>,
    /// Commands that git executes.
    pub commands: Vec<ConfiguredCommand>,
    /// Files that were not looked at, for they lie outside of what may be read.
    pub outside: Vec<PathBuf>,
    /// Whether it names more than may be followed.
    pub is_cut: bool,
    /// What could not be resolved or read.
    pub notices: Vec<String>,
}

impl Configuration {
    /// Reads configuration files and what they include.
    pub fn read(files: impl IntoIterator<Item = PathBuf>, reach: Reach<'_>, budget: &mut Budget) -> Self {
        let mut reader = Reader { reach, budget, seen: BTreeSet::new(), found: Self::default() };
        for file in files {
            reader.file(&file, 0);
        }
        reader.found
    }

    /// The configuration files that git reads for every repository.
    pub fn files_of_user(home: &Path) -> [PathBuf; 3] {
        let of_home = |name: &str| home.join(name);
        [PathBuf::from("/etc/gitconfig"), of_home(".gitconfig"), of_home(".config/git/config")]
    }

    /// The configuration files of the repository whose working tree is at `tree`, as far as its `.git` can be followed.
    pub fn files_of(tree: &Path, reach: Reach<'_>) -> Vec<PathBuf> {
        let pointer = tree.join(".git");
        let line = |path: &Path| read_line(path, reach);
        let own = match line(&pointer).as_deref().and_then(|text| text.strip_prefix("gitdir:")) {
            Some(target) => tree.join(target.trim()),
            None => pointer,
        };
        let common = line(&own.join("commondir")).map_or_else(|| own.clone(), |common| own.join(common));
        vec![common.join("config"), own.join("config.worktree")]
    }

    /// The directory that a value of `core.hooksPath` names in a working tree, or why it cannot be told.
    pub fn hooks_directory(value: &OsStr, tree: &Path, home: &Path) -> Result<Option<PathBuf>, String> {
        Ok(expand(value, home)?.map(|path| tree.join(path)))
    }
}

/// Follows a path of the host as the kernel would. Nothing is opened for reading.
pub fn locate(path: &Path) -> io::Result<Located> {
    let everywhere = Reach { home: Path::new(""), within: None };
    locate_within(path, everywhere)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The same, within what may be looked at. `None` is a path that leads out of it.
pub fn locate_within(path: &Path, reach: Reach<'_>) -> io::Result<Option<Located>> {
    if reach.leads_out(path) {
        return Ok(None);
    }
    let returns = path.components().any(|part| part == Component::ParentDir);
    if returns && reach.within.is_some() {
        return trace(path, reach);
    }
    match open_plain(path, OFlags::PATH) {
        Ok(_) => Ok(Some(plain(path))),
        Err(Errno::LOOP) => trace(path, reach),
        // What is missing before a `..` may hide a link behind it.
        Err(Errno::NOENT | Errno::NOTDIR) if returns => trace(path, reach),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(Some(plain(path))),
        Err(error) => Err(error.into()),
    }
}

/// The links in a directory of hooks.
#[derive(Debug, Default)]
pub struct LinkedHooks {
    /// Where they lead.
    pub located: Vec<Located>,
    /// Files beside them that have several names, by device and inode.
    pub linked: Vec<DirectoryId>,
    /// Whether there are more than may be followed.
    pub is_cut: bool,
}

/// Follows the links in a directory of hooks, which has no link on its way.
pub fn linked_hooks(directory: &Path, reach: Reach<'_>, budget: &mut Budget) -> io::Result<LinkedHooks> {
    let is_none =
        |cause: &io::Error| matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    let opened = match Directory::open(directory) {
        Err(DirectoryError::Open { cause, .. }) if is_none(&cause) => return Ok(LinkedHooks::default()),
        opened => opened.map_err(io::Error::other)?,
    };
    let mut found = LinkedHooks::default();
    let mut links: BTreeSet<OsString> = BTreeSet::new();
    opened.each(&mut |name, kind, _| {
        found.is_cut = budget.hooks == 0 || (kind == EntryKind::Link && budget.links == 0);
        if found.is_cut {
            return false;
        }
        budget.hooks -= 1;
        if kind == EntryKind::Link {
            budget.links -= 1;
            links.insert(name.to_owned());
        }
        if kind == EntryKind::File && !name.as_bytes().ends_with(SAMPLE_ENDING) {
            let data = opened.metadata(Path::new(name));
            found.linked.extend(data.ok().filter(|data| data.links() > 1).map(|data| data.id()));
        }
        true
    })?;
    // A link that leads nowhere, in a circle, executes nothing.
    let located = links.iter().filter_map(|name| locate_within(&directory.join(name), reach).ok().flatten());
    found.located = located.collect();
    Ok(found)
}

/// What a configuration leads to.
#[derive(Debug, Default)]
pub struct Followed {
    /// Files that it consists of, directories of hooks and templates, and what links in these lead to.
    pub located: Vec<Located>,
    /// Files that the words of commands may lead to.
    pub programs: Vec<Located>,
    /// Whether there is more than may be followed.
    pub is_cut: bool,
}

/// Follows the configuration of a repository. `files` are those of the repository, `hooks` is its own directory of hooks, if
/// it has one, and `tree` its working tree.
pub fn configured(
    files: impl IntoIterator<Item = PathBuf>,
    hooks: Option<PathBuf>,
    tree: &Path,
    reach: Reach<'_>,
    budget: &mut Budget,
) -> Followed {
    let configuration = Configuration::read(files, reach, budget);
    follow(configuration, hooks, &[tree.to_owned()], reach, budget)
}

/// The same for a git directory, whatever working trees it says that it has. Its path has no link on its way.
pub fn configured_in(directory: &Path, reach: Reach<'_>, budget: &mut Budget) -> Followed {
    let common = read_line(&directory.join("commondir"), reach);
    let common = common.map_or_else(|| directory.to_owned(), |common| directory.join(common));
    let files = [common.join("config"), directory.join("config.worktree")];
    let configuration = Configuration::read(files, reach, budget);
    // Names of one without a working tree are taken from the git directory itself.
    let beside = if directory.ends_with(".git") { directory.parent() } else { None };
    let own = beside.unwrap_or(directory).to_owned();
    let linked = read_line(&directory.join("gitdir"), reach).map(|pointer| directory.join(pointer));
    let linked = linked.and_then(|pointer| pointer.parent().map(lexical));
    let named = configuration.worktrees.iter().map(|value| lexical(&directory.join(value)));
    let trees: Vec<PathBuf> = [own].into_iter().chain(linked).chain(named).collect();
    follow(configuration, Some(common.join("hooks")), &trees, reach, budget)
}

/// Most paths that words of commands of one configuration are followed to.
const MAX_PROGRAMS: usize = 1024;

fn follow(
    configuration: Configuration,
    hooks: Option<PathBuf>,
    trees: &[PathBuf],
    reach: Reach<'_>,
    budget: &mut Budget,
) -> Followed {
    let named = configuration.hooks.iter().flat_map(|value| {
        let of = move |tree| Configuration::hooks_directory(value, tree, reach.home).ok().flatten();
        trees.iter().filter_map(move |tree| of(tree))
    });
    let templates = configuration.templates.iter().flat_map(|value| {
        let of = |tree| Configuration::hooks_directory(value, tree, reach.home).ok().flatten();
        let found: Vec<PathBuf> = trees.iter().filter_map(|tree| of(tree)).collect();
        found.into_iter().flat_map(|template| [template.join("hooks"), template])
    });
    let directories: BTreeSet<PathBuf> = named.chain(templates).chain(hooks).collect();
    let mut found =
        Followed { located: configuration.files, programs: Vec::new(), is_cut: configuration.is_cut };
    let mut left = MAX_PROGRAMS;
    'commands: for command in &configuration.commands {
        for path in trees.iter().flat_map(|tree| command.paths(tree, reach.home)) {
            if left == 0 {
                found.is_cut = true;
                break 'commands;
            }
            left -= 1;
            found.programs.extend(locate_within(&path, reach).ok().flatten());
        }
    }
    for directory in directories {
        let Ok(Some(directory)) = locate_within(&directory, reach) else { continue };
        let linked = linked_hooks(&directory.end, reach, budget).unwrap_or_default();
        found.is_cut |= linked.is_cut;
        found.located.extend(linked.located);
        found.located.push(directory);
    }
    found
}

/// The first line of a file that points elsewhere, if it may be read.
fn read_line(path: &Path, reach: Reach<'_>) -> Option<String> {
    let is_allowed = !reach.leads_out(path);
    let (bytes, _) = is_allowed.then(|| read_plain(path, MAX_POINTER_BYTES).ok()).flatten()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
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
fn trace(path: &Path, reach: Reach<'_>) -> io::Result<Option<Located>> {
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
        if reach.within.is_some() && !reach.may_pass(&located.end) {
            return Ok(None);
        }
        let Ok(target) = fs::read_link(&located.end) else { continue };
        if located.links.len() == MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        located.links.push(located.end.clone());
        located.end.pop();
        waiting.extend(parts(&target));
    }
    Ok(Some(located).filter(|located| reach.allows(&located.end)))
}

/// Reads a regular file that no symbolic link leads to.
fn read_plain(path: &Path, limit: u64) -> Content {
    let file =
        open_plain(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(io::Error::from)?;
    let data = Metadata::of(&file)?;
    match data.kind() {
        EntryKind::File => Ok((read_bounded(file, limit)?, data)),
        _ => Err(io::Error::other("not a regular file").into()),
    }
}

/// What a file holds and what the kernel says of it, or why it was not read.
type Content = Result<(Vec<u8>, Metadata), ReadError>;

/// Reads a configuration file over whatever links lead to it, which mostly are none. `None` is one that may not be read.
fn read_located(path: &Path, limit: u64, reach: Reach<'_>) -> io::Result<Option<(Located, Content)>> {
    if reach.within.is_some() {
        let Some(located) = locate_within(path, reach)? else { return Ok(None) };
        let content = read_plain(&located.end, limit);
        return Ok(Some((located, content)));
    }
    match read_plain(path, limit) {
        Err(ReadError::Io(error)) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            let Some(located) = trace(path, reach)? else { return Ok(None) };
            let content = read_plain(&located.end, limit);
            Ok(Some((located, content)))
        }
        content => Ok(Some((plain(path), content))),
    }
}

struct Reader<'a> {
    reach: Reach<'a>,
    budget: &'a mut Budget,
    seen: BTreeSet<PathBuf>,
    found: Configuration,
}

impl Reader<'_> {
    fn file(&mut self, path: &Path, depth: usize) {
        if depth > MAX_INCLUDE_DEPTH || self.budget.files == 0 || self.budget.bytes == 0 {
            self.found.is_cut = true;
            return self.unresolved(path, "there are too many includes");
        }
        self.budget.files -= 1;
        let (located, content) = match read_located(path, MAX_CONFIG_BYTES.min(self.budget.bytes), self.reach)
        {
            Ok(Some(read)) => read,
            Ok(None) => return self.found.outside.push(lexical(path)),
            Err(error) => return self.unresolved(path, &error.to_string()),
        };
        if !self.seen.insert(located.end.clone()) {
            return;
        }
        self.found.files.push(located);
        match content {
            Ok((bytes, data)) => {
                self.found.linked.extend((data.links() > 1).then(|| data.id()));
                self.budget.bytes -= bytes.len() as u64;
                self.content(path, &bytes, depth);
            }
            Err(error) if error.is_missing() => {}
            Err(error) => {
                self.found.is_cut |= matches!(error, ReadError::TooLong { .. });
                self.unresolved(path, &error.to_string());
            }
        }
    }

    fn content(&mut self, path: &Path, content: &[u8], depth: usize) {
        let NamedPaths { hooks, templates, includes, worktrees, mut commands } = config::named_paths(content);
        // They have a share of their own, or many of them would leave nothing for hooks.
        let left = MAX_COMMANDS.saturating_sub(self.found.commands.len());
        self.found.is_cut |= commands.len() > left;
        commands.truncate(left);
        self.found.commands.extend(commands);
        let [hooks, templates, includes, worktrees] =
            [hooks, templates, includes, worktrees].map(|values| self.affordable(values));
        self.found.hooks.extend(hooks);
        self.found.worktrees.extend(worktrees);
        self.found.templates.extend(templates);
        // Git takes the directory of the name by which it opened the file, also if that is a link.
        let beside = path.parent().unwrap_or(Path::new("/"));
        for included in includes {
            match expand(&included, self.reach.home) {
                Ok(Some(included)) => self.file(&beside.join(included), depth + 1),
                Ok(None) => {}
                Err(why) => self.notice(format!("{}: {why}", path.display())),
            }
        }
    }

    /// The first values, as many as may be followed.
    fn affordable(&mut self, mut values: Vec<OsString>) -> Vec<OsString> {
        self.found.is_cut |= values.len() > self.budget.values;
        values.truncate(self.budget.values);
        self.budget.values -= values.len();
        values
    }

    fn unresolved(&mut self, path: &Path, why: &str) {
        self.notice(format!("git's configuration {} was not read: {why}", path.display()));
    }

    fn notice(&mut self, message: String) {
        if self.found.notices.len() < MAX_NOTICES && !self.found.notices.contains(&message) {
            self.found.notices.push(message);
        }
    }
}

/// A path of a configuration with its beginning replaced as git does it: `~` by a home. `None` is a path of git's own
/// installation, or no path at all.
pub(super) fn expand(value: &OsStr, home: &Path) -> Result<Option<PathBuf>, String> {
    let value = value.as_bytes();
    let value = value.strip_prefix(b":(optional)").unwrap_or(value);
    if value.is_empty() || value.starts_with(b"%(prefix)/") {
        return Ok(None);
    }
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let Some(rest) = value.strip_prefix(b"~") else { return Ok(Some(path(value))) };
    let (user, below) = match rest.iter().position(|byte| *byte == b'/') {
        Some(end) => (&rest[..end], &rest[end + 1..]),
        None => (rest, &b""[..]),
    };
    let unknown = || format!("the home directory in `{}` is not known", String::from_utf8_lossy(value));
    let home = match user {
        b"" => home.to_owned(),
        user => std::str::from_utf8(user).ok().and_then(home_of).ok_or_else(unknown)?,
    };
    let slashes = below.iter().take_while(|byte| **byte == b'/').count();
    Ok(Some(home.join(path(&below[slashes..]))))
}

/// The home directory of a user of this machine.
fn home_of(user: &str) -> Option<PathBuf> {
    let (users, _) = read_plain(Path::new("/etc/passwd"), MAX_USERS_BYTES).ok()?;
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

    use super::{Budget, Configuration, Located, Reach, linked_hooks, locate};

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
            let home = self.at("home");
            let reach = Reach { home: &home, within: None };
            Configuration::read([self.at(name)], reach, &mut { Budget::OF_USER })
        }
    }

    fn everywhere() -> Reach<'static> {
        Reach { home: Path::new("/h"), within: None }
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
        let directory = |value: &str| Configuration::hooks_directory(value.as_ref(), tree, home);
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
        let files = Configuration::files_of(&place.at("w"), everywhere());
        let found = Configuration::read(files, everywhere(), &mut { Budget::OF_USER });
        assert_eq!(found.hooks, ["x", "y"]);
    }

    /// What a repository names that a run may have made leads nowhere else, whatever links and `..` are on the way.
    #[test]
    fn nothing_outside_of_a_suspect_repository_is_read() {
        let place = Place::new();
        place.write("outside", "[core] hooksPath = leaked\n");
        place.write("out/pre-commit", "x");
        place.write("w/in", "[core] hooksPath = own\n");
        symlink(place.at("outside"), place.at("w/link")).unwrap();
        symlink("..", place.at("w/up")).unwrap();
        symlink("in", place.at("w/near")).unwrap();
        let names = [
            "../../outside",
            "../up/outside",
            "../link",
            "/etc/gitconfig",
            "~/x",
            "../near",
            "../../w/in",
            "../none/../../outside",
        ];
        let text: String = names.iter().map(|name| format!("[include] path = {name}\n")).collect();
        place.write("w/.git/config", &text);
        let within = [place.at("w")];
        let reach = Reach { home: &place.at("home"), within: Some(&within) };
        let mut budget = Budget::OF_REPOSITORY;
        budget.files = 100;
        let found = Configuration::read([place.at("w/.git/config")], reach, &mut budget);
        assert_eq!(found.hooks, ["own"]);
        assert_eq!(found.outside.len(), 6, "{:?}", found.outside);
        assert!(found.files.iter().all(|file| file.end.starts_with(&within[0])), "{:?}", found.files);
        // A pointer that leads elsewhere is not followed either.
        place.write("v/.git", "gitdir: ../w/.git\n");
        place.write("w/.git/commondir", "../../out\n");
        let within = [place.at("v")];
        let reach = Reach { home: &place.at("home"), within: Some(&within) };
        let files = Configuration::files_of(&place.at("v"), reach);
        let found = Configuration::read(files, reach, &mut budget);
        assert_eq!((found.hooks.len(), found.files.len(), found.outside.len()), (0, 0, 2), "{found:?}");
    }

    #[test]
    fn a_budget_bounds_files_bytes_values_and_hooks() {
        let place = Place::new();
        let many: String = (0..1000).map(|number| format!("[core] hooksPath = {number}\n")).collect();
        place.write("values", &many);
        let read = |name: &str, mut budget: Budget| {
            let found = Configuration::read([place.at(name)], everywhere(), &mut budget);
            (found, budget)
        };
        let (found, left) = read("values", Budget { values: 10, ..Budget::OF_USER });
        assert_eq!((found.hooks.len(), found.is_cut, left.values), (10, true, 0));
        let (found, _) = read("values", Budget { bytes: 100, ..Budget::OF_USER });
        assert!(found.hooks.is_empty() && found.is_cut);
        let includes: String = (0..50).map(|number| format!("[include] path = f{number}\n")).collect();
        place.write("files", &includes);
        let (found, left) = read("files", Budget { files: 10, ..Budget::OF_USER });
        assert_eq!((found.files.len(), found.is_cut, left.files), (10, true, 0));
        assert!(found.notices.len() <= super::MAX_NOTICES);
        for number in 0..100 {
            place.write(&format!("hooks/{number}"), "");
            symlink("values", place.at(&format!("hooks/link-{number}"))).unwrap();
        }
        let mut budget = Budget { links: 5, ..Budget::OF_USER };
        let linked = linked_hooks(&place.at("hooks"), everywhere(), &mut budget).unwrap();
        assert_eq!((linked.located.len(), linked.is_cut), (5, true));
    }
}
