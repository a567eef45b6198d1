//! Files that are whole or absent, whenever one is killed.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Why a file was not written. It is as it was.
#[derive(Debug, thiserror::Error)]
#[error("{path} could not be written")]
pub struct WriteError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl WriteError {
    /// Of a path, for a reason.
    pub fn new(path: &Path, source: io::Error) -> Self {
        Self { path: path.to_owned(), source }
    }
}

/// Writes a file whole: a new one beside it, on the disk, then renamed. A link is kept and its target replaced.
/// A new file is readable by its owner alone; an old one keeps its permissions.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    write_whole(path, bytes).map_err(|source| WriteError { path: path.to_owned(), source })
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let target = behind_links(path)?;
    let directory = target.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mode = fs::metadata(&target).map_or(0o600, |data| data.permissions().mode() & 0o7777);
    let mut file = tempfile::Builder::new().prefix(".ringfence-").tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().set_permissions(Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    file.persist(&target).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

/// Makes a file that is not there yet. Killed halfway it may be there in part: for places where others know that somebody
/// is at work.
pub fn create(path: &Path, bytes: &[u8]) -> Result<File, WriteError> {
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = created.and_then(|mut file| file.write_all(bytes).map(|()| file));
    written.map_err(|source| WriteError { path: path.to_owned(), source })
}

/// The same, and puts it on the disk. The name is there with the file: file systems keep a new file's name with it.
pub fn create_durably(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    let kept = create(path, bytes)?.sync_all();
    kept.map_err(|source| WriteError { path: path.to_owned(), source })
}

/// What a path means in the end, also where nothing is there yet.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..40 {
        match fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("/")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many links"))
}

/// Waits for one's turn. It is over when the result is dropped, or the process ends.
pub fn lock(path: &Path) -> Result<File, WriteError> {
    let locked =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).and_then(|file| {
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        });
    locked.map_err(|source| WriteError { path: path.to_owned(), source })
}

/// Makes a directory that only its owner can enter, and those above it.
pub fn private_dir(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::write;

    #[test]
    fn a_file_is_replaced_whole_and_keeps_its_permissions_and_its_link() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        write(&real, b"one").unwrap();
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write(&link, b"two").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&real).unwrap(), b"two");
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left behind");
        fs::remove_file(&real).unwrap();
        write(&link, b"three").unwrap();
        assert!(link.is_symlink(), "a link to a file that is not there yet is kept too");
        assert_eq!(fs::read(&real).unwrap(), b"three");
    }

    #[test]
    fn a_file_that_cannot_be_written_stays_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("no-such-directory/file");
        let error = write(&missing, b"x").unwrap_err().to_string();
        assert!(error.contains("no-such-directory/file"), "{error}");
    }
}
