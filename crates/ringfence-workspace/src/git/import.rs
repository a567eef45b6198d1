//! Takes over what a run did in its private git directory: objects that git has verified, refs, `HEAD` and the index.
//!
//! Objects pass through a quarantine: their files are linked into a bare repository of ours, packed from the new tips, and
//! written into the real repository by `unpack-objects --strict` or `index-pack --strict`, which compute every id anew. Only
//! then are they compared with those from before. Refs move by compare-and-swap against their values at the start. What cannot be taken over stays where it is and is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Mode, OFlags, linkat, openat, renameat, unlinkat};

use super::checked_out::CheckedOut;
use super::committed::{self, Committed, Configured, Protected, Staged};
use super::config;
use super::gitlinks::Gitlinks;
use super::hidden_files::{AddedFiles, HiddenFiles};
use super::index::{INDEX_BUDGET_BYTES, MAX_PATH_BYTES, is_sound_path};
use super::indirect::{Budget, Located, Reach, configured};
use super::linked::{self, Linked, Real};
use super::private::{CONFIG, MAX_INDEX_BYTES, STATE_FILES, Start};
use super::program::{Git, Input, MAX_MEMORY_BYTES, MAX_OUTPUT_BYTES, data_limit};
use super::refs::{self, KEPT, RefValue, Refs, is_object_id};
use super::repository::MAX_CONFIG_BYTES;
use super::{GitError, PRIVATE, START, START_REFS, Stamp, lexical};
use crate::{Bounds, Directory, EntryKind, Next, Unvisited, walk};

/// Longest note of the start.
const MAX_START_BYTES: u64 = 16 << 20;
/// Longest `HEAD`.
const MAX_HEAD_BYTES: u64 = 4096;
/// Up to so many objects are written one by one; more as one pack, and so are those of a run that has packed its own: written one
/// by one they could take a hundred times as much.
const UNPACK_LIMIT: u32 = 200;
/// Most refs of the start that the new commits are compared with.
const MAX_EXCLUDED: usize = 1000;
/// Refs that are taken over. Never `refs/replace`: git would show other objects than those that are named.
/// Nor `refs/remotes`: they say what a remote has, which the host asks itself.
const NAMESPACES: [&str; 3] = ["refs/heads/", "refs/tags/", "refs/notes/"];
pub(super) const STASH: &str = "refs/stash";
const TAGS: &str = "refs/tags/";
/// The name of the remote that `git clone` makes.
const DEFAULT_REMOTE: &str = "origin";
/// The reflog of the stash, which has a line for each entry.
const STASH_LOG: &str = "logs/refs/stash";
/// Most bytes of it that are read.
const MAX_STASH_LOG_BYTES: u64 = 1 << 20;
/// Why a new name is refused: prompts and completions of shells evaluate names of branches and tags.
const NOT_PLAIN: &str =
    "shells could execute its name, which has other characters than letters, digits and / - _ . + # @ , =";
/// Longest part of the name of a ref that keeps commits; file systems take up to 255 bytes, and git appends `.lock`.
const MAX_PART_BYTES: usize = 200;
/// How much of an object's id tells refs apart whose names are cut.
const SHORT_ID: usize = 16;
/// Bytes of a line of `packed-refs` without the name.
const OBJECT_LINE_BYTES: usize = 66;
/// After so many names of a directory the time is looked at.
const NAMES_BETWEEN_CHECKS: usize = 64;
/// Most refs that a run may change.
const MAX_CHANGED_REFS: usize = 1000;
/// Most bytes of the names of these refs together.
const MAX_CHANGED_BYTES: usize = 256 << 10;
/// Most bytes by which a run may let the index grow.
const MAX_INDEX_GROWTH_BYTES: u64 = 64 << 20;
/// Most names that a notice lists, and the most characters of each.
const MAX_NAMED: usize = 5;
const MAX_NAME_CHARACTERS: usize = 100;
/// Most notices about refs that were not moved. All others are few.
const MAX_REF_NOTICES: usize = 32;
/// Most names of a private git directory that are looked at.
const MAX_LISTED: usize = 10_000;
/// The directory of the quarantine, beside the private git directory.
const QUARANTINE: &str = "quarantine";
/// The copy of the private index in the quarantine.
const INDEX: &str = "private-index";
/// How much of `refs` and `logs` is looked at.
const BOUNDS: Bounds = Bounds { path_bytes: 2048, entries: 200_000 };
/// How much of `objects` is.
const OBJECT_BOUNDS: Bounds = Bounds { path_bytes: 2048, entries: 5_000_000 };
/// Refs below the run's own that name what refs of the user named before the run.
const BEFORE: &str = "before/";
/// How long it may take to remove refs of a run.
const FORGET_TIMEOUT: Duration = Duration::from_secs(10);

/// What to import.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "it holds a function")]
pub struct Import<'a> {
    /// Where the private git directory is, with what was noted at the start.
    pub place: &'a Path,
    /// The run, for the names of refs that cannot be moved.
    pub run: &'a str,
    /// Finds the git program, if something has to be imported; `None` if there is none.
    pub find_git: &'a dyn Fn() -> Option<PathBuf>,
    /// When to give up.
    pub deadline: Instant,
    /// The memory limit of the run, in bytes, if it has one.
    pub memory_limit: Option<u64>,
}

/// What was taken over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imported {
    /// Refs that the run changed.
    pub refs: Vec<RefChange>,
    /// What `HEAD` points to now, if the run changed that.
    pub head: Option<String>,
    /// Whether the index was taken over.
    pub index: bool,
    /// Files in the new commits that programs execute later.
    pub executed_later: Vec<Committed>,
    /// What was not taken over, and why.
    pub notices: Vec<String>,
}

/// A ref that a run changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefChange {
    /// Its name.
    pub name: String,
    /// The object that it named at the start, if it existed.
    pub from: Option<String>,
    /// The object that it names at the end, if it still exists.
    pub to: Option<String>,
    /// The ref that names `to` in the real repository, if its own could not be moved.
    pub kept_as: Option<String>,
    /// The ref that names `from` in the real repository, if the run deleted the ref or moved it to other commits than later
    /// ones.
    pub from_kept_as: Option<String>,
}

/// Takes over what a run did.
pub fn import(import: Import<'_>) -> Result<Imported, GitError> {
    let place = Directory::open(import.place)?;
    if place.metadata(Path::new(START)).is_err() {
        // It could not be made, so there is nothing to import.
        return Ok(Imported::default());
    }
    let start = read_start(&place)?;
    let private = open_private(&place).map_err(|source| made(import.place, source))?;
    let seen = Seen::look(&place, &private, &start)?;
    if !seen.is_changed() {
        return Ok(Imported { notices: seen.notices, ..Imported::default() });
    }
    let name_bytes: usize = seen.refs.iter().map(|change| change.name.len()).sum();
    if seen.refs.len() > MAX_CHANGED_REFS || name_bytes > MAX_CHANGED_BYTES {
        return Err(GitError::TooManyRefs);
    }
    let program = (import.find_git)().ok_or(GitError::NoGit)?;
    let program = program.as_path();
    let real = Directory::open_known(&start.common, start.common_id)?;
    let own_directory = real.directory(&start.own_prefix()).map_err(|source| made(&start.common, source))?;
    let loose = refuse_links(&real)?;
    refuse_links(&own_directory)?;
    refuse_linked_objects(&real)?;
    if start.worktree.is_none() && real.metadata(Path::new("commondir")).is_ok() {
        return Err(GitError::Link(PathBuf::from("commondir")));
    }
    let quarantine = Quarantine::make(import, &private, &start)?;
    let user = other_owner(&start.own());
    let own_path = start.own();
    let real_paths =
        Real { common: &real, path: &start.common, own: &own_directory, own_path: &own_path, user };
    let linked = Linked::make(import.place, real_paths)?;
    let writable = vec![held_path(&real), import.place.to_owned()];
    let git = |directory: PathBuf, user| Git {
        program,
        directory,
        writable: writable.clone(),
        index: None,
        user,
        deadline: import.deadline,
        max_output_bytes: MAX_OUTPUT_BYTES,
        max_memory_bytes: MAX_MEMORY_BYTES,
        max_data_bytes: data_limit(import.memory_limit),
    };
    let real_git = Git { index: Some(own_path.join("index")), ..git(linked.directory.clone(), user) };
    let importer = Importer {
        run: import.run,
        place: import.place,
        start: &start,
        seen: &seen,
        real: real_git,
        clean: git(quarantine.directory.clone(), None),
        own: &own_directory,
        common: &real,
        loose,
        remotes: config::remotes(&real.read(Path::new(CONFIG), MAX_CONFIG_BYTES).unwrap_or_default()),
    };
    quarantine.index_packs(&importer.clean)?;
    importer.import()
}

