//! A directory that is held open, and everything that is reached from it.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use ringfence_core::paths::DirectoryId;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, Stat, fgetxattr, fstat, openat,
    openat2, readlinkat, seek, statat,
};
use rustix::io::Errno;

use crate::file::{ReadError, read_known};

/// Every lookup stays beneath the directory and follows no symbolic link.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);
/// Opens a directory whose names are read.
pub(crate) const LISTABLE: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
/// Opens a directory that is only passed through or written in. It need not be readable.
const PASSABLE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Bytes of names that one call of the kernel returns.
pub(crate) const NAMES_BYTES: usize = 8 << 10;
/// The longest path below a directory, in bytes, that the kernel takes in one call.
pub const MAX_PATH_BYTES: usize = 4095;

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be opened.
    #[error("failed to open {}: {cause}", path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// Why. Part of the message, so it is not a source of its own.
        cause: io::Error,
    },
    /// A symbolic link is part of its path.
    #[error("{} leads through a symbolic link", .0.display())]
    Link(PathBuf),
    /// Another directory has its name now.
    #[error("{} is not the directory that it was when the work was accepted", .0.display())]
    Replaced(PathBuf),
}

impl DirectoryError {
    /// What to do about a directory that has been replaced since work in it was accepted.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            DirectoryError::Open { .. } => None,
            DirectoryError::Link(_) => Some(
                "put the directory back that was there, or add the work again with the path that the link leads to",
            ),
            DirectoryError::Replaced(_) => Some(
                "put the directory back that was there, or accept the one that is there now: `ringfence task retry` for a \
                 task, `-C DIR` for `diff` and `apply`",
            ),
        }
    }
}

/// A directory, held open. Names are relative to it, and no lookup leaves it or follows a symbolic link.
#[derive(Debug)]
pub struct Directory {
    descriptor: OwnedFd,
    /// Asked for when it is needed: most directories are only listed.
    id: OnceLock<DirectoryId>,
    /// Whether names were read from the descriptor, so that its position is not the beginning.
    is_listed: AtomicBool,
}

/// The identity of no directory.
const UNKNOWN: DirectoryId = DirectoryId { device: u64::MAX, inode: u64::MAX };

/// What kind of file an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A Unix socket.
    Socket,
    /// A FIFO or a device.
    Other,
}

impl EntryKind {
    /// Whether opening or connecting to it reaches a process or a driver, wherever its name is: a socket, a FIFO or a device.
    pub fn is_channel(self) -> bool {
        matches!(self, EntryKind::Socket | EntryKind::Other)
    }
}

impl From<FileType> for EntryKind {
    fn from(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Link,
            FileType::Socket => EntryKind::Socket,
            _ => EntryKind::Other,
        }
    }
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: OsString,
    /// What it names. Not the target of a link.
    pub kind: EntryKind,
}

/// What the kernel says of a file, links not followed.
#[derive(Debug, Clone, Copy)]
pub struct Metadata(Stat);

impl From<Stat> for Metadata {
    fn from(stat: Stat) -> Self {
        Self(stat)
    }
}

