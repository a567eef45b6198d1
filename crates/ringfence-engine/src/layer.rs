//! What a run wrote in a workspace that stays untouched: shown, applied or discarded, file by file.
//!
//! The layer is the kernel's own: files that were written lie there whole, a file that was deleted is a device with the
//! number 0, a directory that hides what is below it carries a mark. Nothing is applied over what somebody else has
//! changed since the run began, and nothing outside of the workspace is ever touched: every path is opened beneath it,
//! without following links.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ringfence_core::paths::STAND_IN_MARK;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, ResolveFlags, fchmod, lgetxattr, mkdirat, openat, openat2,
    renameat_with, statat, symlinkat, unlinkat,
};
use serde::{Serialize, Serializer};

/// The layer of a run over its workspace.
#[derive(Debug)]
pub struct Layer {
    /// With an `upper` and a `work`.
    directory: PathBuf,
    workspace: PathBuf,
    /// What was changed later than this in the workspace, somebody else has changed.
    began: (i64, i64),
    /// What lay below changed files when the run was over.
    known: BTreeMap<PathBuf, (u64, u64)>,
}

/// What is below a directory of the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Below {
    /// The directory of the workspace, seen through it.
    Seen,
    /// The directory of the workspace, hidden by it.
    Hidden,
    /// No directory.
    Nothing,
}

/// Why a layer cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be used: {source}")]
pub struct LayerError {
    path: PathBuf,
    source: io::Error,
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> LayerError + use<> {
    let path = path.to_owned();
    move |source| LayerError { path, source }
}

/// One thing that the run changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Where, from the workspace.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// What.
    #[serde(flatten)]
    pub what: What,
    /// Whether it is a directory.
    pub directory: bool,
    /// Why it cannot be applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conflict: Option<String>,
}

/// What was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "change")]
pub enum What {
    /// It was not there. It may be a file that was renamed.
    Added {
        /// What it was called.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text_if_any")]
        renamed_from: Option<PathBuf>,
    },
    /// It is gone. It may be there under another name.
    Removed {
        /// What it is called.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text_if_any")]
        renamed_to: Option<PathBuf>,
    },
    /// It holds something else.
    Modified,
    /// Only its permissions are others.
    Permissions {
        /// As they were.
        from: u32,
        /// As they are.
        to: u32,
    },
}

/// Names need not be text; what cannot be said is replaced.
fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

fn as_text_if_any<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.display().to_string()).serialize(serializer)
}

/// What came of applying.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// These are in the workspace now.
    pub applied: Vec<PathBuf>,
    /// These are not, and why.
    pub conflicts: Vec<(PathBuf, String)>,
}

/// The file of a layer that tells what lay below it.
const KNOWN: &str = "below.json";

fn known(file: &Path) -> BTreeMap<PathBuf, (u64, u64)> {
    let text = fs::read(file).unwrap_or_default();
    let known: Vec<(PathBuf, u64, u64)> = serde_json::from_slice(&text).unwrap_or_default();
    known.into_iter().map(|(path, device, number)| (path, (device, number))).collect()
}

impl What {
    const ADDED: What = What::Added { renamed_from: None };
}

const CHANGED_MEANWHILE: &str = "it was changed in the workspace since the run began";
const DELETED_MEANWHILE: &str = "it was deleted in the workspace since the run began";
const SPECIAL: &str = "it is neither a file nor a directory nor a link";
/// What may be given to a file of the workspace. The right to be another user is not among it.
const PERMISSIONS: u32 = 0o777;

impl Layer {
    /// A layer that a run has left. `marker` is a file that was written as the run began.
    pub fn open(directory: &Path, workspace: &Path, marker: &Path) -> Result<Self, LayerError> {
        let began = fs::metadata(marker).map_err(failed(marker))?;
        fs::metadata(directory.join("upper")).map_err(failed(directory))?;
        Ok(Self {
            directory: directory.to_owned(),
            workspace: workspace.to_owned(),
            began: (began.mtime(), began.mtime_nsec()),
            known: known(&directory.join(KNOWN)),
        })
    }

