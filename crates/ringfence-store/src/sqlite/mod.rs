//! The store in one file of SQLite.
//!
//! Any number of processes may have it open. Within one process those who write at the same time share a transaction:
//! whoever comes first takes along what the others have brought meanwhile, and one wait for the disk serves them all.

mod claim;
mod others;
mod schema;
mod tasks;

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior, ffi};

use crate::atomic;
use crate::bell::Bell;
use crate::error::StoreError;

/// How long to wait for somebody else's turn to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// The store.
pub struct Sqlite {
    state: PathBuf,
    path: PathBuf,
    /// Which file it was when it was opened.
    identity: (u64, u64),
    writer: Mutex<Connection>,
    waiting: Mutex<Vec<Order>>,
    reader: OnceLock<Mutex<Connection>>,
    bell: Bell,
}

/// Something to be written with others.
struct Order {
    /// Whether it went well; its result is kept until the others are through.
    run: Box<dyn FnOnce(&Connection) -> bool + Send>,
    fail: Box<dyn FnOnce(StoreError) + Send>,
}

/// Why something was not done: the database's reason, or one of the queue's.
enum Fault {
    Sql(rusqlite::Error),
    Store(StoreError),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Fault::Sql(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Fault::Store(error)
    }
}

type Done<T> = Result<T, Fault>;
type Slot<T> = Arc<Mutex<Option<Result<T, StoreError>>>>;

impl Sqlite {
    /// Where the store of an installation is.
    pub fn file(state: &Path) -> PathBuf {
        state.join("ringfence.db")
    }

    /// A file that is there once the running system has had settings of its own: looking for it is faster than for them.
    pub fn system_marker(state: &Path) -> PathBuf {
        state.join("system_config")
    }

    /// Opens the store of an installation, and makes it if it is not there.
    pub fn open(state: &Path) -> Result<Self, StoreError> {
        let path = Self::file(state);
        let place = |error: io::Error| StoreError::Place { path: path.clone(), why: error.to_string() };
        atomic::private_dir(state).map_err(place)?;
        // Made by us, so that nobody else can read it. One that is there must not be opened: to close it again would free
        // all locks that this process has on it, those of an open store too.
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
            waiting: Mutex::default(),
            reader: OnceLock::new(),
            bell: Bell::new(state),
            state: state.to_owned(),
            path,
        })
    }

    /// The bell that every change rings.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Looks whether the file is what it should be. Takes its time.
    pub fn verify(&self) -> Result<(), StoreError> {
        let told: String =
            self.read(|connection| Ok(connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?))?;
        if told == "ok" { Ok(()) } else { Err(StoreError::Damaged { path: self.path.clone(), why: told }) }
    }

    fn read<T>(&self, query: impl FnOnce(&Connection) -> Done<T>) -> Result<T, StoreError> {
        let reader = match self.reader.get() {
            Some(reader) => reader,
            None => {
                let reader = connect(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
                self.reader.get_or_init(|| Mutex::new(reader))
            }
        };
        query(&lock(reader)).map_err(|fault| explain(&self.path, fault))
    }

    /// Writes with whoever else writes now. It is on the disk when this returns.
    fn write<T: Send + 'static>(
        &self,
        order: impl FnOnce(&Connection) -> Done<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let slot: Slot<T> = Arc::default();
        let (done, failed, path) = (Arc::clone(&slot), Arc::clone(&slot), self.path.clone());
        lock(&self.waiting).push(Order {
            run: Box::new(move |connection| {
                let result = order(connection).map_err(|fault| explain(&path, fault));
                let went_well = result.is_ok();
                *lock(&done) = Some(result);
                went_well
            }),
            fail: Box::new(move |error| *lock(&failed) = Some(Err(error))),
        });
        // Whoever had the turn before may have taken this order along.
        let mut connection = lock(&self.writer);
        if lock(&slot).is_none() {
            let orders = std::mem::take(&mut *lock(&self.waiting));
            self.together(&mut connection, orders);
        }
        drop(connection);
        let result = lock(&slot).take();
        result.unwrap_or_else(|| Err(StoreError::Other("an order was forgotten".into())))
    }

    fn together(&self, connection: &mut Connection, orders: Vec<Order>) {
        let (runs, fails): (Vec<_>, Vec<_>) = orders.into_iter().map(|order| (order.run, order.fail)).unzip();
        let written = (|| {
            let mut transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for run in runs {
                let savepoint = transaction.savepoint()?;
                if run(&savepoint) {
                    savepoint.commit()?;
                } else {
                    savepoint.finish()?;
                }
                // A full disk may have ended the whole transaction; what came next would be on its own.
                if transaction.is_autocommit() {
                    return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None));
                }
            }
            transaction.commit()
        })();
        if let Err(error) = written {
            let error = explain(&self.path, Fault::Sql(error));
            fails.into_iter().for_each(|fail| fail(error.clone()));
        }
    }

    /// Writes alone, with what the caller has borrowed.
    fn write_alone<T>(&self, order: impl FnOnce(&Connection) -> Done<T>) -> Result<T, StoreError> {
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

fn explain(path: &Path, fault: Fault) -> StoreError {
    let error = match fault {
        Fault::Store(error) => return error,
        Fault::Sql(error) => error,
    };
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full,
        // Where the database shares memory by a file it says less.
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
    let connected = (|| -> Done<_> {
        let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(PATIENCE)?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(connection)
    })();
    connected.map_err(|fault| explain(path, fault))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What SQLite takes for a whole number.
fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The same back.
fn uint(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
