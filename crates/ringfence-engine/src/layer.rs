//! What a run wrote in a workspace that stays untouched: shown, applied or discarded, file by file.
//!
//! The layer is the kernel's own: files that were written lie there whole, a file that was deleted is a device with the
//! number 0, a directory that hides what is below it carries a mark. Nothing is applied over what somebody else has
//! changed since the run began, and nothing outside of the workspace is ever touched: every path is opened beneath it,
//! without following links.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, ResolveFlags, fchmod, lgetxattr, mkdirat, openat, openat2,
    renameat_with, statat, symlinkat, unlinkat,
};
use serde::Serialize;

/// The layer of a run over its workspace.
#[derive(Debug)]
pub struct Layer {
    /// With an `upper` and a `work`.
    directory: PathBuf,
    workspace: PathBuf,
    /// What was changed later than this in the workspace, somebody else has changed.
    began: (i64, i64),
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
        #[serde(skip_serializing_if = "Option::is_none")]
        renamed_from: Option<PathBuf>,
    },
    /// It is gone. It may be there under another name.
    Removed {
        /// What it is called.
        #[serde(skip_serializing_if = "Option::is_none")]
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

/// What came of applying.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// These are in the workspace now.
    pub applied: Vec<PathBuf>,
    /// These are not, and why.
    pub conflicts: Vec<(PathBuf, String)>,
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
    pub fn changes(&self) -> Result<Vec<Change>, LayerError> {
        let mut changes = Vec::new();
        self.compare(Path::new(""), &mut changes)?;
        changes.sort_by(|a, b| a.path.cmp(&b.path).then(removal_first(a).cmp(&removal_first(b))));
        self.find_renames(&mut changes);
        excuse_moved(&mut changes);
        Ok(changes)
    }

    fn compare(&self, directory: &Path, changes: &mut Vec<Change>) -> Result<(), LayerError> {
        let place = self.upper(directory);
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&place).map_err(failed(&place))? {
            let entry = entry.map_err(failed(&place))?;
            names.insert(entry.file_name());
            let path = directory.join(entry.file_name());
            let above = entry.metadata().map_err(failed(&self.upper(&path)))?;
            let below = fs::symlink_metadata(self.lower(&path)).ok();
            self.compare_one(&path, &above, below.as_ref(), changes)?;
        }
        if is_opaque(&place) {
            for entry in fs::read_dir(self.lower(directory)).into_iter().flatten().flatten() {
                if !names.contains(&entry.file_name()) {
                    self.removed(&directory.join(entry.file_name()), changes)?;
                }
            }
        }
        Ok(())
    }

    fn compare_one(
        &self,
        path: &Path,
        above: &Metadata,
        below: Option<&Metadata>,
        changes: &mut Vec<Change>,
    ) -> Result<(), LayerError> {
        let kind = above.file_type();
        if kind.is_char_device() && above.rdev() == 0 {
            return if below.is_some() { self.removed(path, changes) } else { Ok(()) };
        }
        let mut note = |what, conflict: Option<&str>| {
            let conflict = conflict.map(str::to_owned);
            changes.push(Change { path: path.to_owned(), what, directory: kind.is_dir(), conflict });
        };
        let special = !(kind.is_file() || kind.is_dir() || kind.is_symlink());
        match below {
            _ if special => note(What::Added { renamed_from: None }, Some(SPECIAL)),
            None => {
                let was_there = mark(&self.upper(path), ORIGIN).is_some() && !kind.is_dir();
                note(What::Added { renamed_from: None }, was_there.then_some(DELETED_MEANWHILE));
            }
            Some(below) if below.file_type() == kind => {
                let conflict = self.is_newer(below).then_some(CHANGED_MEANWHILE);
                let modes = (below.mode() & PERMISSIONS, above.mode() & PERMISSIONS);
                let same = kind.is_dir() || self.same_content(path, above, below)?;
                if !same {
                    note(What::Modified, conflict);
                } else if modes.0 != modes.1 && !kind.is_symlink() {
                    note(
                        What::Permissions { from: modes.0, to: modes.1 },
                        conflict.filter(|_| !kind.is_dir()),
                    );
                }
            }
            Some(_) => {
                note(What::Added { renamed_from: None }, None);
                self.removed(path, changes)?;
            }
        }
        if kind.is_dir() { self.compare(path, changes) } else { Ok(()) }
    }

    /// Everything of the workspace below a path that is gone.
    fn removed(&self, path: &Path, changes: &mut Vec<Change>) -> Result<(), LayerError> {
        let place = self.lower(path);
        let data = fs::symlink_metadata(&place).map_err(failed(&place))?;
        if data.is_dir() {
            for entry in fs::read_dir(&place).map_err(failed(&place))? {
                self.removed(&path.join(entry.map_err(failed(&place))?.file_name()), changes)?;
            }
        }
        let conflict = (self.is_newer(&data) && !data.is_dir()).then(|| CHANGED_MEANWHILE.to_owned());
        let what = What::Removed { renamed_to: None };
        changes.push(Change { path: path.to_owned(), what, directory: data.is_dir(), conflict });
        Ok(())
    }

    /// Whether something of the workspace was touched since the run began. A clock that ticks slowly is no excuse.
    fn is_newer(&self, data: &Metadata) -> bool {
        (data.ctime(), data.ctime_nsec()) >= self.began
    }

    fn same_content(&self, path: &Path, above: &Metadata, below: &Metadata) -> Result<bool, LayerError> {
        let (upper, lower) = (self.upper(path), self.lower(path));
        if above.is_symlink() {
            let read = |path: &Path| fs::read_link(path).map_err(failed(path));
            return Ok(read(&upper)? == read(&lower)?);
        }
        Ok(above.len() == below.len() && same_bytes(&upper, &lower).map_err(failed(&upper))?)
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
        let changes: Vec<Change> =
            self.changes()?.into_iter().filter(|change| wanted(&change.path)).collect();
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
        if self.changes()?.is_empty() {
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
            mkdirat(parent, name, Mode::RWXU)?;
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            return Ok(fchmod(openat(parent, name, flags, Mode::empty())?, mode)?);
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

    fn is_newer_at(&self, parent: &OwnedFd, name: &Path) -> io::Result<bool> {
        let data = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((data.st_ctime, i64::try_from(data.st_ctime_nsec).unwrap_or(0)) >= self.began)
    }

    /// Takes what was applied out of the layer. A directory stays, for what is in it; and a file stays in a directory
    /// that hides what is below it, or it would count as removed. The same above and below is no change.
    fn forget(&self, change: &Change) -> io::Result<()> {
        let upper = self.upper(&change.path);
        if change.directory || upper.parent().is_some_and(is_opaque) {
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
    io::copy(&mut from, &mut to)?;
    fchmod(&to, mode)?;
    to.set_modified(data.modified()?)?;
    to.sync_all()
}

fn nofollow() -> i32 {
    i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0)
}

/// The mark of a file that was taken from below. The kernel does not say from which.
const ORIGIN: &CStr = c"user.overlay.origin";

/// A file that comes from the workspace and has no counterpart there was deleted there meanwhile; unless it has another
/// name now, and what it was called is gone.
fn excuse_moved(changes: &mut [Change]) {
    let gone =
        changes.iter().any(|change| change.what == What::Removed { renamed_to: None } && !change.directory);
    for change in changes.iter_mut().filter(|change| change.conflict.as_deref() == Some(DELETED_MEANWHILE)) {
        if gone || matches!(change.what, What::Added { renamed_from: Some(_) }) {
            change.conflict = None;
        }
    }
}

/// A mark that the kernel has put on something of the layer.
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