/// Whether a run changed refs or `HEAD` in its private git directory.
pub fn has_commits(place: &Path) -> Result<bool, GitError> {
    let place_directory = Directory::open(place)?;
    let start = read_start(&place_directory)?;
    let private = open_private(&place_directory).map_err(|source| made(place, source))?;
    let seen = Seen::look(&place_directory, &private, &start)?;
    Ok(seen.head_changed || !seen.refs.is_empty())
}

/// The git directory that a private one stands for.
pub fn repository_of(place: &Path) -> Result<PathBuf, GitError> {
    let place = Directory::open(place)?;
    read_start(&place).map(|start| start.common)
}

/// Removes the refs that name what refs of the user named before a run. `directory` is the git directory, and `place` one that no
/// run sees.
pub fn forget(
    directory: &Path,
    run: &str,
    names: &[String],
    (git, place): (&Path, &Path),
) -> Result<(), GitError> {
    let ours = format!("{KEPT}{run}/{BEFORE}");
    let ours = names.iter().filter(|name| name.starts_with(&ours) && refs::is_ref_name(name));
    let lines: String = ours.map(|name| format!("delete {name}\n")).collect();
    if lines.is_empty() {
        return Ok(());
    }
    let real = Directory::open(directory)?;
    refuse_links(&real)?;
    let user = other_owner(directory);
    let paths = Real { common: &real, path: directory, own: &real, own_path: directory, user };
    let linked = Linked::make(place, paths)?;
    let git = Git {
        program: git,
        directory: linked.directory.clone(),
        writable: vec![held_path(&real)],
        index: None,
        user,
        deadline: Instant::now() + FORGET_TIMEOUT,
        max_output_bytes: MAX_OUTPUT_BYTES,
        max_memory_bytes: MAX_MEMORY_BYTES,
        max_data_bytes: data_limit(None),
    };
    git.run(&["update-ref", "--stdin"], Input::Text(lines.into_bytes())).map(drop)
}

/// Opens the private git directory of a run that is over, also if the run took the user's own rights to it or to its parts.
fn open_private(place: &Directory) -> io::Result<Directory> {
    for part in ["", "objects", "refs", "refs/heads", "refs/tags"] {
        let path = Path::new(PRIVATE).join(part);
        let is_shut = |data: crate::Metadata| {
            data.kind() == EntryKind::Directory && data.permissions() & 0o700 != 0o700
        };
        if place.metadata(&path).is_ok_and(is_shut) {
            place.unlock_directory(&path)?;
        }
    }
    place.directory(Path::new(PRIVATE))
}

/// The name of a directory that is held open, in this process.
fn held_path(directory: &Directory) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), directory.as_fd().as_raw_fd()).into()
}

fn read_start(place: &Directory) -> Result<Start, GitError> {
    Ok(serde_json::from_slice(&place.read(Path::new(START), MAX_START_BYTES).map_err(GitError::Head)?)?)
}

pub(super) fn made(path: &Path, source: io::Error) -> GitError {
    GitError::Make { path: path.to_owned(), source }
}