    /// A path of the layer.
    pub fn upper(&self, path: &Path) -> PathBuf {
        self.directory.join("upper").join(path)
    }

    /// A path of the workspace.
    pub fn lower(&self, path: &Path) -> PathBuf {
        self.workspace.join(path)
    }

    /// Everything that was changed, in the order of its paths.
    pub fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        self.compare(Path::new(""), Below::Seen, &mut changes);
        changes.sort_by(|a, b| a.path.cmp(&b.path).then(removal_first(a).cmp(&removal_first(b))));
        self.find_renames(&mut changes);
        changes
    }

    /// Notes which files of the workspace lie below changed ones now that the run is over. Whoever takes one away later, or
    /// puts another in its place, is noticed.
    pub fn note(&self) -> Result<(), LayerError> {
        let changed = self.changes();
        let changed =
            changed.iter().filter(|change| matches!(change.what, What::Modified | What::Permissions { .. }));
        let known: Vec<(String, u64, u64)> = changed
            .filter_map(|change| {
                let data = fs::symlink_metadata(self.lower(&change.path)).ok()?;
                Some((change.path.to_str()?.to_owned(), data.dev(), data.ino()))
            })
            .collect();
        let file = self.directory.join(KNOWN);
        let written = serde_json::to_vec(&known)
            .map_err(io::Error::from)
            .and_then(|text| File::create(&file).and_then(|mut file| io::Write::write_all(&mut file, &text)));
        written.map_err(failed(&file))
    }

    /// Compares a directory of the layer with what is below it. Where the layer hides that, so do all directories in it.
    fn compare(&self, directory: &Path, below: Below, changes: &mut Vec<Change>) {
        let place = self.upper(directory);
        let below = if below == Below::Seen && is_opaque(&place) { Below::Hidden } else { below };
        let entries = match fs::read_dir(&place).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
            Ok(entries) => entries,
            Err(error) => return changes.push(unreadable(directory, true, &error)),
        };
        let mut names = BTreeSet::new();
        for entry in entries {
            names.insert(entry.file_name());
            let path = directory.join(entry.file_name());
            match entry.metadata() {
                Ok(above) => self.compare_one(&path, &above, below, changes),
                Err(error) => changes.push(unreadable(&path, false, &error)),
            }
        }
        if below == Below::Hidden {
            for entry in fs::read_dir(self.lower(directory)).into_iter().flatten().flatten() {
                if !names.contains(&entry.file_name()) {
                    self.removed(&directory.join(entry.file_name()), changes);
                }
            }
        }
    }

    fn compare_one(&self, path: &Path, above: &Metadata, around: Below, changes: &mut Vec<Change>) {
        let kind = above.file_type();
        // Below what is no directory there is nothing, wherever a link leads.
        let below = (around != Below::Nothing).then(|| fs::symlink_metadata(self.lower(path)).ok()).flatten();
        if kind.is_char_device() && above.rdev() == 0 {
            if below.is_some() {
                self.removed(path, changes);
            }
            return;
        }
        // A run that was killed may have left some.
        if mark(&self.upper(path), STAND_IN_MARK).is_some() {
            return;
        }
        let special = !(kind.is_file() || kind.is_dir() || kind.is_symlink());
        let found = match &below {
            _ if special => Some((What::ADDED, Some(SPECIAL.to_owned()))),
            None => {
                let was_there = self.known.contains_key(path);
                Some((What::ADDED, was_there.then(|| DELETED_MEANWHILE.to_owned())))
            }
            Some(below) if below.file_type() == kind => self.changed(path, above, below),
            Some(_) => {
                self.removed(path, changes);
                Some((What::ADDED, None))
            }
        };
        changes.extend(found.map(|(what, conflict)| Change {
            path: path.to_owned(),
            what,
            directory: kind.is_dir(),
            conflict,
        }));
        if kind.is_dir() {
            let is_directory = below.is_some_and(|below| below.is_dir());
            self.compare(path, if is_directory { around } else { Below::Nothing }, changes);
        }
    }

    /// What is different about something that is of the same kind above and below.
    fn changed(&self, path: &Path, above: &Metadata, below: &Metadata) -> Option<(What, Option<String>)> {
        let other = self.known.get(path).is_some_and(|known| *known != (below.dev(), below.ino()));
        let conflict = (self.is_newer(below) || other).then(|| CHANGED_MEANWHILE.to_owned());
        let (from, to) = (below.mode() & PERMISSIONS, above.mode() & PERMISSIONS);
        let same = if above.is_dir() { Ok(true) } else { self.same_content(path, above, below) };
        match same {
            Err(error) => Some((What::Modified, Some(format!("it cannot be read: {error}")))),
            Ok(false) => Some((What::Modified, conflict)),
            Ok(true) if from != to && !above.is_symlink() => {
                Some((What::Permissions { from, to }, conflict.filter(|_| !above.is_dir())))
            }
            Ok(true) => None,
        }
    }

    /// Everything of the workspace below a path that is gone.
    fn removed(&self, path: &Path, changes: &mut Vec<Change>) {
        let place = self.lower(path);
        let Ok(data) = fs::symlink_metadata(&place) else { return };
        if data.is_dir() {
            for entry in fs::read_dir(&place).into_iter().flatten().flatten() {
                self.removed(&path.join(entry.file_name()), changes);
            }
        }
        let conflict = (self.is_newer(&data) && !data.is_dir()).then(|| CHANGED_MEANWHILE.to_owned());
        let what = What::Removed { renamed_to: None };
        changes.push(Change { path: path.to_owned(), what, directory: data.is_dir(), conflict });
    }

    /// Whether something of the workspace was touched since the run began. A clock that ticks slowly is no excuse.
    fn is_newer(&self, data: &Metadata) -> bool {
        (data.ctime(), data.ctime_nsec()) >= self.began
    }

    fn same_content(&self, path: &Path, above: &Metadata, below: &Metadata) -> io::Result<bool> {
        let (upper, lower) = (self.upper(path), self.lower(path));
        if above.is_symlink() {
            return Ok(fs::read_link(&upper)? == fs::read_link(&lower)?);
        }
        Ok(above.len() == below.len() && same_bytes(&upper, &lower)?)
    }

    /// A file that is gone and one that has come with the same content are one that was renamed.
    fn find_renames(&self, changes: &mut [Change]) {
        let size =
            |path: &Path| fs::symlink_metadata(path).ok().filter(Metadata::is_file).map(|data| data.len());
        let gone: Vec<(usize, u64)> = (0..changes.len())
            .filter(|index| matches!(changes[*index].what, What::Removed { .. }))
            .filter_map(|index| Some((index, size(&self.lower(&changes[index].path))?)))
            .filter(|(_, size)| *size > 0)
            .collect();
        let mut taken = BTreeSet::new();
        for index in 0..changes.len() {
            let What::Added { renamed_from: None } = changes[index].what else { continue };
            let Some(length) = size(&self.upper(&changes[index].path)) else { continue };
            let came_from = gone.iter().find(|(from, size)| {
                *size == length
                    && !taken.contains(from)
                    && changes[*from].path != changes[index].path
                    && same_bytes(&self.upper(&changes[index].path), &self.lower(&changes[*from].path))
                        .unwrap_or(false)
            });
            if let Some((from, _)) = came_from {
                taken.insert(*from);
                let (old, new) = (changes[*from].path.clone(), changes[index].path.clone());
                changes[index].what = What::Added { renamed_from: Some(old) };
                changes[*from].what = What::Removed { renamed_to: Some(new) };
            }
        }
    }

    /// Puts changes into the workspace, those for which `wanted` says so. What is applied leaves the layer.
    pub fn apply(&self, wanted: &dyn Fn(&Path) -> bool) -> Result<Applied, LayerError> {
        let root =
            openat(CWD, &self.workspace, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let root = root.map_err(|error| failed(&self.workspace)(error.into()))?;
        let all = self.changes();
        let chosen: Vec<PathBuf> =
            all.iter().map(|change| change.path.clone()).filter(|path| wanted(path)).collect();
        // A new directory comes with whatever is wanted in it.
        let needed = |change: &Change| {
            change.directory
                && change.what == What::ADDED
                && chosen.iter().any(|path| path.starts_with(&change.path))
        };
        let changes: Vec<Change> =
            all.into_iter().filter(|change| wanted(&change.path) || needed(change)).collect();
        let mut done = Applied::default();
        let is_removal = |change: &&Change| matches!(change.what, What::Removed { .. });
        // What has to go first, the innermost first; then what comes, the outermost first.
        let gone = changes.iter().rev().filter(is_removal);
        let come = changes.iter().filter(|change| !is_removal(change));
        for change in gone.chain(come) {
            let put = match &change.conflict {
                Some(conflict) => Err(conflict.clone()),
                None => self.put(&root, change).map_err(|error| explain(&error)),
            };
            match put {
                Ok(()) => done.applied.push(change.path.clone()),
                Err(why) => done.conflicts.push((change.path.clone(), why)),
            }
        }
        // Only now: one may not be able to write in a directory that one has made.
        for change in changes.iter().rev().filter(|change| change.directory && change.what == What::ADDED) {
            if let Err(error) = self.finish_directory(&root, &change.path) {
                done.conflicts.push((change.path.clone(), explain(&error)));
            }
        }
        if done.conflicts.is_empty() && self.changes().is_empty() {
            self.discard()?;
        }
        Ok(done)
    }

    fn put(&self, root: &OwnedFd, change: &Change) -> io::Result<()> {
        let (parent, name) = beneath(root, &change.path)?;
        match &change.what {
            What::Removed { .. } => {
                let flags = if change.directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                Ok(unlinkat(&parent, name, flags)?)
            }
            What::Permissions { to, .. } => {
                let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = openat(&parent, name, flags, Mode::empty())?;
                fchmod(&file, Mode::from_raw_mode(*to))?;
                self.forget(change)
            }
            What::Added { .. } | What::Modified => {
                self.place(&parent, name, change)?;
                self.forget(change)
            }
        }
    }

    fn place(&self, parent: &OwnedFd, name: &Path, change: &Change) -> io::Result<()> {
        let source = self.upper(&change.path);
        let data = fs::symlink_metadata(&source)?;
        let mode = Mode::from_raw_mode(data.mode() & PERMISSIONS);
        if data.is_dir() {
            return Ok(mkdirat(parent, name, Mode::RWXU)?);
        }
        let replace = change.what == What::Modified;
        if replace && self.is_newer_at(parent, name)? {
            return Err(io::Error::other(CHANGED_MEANWHILE));
        }
        let temporary = PathBuf::from(format!(".ringfence-apply-{}", std::process::id()));
        let _ = unlinkat(parent, &temporary, AtFlags::empty());
        let made = if data.is_symlink() {
            fs::read_link(&source).and_then(|to| Ok(symlinkat(to, parent, &temporary)?))
        } else {
            copy(&source, parent, &temporary, mode, &data)
        };
        // What has come to be there meanwhile is not replaced.
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let put = made.and_then(|()| Ok(renameat_with(parent, &temporary, parent, name, flags)?));
        if put.is_err() {
            let _ = unlinkat(parent, &temporary, AtFlags::empty());
        }
        put
    }

    /// Gives a directory that was applied the permissions that it has in the layer.
    fn finish_directory(&self, root: &OwnedFd, path: &Path) -> io::Result<()> {
        let (parent, name) = beneath(root, path)?;
        let mode = Mode::from_raw_mode(fs::metadata(self.upper(path))?.mode() & PERMISSIONS);
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fchmod(openat(&parent, name, flags, Mode::empty())?, mode)?)
    }

    fn is_newer_at(&self, parent: &OwnedFd, name: &Path) -> io::Result<bool> {
        let data = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((data.st_ctime, i64::try_from(data.st_ctime_nsec).unwrap_or(0)) >= self.began)
    }

    /// Takes what was applied out of the layer. A directory stays, for what is in it; and a file stays in a directory
    /// that hides what is below it, or it would count as removed. The same above and below is no change.
    fn forget(&self, change: &Change) -> io::Result<()> {
        let upper = self.upper(&change.path);
        let hidden = change.path.ancestors().skip(1).any(|above| is_opaque(&self.upper(above)));
        if change.directory || hidden {
            return Ok(());
        }
        fs::remove_file(upper)
    }

    /// Throws all of it away.
    pub fn discard(&self) -> Result<(), LayerError> {
        open_up(&self.directory);
        fs::remove_dir_all(&self.directory).map_err(failed(&self.directory))
    }
}

