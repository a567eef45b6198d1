//! What a run changed: the upper directory compared with the workspace, directory by directory, without recursion.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ringfence_workspace::{Directory, EntryKind, MAX_PATH_BYTES, Metadata};

use super::executed;
use super::renames::{self, RenameLimits};
use super::{CHANGED_MEANWHILE, Change, DELETED_MEANWHILE, Layer, PERMISSIONS, What};

const SPECIAL: &str = "it is neither a file nor a directory nor a link";
const TOO_DEEP: &str = "its path is too long: nothing below it is shown or applied";
/// The attribute by which overlayfs marks a directory that hides what is below it.
const OPAQUE: &std::ffi::CStr = c"user.overlay.opaque";

/// How much of an overlay is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Number of files and directories.
    pub entries: usize,
    /// Bytes of their paths together.
    pub path_bytes: usize,
    /// Bytes of file content that are compared.
    pub compared_bytes: u64,
    /// How much is read to find renamed files.
    pub renames: RenameLimits,
    /// When to stop, if that is bounded.
    pub deadline: Option<Instant>,
}

impl Limits {
    /// Enough for what agents do, and little enough for any machine.
    pub const DEFAULT: Limits = Limits {
        entries: 1_000_000,
        path_bytes: 256 << 20,
        compared_bytes: 4 << 30,
        renames: RenameLimits::DEFAULT,
        deadline: None,
    };

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// All that a run changed, in the order of the paths.
#[derive(Debug, Default)]
pub struct Changes {
    /// The changes.
    pub list: Vec<Change>,
    /// What the user should know of the list.
    pub notices: Vec<String>,
    /// Whether there are more changes than the list has.
    pub is_truncated: bool,
    /// Number of files whose content was read to find renamed ones.
    pub digests: usize,
    /// Number of times that a directory was asked for as a git repository.
    pub lookups: usize,
    /// What the user should know before the changes are applied.
    pub warnings: Vec<String>,
}

/// What is below a directory of the upper directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Below {
    /// The directory of the workspace, seen through it.
    Seen,
    /// The directory of the workspace, hidden by it.
    Hidden,
    /// No directory.
    Nothing,
}

/// A directory of the upper directory that is still to be compared.
struct Pending {
    path: PathBuf,
    below: Below,
    /// Whether a directory above hides what is below it.
    is_covered: bool,
}

impl Pending {
    fn root() -> Self {
        Self { path: PathBuf::new(), below: Below::Seen, is_covered: false }
    }
}

impl Layer {
    /// Everything that was changed.
    pub fn changes(&self) -> Changes {
        self.changes_within(&Limits::DEFAULT)
    }

    /// The same with other limits.
    pub fn changes_within(&self, limits: &Limits) -> Changes {
        let mut walk = Walk {
            layer: self,
            left: *limits,
            is_truncated: false,
            is_late: false,
            is_unread: false,
            list: Vec::new(),
        };
        walk.compare_all();
        let Walk { is_truncated, mut is_late, is_unread, mut list, .. } = walk;
        list.sort_by(|a, b| a.path.cmp(&b.path).then(is_addition(a).cmp(&is_addition(b))));
        let renames = match is_late {
            true => renames::Renames::default(),
            false => renames::find(self, &mut list, &limits.renames),
        };
        let marked = executed::mark(self, &mut list, limits.deadline);
        is_late |= !marked.is_complete;
        let warnings: Vec<String> = self.unknown_below.iter().cloned().collect();
        let mut notices = warnings.clone();
        if is_late {
            notices.push(
                "not all changes were looked at in the time for that: `ringfence diff` has no such limit"
                    .into(),
            );
        } else if is_truncated {
            notices.push(format!(
                "the run changed more files than are listed ({}): apply or discard these first, or discard the run",
                list.len()
            ));
        }
        if is_unread {
            notices
                .push("large files of the same length were not compared: they are listed as changed".into());
        }
        notices.extend(renames.notice);
        Changes {
            list,
            notices,
            is_truncated: is_truncated || is_late,
            digests: renames.digests,
            lookups: marked.lookups,
            warnings,
        }
    }
}

fn is_addition(change: &Change) -> bool {
    !matches!(change.what, What::Removed { .. })
}

struct Walk<'a> {
    layer: &'a Layer,
    left: Limits,
    is_truncated: bool,
    /// Whether the time was over before all was compared.
    is_late: bool,
    /// Whether files were not compared because they are large.
    is_unread: bool,
    list: Vec<Change>,
}

/// An entry of the upper directory, with what is below it.
struct Pair {
    path: PathBuf,
    above: Metadata,
    below: Option<Metadata>,
}