/// Opens a directory of a git directory that is to be searched for links, if it exists. One that cannot be listed is an error:
/// git can look names up in it all the same.
fn open_part(git: &Directory, part: &str) -> Result<Option<Directory>, GitError> {
    match git.directory(Path::new(part)) {
        Ok(directory) => Ok(Some(directory)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(made(Path::new(part), source)),
    }
}

/// Refuses a git directory in which git would write through a link: an earlier run may have made it. Returns how many loose
/// refs there are, with the directories between them, as far as a later start counts them.
fn refuse_links(git: &Directory) -> Result<usize, GitError> {
    let failed = |source| GitError::Make { path: PathBuf::from(".git"), source };
    for part in [".", "objects"] {
        let Some(directory) = open_part(git, part)? else { continue };
        let entries = directory.entries(usize::MAX).map_err(failed)?;
        let linked = entries.into_iter().find(|entry| entry.kind == EntryKind::Link && entry.name != "hooks");
        if let Some(entry) = linked {
            return Err(GitError::Link(PathBuf::from(entry.name)));
        }
    }
    let (mut link, mut loose) = (None, 0);
    for part in ["refs", "logs"] {
        let Some(directory) = open_part(git, part)? else { continue };
        let unvisited = walk(&directory, BOUNDS, &mut |visit| {
            if visit.kind == EntryKind::Link && link.is_none() {
                link = Some(Path::new(part).join(visit.path));
            }
            let is_kept = || Path::new(part).join(visit.path).starts_with(KEPT);
            loose += usize::from(part == "refs" && !is_kept());
            Next::Enter
        });
        if unvisited.map_err(failed)? != Unvisited::default() {
            return Err(GitError::TooManyRefs);
        }
    }
    link.map_or(Ok(loose), |path| Err(GitError::Link(path)))
}

/// Refuses a git directory with objects that lead elsewhere: an earlier run may have made it, and git would take what a link leads
/// to for an object of the run.
fn refuse_linked_objects(git: &Directory) -> Result<(), GitError> {
    let Some(objects) = open_part(git, "objects")? else { return Ok(()) };
    let mut link = None;
    let unvisited = walk(&objects, OBJECT_BOUNDS, &mut |visit| {
        if !matches!(visit.kind, EntryKind::File | EntryKind::Directory) && link.is_none() {
            link = Some(Path::new("objects").join(visit.path));
        }
        Next::Enter
    });
    let unvisited = unvisited.map_err(|source| made(Path::new("objects"), source))?;
    match (link, unvisited.directories.first()) {
        (Some(path), _) => Err(GitError::Link(path)),
        (None, Some(path)) => {
            let why = io::Error::other("it cannot be searched for links");
            Err(made(&Path::new("objects").join(path), why))
        }
        (None, None) if unvisited.more => Err(GitError::TooManyObjects),
        (None, None) => Ok(()),
    }
}

/// Root imports into another user's repository as that user.
fn other_owner(directory: &Path) -> Option<(u32, u32)> {
    let data = fs::metadata(directory).ok()?;
    (rustix::process::geteuid().is_root() && data.uid() != 0).then(|| (data.uid(), data.gid()))
}

impl Start {
    /// The git directory of the working tree.
    fn own(&self) -> PathBuf {
        match &self.worktree {
            Some(name) => self.common.join("worktrees").join(name),
            None => self.common.clone(),
        }
    }

    fn protected_paths(&self) -> Protected {
        let all = |paths: &[String]| paths.iter().map(PathBuf::from).collect();
        Protected { paths: all(&self.protected), held: all(&self.held) }
    }

    /// Whether `HEAD` named this ref.
    fn is_head(&self, name: &str) -> bool {
        refs::parse_value(&self.head) == Some(RefValue::Symbolic(name.to_owned()))
    }

    /// Its place in the common git directory.
    fn own_prefix(&self) -> PathBuf {
        self.worktree.as_ref().map_or_else(|| PathBuf::from("."), |name| Path::new("worktrees").join(name))
    }

    /// Its place in the private git directory.
    fn prefix(&self) -> PathBuf {
        self.worktree.as_ref().map(|name| Path::new("worktrees").join(name)).unwrap_or_default()
    }
}

/// What a run left in its private git directory.
struct Seen {
    head: Option<RefValue>,
    head_changed: bool,
    index_changed: bool,
    refs: Vec<RefChange>,
    /// Refs at the start, for what is known already.
    before: Refs,
    /// State files that are gone.
    ended: Vec<String>,
    /// What is not taken over.
    notices: Vec<String>,
}

impl Seen {
    fn look(place: &Directory, private: &Directory, start: &Start) -> Result<Self, GitError> {
        let stamp = |path: &Path| private.described_file(path).ok().map(|(_, data)| Stamp::of(&data));
        let prefix = start.prefix();
        let head = private.read_text(&prefix.join("HEAD"), MAX_HEAD_BYTES).ok();
        let refs::Listed { refs: loose, passed_over } =
            refs::read_loose(private, &mut refs::RefsBudget::OF_WORKSPACE.clone())?;
        let is_new = |(name, value): &(&String, &RefValue)| match value {
            RefValue::Symbolic(to) => {
                !start.symbolic.iter().any(|(known, target)| known == *name && target == to)
            }
            RefValue::Object(_) => true,
        };
        let refs_changed = passed_over > 0
            || stamp(Path::new("packed-refs")) != start.private_refs
            || loose.iter().any(|entry| is_new(&entry));
        let mut seen = Self {
            head_changed: head.as_deref().map(str::trim) != Some(start.head.trim()),
            head: head.as_deref().and_then(refs::parse_value),
            index_changed: stamp(&prefix.join("index")) != start.private_index,
            refs: Vec::new(),
            before: Refs::new(),
            ended: Vec::new(),
            notices: Vec::new(),
        };
        if refs_changed || seen.head_changed || seen.index_changed {
            seen.before = match &start.refs {
                Some(text) => refs::parse_packed(text).refs,
                None => refs::read_packed(place, Path::new(START_REFS))?.refs,
            };
            if refs_changed {
                seen.look_at_refs(private, start)?;
            }
            let gone = |name: &&String| private.metadata(&prefix.join(name)).is_err();
            seen.ended = start.state_files.iter().filter(gone).cloned().collect();
        }
        seen.notices.extend(left_behind(private, start, stamp(Path::new(CONFIG))));
        Ok(seen)
    }

    /// Compares the refs with those of the start, and says which changes are not taken over.
    fn look_at_refs(&mut self, private: &Directory, start: &Start) -> Result<(), GitError> {
        let refs::Listed { refs: after, passed_over } =
            refs::read(private, &mut refs::RefsBudget::OF_WORKSPACE.clone())?;
        if passed_over > 0 {
            self.notices.push(format!(
                "{passed_over} refs of the run were not taken over: their names are too long, too deep or no text"
            ));
        }
        let others = |(name, value): &(&String, &RefValue)| match value {
            RefValue::Object(_) => !is_taken_over(name) && self.before.get(*name) != Some(value),
            RefValue::Symbolic(to) => {
                !start.symbolic.iter().any(|(known, target)| known == *name && target == to)
            }
        };
        let others: Vec<&str> = after.iter().filter(others).map(|(name, _)| name.as_str()).collect();
        self.notices.extend(listed("refs of a kind that is not taken over", &others));
        if self.before.contains_key(STASH) && !after.contains_key(STASH) {
            self.notices.push("the stash that the run dropped is still there".into());
        }
        self.refs = changes(&self.before, &after);
        if self.refs.iter().any(|change| change.name == STASH) {
            let log = private.read_text(Path::new(STASH_LOG), MAX_STASH_LOG_BYTES).unwrap_or_default();
            let older = new_stashes(&log, self.before.get(STASH)).saturating_sub(1);
            self.notices.extend((older > 0).then(|| {
                format!("only the last stash of the run is taken over, {older} before it went with the run")
            }));
        }
        // A run that lost the file of all refs did not mean to delete them.
        let whole = private.file(Path::new("packed-refs")).is_ok();
        let (stay, deleted): (Vec<RefChange>, Vec<RefChange>) = std::mem::take(&mut self.refs)
            .into_iter()
            .partition(|change| change.to.is_some() || (whole && !start.is_head(&change.name)));
        let names: Vec<&str> = deleted.iter().map(|change| change.name.as_str()).collect();
        self.notices.extend(match whole {
            true => {
                listed("the branch that is checked out was deleted by the run and is still there", &names)
            }
            false => listed("refs were lost with the run's packed-refs and are still there", &names),
        });
        self.refs = stay;
        Ok(())
    }

    fn is_changed(&self) -> bool {
        self.head_changed || self.index_changed || !self.refs.is_empty()
    }
}

/// Whether the configuration says what the host's says: git writes it anew without a change when a branch is deleted.
fn is_as_on_the_host(private: &Directory, start: &Start) -> bool {
    let read = |directory: &Directory| directory.read(Path::new(CONFIG), MAX_CONFIG_BYTES).ok();
    let host = Directory::open_known(&start.common, start.common_id).ok();
    let host = host.and_then(|host| read(&host));
    let host = host.map(|host| config::without_credentials(&host).unwrap_or(host));
    read(private).is_some_and(|private| host == Some(private))
}

/// Other things that a run made in its private git directory and that go with it. `config` is its configuration.
fn left_behind(private: &Directory, start: &Start, config: Option<Stamp>) -> Vec<String> {
    let mut notices = Vec::new();
    let is_rewritten = start.private_config.is_some() && config != start.private_config;
    if is_rewritten && !is_as_on_the_host(private, start) {
        notices.push("changes of git's configuration by the run were not taken over".to_owned());
    }
    let own = if start.worktree.is_some() { private.directory(&start.prefix()).ok() } else { None };
    let names = own.as_ref().unwrap_or(private).entries(MAX_LISTED).unwrap_or_default();
    let is_new =
        |name: &str| STATE_FILES.contains(&name) && !start.state_files.iter().any(|known| known == name);
    let begun: Vec<&str> = names
        .iter()
        .filter_map(|entry| entry.name.to_str())
        .filter(|name| is_new(name) || matches!(*name, "rebase-merge" | "rebase-apply" | "BISECT_LOG"))
        .collect();
    notices.extend(listed("what the run began in git and did not end is not taken over", &begun));
    let is_directory =
        |name: &str| names.iter().any(|entry| entry.name == name && entry.kind == EntryKind::Directory);
    if start.worktree.is_none() && is_directory("worktrees") {
        notices.push("linked worktrees that the run added were not taken over".to_owned());
    }
    // Those of the host are mounted over an empty directory.
    let made = private.directory(Path::new("modules")).and_then(|modules| modules.entries(1));
    if made.is_ok_and(|made| !made.is_empty()) {
        notices.push("git directories of submodules that the run made were not taken over".to_owned());
    }
    notices
}

/// How many entries of the stash are later than the one that it had before, by its reflog.
fn new_stashes(log: &str, before: Option<&RefValue>) -> usize {
    let is_new = |line: &&str| match before {
        Some(RefValue::Object(id)) => line.split(' ').nth(1) != Some(id),
        _ => true,
    };
    log.lines().rev().take_while(is_new).count()
}

/// Bounds the notices about single refs, of which a run can change many. Those about the index, `HEAD` and what was not searched
/// are not among them, so that no number of refs hides them.
fn bound_ref_notices(mut notices: Vec<String>) -> Vec<String> {
    let more = notices.len().saturating_sub(MAX_REF_NOTICES);
    if more > 0 {
        notices.truncate(MAX_REF_NOTICES);
        notices.push(format!("{more} more refs were not moved; `ringfence runs show` lists all refs"));
    }
    notices
}

/// A notice with the first few of many names.
fn listed(what: &str, names: &[&str]) -> Option<String> {
    let more = match names.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let short = |name: &&str| name.chars().take(MAX_NAME_CHARACTERS).collect::<String>();
    let named: Vec<String> = names.iter().take(MAX_NAMED).map(short).collect();
    (!names.is_empty()).then(|| format!("{what}: {}{more}", named.join(", ")))
}

fn is_taken_over(name: &str) -> bool {
    name == STASH || NAMESPACES.iter().any(|space| name.starts_with(space))
}

/// Refs that name other objects than before, as far as they are taken over.
fn changes(before: &Refs, after: &Refs) -> Vec<RefChange> {
    let id = |refs: &Refs, name: &str| match refs.get(name) {
        Some(RefValue::Object(id)) => Some(id.clone()),
        _ => None,
    };
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let ours = names.into_iter().filter(|name| is_taken_over(name));
    let change = |name: &String| {
        let (from, to) = (id(before, name), id(after, name));
        // A stash that was dropped inside stays on the host: its older entries are in the reflog alone.
        let dropped_stash = name == STASH && to.is_none();
        (from != to && !dropped_stash).then(|| RefChange {
            name: name.clone(),
            from,
            to,
            kept_as: None,
            from_kept_as: None,
        })
    };
    ours.filter_map(change).collect()
}

/// A bare repository of ours with the objects that a run made, and the real ones as alternates.
struct Quarantine {
    directory: PathBuf,
}

impl Quarantine {
    fn make(import: Import<'_>, private: &Directory, start: &Start) -> Result<Self, GitError> {
        let failed = |source| made(import.place, source);
        let quarantine = Self::make_empty(import.place, start).map_err(failed)?;
        let deadline = import.deadline;
        let in_time = quarantine.take_objects(private, deadline).map_err(failed)?
            && quarantine.take_shared_indexes(private, &start.prefix(), deadline).map_err(failed)?;
        if !in_time {
            return Err(GitError::ObjectsTooSlow);
        }
        quarantine.take_index(private, &start.prefix()).map_err(failed)?;
        Ok(quarantine)
    }

    fn make_empty(place: &Path, start: &Start) -> io::Result<Self> {
        let directory = place.join(QUARANTINE);
        // What an import left that was killed.
        let _ = fs::remove_dir_all(&directory);
        for name in ["", "objects", "objects/info", "objects/pack", "refs"] {
            DirBuilder::new().mode(0o700).create(directory.join(name))?;
        }
        let version = if start.sha256 { "1\n[extensions]\n\tobjectformat = sha256" } else { "0" };
        let config = format!("[core]\n\tbare = true\n\trepositoryformatversion = {version}\n");
        let objects = start.common.join("objects");
        let objects = objects.to_str().filter(|path| !path.contains('\n') && !path.starts_with('"'));
        let objects = objects.ok_or_else(|| io::Error::other("its path cannot be an alternate of git"))?;
        for (name, text) in [
            ("config", config),
            ("HEAD", "ref: refs/heads/none\n".to_owned()),
            ("objects/info/alternates", format!("{objects}\n")),
        ] {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(directory.join(name))?
                .write_all(text.as_bytes())?;
        }
        Ok(Self { directory })
    }

    /// Links the files of objects: by their names, regular ones alone. No index of a pack, no alternates. The private git
    /// directory stays whole, so that a failed import can be repeated. Returns whether the time was enough.
    fn take_objects(&self, private: &Directory, deadline: Instant) -> io::Result<bool> {
        let Ok(objects) = private.directory(Path::new("objects")) else { return Ok(true) };
        let target = Directory::open(&self.directory.join("objects")).map_err(io::Error::other)?;
        let mut fans: Vec<String> = Vec::new();
        let in_time = each_until(&objects, deadline, &mut |name, kind| {
            let is_fan = |name: &&str| *name == "pack" || (name.len() == 2 && is_hex(name));
            let name = name.to_str().filter(is_fan).filter(|_| kind == EntryKind::Directory);
            fans.extend(name.map(str::to_owned));
            Ok(())
        })?;
        for name in fans {
            if name != "pack" {
                DirBuilder::new().mode(0o700).create(self.directory.join("objects").join(&name))?;
            }
            let from = objects.directory(Path::new(&name))?;
            let to = target.directory(Path::new(&name))?;
            let is_wanted = |file: &&str| match name.as_str() {
                "pack" => is_pack(file),
                _ => is_object_id(&format!("{name}{file}")),
            };
            let in_time = each_until(&from, deadline, &mut |file, kind| match file
                .to_str()
                .filter(is_wanted)
                .filter(|_| kind == EntryKind::File)
            {
                Some(file) => Ok(linkat(&from, file, &to, file, AtFlags::empty())?),
                None => Ok(()),
            })?;
            if !in_time {
                return Ok(false);
            }
        }
        Ok(in_time)
    }

    /// Copies the index, which may be anything by now.
    fn take_index(&self, private: &Directory, prefix: &Path) -> io::Result<()> {
        let Ok(index) = private.file(&prefix.join("index")) else { return Ok(()) };
        let mut copy = OpenOptions::new().write(true).create_new(true).open(self.directory.join(INDEX))?;
        io::copy(&mut index.take(MAX_INDEX_BYTES + 1), &mut copy).map(drop)
    }

    /// Returns whether the time was enough.
    fn take_shared_indexes(&self, private: &Directory, prefix: &Path, deadline: Instant) -> io::Result<bool> {
        let own = if prefix.as_os_str().is_empty() { None } else { Some(private.directory(prefix)?) };
        let own = own.as_ref().unwrap_or(private);
        let target = Directory::open(&self.directory).map_err(io::Error::other)?;
        each_until(own, deadline, &mut |name, kind| {
            let id = name.to_str().and_then(|name| name.strip_prefix("sharedindex."));
            match kind == EntryKind::File && id.is_some_and(is_object_id) {
                true => Ok(linkat(own, name, &target, name, AtFlags::empty())?),
                false => Ok(()),
            }
        })
    }

    /// Indexes packs anew: what a run says of them is not used.
    fn index_packs(&self, git: &Git<'_>) -> Result<(), GitError> {
        let packs = self.directory.join("objects/pack");
        let names = fs::read_dir(&packs).map_err(|source| made(&packs, source))?;
        for pack in names.flatten().map(|entry| entry.path()) {
            if let Some(pack) = pack.to_str() {
                git.run(&["index-pack", pack], Input::Nothing)?;
            }
        }
        Ok(())
    }
}

impl Drop for Quarantine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Visits the names in a directory, of which a run may have made any number, without keeping them. Returns whether all were
/// visited before the time was over.
fn each_until(
    directory: &Directory,
    deadline: Instant,
    visit: &mut dyn FnMut(&OsStr, EntryKind) -> io::Result<()>,
) -> io::Result<bool> {
    let (mut count, mut in_time, mut visited) = (0usize, true, Ok(()));
    directory.each(&mut |name, kind, _| {
        in_time = count % NAMES_BETWEEN_CHECKS != 0 || Instant::now() < deadline;
        count += 1;
        if in_time {
            visited = visit(name, kind);
        }
        in_time && visited.is_ok()
    })?;
    visited.map(|()| in_time)
}

/// Leaves the objects of the real repository alone in a quarantine. Git reads a loose object by its name without computing its
/// id, so one of the run could stand for a tree that the real repository has.
fn remove_unverified(quarantine: &Path) -> io::Result<()> {
    for entry in fs::read_dir(quarantine.join("objects"))? {
        let entry = entry?;
        // It names the alternates.
        if entry.file_name() != "info" {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_pack(name: &str) -> bool {
    name.strip_prefix("pack-").and_then(|rest| rest.strip_suffix(".pack")).is_some_and(is_object_id)
}

/// An entry of an index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct IndexEntry {
    /// Mode, id and stage, as git prints them.
    description: String,
    path: Vec<u8>,
}

impl IndexEntry {
    fn parse(line: &[u8]) -> Option<Self> {
        let tab = line.iter().position(|byte| *byte == b'\t')?;
        let description = std::str::from_utf8(&line[..tab]).ok()?.to_owned();
        let path = line[tab + 1..].to_owned();
        Some(Self { description, path }).filter(IndexEntry::is_sound)
    }

    fn id(&self) -> &str {
        self.description.split(' ').nth(1).unwrap_or_default()
    }

    fn is_gitlink(&self) -> bool {
        self.description.starts_with("160000 ")
    }

    /// Whether git could check it out within the working tree, and not into a git directory.
    fn is_sound(&self) -> bool {
        let mode = self.description.split(' ').next().unwrap_or_default();
        matches!(mode, "100644" | "100755" | "120000" | "160000")
            && is_object_id(self.id())
            && self.path.len() <= MAX_PATH_BYTES
            && is_sound_path(&self.path)
    }
}

struct Importer<'a> {
    run: &'a str,
    place: &'a Path,
    start: &'a Start,
    seen: &'a Seen,
    /// Git on the real repository.
    real: Git<'a>,
    /// Git on the quarantine.
    clean: Git<'a>,
    /// The real git directory of the working tree.
    own: &'a Directory,
    /// The common one.
    common: &'a Directory,
    /// Number of loose refs and directories of refs that it has.
    loose: usize,
    /// Names of its remotes.
    remotes: BTreeSet<String>,
}

impl Importer<'_> {
    fn import(&self) -> Result<Imported, GitError> {
        let mut done = Imported { notices: self.seen.notices.clone(), ..Imported::default() };
        let index = match self.seen.index_changed {
            true => self.read_indexes().unwrap_or_else(|error| {
                done.notices.push(format!("the index was not taken over: {error}"));
                None
            }),
            false => None,
        };
        let staged = index.as_ref().map(|index| index.new_ids()).unwrap_or_default();
        self.take_objects(&staged)?;
        let mut gitlinks = self.gitlinks(index.as_ref());
        // Refs are judged by the index that the working tree has then.
        let staged = index.and_then(|index| self.take_over_index(index, &mut gitlinks, &mut done));
        self.require_indexed(&mut gitlinks);
        let Start { worktree, head, symbolic, .. } = self.start;
        let checked_out = CheckedOut::read(self.common, worktree.as_deref(), head, symbolic);
        done.notices.extend(gitlinks.notices());
        let moved = self.move_refs(&checked_out, &gitlinks, &mut done);
        self.move_head(&checked_out, (&moved, &gitlinks), &mut done);
        self.end_states(&done);
        match remove_unverified(&self.place.join(QUARANTINE)) {
            Ok(()) => self.find_executed(&staged.unwrap_or_default(), &gitlinks, &mut done),
            Err(error) => done
                .notices
                .push(format!("commits were not searched for files that programs execute later: {error}")),
        }
        Ok(done)
    }

    /// Puts the entries of the private index into place, if it is not refused. Returns what it brings.
    fn take_over_index(
        &self,
        index: Indexes,
        gitlinks: &mut Gitlinks,
        done: &mut Imported,
    ) -> Option<Staged> {
        let allowed = gitlinks.refused(committed::INDEX).map_or(Ok(()), Err);
        match allowed.and_then(|()| self.replace_index(&index)) {
            Ok(()) => {
                done.index = true;
                Some(index.into_staged())
            }
            Err(why) => {
                done.notices.push(format!("the index was not taken over: {why}"));
                gitlinks.refuse(committed::INDEX, why);
                None
            }
        }
    }

    /// Where the working tree is. Its place does not matter where it is not known, as long as nothing leads out of it.
    fn tree(&self) -> PathBuf {
        let known = match &self.start.worktree {
            None => self.start.common.parent().map(Path::to_owned),
            Some(_) => {
                let pointer = self.own.read_text(Path::new("gitdir"), MAX_HEAD_BYTES).ok();
                let pointer = pointer.map(|text| self.start.own().join(text.trim()));
                pointer.and_then(|pointer| Some(lexical(pointer.parent()?)))
            }
        };
        known.unwrap_or_else(|| PathBuf::from("/tree"))
    }

    /// Paths of the working tree that the repository's configuration includes or has its hooks in, and those that links among
    /// the hooks lead to. Those that a home directory leads to were noted at the start, with all that is protected.
    fn configured_paths(&self) -> Configured {
        let tree = self.tree();
        let files = [self.start.common.join("config"), self.start.own().join("config.worktree")];
        let reach = Reach { home: Path::new("/nonexistent"), within: None };
        let hooks = self.start.common.join("hooks");
        let located = configured(files, Some(hooks), &tree, reach, &mut Budget::OF_USER.clone()).located;
        let below = |path: PathBuf| {
            let below = path.strip_prefix(&tree).ok()?.to_owned();
            (!below.as_os_str().is_empty() && !below.starts_with(".git")).then_some(below)
        };
        let mut found = Configured::default();
        for Located { links, passed, end } in located {
            found.ends.extend(links.into_iter().chain([end]).filter_map(below));
            found.passed.extend(passed.into_iter().filter_map(below));
        }
        found
    }

    /// The commit that `HEAD` named at the start.
    fn base(&self) -> Option<String> {
        match refs::parse_value(&self.start.head)? {
            RefValue::Object(id) => Some(id),
            RefValue::Symbolic(name) => match self.seen.before.get(&name)? {
                RefValue::Object(id) => Some(id.clone()),
                RefValue::Symbolic(_) => None,
            },
        }
    }

    /// Submodules that the refs, `HEAD` and the index of the run add.
    fn gitlinks(&self, index: Option<&Indexes>) -> Gitlinks {
        let detached = match (&self.seen.head, self.seen.head_changed) {
            (Some(RefValue::Object(id)), true) => Some(("HEAD", None, id.as_str())),
            _ => None,
        };
        let changed =
            self.seen.refs.iter().filter_map(|change| {
                Some((change.name.as_str(), change.from.as_deref(), change.to.as_deref()?))
            });
        // A stash has the index and untracked files in commits of their own.
        let stash = self
            .seen
            .refs
            .iter()
            .filter(|change| change.name == STASH)
            .filter_map(|change| change.to.clone());
        let parts: Vec<String> = stash.flat_map(|to| [format!("{to}^2"), format!("{to}^3")]).collect();
        let parts = parts.iter().map(|part| (STASH, None, part.as_str()));
        let changed: Vec<_> = changed.chain(detached).chain(parts).collect();
        let hidden = HiddenFiles::of(self.start);
        let base = self.base();
        let mut found = Gitlinks::find(&self.real, &changed, &hidden, (base.as_deref(), self.start.sha256));
        if let Some(index) = index {
            found.add_files(committed::INDEX, index.added_files(&hidden));
            let before: BTreeSet<&[u8]> =
                index.now.iter().filter(|one| one.is_gitlink()).map(|one| &one.path[..]).collect();
            let after = index.after.iter().filter(|one| one.is_gitlink() && !before.contains(&one.path[..]));
            found.add(
                committed::INDEX,
                after.map(|one| PathBuf::from(OsStr::from_bytes(&one.path))).collect(),
            );
            found.limit(committed::INDEX, index.after.iter().filter(|one| one.is_gitlink()).count());
        }
        found.judge(&self.tree());
        found
    }

    /// Refuses what the branch of `HEAD` adds and the real index lacks. To be asked once the index is in place, or is not taken over.
    fn require_indexed(&self, found: &mut Gitlinks) {
        let heads = [refs::parse_value(&self.start.head), self.seen.head.clone()].into_iter().flatten();
        let heads: Vec<String> = heads
            .map(|head| match head {
                RefValue::Symbolic(name) => name,
                RefValue::Object(_) => "HEAD".to_owned(),
            })
            .filter(|head| found.adds_to(head))
            .collect();
        if !heads.is_empty() {
            let indexed = self.indexed_gitlinks();
            heads.iter().for_each(|head| found.require_indexed(head, &indexed));
        }
    }

    /// Submodules that the real index has. None if it cannot be read.
    fn indexed_gitlinks(&self) -> BTreeSet<PathBuf> {
        let listed = list_index(&self.real).ok().flatten().unwrap_or_default().into_iter();
        listed.filter(IndexEntry::is_gitlink).map(|one| PathBuf::from(OsString::from_vec(one.path))).collect()
    }

    /// Lists what programs execute of the files that the new commits and the index bring. The quarantine has no objects of its
    /// own any more, so verified ones alone are compared.
    fn find_executed(&self, staged: &Staged, gitlinks: &Gitlinks, done: &mut Imported) {
        let base = self.base();
        let mut refs = done.refs.clone();
        if let Some(id) = done.head.clone().filter(|head| is_object_id(head)) {
            refs.push(RefChange { name: "HEAD".into(), to: Some(id), ..RefChange::default() });
        }
        let heads = [refs::parse_value(&self.start.head), self.seen.head.clone()];
        let branches = heads.into_iter().flatten().filter_map(|head| match head {
            RefValue::Symbolic(name) => Some(name),
            RefValue::Object(_) => None,
        });
        let first: Vec<String> = branches.chain(["HEAD".to_owned()]).collect();
        let search = committed::Search {
            refs: &refs,
            first: &first,
            base: base.as_deref(),
            sha256: self.start.sha256,
            configured: &self.configured_paths(),
            protected: &self.start.protected_paths(),
            staged,
            gitlinks,
        };
        let found = committed::find(&self.clean, &search);
        done.executed_later = found.files;
        done.notices.extend(found.notices);
    }

    /// The objects that refs, `HEAD` and the index name now.
    fn tips(&self, staged: &BTreeSet<String>) -> BTreeSet<String> {
        let of_refs = self.seen.refs.iter().filter_map(|change| change.to.clone());
        let of_head = match (&self.seen.head, self.seen.head_changed) {
            (Some(RefValue::Object(id)), true) => Some(id.clone()),
            _ => None,
        };
        of_refs.chain(of_head).chain(staged.iter().cloned()).collect()
    }

    /// Moves what is reachable from the new tips into the real repository, verified, and checks that nothing is missing.
    fn take_objects(&self, staged: &BTreeSet<String>) -> Result<(), GitError> {
        let tips = self.tips(staged);
        if tips.is_empty() {
            return Ok(());
        }
        let known = self.seen.before.values().filter_map(|value| match value {
            RefValue::Object(id) => Some(format!("^{id}\n")),
            RefValue::Symbolic(_) => None,
        });
        let known: BTreeSet<String> = known.take(MAX_EXCLUDED).collect();
        let tips: String = tips.iter().map(|id| format!("{id}\n")).collect();
        let wanted = format!("{tips}{}", known.into_iter().collect::<String>());
        let pack = self.place.join(QUARANTINE).join("new.pack");
        let output = File::create(&pack).map_err(|source| made(&pack, source))?;
        let words = ["pack-objects", "--revs", "--stdout", "-q", "--delta-base-offset"];
        self.clean.run_to(&words, Input::Text(wanted.into_bytes()), Some(output))?;
        let mut pack = File::open(&pack).map_err(|source| made(&pack, source))?;
        let count = count(&mut pack).map_err(|source| made(self.place, source))?;
        if count > 0 {
            let is_packed = holds_packs(&self.place.join(QUARANTINE));
            let words: &[&str] = match count <= UNPACK_LIMIT && !is_packed {
                true => &["unpack-objects", "-q", "--strict"],
                false => &["index-pack", "--stdin", "--strict"],
            };
            self.real.run(words, Input::File(pack))?;
        }
        let words = ["rev-list", "--objects", "--stdin", "--quiet", "--not", "--all"];
        self.real.run(&words, Input::Text(tips.into_bytes())).map(drop)
    }

    /// Moves refs, and returns the names of those that are now what the run made of them.
    fn move_refs(
        &self,
        checked_out: &CheckedOut,
        gitlinks: &Gitlinks,
        done: &mut Imported,
    ) -> BTreeSet<String> {
        let (mut room, mut moved, mut refused) = (self.room(), BTreeSet::new(), Vec::new());
        for change in &self.seen.refs {
            if Instant::now() >= self.real.deadline {
                done.notices.push("not all refs were moved: it took too long".into());
                break;
            }
            let mut change = change.clone();
            let held = checked_out.why_not(&change.name, self.start.is_head(&change.name));
            let held = held.map(str::to_owned).or_else(|| gitlinks.refused(&change.name));
            let allowed = held.map_or(Ok(()), Err);
            let old = || {
                let from = change.from.as_deref().unwrap_or_default();
                self.loses_commits(&change).then(|| self.kept_name(BEFORE, &change.name, from))
            };
            let updated = allowed.and_then(|()| self.take_room(&change, &mut room)).and_then(|()| {
                let old = old();
                self.update(&change, old.as_deref()).map(|()| old).map_err(|error| error.to_string())
            });
            match updated {
                Ok(old) => {
                    if self
                        .head()
                        .as_deref()
                        .and_then(refs::parse_value)
                        .is_some_and(|head| head == RefValue::Symbolic(change.name.clone()))
                    {
                        // The branch has moved, whatever comes of the reflog.
                        let _ = self.log_head(change.from.as_deref(), change.to.as_deref());
                    }
                    change.from_kept_as = old;
                    moved.insert(change.name.clone());
                }
                Err(why) => refused.push(self.keep_new(&mut change, &why)),
            }
            // One that is neither moved nor kept has a notice alone.
            if moved.contains(&change.name) || change.kept_as.is_some() {
                done.refs.push(change);
            }
        }
        done.notices.extend(bound_ref_notices(refused));
        moved
    }

    /// How many refs may be added, and bytes of their text, so that a later start still reads all of them. What a run adds
    /// takes at most half of it: the rest is the user's.
    fn room(&self) -> (usize, usize) {
        let text = refs::packed_text(&self.seen.before).len();
        let (entries, bytes) = match self.start.is_nested {
            true => refs::RefsBudget::OF_NESTED.most(),
            false => refs::RefsBudget::OF_WORKSPACE.most(),
        };
        ((entries / 2).saturating_sub(self.loose), (bytes / 2).saturating_sub(text))
    }

    /// Refuses a ref that a later start would not read, or that would have it refuse all.
    fn take_room(&self, change: &RefChange, (entries, bytes): &mut (usize, usize)) -> Result<(), String> {
        let name = Path::new(&change.name);
        if change.to.is_none() {
            return Ok(());
        }
        if !refs::is_read_loose(&change.name) {
            return Err("its name has too many parts".to_owned());
        }
        if !refs::is_name_of_git(&change.name) {
            return Err("git makes no branch or tag of this name".to_owned());
        }
        if let Some(why) = change.from.is_none().then(|| self.refused_name(&change.name)).flatten() {
            return Err(why);
        }
        let is_new = |path: &&Path| !path.as_os_str().is_empty() && self.common.metadata(path).is_err();
        let needed = name.ancestors().filter(is_new).count();
        let text = if change.from.is_none() { name.as_os_str().len() + OBJECT_LINE_BYTES } else { 0 };
        if needed > *entries || text > *bytes {
            return Err("the repository has too many refs; `git pack-refs --all` makes room".to_owned());
        }
        (*entries, *bytes) = (*entries - needed, *bytes - text);
        Ok(())
    }

    /// Why a run makes no ref of a name, if it makes none: a shell could execute it, or git takes it for another one's.
    fn refused_name(&self, name: &str) -> Option<String> {
        if !refs::is_plain_name(name) {
            return Some(NOT_PLAIN.to_owned());
        }
        if refs::is_special_name(name) {
            return Some("git takes its short name for something else".to_owned());
        }
        let is_file = |name: &str| {
            self.common.metadata(Path::new(name)).is_ok_and(|data| data.kind() == EntryKind::File)
        };
        let exists = |other: &String| {
            self.seen.before.contains_key(other)
                || self.start.symbolic.iter().any(|(known, _)| known == other)
                || is_file(other)
        };
        if let Some(other) = refs::of_same_short_name(name).into_iter().find(exists) {
            return Some(format!("its short name is that of {other} too"));
        }
        // Its branches may not be fetched yet.
        let is_of = |remote: &&str| refs::begins_with_remote(name, remote);
        let remote = self.remotes.iter().map(String::as_str).chain([DEFAULT_REMOTE]).find(is_of)?;
        Some(format!("git could take its short name for that of a branch of the remote {remote}"))
    }

    /// Whether nothing would name the old commits any more once a ref is changed. The stash has them in its reflog.
    fn loses_commits(&self, change: &RefChange) -> bool {
        match (&change.from, &change.to) {
            _ if change.name == STASH => false,
            (None, _) => false,
            (Some(_), None) => true,
            (Some(from), Some(to)) => change.name.starts_with(TAGS) || !self.is_ancestor(from, to),
        }
    }

    /// Gives the run's commits another name if their own ref cannot be moved. Returns what a user is told.
    fn keep_new(&self, change: &mut RefChange, error: &dyn Display) -> String {
        let name = &change.name;
        let kept = self.kept_name("", name, change.to.as_deref().unwrap_or_default());
        let copy = RefChange { name: kept.clone(), to: change.to.clone(), ..RefChange::default() };
        match change.to.as_ref().map(|_| self.update(&copy, None)) {
            Some(Ok(())) => {
                let message = format!("{name} was not moved: {error}; the run's commits are at {kept}");
                change.kept_as = Some(kept);
                message
            }
            _ => format!("{name} was not changed: {error}"),
        }
    }

    /// The ref that keeps the object `id` for a ref: what is not plain in its name is encoded, and long parts are cut.
    fn kept_name(&self, kind: &str, name: &str, id: &str) -> String {
        let id = id.get(..SHORT_ID).unwrap_or_default();
        let short = |part: &str| match part.len() > MAX_PART_BYTES {
            true => format!("{}-{id}", &part[..part.floor_char_boundary(MAX_PART_BYTES - SHORT_ID - 1)]),
            false => part.to_owned(),
        };
        let encoded = refs::encoded(name.strip_prefix("refs/").unwrap_or(name));
        let parts: Vec<String> = encoded.split('/').map(short).collect();
        format!("{KEPT}{}/{kind}{}", self.run, parts.join("/"))
    }

    /// Changes a ref if it still has its old value, in one transaction with the ref `old`, which keeps that value.
    fn update(&self, change: &RefChange, old: Option<&str>) -> Result<(), GitError> {
        let RefChange { name, from, to, .. } = change;
        let none = "0".repeat(if self.start.sha256 { 64 } else { 40 });
        let from = from.as_deref().unwrap_or(&none);
        let keep = old.map(|old| format!("update {old} {from}\n")).unwrap_or_default();
        let line = match to {
            Some(to) => format!("{keep}update {name} {to} {from}\n"),
            None => format!("{keep}delete {name} {from}\n"),
        };
        let message = self.message();
        let words = ["update-ref", "-m", &message, "--create-reflog", "--stdin"];
        self.real.run(&words, Input::Text(line.into_bytes())).map(drop)
    }

    fn message(&self) -> String {
        format!("ringfence: run {}", self.run)
    }

    /// Why `HEAD` must not point to a branch, if it must not.
    fn refused_head(
        &self,
        name: &str,
        checked_out: &CheckedOut,
        moved: &BTreeSet<String>,
        done: &Imported,
    ) -> Option<String> {
        let is = |change: &&RefChange| change.name == name;
        if done.refs.iter().any(|change| is(&change) && change.kept_as.is_some()) {
            return Some(format!("{name} is kept under another name"));
        }
        if self.seen.refs.iter().any(|change| is(&change) && !moved.contains(name)) {
            return Some(format!("{name} could not be changed"));
        }
        if !refs::is_name_of_git(name) {
            return Some("git makes no branch of the name that it points to".to_owned());
        }
        if !self.seen.before.contains_key(name)
            && !moved.contains(name)
            && let Some(why) = self.refused_name(name)
        {
            return Some(format!("it points to {name}: {why}"));
        }
        let why = checked_out.why_not(name, self.start.is_head(name))?;
        Some(format!("it points to {name}: {why}"))
    }

    fn move_head(
        &self,
        checked_out: &CheckedOut,
        (moved, gitlinks): (&BTreeSet<String>, &Gitlinks),
        done: &mut Imported,
    ) {
        if !self.seen.head_changed {
            return;
        }
        let refused = match &self.seen.head {
            Some(RefValue::Symbolic(name)) => self.refused_head(name, checked_out, moved, done),
            Some(RefValue::Object(_)) => gitlinks.refused("HEAD"),
            None => None,
        };
        let moved = match &self.seen.head {
            _ if self.head().as_deref().map(str::trim) != Some(self.start.head.trim()) => {
                Err("HEAD changed meanwhile".to_owned())
            }
            _ if refused.is_some() => Err(refused.unwrap_or_default()),
            Some(RefValue::Symbolic(name)) if name.starts_with("refs/heads/") => self
                .write_head(&format!("ref: {name}\n"), self.resolved(name).as_deref())
                .map(|()| name.clone())
                .map_err(|error| error.to_string()),
            Some(RefValue::Object(id)) => match self.resolved(&format!("{id}^{{commit}}")) {
                Some(commit) if commit == *id => self.write_head(&format!("{id}\n"), Some(&commit)),
                _ => Err(io::Error::other("it is no commit")),
            }
            .map(|()| id.clone())
            .map_err(|error| error.to_string()),
            _ => Err("the run left no valid HEAD".to_owned()),
        };
        match (moved, &self.seen.head) {
            (Ok(head), _) => {
                self.keep_detached(&head, done);
                done.head = Some(head);
            }
            (Err(why), Some(RefValue::Object(id))) => {
                let mut change =
                    RefChange { name: "HEAD".into(), to: Some(id.clone()), ..RefChange::default() };
                done.notices.push(self.keep_new(&mut change, &why));
                if change.kept_as.is_some() {
                    done.refs.push(change);
                }
            }
            (Err(why), _) => done.notices.push(format!("HEAD was not moved: {why}")),
        }
    }

    /// Keeps the commits of a detached `HEAD` that nothing names any more. `head` is what it points to now.
    fn keep_detached(&self, head: &str, done: &mut Imported) {
        let Some(RefValue::Object(from)) = refs::parse_value(&self.start.head) else { return };
        let words = ["for-each-ref", "--count=1", "--contains", &from];
        let is_named = self.real.run(&words, Input::Nothing).is_ok_and(|found| !found.is_empty());
        if is_named || self.is_ancestor(&from, head) {
            return;
        }
        let kept = self.kept_name(BEFORE, "HEAD", &from);
        let copy = RefChange { name: kept.clone(), to: Some(from.clone()), ..RefChange::default() };
        if let Err(error) = self.update(&copy, None) {
            return done.notices.push(format!("{from}, which HEAD named before, is not kept: {error}"));
        }
        let to = self.resolved(head);
        let name = "HEAD".to_owned();
        done.refs.push(RefChange { name, from: Some(from), to, kept_as: None, from_kept_as: Some(kept) });
    }

    /// The object that git takes a name for.
    fn resolved(&self, name: &str) -> Option<String> {
        let resolved = self.real.run(&["rev-parse", "--verify", "-q", name], Input::Nothing);
        resolved.ok().map(|id| String::from_utf8_lossy(&id).trim().to_owned())
    }

    /// Writes `HEAD` as git does, if it is what it was at the start. `to` is the commit that it names then.
    fn write_head(&self, text: &str, to: Option<&str>) -> io::Result<()> {
        let from = match refs::parse_value(&self.start.head) {
            Some(RefValue::Symbolic(name)) => self.resolved(&name),
            Some(RefValue::Object(id)) => Some(id),
            None => None,
        };
        self.replace("HEAD", &mut |file| {
            if self.head().as_deref().map(str::trim) != Some(self.start.head.trim()) {
                return Err(io::Error::other("HEAD changed meanwhile"));
            }
            file.write_all(text.as_bytes())
        })?;
        // `HEAD` has moved, whatever comes of its reflog.
        let _ = self.log_head(from.as_deref(), to);
        Ok(())
    }

    /// Adds a line to the reflog of `HEAD`.
    fn log_head(&self, from: Option<&str>, to: Option<&str>) -> io::Result<()> {
        let logs = Path::new("logs");
        if self.own.metadata(logs).is_err() {
            self.own.create_directory(logs, 0o777)?;
            linked::own(&self.own.directory(logs)?, self.real.user)?;
        }
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW;
        let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let is_new = self.own.metadata(Path::new("logs/HEAD")).is_err();
        let log = openat(self.own.directory(logs)?, "HEAD", flags, Mode::from_raw_mode(0o666))?;
        if is_new {
            linked::own(&log, self.real.user)?;
        }
        let none = "0".repeat(if self.start.sha256 { 64 } else { 40 });
        let (from, to) = (from.unwrap_or(&none), to.unwrap_or(&none));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let line = format!("{from} {to} ringfence <ringfence@localhost> {now} +0000\t{}\n", self.message());
        File::from(log).write_all(line.as_bytes())
    }

    fn is_ancestor(&self, from: &str, to: &str) -> bool {
        self.real.run(&["merge-base", "--is-ancestor", from, to], Input::Nothing).is_ok()
    }

    /// What the real `HEAD` holds now.
    fn head(&self) -> Option<String> {
        self.own.read_text(Path::new("HEAD"), MAX_HEAD_BYTES).ok()
    }

    /// Whether the real `HEAD` names the same commit by the same branch as when the run began. To be asked before refs are moved.
    fn is_head_as_before(&self) -> bool {
        if self.head().as_deref().map(str::trim) != Some(self.start.head.trim()) {
            return false;
        }
        let Some(RefValue::Symbolic(branch)) = refs::parse_value(&self.start.head) else { return true };
        let loose = self.common.read_text(Path::new(&branch), MAX_HEAD_BYTES).ok();
        let now = match loose.as_deref().and_then(refs::parse_value) {
            Some(RefValue::Object(id)) => Some(id),
            _ => self.resolved(&branch),
        };
        match self.seen.before.get(&branch) {
            Some(RefValue::Object(id)) => now.as_ref() == Some(id),
            // A symbolic ref was resolved for the run, as far as it is known.
            Some(RefValue::Symbolic(_)) => true,
            None => now.is_none() || self.start.symbolic.iter().any(|(name, _)| *name == branch),
        }
    }

    fn index_stamp(&self) -> Option<Stamp> {
        let (_, data) = self.own.described_file(Path::new("index")).ok()?;
        Some(Stamp::of(&data))
    }

    /// Entries of the private index and of the real one, and what the real one was like when it was read.
    fn read_indexes(&self) -> Result<Option<Indexes>, GitError> {
        let real_stamp = self.index_stamp();
        let private = self.place.join(QUARANTINE).join(INDEX);
        let bytes = fs::metadata(&private).map_or(0, |data| data.len());
        if bytes > MAX_INDEX_BYTES {
            return Err(GitError::IndexTooLarge { bytes, limit: MAX_INDEX_BYTES });
        }
        let unsound =
            || GitError::Git { command: "ls-files".into(), message: "it has an unusable entry".into() };
        let after = list_index(&Git { index: Some(private), ..self.clean.clone() })?.ok_or_else(unsound)?;
        let now = list_index(&self.real)?.ok_or_else(unsound)?;
        if after == now {
            return Ok(None);
        }
        if !self.is_head_as_before() {
            return Err(GitError::HeadMoved);
        }
        if real_stamp != self.start.index {
            let message = "it changed meanwhile; `git reset` makes it fit HEAD".to_owned();
            return Err(GitError::Git { command: "ls-files".into(), message });
        }
        Ok(Some(Indexes { after, now, real_stamp }))
    }

    /// Writes a new index with the entries of the private one, by git itself, and puts it into place.
    fn replace_index(&self, index: &Indexes) -> Result<(), String> {
        let fresh = self.place.join(QUARANTINE).join("index");
        let mut lines = Vec::new();
        for entry in &index.after {
            lines.extend_from_slice(entry.description.as_bytes());
            lines.push(b'\t');
            lines.extend_from_slice(&entry.path);
            lines.push(0);
        }
        let git = Git { index: Some(fresh.clone()), ..self.clean.clone() };
        let words = ["update-index", "-z", "--index-info"];
        git.run(&words, Input::Text(lines)).map_err(|error| error.to_string())?;
        // What a later start would not copy would leave later runs without git.
        let bytes = fs::metadata(&fresh).map_err(|error| error.to_string())?.len();
        let before = index.real_stamp.map_or(0, |stamp| stamp.length);
        // Later starts read no more of the indexes of repositories below the workspace.
        let most = if self.start.is_nested { INDEX_BUDGET_BYTES.max(before) } else { MAX_INDEX_BYTES };
        let limit = most.min(before.saturating_add(MAX_INDEX_GROWTH_BYTES));
        if bytes > limit {
            return Err(GitError::IndexTooLarge { bytes, limit }.to_string());
        }
        self.put_index(&fresh, index).map_err(|error| error.to_string())
    }

    fn put_index(&self, fresh: &Path, index: &Indexes) -> io::Result<()> {
        self.replace("index", &mut |file| {
            if self.index_stamp() != index.real_stamp {
                return Err(io::Error::other("it changed meanwhile; `git reset` makes it fit HEAD"));
            }
            io::copy(&mut File::open(fresh)?, file).map(drop)
        })
    }

    /// Replaces a file of the working tree's git directory as git does it: by a lock file that is renamed.
    fn replace(&self, name: &str, write: &mut dyn FnMut(&mut File) -> io::Result<()>) -> io::Result<()> {
        let lock = format!("{name}.lock");
        let mut file = linked::create_lock(self.own, name)?;
        let written = (|| {
            write(&mut file)?;
            linked::own(&file, self.real.user)?;
            file.sync_all()?;
            Ok(renameat(self.own, lock.as_str(), self.own, name)?)
        })();
        if written.is_err() {
            let _ = unlinkat(self.own, lock.as_str(), AtFlags::empty());
        }
        written
    }

    /// A merge that a commit ended is over on the host too. Without one it is the user's, who may still want it.
    fn end_states(&self, done: &Imported) {
        let moved = |change: &RefChange| change.kept_as.is_none() && self.start.is_head(&change.name);
        if done.head.is_none() && !done.refs.iter().any(moved) {
            return;
        }
        for name in &self.seen.ended {
            let _ = unlinkat(self.own, name.as_str(), AtFlags::empty());
        }
    }
}

/// The entries of an index; `None` if one of them is not sound.
fn list_index(git: &Git<'_>) -> Result<Option<BTreeSet<IndexEntry>>, GitError> {
    let printed = git.run(&["ls-files", "--stage", "-z"], Input::Nothing)?;
    let lines = printed.split(|byte| *byte == 0).filter(|line| !line.is_empty());
    Ok(lines.map(IndexEntry::parse).collect())
}

struct Indexes {
    after: BTreeSet<IndexEntry>,
    now: BTreeSet<IndexEntry>,
    real_stamp: Option<Stamp>,
}

impl Indexes {
    fn into_staged(self) -> Staged {
        let new = self.after.difference(&self.now);
        let new = new.map(|entry| PathBuf::from(OsStr::from_bytes(&entry.path))).collect();
        let all = self.after.into_iter().map(|entry| PathBuf::from(OsString::from_vec(entry.path))).collect();
        Staged { new, all }
    }

    /// Files that the run could not read and that only the private index has.
    fn added_files(&self, hidden: &HiddenFiles) -> AddedFiles {
        let known: BTreeSet<&[u8]> = self.now.iter().map(|entry| &entry.path[..]).collect();
        let mut added = AddedFiles::default();
        for entry in self.after.iter().filter(|entry| !known.contains(&entry.path[..])) {
            hidden.note(Path::new(OsStr::from_bytes(&entry.path)), &mut added);
        }
        added
    }

    /// Objects that only the private index names.
    fn new_ids(&self) -> BTreeSet<String> {
        let known: BTreeMap<&str, ()> = self.now.iter().map(|entry| (entry.id(), ())).collect();
        let new = self.after.iter().filter(|entry| !entry.is_gitlink() && !known.contains_key(entry.id()));
        new.map(|entry| entry.id().to_owned()).collect()
    }
}

/// Whether a run left packs, in which objects can be differences from others.
fn holds_packs(quarantine: &Path) -> bool {
    let packs = fs::read_dir(quarantine.join("objects/pack"));
    packs.map_or(true, |mut packs| packs.next().is_some())
}

/// How many objects a pack has, by its header.
fn count(pack: &mut File) -> io::Result<u32> {
    let mut header = [0; 12];
    pack.read_exact(&mut header)?;
    io::Seek::rewind(pack)?;
    let [.., a, b, c, d] = header;
    Ok(u32::from_be_bytes([a, b, c, d]))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::{Path, PathBuf};

    use tempfile::TempDir;

    use super::{GitError, OBJECT_BOUNDS, refuse_linked_objects, refuse_links};
    use crate::Directory;

    /// A git directory with these directories.
    fn git_directory(names: &[&str]) -> (TempDir, PathBuf, Directory) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().canonicalize().unwrap();
        names.iter().for_each(|name| fs::create_dir_all(path.join(name)).unwrap());
        let directory = Directory::open(&path).unwrap();
        (root, path, directory)
    }

    #[test]
    fn directories_that_are_missing_hold_no_links() {
        for names in [&[][..], &["objects/ab", "refs/heads", "logs"]] {
            let (_root, _, git) = git_directory(names);
            assert!(refuse_links(&git).is_ok() && refuse_linked_objects(&git).is_ok(), "{names:?}");
        }
    }

    #[test]
    fn links_are_named() {
        let (_root, path, git) = git_directory(&["objects/ab"]);
        symlink("/", path.join("objects/ab/cd")).unwrap();
        let refused = refuse_linked_objects(&git);
        assert!(
            matches!(&refused, Err(GitError::Link(at)) if at == Path::new("objects/ab/cd")),
            "{refused:?}"
        );
        let (_root, path, git) = git_directory(&["refs"]);
        symlink("/", path.join("objects")).unwrap();
        let refused = refuse_links(&git);
        assert!(matches!(&refused, Err(GitError::Link(at)) if at == Path::new("objects")), "{refused:?}");
        assert!(refuse_linked_objects(&git).is_err());
    }

    /// Git finds what is in them by its name.
    #[test]
    fn directories_that_cannot_be_listed_are_refused() {
        // One whose path is longer than what is visited, which root cannot list either.
        let (_root, path, git) = git_directory(&["objects"]);
        let mut deep = path.join("objects");
        for _ in 0..=OBJECT_BOUNDS.path_bytes / 200 {
            deep.push("d".repeat(200));
        }
        fs::create_dir_all(&deep).unwrap();
        symlink("/", deep.join("link")).unwrap();
        assert!(matches!(refuse_linked_objects(&git), Err(GitError::Make { .. })));
        for part in ["objects", "refs", "logs"] {
            let (_root, path, git) = git_directory(&[]);
            fs::File::create(path.join(part)).unwrap();
            assert!(matches!(refuse_links(&git), Err(GitError::Make { .. })), "{part}");
            assert_eq!(refuse_linked_objects(&git).is_err(), part == "objects");
        }
    }

    #[test]
    fn directories_that_can_only_be_passed_through_are_refused() {
        // Root lists every directory.
        if rustix::process::geteuid().is_root() {
            return;
        }
        for (shut, is_named) in
            [("objects", true), ("objects/ab", false), ("refs/heads", true), ("logs", true)]
        {
            let (_root, path, git) = git_directory(&["objects/ab", "refs/heads", "logs"]);
            symlink("/", path.join(shut).join("cd")).unwrap();
            fs::set_permissions(path.join(shut), Permissions::from_mode(0o311)).unwrap();
            assert_eq!(refuse_links(&git).is_err(), is_named, "{shut}");
            assert_eq!(refuse_linked_objects(&git).is_err(), shut.starts_with("objects"), "{shut}");
            fs::set_permissions(path.join(shut), Permissions::from_mode(0o700)).unwrap();
        }
    }
}
