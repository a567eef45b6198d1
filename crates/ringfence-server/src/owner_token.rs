//! The daemon's own token: a random secret in the state directory. It lets the daemon's owner in over TCP.
//!
//! The file is readable by its owner alone. A file that another user could have written or read is refused, never used.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::OFlags;

/// The file's name in the state directory.
const FILE: &str = "api.token";
/// Random bytes of a token; the file holds them as lower-case hexadecimal digits.
const TOKEN_BYTES: usize = 32;
/// A file with more bytes holds something else.
const MAX_FILE_BYTES: u64 = 1024;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("failed to read the daemon's token {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("failed to write the daemon's token {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A symbolic link, a directory, a device.
    #[error("the daemon's token {0} is not a regular file")]
    NotAFile(PathBuf),
    /// Another user made the file.
    #[error("the daemon's token {path} belongs to user {owner}")]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner's uid.
        owner: u32,
    },
    /// Others may read or write the file, or it has a second name.
    #[error("the daemon's token {path} is accessible to other users (mode {mode:03o}, {links} link(s))")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// The number of its names.
        links: u64,
    },
    /// The file holds something else.
    #[error("the daemon's token {0} does not hold a token")]
    Malformed(PathBuf),
    /// The state directory is not the owner's.
    #[error("the state directory {path} belongs to user {owner}, so the daemon's token would not be private")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Its owner's uid.
        owner: u32,
    },
    /// The system gives no random bytes.
    #[error("failed to generate a token: the system provides no random bytes")]
    Random,
}

impl TokenError {
    /// What to do about it.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            TokenError::NotAFile(_)
            | TokenError::Owner { .. }
            | TokenError::Exposed { .. }
            | TokenError::Malformed(_) => Some("replace it: `ringfence token rotate`"),
            TokenError::Directory { .. } => {
                Some("run the daemon as that user, or set RINGFENCE_HOME to a directory of your own")
            }
            TokenError::Read { .. } | TokenError::Write { .. } | TokenError::Random => None,
        }
    }
}

/// The token of a state directory.
#[derive(Clone)]
pub struct OwnerToken {
    state: PathBuf,
    text: String,
}

impl std::fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnerToken").field("state", &self.state).finish_non_exhaustive()
    }
}

impl OwnerToken {
    /// The path of the token in a state directory.
    pub fn file(state: &Path) -> PathBuf {
        state.join(FILE)
    }

    /// Reads the token, or makes one if there is none. The caller holds the daemon's lock.
    pub fn load_or_create(state: &Path) -> Result<Self, TokenError> {
        make_private(state)?;
        match Self::read(state)? {
            Some(token) => Ok(token),
            None => Self::replace(state),
        }
    }

    /// Reads the token. `None` if there is no file.
    pub fn read(state: &Path) -> Result<Option<Self>, TokenError> {
        let path = Self::file(state);
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(_) if fs::symlink_metadata(&path).is_ok_and(|data| !data.is_file()) => {
                return Err(TokenError::NotAFile(path));
            }
            Err(source) => return Err(TokenError::Read { path, source }),
        };
        let text = read_checked(&file, &path)?;
        Ok(Some(Self { state: state.to_owned(), text }))
    }

    /// Puts a new token in the place of whatever has its name.
    pub fn replace(state: &Path) -> Result<Self, TokenError> {
        make_private(state)?;
        let text = random_hex().ok_or(TokenError::Random)?;
        let path = Self::file(state);
        let suffix = random_hex().ok_or(TokenError::Random)?;
        let temporary = state.join(format!(".{FILE}.{}", &suffix[..16]));
        write_whole(&temporary, &path, &text).map_err(|source| {
            let _ = fs::remove_file(&temporary);
            TokenError::Write { path: path.clone(), source }
        })?;
        Ok(Self { state: state.to_owned(), text })
    }

    /// The secret itself.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// The state directory that it belongs to.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }
}

