//! Where a CLI keeps its login: read, written back as it was found, and never lost on the way.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::{Kind, Tokens};

/// A place for a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Store {
    /// A file.
    File(PathBuf),
    /// An item of the keychain, read and written by this program.
    Keychain {
        /// The program `security`.
        program: PathBuf,
        /// The item.
        service: &'static str,
        /// Whose.
        account: String,
    },
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Store::File(path) => write!(f, "{}", path.display()),
            Store::Keychain { service, .. } => write!(f, "the keychain (`{service}`)"),
        }
    }
}

/// What is known of a file without reading it: device, inode, size, and when it was written and changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version([u64; 3], [i64; 4]);

impl Version {
    fn of(path: &Path) -> Option<Self> {
        let is = fs::metadata(path).ok()?;
        Some(Self(
            [is.dev(), is.ino(), is.size()],
            [is.mtime(), is.mtime_nsec(), is.ctime(), is.ctime_nsec()],
        ))
    }
}

impl Store {
    /// What changes with the document. An item of the keychain tells nothing of itself; whoever refreshes it here leaves a trace in
    /// the directory of the journals.
    pub(super) fn version(&self, state: &Path) -> Option<Version> {
        match self {
            Store::File(path) => Version::of(path),
            Store::Keychain { .. } => Version::of(state),
        }
    }

    /// The document, if there is one.
    pub(crate) fn read(&self) -> io::Result<Option<Value>> {
        let bytes = match self {
            Store::File(path) => match fs::read(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                other => other?,
            },
            Store::Keychain { program, service, account } => {
                let mut command = Command::new(program);
                command.current_dir("/");
                command.args(["find-generic-password", "-s", service, "-a", account, "-w"]);
                let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output()?;
                if !output.status.success() {
                    return Ok(None);
                }
                output.stdout
            }
        };
        // What is wrong with it is not said in its own words: they may be a secret.
        serde_json::from_slice(&bytes).map(Some).map_err(|_| io::Error::other("it is not JSON"))
    }

    fn write(&self, document: &Value) -> io::Result<()> {
        match self {
            Store::File(path) => replace(path, document.to_string().as_bytes()),
            Store::Keychain { program, service, account } => {
                // By its input: what is on a command line everybody sees.
                let mut command = Command::new(program);
                command.current_dir("/");
                let mut child = command.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
                let hex: String = document.to_string().bytes().map(|byte| format!("{byte:02x}")).collect();
                let line = format!("add-generic-password -U -s \"{service}\" -a \"{account}\" -X {hex}\n");
                child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?.write_all(line.as_bytes())?;
                match child.wait()?.success() {
                    true => Ok(()),
                    false => Err(io::Error::other("the keychain does not take it")),
                }
            }
        }
    }
}

/// Replaces a file whole, with the owner and the permissions that it had. A link stays a link.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let before = fs::metadata(&path)?;
    let directory = path.parent().ok_or(io::ErrorKind::NotFound)?;
    let mut new = tempfile::Builder::new().permissions(before.permissions()).tempfile_in(directory)?;
    new.write_all(bytes)?;
    new.as_file().set_permissions(before.permissions())?;
    let mine = new.as_file().metadata()?;
    if (mine.uid(), mine.gid()) != (before.uid(), before.gid()) {
        std::os::unix::fs::fchown(new.as_file(), Some(before.uid()), Some(before.gid()))?;
    }
    new.as_file().sync_all()?;
    new.persist(&path)?;
    File::open(directory)?.sync_all()
}

/// How long another process may refresh.
const LOCK_PATIENCE: Duration = Duration::from_secs(45);
/// How often to ask again.
const LOCK_AGAIN: Duration = Duration::from_millis(20);

/// Nobody else refreshes while this is held.
pub(super) fn lock(state: &Path, name: &str) -> io::Result<File> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(state)?;
    let path = state.join(format!("{name}.lock"));
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                let pause = Timespec::try_from(LOCK_AGAIN).ok();
                let _ = rustix::event::poll(&mut [], pause.as_ref());
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::other("another process has been refreshing it for too long"));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn journal_file(state: &Path, kind: &Kind) -> PathBuf {
    state.join(format!("{}.journal", kind.name))
}

/// Keeps the provider's answer, on the disk when this returns: the old token is worth nothing from now on.
pub(super) fn journal(state: &Path, kind: &Kind, before: &Tokens, answer: &Value) -> io::Result<()> {
    let before = before.refresh.as_ref().map(|refresh| refresh.reveal());
    let entry = json!({ "before": before, "answer": answer });
    let mut file = tempfile::Builder::new().tempfile_in(state)?;
    file.write_all(entry.to_string().as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(journal_file(state, kind))?;
    File::open(state)?.sync_all()
}

/// Writes back what a journal holds, and forgets it. If the person has logged in anew meanwhile, the journal is of no use.
pub(super) fn recover(state: &Path, kind: &Kind, store: &Store) -> io::Result<()> {
    let path = journal_file(state, kind);
    let entry: Value = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => match serde_json::from_slice(&other?) {
            Ok(entry) => entry,
            // It says nothing, and must not stand in the way for ever.
            Err(_) => return fs::rename(&path, path.with_extension("damaged")),
        },
    };
    if let Some(mut document) = store.read()? {
        let tokens = (kind.tokens)(&document);
        let refresh =
            tokens.as_ref().and_then(|tokens| tokens.refresh.as_ref()).map(|refresh| refresh.reveal());
        if refresh == entry["before"].as_str() {
            (kind.update)(&mut document, &entry["answer"]);
            store.write(&document)?;
        }
    }
    fs::remove_file(path)
}