/// Something of the layer that cannot be looked at.
fn unreadable(path: &Path, directory: bool, error: &io::Error) -> Change {
    let conflict = Some(format!("it cannot be read: {error}"));
    Change { path: path.to_owned(), what: What::ADDED, directory, conflict }
}

fn removal_first(change: &Change) -> bool {
    !matches!(change.what, What::Removed { .. })
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AlreadyExists => CHANGED_MEANWHILE.to_owned(),
        io::ErrorKind::NotFound => DELETED_MEANWHILE.to_owned(),
        io::ErrorKind::DirectoryNotEmpty => "something else is in it".to_owned(),
        _ => error.to_string(),
    }
}

/// The directory of a path below another, opened without leaving it or following a link, and the last name.
fn beneath<'a>(root: &OwnedFd, path: &'a Path) -> io::Result<(OwnedFd, &'a Path)> {
    let name = path.file_name().map(Path::new).ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok((openat2(root, parent, flags, Mode::empty(), resolve)?, name))
}

fn copy(source: &Path, parent: &OwnedFd, name: &Path, mode: Mode, data: &Metadata) -> io::Result<()> {
    let mut from = fs::OpenOptions::new().read(true).custom_flags(nofollow()).open(source)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut to = File::from(openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?);
    copy_parts(&mut from, &mut to, data.len())?;
    fchmod(&to, mode)?;
    to.set_modified(data.modified()?)?;
    to.sync_all()
}

