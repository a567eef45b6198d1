//! The store as one SQLite file, which several processes may open.
//!
//! Writes of one process are group-committed: one thread becomes the leader and commits all pending writes in one transaction,
//! with one flush to disk.

mod claim;
mod others;
mod schema;
mod tasks;

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior, ffi};

use crate::atomic;
use crate::error::StoreError;
use crate::notify::ChangeNotifier;

/// How long to wait for the write lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);

/// The store.
pub struct Sqlite {
    state: PathBuf,
    path: PathBuf,
    /// Device and inode of the file when it was opened.
    identity: (u64, u64),
    writer: Mutex<Connection>,
    group: Mutex<CommitGroup>,
    reader: OnceLock<Mutex<Connection>>,
    notifier: ChangeNotifier,
}

type Run = Box<dyn FnOnce(&Connection) -> bool + Send>;

/// Pending writes of the process.
#[derive(Default)]
struct CommitGroup {
    /// Whether a leader is committing.
    led: bool,
    waiting: Vec<PendingWrite>,
}

/// Whether watchers of the queue are notified of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notify {
    Watchers,
    Nobody,
}

/// A write that waits for a leader.
struct PendingWrite {
    /// Thread that waits for the result.
    who: Thread,
    notify: Notify,
    /// Executes the write; returns whether it succeeded.
    run: Run,
    /// Passes on the result after the commit, or the error of the commit.
    tell: Box<dyn FnOnce(Option<StoreError>) + Send>,
}

/// Error of a query: of the database or of the queue.
enum SqlError {
    Sql(rusqlite::Error),
    Store(StoreError),
}

impl From<rusqlite::Error> for SqlError {
    fn from(error: rusqlite::Error) -> Self {
        SqlError::Sql(error)
    }
}

impl From<StoreError> for SqlError {
    fn from(error: StoreError) -> Self {
        SqlError::Store(error)
    }
}

type SqlResult<T> = Result<T, SqlError>;
type ResultSlot<T> = Arc<Mutex<Option<Result<T, StoreError>>>>;

impl Sqlite {
    /// Returns the path of the store in a state directory.
    pub fn file(state: &Path) -> PathBuf {
        state.join("ringfence.db")
    }

    /// Returns the path of a file that exists once the running system has settings. Checking for it avoids opening the store.
    pub fn system_marker(state: &Path) -> PathBuf {
        state.join("system_config")
    }

