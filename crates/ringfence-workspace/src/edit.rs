//! Changes below a directory: names are created, moved and removed without leaving it or following a symbolic link.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, chmodat, fchmod, linkat, mkdirat, openat, renameat_with,
    symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::directory::{Directory, EntryKind};

/// What a rename does with a file that has the new name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// The rename fails.
    Keep,
    /// The file is replaced.
    Replace,
}

impl Directory {
    /// Creates a directory.
    pub fn create_directory(&self, path: &Path, permissions: u32) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(mkdirat(&parent, name, Mode::from_raw_mode(permissions))?)
    }

    /// Creates a regular file for writing. Fails if the name exists.
    pub fn create_file(&self, path: &Path, permissions: u32) -> io::Result<File> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&parent, name, flags, Mode::from_raw_mode(permissions))?.into())
    }

    /// Creates a regular file for writing that has no name in this directory, and is gone when it is closed before
    /// [`Self::name_file`]. `None` where the file system has no such files.
    pub fn create_unnamed_file(&self, permissions: u32) -> io::Result<Option<File>> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match openat(self, ".", flags, Mode::from_raw_mode(permissions)) {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives a file without a name one in this directory. Fails if the name exists.
    pub fn name_file(&self, file: &File, name: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(name)?;
        let link = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        Ok(linkat(CWD, link, &parent, name, AtFlags::SYMLINK_FOLLOW)?)
    }

    /// Creates a symbolic link.
    pub fn create_link(&self, path: &Path, target: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(symlinkat(target, &parent, name)?)
    }

    /// Sets the permissions of a regular file or a directory.
    pub fn set_permissions(&self, path: &Path, permissions: u32) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&parent, name, flags, Mode::empty())?;
        Ok(fchmod(&file, Mode::from_raw_mode(permissions))?)
    }

    /// Gives its owner back the rights to this directory that it had with the permissions `before`, if some are missing. Returns
    /// whether they were.
    pub fn restore_owner_rights(&self, before: u32) -> io::Result<bool> {
        let mode = Mode::from_raw_mode(self.metadata(Path::new(""))?.permissions());
        let rights = Mode::from_raw_mode(before) & Mode::RWXU;
        if mode.contains(rights) {
            return Ok(false);
        }
        fchmod(self, mode | rights)?;
        Ok(true)
    }

    /// Gives its owner all rights to a directory, also one that cannot be opened without them. By name, so no run may have
    /// access to where it is any more.
    pub fn unlock_directory(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        match parent.metadata(Path::new(name))?.kind() {
            EntryKind::Directory => Ok(chmodat(&parent, name, Mode::RWXU, AtFlags::empty())?),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    /// Gives a file another name.
    pub fn rename(&self, from: &Path, to: &Path, existing: Existing) -> io::Result<()> {
        let ((old, from), (new, to)) = (self.parent(from)?, self.parent(to)?);
        let flags = match existing {
            Existing::Keep => RenameFlags::NOREPLACE,
            Existing::Replace => RenameFlags::empty(),
        };
        Ok(renameat_with(&old, from, &new, to, flags)?)
    }

    /// Removes a name that is not a directory.
    pub fn remove_file(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(unlinkat(&parent, name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(unlinkat(&parent, name, AtFlags::REMOVEDIR)?)
    }
}