impl Walk<'_> {
    fn compare_all(&mut self) {
        let mut pending = vec![Pending::root()];
        while let Some(directory) = pending.pop().filter(|_| !self.is_over_time()) {
            self.compare(directory, &mut pending);
        }
    }

    fn is_over_time(&mut self) -> bool {
        self.is_late = self.is_late || self.left.is_late();
        self.is_late
    }

    /// Adds a change, unless there are too many.
    fn push(
        &mut self,
        path: &Path,
        what: What,
        directory: bool,
        conflict: Option<String>,
    ) -> Option<&mut Change> {
        let length = path.as_os_str().len();
        if self.list.len() >= self.left.entries || length > self.left.path_bytes {
            self.is_truncated = true;
            return None;
        }
        self.left.path_bytes -= length;
        let path = path.to_owned();
        self.list.push(Change {
            path,
            what,
            directory,
            conflict,
            executed_by: None,
            length: None,
            mode: None,
            is_covered: false,
        });
        self.list.last_mut()
    }

    /// Compares one directory. Where the upper directory hides what is below, so do all directories in it.
    fn compare(&mut self, Pending { path, below, is_covered }: Pending, pending: &mut Vec<Pending>) {
        let opened = self.layer.upper.directory(&path).and_then(|upper| {
            let names = self.names(&upper)?;
            Ok((upper, names))
        });
        let (upper, names) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.push(&path, What::ADDED, true, Some(unreadable(&error)));
                return;
            }
        };
        let is_opaque = upper.attribute(OPAQUE).is_some_and(|value| value == b"y");
        let below = if below == Below::Seen && is_opaque { Below::Hidden } else { below };
        let is_covered = is_covered || is_opaque;
        let lower = (below != Below::Nothing).then(|| self.layer.workspace.directory(&path).ok()).flatten();
        for (name, kind) in &names {
            if self.is_over_time() {
                return;
            }
            let path = path.join(name);
            if path.as_os_str().len() > MAX_PATH_BYTES {
                self.push(&path, What::ADDED, *kind == EntryKind::Directory, Some(TOO_DEEP.into()));
                continue;
            }
            let below_it = lower.as_ref().and_then(|lower| lower.metadata(Path::new(name)).ok());
            match upper.metadata(Path::new(name)) {
                Ok(above) => {
                    let is_directory =
                        self.compare_one(&Pair { path: path.clone(), above, below: below_it }, is_covered);
                    if let Some(has_directory_below) = is_directory {
                        let below = if has_directory_below { below } else { Below::Nothing };
                        pending.push(Pending { path, below, is_covered });
                    }
                }
                Err(error) => drop(self.push(&path, What::ADDED, false, Some(unreadable(&error)))),
            }
        }
        if let Some(lower) = lower.filter(|_| below == Below::Hidden) {
            self.hidden(&path, &lower, names);
        }
    }

    /// What an opaque directory hides is removed.
    fn hidden(&mut self, path: &Path, lower: &Directory, names: Vec<(OsString, EntryKind)>) {
        let names: HashSet<OsString> = names.into_iter().map(|(name, _)| name).collect();
        let gone =
            self.names(lower).unwrap_or_default().into_iter().filter(|(name, _)| !names.contains(name));
        for (name, _) in gone {
            self.removed(path.join(name));
        }
    }

    /// The names in a directory, as many as there may be changes.
    fn names(&mut self, directory: &Directory) -> io::Result<Vec<(OsString, EntryKind)>> {
        let limit = self.left.entries.saturating_sub(self.list.len());
        let mut names = Vec::new();
        directory.each(&mut |name, kind, _| {
            if names.len() >= limit {
                self.is_truncated = true;
                return false;
            }
            names.push((name.to_owned(), kind));
            true
        })?;
        Ok(names)
    }

    /// Compares one entry. For a directory, returns whether there is a directory below it.
    fn compare_one(&mut self, pair: &Pair, is_covered: bool) -> Option<bool> {
        let Pair { path, above, below } = pair;
        let kind = above.kind();
        if above.is_whiteout() {
            if below.is_some() {
                self.removed(path.clone());
            }
            return None;
        }
        if self.layer.stubs.is_untouched(&self.layer.upper, path) && below.is_none() {
            return None;
        }
        let found = match (kind, below) {
            (EntryKind::Socket | EntryKind::Other, _) => Some((What::ADDED, Some(SPECIAL.to_owned()))),
            (_, None) => {
                let was_there = self.layer.known.contains_key(path);
                Some((What::ADDED, was_there.then(|| DELETED_MEANWHILE.to_owned())))
            }
            (_, Some(below)) if below.kind() == kind => self.changed(path, above, below),
            (_, Some(_)) => {
                self.removed(path.clone());
                Some((What::ADDED, None))
            }
        };
        let is_directory = kind == EntryKind::Directory;
        if let Some((what, conflict)) = found
            && let Some(change) = self.push(path, what, is_directory, conflict)
        {
            change.length = (kind == EntryKind::File).then(|| above.length());
            let mode = (kind != EntryKind::Link).then(|| above.permissions() & PERMISSIONS);
            let is_other = |mode: &u32| below.is_none_or(|below| below.permissions() & PERMISSIONS != *mode);
            change.mode = match change.what {
                What::Added { .. } => mode,
                What::Modified => mode.filter(is_other),
                What::Removed { .. } | What::Permissions { .. } => None,
            };
            change.is_covered = is_covered;
        }
        is_directory.then(|| below.is_some_and(|below| below.kind() == EntryKind::Directory))
    }

    /// What differs between two files of the same kind.
    fn changed(&mut self, path: &Path, above: &Metadata, below: &Metadata) -> Option<(What, Option<String>)> {
        let is_other = self.layer.known.get(path).is_some_and(|known| *known != below.id().inode);
        let conflict = (self.layer.is_newer(below) || is_other).then(|| CHANGED_MEANWHILE.to_owned());
        let (from, to) = (below.permissions() & PERMISSIONS, above.permissions() & PERMISSIONS);
        let is_directory = above.kind() == EntryKind::Directory;
        match self.same_content(path, above, below) {
            Err(error) => Some((What::Modified, Some(unreadable(&error)))),
            Ok(false) => Some((What::Modified, conflict)),
            Ok(true) if from != to && above.kind() != EntryKind::Link => {
                Some((What::Permissions { from, to }, conflict.filter(|_| !is_directory)))
            }
            Ok(true) => None,
        }
    }

    fn same_content(&mut self, path: &Path, above: &Metadata, below: &Metadata) -> io::Result<bool> {
        let (upper, lower) = (&self.layer.upper, &self.layer.workspace);
        match above.kind() {
            EntryKind::Directory => Ok(true),
            EntryKind::Link => Ok(upper.read_link(path)? == lower.read_link(path)?),
            _ if above.length() != below.length() => Ok(false),
            _ if above.length() > self.left.compared_bytes => {
                self.is_unread = true;
                Ok(false)
            }
            _ => {
                self.left.compared_bytes -= above.length();
                same_bytes(upper.file(path)?, lower.file(path)?, above.length())
            }
        }
    }

    /// Everything of the workspace at and below a path that is gone.
    fn removed(&mut self, path: PathBuf) {
        let workspace = &self.layer.workspace;
        let mut pending = vec![path];
        while let Some(path) = pending.pop().filter(|_| !self.is_over_time()) {
            let Ok(data) = workspace.metadata(&path) else { continue };
            let is_directory = data.kind() == EntryKind::Directory;
            if is_directory && let Ok(directory) = workspace.directory(&path) {
                let names = self.names(&directory).unwrap_or_default();
                pending.extend(names.into_iter().map(|(name, _)| path.join(name)));
            }
            let conflict =
                (self.layer.is_newer(&data) && !is_directory).then(|| CHANGED_MEANWHILE.to_owned());
            if let Some(change) = self.push(&path, What::REMOVED, is_directory, conflict) {
                change.length = (data.kind() == EntryKind::File).then(|| data.length());
            }
        }
    }
}