#[allow(clippy::unnecessary_cast, reason = "the fields differ in width between platforms")]
impl Metadata {
    /// Describes an open file.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(Self(fstat(file)?))
    }

    /// What kind of file it is.
    pub fn kind(&self) -> EntryKind {
        FileType::from_raw_mode(self.0.st_mode).into()
    }

    /// Device and inode.
    pub fn id(&self) -> DirectoryId {
        DirectoryId { device: self.0.st_dev as u64, inode: self.0.st_ino as u64 }
    }

    /// The number of its inode.
    pub fn inode(&self) -> u64 {
        self.0.st_ino as u64
    }

    /// Number of hard links.
    pub fn links(&self) -> u64 {
        self.0.st_nlink as u64
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        u64::try_from(self.0.st_size).unwrap_or(0)
    }

    /// Whether it is a character device with the number 0, by which overlayfs marks a deleted file.
    pub fn is_whiteout(&self) -> bool {
        FileType::from_raw_mode(self.0.st_mode) == FileType::CharacterDevice && self.0.st_rdev == 0
    }

    /// Permission bits.
    pub fn permissions(&self) -> u32 {
        (self.0.st_mode as u32) & 0o7777
    }

    /// Whether every user can write it, or make and remove files in it if it is a directory. With the sticky bit these are their own.
    pub fn is_open_to_all(&self) -> bool {
        let is_sticky = self.kind() == EntryKind::Directory && self.permissions() & 0o1000 != 0;
        self.kind() != EntryKind::Link && self.permissions() & 0o002 != 0 && !is_sticky
    }

    /// Time of the last change of content or metadata, in seconds and nanoseconds. A program cannot set it.
    pub fn changed(&self) -> (i64, i64) {
        (self.0.st_ctime as i64, self.0.st_ctime_nsec as i64)
    }

    /// Time of the last change of content, in seconds and nanoseconds.
    pub fn modified(&self) -> (i64, i64) {
        (self.0.st_mtime as i64, self.0.st_mtime_nsec as i64)
    }
}