    /// Opens the store of a state directory, and creates it if it does not exist.
    pub fn open(state: &Path) -> Result<Self, StoreError> {
        let path = Self::file(state);
        let place = |error: io::Error| StoreError::Place { path: path.clone(), why: error.to_string() };
        atomic::private_dir(state).map_err(place)?;
        // Created here for its mode. An existing file must not be opened: closing it would release all POSIX locks of this
        // process on it, including those of an open store.
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(place(error)),
            _ => {}
        }
        let mut connection = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        schema::prepare(&mut connection, &path)?;
        let data = std::fs::metadata(&path).map_err(place)?;
        Ok(Self {
            identity: (data.dev(), data.ino()),
            writer: Mutex::new(connection),
            group: Mutex::default(),
            reader: OnceLock::new(),
            notifier: ChangeNotifier::new(state),
            state: state.to_owned(),
            path,
        })
    }

    /// Returns the notifier for changes.
    pub fn notifier(&self) -> &ChangeNotifier {
        &self.notifier
    }

    /// Checks the integrity of the file, which takes time.
    pub fn verify(&self) -> Result<(), StoreError> {
        let told: String =
            self.read(|connection| Ok(connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?))?;
        if told == "ok" { Ok(()) } else { Err(StoreError::Damaged { path: self.path.clone(), why: told }) }
    }

    fn read<T>(&self, query: impl FnOnce(&Connection) -> SqlResult<T>) -> Result<T, StoreError> {
        let reader = match self.reader.get() {
            Some(reader) => reader,
            None => {
                let reader = connect(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
                self.reader.get_or_init(|| Mutex::new(reader))
            }
        };
        query(&lock(reader)).map_err(|fault| explain(&self.path, fault))
    }

    /// Executes a write with the pending writes of other threads, and notifies watchers. It is durable when this returns.
    fn write<T: Send + 'static>(
        &self,
        order: impl FnOnce(&Connection) -> SqlResult<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write_so(Notify::Watchers, order)
    }

    fn write_so<T: Send + 'static>(
        &self,
        notify: Notify,
        order: impl FnOnce(&Connection) -> SqlResult<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (pending, told): (ResultSlot<T>, ResultSlot<T>) = (Arc::default(), Arc::default());
        let (done, result, tell, path) =
            (Arc::clone(&pending), pending, Arc::clone(&told), self.path.clone());
        lock(&self.group).waiting.push(PendingWrite {
            who: std::thread::current(),
            notify,
            run: Box::new(move |connection| {
                let result = order(connection).map_err(|fault| explain(&path, fault));
                let went_well = result.is_ok();
                *lock(&done) = Some(result);
                went_well
            }),
            tell: Box::new(move |error| *lock(&tell) = error.map(Err).or_else(|| lock(&result).take())),
        });
        loop {
            if let Some(result) = lock(&told).take() {
                return result;
            }
            let mut group = lock(&self.group);
            if group.led {
                drop(group);
                // The leader wakes the threads of its writes and the next leader.
                std::thread::park();
                continue;
            }
            group.led = true;
            let orders = std::mem::take(&mut group.waiting);
            drop(group);
            self.commit_as_leader(orders);
        }
    }

    /// Commits all pending writes and passes on the results.
    fn commit_as_leader(&self, orders: Vec<PendingWrite>) {
        let loud = orders.iter().any(|order| order.notify == Notify::Watchers);
        let (mut runs, mut waiting) = (Vec::new(), Vec::new());
        for PendingWrite { who, run, tell, .. } in orders {
            runs.push(run);
            waiting.push((who, tell));
        }
        let written = self.run_group(runs);
        let error = written.err().map(|error| explain(&self.path, SqlError::Sql(error)));
        let next = {
            let mut group = lock(&self.group);
            group.led = false;
            group.waiting.first().map(|order| order.who.clone())
        };
        if let Some(next) = next {
            next.unpark();
        }
        for (who, tell) in waiting {
            tell(error.clone());
            who.unpark();
        }
        if loud {
            self.notifier.notify();
        }
    }

    fn run_group(&self, runs: Vec<Run>) -> rusqlite::Result<()> {
        let mut connection = lock(&self.writer);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for run in runs {
            // Cached statements are faster than rusqlite's savepoints, which are parsed each time.
            let say = |words: &str| transaction.prepare_cached(words)?.execute([]);
            say("SAVEPOINT one")?;
            if !run(&transaction) && !transaction.is_autocommit() {
                say("ROLLBACK TO one")?;
            }
            if !transaction.is_autocommit() {
                say("RELEASE one")?;
            }
            // A full disk may have rolled back the whole transaction; further writes would be outside of it.
            if transaction.is_autocommit() {
                return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None));
            }
        }
        transaction.commit()
    }

    /// Executes a write in a transaction of its own. The closure may borrow.
    fn write_alone<T>(&self, order: impl FnOnce(&Connection) -> SqlResult<T>) -> Result<T, StoreError> {
        let mut connection = lock(&self.writer);
        let written = (|| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let result = order(&transaction)?;
            transaction.commit()?;
            Ok(result)
        })();
        written.map_err(|fault| explain(&self.path, fault))
    }
}

fn explain(path: &Path, fault: SqlError) -> StoreError {
    let error = match fault {
        SqlError::Store(error) => return error,
        SqlError::Sql(error) => error,
    };
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full,
        // Errors of the shared-memory file do not say that the disk is full.
        Some(ErrorCode::SystemIoFailure) if is_full(path) => StoreError::Full,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreError::Damaged { path: path.to_owned(), why: error.to_string() }
        }
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
            StoreError::Place { path: path.to_owned(), why: error.to_string() }
        }
        _ => StoreError::Other(error.to_string()),
    }
}

fn is_full(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|disk| disk.f_bavail == 0)
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, StoreError> {
    let connected = (|| -> SqlResult<_> {
        let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.set_prepared_statement_cache_capacity(64);
        // Avoids planning cached statements again for other values.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        Ok(connection)
    })();
    connected.map_err(|fault| explain(path, fault))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Converts to an integer of SQLite, saturating.
fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Converts from an integer of SQLite; negative values become 0.
fn uint(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