fn unreadable(error: &io::Error) -> String {
    format!("it cannot be read: {error}")
}

/// Whether two files hold the same. No more is read than `length`, whatever has become of them.
fn same_bytes(one: File, other: File, length: u64) -> io::Result<bool> {
    let (mut one, mut other) = (one.take(length), other.take(length));
    let (mut here, mut there) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        let count = one.read(&mut here)?;
        if count == 0 {
            return Ok(other.read(&mut there[..1])? == 0);
        }
        match other.read_exact(&mut there[..count]) {
            Ok(()) if here[..count] == there[..count] => {}
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// The inodes of workspace files below changed ones, and whether all are known. No file is read.
pub(super) fn below(
    layer: &Layer,
    deadline: Instant,
    is_cancelled: &dyn Fn() -> bool,
) -> (BTreeMap<PathBuf, u64>, bool) {
    let mut known = BTreeMap::new();
    let mut left = Limits::DEFAULT;
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        if Instant::now() >= deadline || is_cancelled() {
            return (known, false);
        }
        let Ok(upper) = layer.upper.directory(&path) else { continue };
        // Below a directory that is new there is nothing.
        let Ok(lower) = layer.workspace.directory(&path) else { continue };
        let mut is_full = false;
        let _ = upper.each(&mut |name, kind, _| {
            let path = path.join(name);
            let written = written_length(&path);
            is_full = left.entries == 0 || written > left.path_bytes;
            if is_full || path.as_os_str().len() > MAX_PATH_BYTES {
                return !is_full;
            }
            left.entries -= 1;
            left.path_bytes -= written;
            let below = lower.metadata(Path::new(name)).ok().filter(|below| below.kind() == kind);
            match kind {
                EntryKind::Directory => pending.push(path),
                // A name that is no text cannot be written down.
                _ if path.to_str().is_some() => known.extend(below.map(|below| (path, below.id().inode))),
                _ => {}
            }
            true
        });
        if is_full {
            return (known, false);
        }
    }
    (known, true)
}

/// Bytes of a path as a JSON document has it, at most.
pub(super) fn written_length(path: &Path) -> usize {
    let of_byte = |byte: &u8| match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    path.as_os_str().as_bytes().iter().map(of_byte).sum()
}