impl Directory {
    /// Opens a directory by its absolute path, no part of which may be a symbolic link.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        let open = |flags| openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        let opened = open(LISTABLE).or_else(|error| match error {
            // A directory that cannot be listed can still be passed through.
            Errno::ACCESS => open(PASSABLE),
            other => Err(other),
        });
        let found = opened.map_err(io::Error::from).and_then(|descriptor| {
            let id = Metadata(fstat(&descriptor)?).id();
            Ok(Self { id: id.into(), ..Self::of(descriptor) })
        });
        found.map_err(|cause| match cause.raw_os_error() {
            Some(code) if code == Errno::LOOP.raw_os_error() => DirectoryError::Link(path.to_owned()),
            _ => DirectoryError::Open { path: path.to_owned(), cause },
        })
    }

    /// Opens a directory that was seen before, and fails if another one has its name now.
    pub fn open_known(path: &Path, id: DirectoryId) -> Result<Self, DirectoryError> {
        let opened = Self::open(path)?;
        if opened.id() == id { Ok(opened) } else { Err(DirectoryError::Replaced(path.to_owned())) }
    }

    pub(crate) fn of(descriptor: OwnedFd) -> Self {
        Self { descriptor, id: OnceLock::new(), is_listed: AtomicBool::new(false) }
    }

    /// Device and inode. Those of a directory that the kernel does not describe equal no others.
    pub fn id(&self) -> DirectoryId {
        *self.id.get_or_init(|| fstat(&self.descriptor).map_or(UNKNOWN, |stat| Metadata(stat).id()))
    }

    /// Opens a directory below this one.
    pub fn directory(&self, path: &Path) -> io::Result<Self> {
        Ok(Self::of(openat2(&self.descriptor, or_self(path), LISTABLE, Mode::empty(), BENEATH)?))
    }

    /// Opens the directory that a path below this one is in, to work on the last name of the path.
    pub fn parent<'p>(&self, path: &'p Path) -> io::Result<(Self, &'p OsStr)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = or_self(path.parent().unwrap_or(Path::new("")));
        Ok((Self::of(openat2(&self.descriptor, parent, PASSABLE, Mode::empty(), BENEATH)?), name))
    }

    /// Reads the target of a symbolic link below this directory.
    pub fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let (parent, name) = self.parent(path)?;
        let target = readlinkat(&parent.descriptor, name, Vec::new())?;
        Ok(PathBuf::from(OsStr::from_bytes(target.as_bytes())))
    }

    /// Reads an extended attribute of this directory, if it has one of at most 256 bytes.
    pub fn attribute(&self, name: &CStr) -> Option<Vec<u8>> {
        let mut value = [0u8; 256];
        let length = fgetxattr(&self.descriptor, name, &mut value).ok()?;
        Some(value[..length].to_vec())
    }

    /// Opens a regular file below this directory for reading. Anything else is an error, and a FIFO does not block.
    pub fn file(&self, path: &Path) -> io::Result<File> {
        self.described_file(path).map(|(file, _)| file)
    }

    /// The same, with what the kernel says of it.
    pub(crate) fn described_file(&self, path: &Path) -> io::Result<(File, Metadata)> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = openat2(&self.descriptor, path, flags, Mode::empty(), BENEATH)?;
        let data = Metadata(fstat(&file)?);
        match data.kind() {
            EntryKind::File => Ok((File::from(file), data)),
            _ => Err(io::Error::other("not a regular file")),
        }
    }

    /// Reads a regular file below this directory, if it exists and has at most `limit` bytes.
    pub fn read(&self, path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
        let (file, data) = self.described_file(path)?;
        read_known(file, data.length(), limit)
    }

    /// The same for text.
    pub fn read_text(&self, path: &Path, limit: u64) -> Result<String, ReadError> {
        String::from_utf8(self.read(path, limit)?).map_err(|_| ReadError::NotText)
    }

    /// Describes a file below this directory without opening it.
    pub fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        let name = path.file_name();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        match (parent, name) {
            (None, Some(name)) => Ok(Metadata(statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW)?)),
            (Some(parent), Some(name)) => {
                let parent = openat2(&self.descriptor, parent, PASSABLE, Mode::empty(), BENEATH)?;
                Ok(Metadata(statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?))
            }
            (_, None) => Ok(Metadata(fstat(&self.descriptor)?)),
        }
    }

    /// Opens what is at a path below this one for nothing but to describe it. A link is not followed.
    pub(crate) fn handle(&self, path: &Path) -> io::Result<OwnedFd> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&parent, name, flags, Mode::empty())?)
    }

    /// Calls `visit` with each name in this directory, its kind and the number of its inode, in no order, until it returns
    /// `false`. `visit` must not list this directory itself: both would read from one position.
    pub fn each(&self, visit: &mut dyn FnMut(&OsStr, EntryKind, u64) -> bool) -> io::Result<()> {
        // A directory that may only be passed through can neither be listed nor has it a position.
        let unlisted = |error: Errno| if error == Errno::BADF { Errno::ACCESS } else { error };
        if self.is_listed.swap(true, Ordering::Relaxed) {
            seek(&self.descriptor, SeekFrom::Start(0)).map_err(unlisted)?;
        }
        let mut buffer = [MaybeUninit::uninit(); NAMES_BYTES];
        let mut names = RawDir::new(&self.descriptor, &mut buffer);
        while let Some(entry) = names.next() {
            let entry = entry.map_err(unlisted)?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let kind = self.kind_of(name, entry.file_type())?;
            if !visit(OsStr::from_bytes(name.to_bytes()), kind, entry.ino()) {
                break;
            }
        }
        Ok(())
    }

    /// Describes this directory by its own name. An error if nothing can be looked up in it: its names may be readable all the same.
    pub fn describe_searchable(&self) -> io::Result<Metadata> {
        Ok(Metadata(statat(&self.descriptor, c".", AtFlags::empty())?))
    }

    /// Some file systems do not say the kind with the name.
    fn kind_of(&self, name: &CStr, said: FileType) -> io::Result<EntryKind> {
        if said != FileType::Unknown {
            return Ok(said.into());
        }
        match statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Metadata(stat).kind()),
            Err(Errno::NOENT) => Ok(EntryKind::Other),
            Err(error) => Err(error.into()),
        }
    }

    /// The names in this directory, at most `limit` of them, in no order.
    pub fn entries(&self, limit: usize) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.each(&mut |name, kind, _| {
            entries.push(Entry { name: name.to_owned(), kind });
            entries.len() < limit
        })?;
        Ok(entries)
    }
}

/// The empty path names the directory itself.
fn or_self(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
