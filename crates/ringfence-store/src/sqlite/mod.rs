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
use std::thread::Thread;
use std::time::Duration;

use rusqlite::config::DbConfig;
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
    group: Mutex<Group>,
    reader: OnceLock<Mutex<Connection>>,
    bell: Bell,
}

type Run = Box<dyn FnOnce(&Connection) -> bool + Send>;

/// Those who write at the same time.
#[derive(Default)]
struct Group {
    /// Whether one of them is writing.
    led: bool,
    waiting: Vec<Order>,
}

/// Whether anybody else has to hear of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sound {
    Ring,
    Silent,
}

/// Something to be written with others.
struct Order {
    /// Who waits for it.
    who: Thread,
    sound: Sound,
    /// Whether it went well.
    run: Run,
    /// Tells what came of it, once all is on the disk, or why nothing is.
    tell: Box<dyn FnOnce(Option<StoreError>) + Send>,
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
            group: Mutex::default(),
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

    /// Writes with whoever else writes now, and rings. It is on the disk when this returns.
    fn write<T: Send + 'static>(
        &self,
        order: impl FnOnce(&Connection) -> Done<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write_so(Sound::Ring, order)
    }

    fn write_so<T: Send + 'static>(
        &self,
        sound: Sound,
        order: impl FnOnce(&Connection) -> Done<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (pending, told): (Slot<T>, Slot<T>) = (Arc::default(), Arc::default());
        let (done, result, tell, path) =
            (Arc::clone(&pending), pending, Arc::clone(&told), self.path.clone());
        lock(&self.group).waiting.push(Order {
            who: std::thread::current(),
            sound,
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
                // Whoever leads wakes those that it served, and one that is to lead next.
                std::thread::park();
                continue;
            }
            group.led = true;
            let orders = std::mem::take(&mut group.waiting);
            drop(group);
            self.lead(orders);
        }
    }

    /// Writes for all, and tells each.
    fn lead(&self, orders: Vec<Order>) {
        let loud = orders.iter().any(|order| order.sound == Sound::Ring);
        let (mut runs, mut waiting) = (Vec::new(), Vec::new());
        for Order { who, run, tell, .. } in orders {
            runs.push(run);
            waiting.push((who, tell));
        }
        let written = self.together(runs);
        let error = written.err().map(|error| explain(&self.path, Fault::Sql(error)));
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
            self.bell.ring();
        }
    }

    fn together(&self, runs: Vec<Run>) -> rusqlite::Result<()> {
        let mut connection = lock(&self.writer);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for run in runs {
            // By hand, for statements that are kept are not read anew each time.
            let say = |words: &str| transaction.prepare_cached(words)?.execute([]);
            say("SAVEPOINT one")?;
            if !run(&transaction) && !transaction.is_autocommit() {
                say("ROLLBACK TO one")?;
            }
            if !transaction.is_autocommit() {
                say("RELEASE one")?;
            }
            // A full disk may have ended the whole transaction; what came next would be on its own.
            if transaction.is_autocommit() {
                return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None));
            }
        }
        transaction.commit()
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
        // Else a statement that is kept is planned anew for other values, which takes longer than what it does.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
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