/// As many random bytes as a token has, as hexadecimal digits.
pub(crate) fn random_hex() -> Option<String> {
    let mut bytes = [0; TOKEN_BYTES];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reads an open file whose type, owner and permissions are those of a secret.
fn read_checked(file: &File, path: &Path) -> Result<String, TokenError> {
    let path = path.to_owned();
    let data = match file.metadata() {
        Ok(data) => data,
        Err(source) => return Err(TokenError::Read { path, source }),
    };
    if !data.is_file() {
        return Err(TokenError::NotAFile(path));
    }
    if data.uid() != rustix::process::geteuid().as_raw() {
        return Err(TokenError::Owner { path, owner: data.uid() });
    }
    let mode = data.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 || data.nlink() != 1 {
        return Err(TokenError::Exposed { path, mode, links: data.nlink() });
    }
    let mut text = String::new();
    if let Err(source) = file.take(MAX_FILE_BYTES).read_to_string(&mut text) {
        return match source.kind() {
            io::ErrorKind::InvalidData => Err(TokenError::Malformed(path)),
            _ => Err(TokenError::Read { path, source }),
        };
    }
    let token = text.trim_ascii();
    let well_formed = token.len() == 2 * TOKEN_BYTES && token.bytes().all(|byte| byte.is_ascii_hexdigit());
    if well_formed { Ok(token.to_owned()) } else { Err(TokenError::Malformed(path)) }
}

/// Writes a new file that only its owner can open, and renames it. A link of that name is replaced, not followed.
fn write_whole(temporary: &Path, path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(temporary)?;
    file.write_all(format!("{text}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    File::open(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?.sync_all()
}

/// Takes the state directory from all other users: it holds the token and the Unix socket.
fn make_private(state: &Path) -> Result<(), TokenError> {
    let failed = |source| TokenError::Write { path: OwnerToken::file(state), source };
    let directory = File::open(state).map_err(failed)?;
    let data = directory.metadata().map_err(failed)?;
    if data.uid() != rustix::process::geteuid().as_raw() {
        return Err(TokenError::Directory { path: state.to_owned(), owner: data.uid() });
    }
    if data.permissions().mode() & 0o077 != 0 {
        directory.set_permissions(fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files that another program has left")]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::{OwnerToken, TokenError};

    #[test]
    fn token_is_random_private_and_kept() {
        let state = tempfile::tempdir().unwrap();
        fs::set_permissions(state.path(), Permissions::from_mode(0o755)).unwrap();
        let first = OwnerToken::load_or_create(state.path()).unwrap();
        assert_eq!(first.reveal().len(), 64);
        let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(OwnerToken::file(state.path())), 0o600);
        assert_eq!(mode(state.path().to_owned()), 0o700);
        assert_eq!(OwnerToken::load_or_create(state.path()).unwrap().reveal(), first.reveal());
        let second = OwnerToken::replace(state.path()).unwrap();
        assert_ne!(second.reveal(), first.reveal());
        assert_eq!(OwnerToken::read(state.path()).unwrap().unwrap().reveal(), second.reveal());
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 1, "no temporary file is left");
        assert!(!format!("{second:?}").contains(second.reveal()));
    }

    #[test]
    fn exposed_linked_and_malformed_files_are_refused_and_replaceable() {
        let state = tempfile::tempdir().unwrap();
        let file = OwnerToken::file(state.path());
        let other = state.path().join("other");
        let good = OwnerToken::replace(state.path()).unwrap();
        for mode in [0o604, 0o640, 0o620, 0o666] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let error = OwnerToken::load_or_create(state.path()).unwrap_err();
            assert!(matches!(error, TokenError::Exposed { .. }), "{error}");
            assert!(error.remedy().unwrap().contains("token rotate"));
        }
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&file, &other).unwrap();
        assert!(matches!(OwnerToken::read(state.path()), Err(TokenError::Exposed { links: 2, .. })));
        fs::remove_file(&file).unwrap();
        symlink(&other, &file).unwrap();
        assert!(matches!(OwnerToken::read(state.path()), Err(TokenError::NotAFile(_))));
        OwnerToken::replace(state.path()).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap().trim(), good.reveal(), "the link is not followed");
        for text in ["", "short", &"x".repeat(64), &"a".repeat(2000)] {
            fs::write(&file, text).unwrap();
            assert!(matches!(OwnerToken::read(state.path()), Err(TokenError::Malformed(_))), "{text}");
        }
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(matches!(OwnerToken::read(state.path()), Err(TokenError::NotAFile(_))));
        fs::remove_dir(&file).unwrap();
        assert!(OwnerToken::read(state.path()).unwrap().is_none());
    }
}