/// Copies what a file holds, and leaves out what it does not: a hole stays one.
fn copy_parts(from: &mut File, to: &mut File, length: u64) -> io::Result<()> {
    to.set_len(length)?;
    let mut at = 0;
    while at < length {
        let begin = match rustix::fs::seek(&*from, rustix::fs::SeekFrom::Data(at)) {
            Ok(begin) => begin,
            // No more of it.
            Err(rustix::io::Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&*from, rustix::fs::SeekFrom::Hole(begin))?;
        for file in [&mut *from, &mut *to] {
            io::Seek::seek(file, io::SeekFrom::Start(begin))?;
        }
        let copied = io::copy(&mut io::Read::take(&mut *from, end - begin), to)?;
        if copied == 0 {
            return Ok(());
        }
        at = end;
    }
    Ok(())
}

fn nofollow() -> i32 {
    i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0)
}

/// A mark on something of the layer.
fn mark(path: &Path, name: &CStr) -> Option<Vec<u8>> {
    let mut value = [0u8; 256];
    let length = lgetxattr(path, name, &mut value).ok()?;
    Some(value[..length].to_vec())
}

/// Whether a directory of the layer hides what is below it.
fn is_opaque(path: &Path) -> bool {
    mark(path, c"user.overlay.opaque").is_some_and(|value| value == b"y")
}

fn same_bytes(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
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

/// The kernel leaves a directory that nobody may enter.
fn open_up(directory: &Path) {
    let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path());
        }
    }
}
