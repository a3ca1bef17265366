//! The database file: its tables, their versions, and what happens to a file that cannot be used.
//!
//! Takes a path and gives a connection whose tables are the newest. A file that is corrupt, or written by a newer
//! program, is renamed and a new one begun; the old one is never deleted.

use super::{Opened, StoreError};
use rusqlite::{Connection, OpenFlags};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// How the tables came to be: entry `n` leads from version `n` to `n + 1`. Entries are only ever added.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE jobs (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        created_at INTEGER NOT NULL,
        state TEXT NOT NULL,
        priority INTEGER NOT NULL,
        finished INTEGER NOT NULL,
        record TEXT NOT NULL
    );
    CREATE INDEX jobs_by_state ON jobs (state, seq);
    CREATE INDEX jobs_unfinished ON jobs (seq) WHERE finished = 0;
    CREATE TABLE job_metadata (
        job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (job, key)
    ) WITHOUT ROWID;
    CREATE INDEX jobs_by_metadata ON job_metadata (key, value, job);
    CREATE TABLE files (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        created_at INTEGER NOT NULL,
        purpose TEXT NOT NULL,
        sha256 TEXT NOT NULL,
        expires_at INTEGER,
        record TEXT NOT NULL
    );
    CREATE INDEX files_by_purpose ON files (purpose, seq);
    CREATE INDEX files_by_content ON files (sha256);
    CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;
    CREATE TABLE idempotency (
        key TEXT PRIMARY KEY,
        hash TEXT NOT NULL,
        job TEXT,
        time INTEGER NOT NULL
    ) WITHOUT ROWID;
",
    // Places in the lists of what was deleted, the last ten thousand of them: a client that deletes what it
    // lists, page by page, asks for what comes after something that is gone.
    "
    CREATE TABLE gone (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        list TEXT NOT NULL,
        seq INTEGER NOT NULL
    );
    CREATE TRIGGER jobs_gone AFTER DELETE ON jobs BEGIN
        INSERT OR REPLACE INTO gone (id, list, seq) VALUES (old.id, 'jobs', old.seq);
        DELETE FROM gone WHERE number <= last_insert_rowid() - 10000;
    END;
    CREATE TRIGGER files_gone AFTER DELETE ON files BEGIN
        INSERT OR REPLACE INTO gone (id, list, seq) VALUES (old.id, 'files', old.seq);
        DELETE FROM gone WHERE number <= last_insert_rowid() - 10000;
    END;
",
];

/// How long SQLite itself waits for a lock; the writer thread then tries again.
const BUSY: Duration = Duration::from_millis(200);

/// Opens the writer's connection, in a new file where the old one cannot be used.
pub(super) fn open(path: &Path) -> Result<(Connection, Opened), StoreError> {
    let missing = !path.exists();
    let unusable = match prepare(path) {
        Ok(connection) => {
            let rebuilt = missing.then(|| "there was no database".to_owned());
            return Ok((connection, Opened { rebuilt }));
        }
        Err(Unusable::Broken(why)) => why,
        Err(Unusable::Passing(error)) => return Err(error),
    };
    let aside = set_aside(path).map_err(|source| StoreError::Io { path: path.to_owned(), source })?;
    let connection = prepare(path).map_err(|error| match error {
        Unusable::Broken(why) => StoreError::Io { path: path.to_owned(), source: io::Error::other(why) },
        Unusable::Passing(error) => error,
    })?;
    let rebuilt = format!("{unusable}; the old database is now {}", aside.display());
    Ok((connection, Opened { rebuilt: Some(rebuilt) }))
}

/// A connection that only reads.
pub(super) fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "cache_size", -1024)?;
    Ok(connection)
}

enum Unusable {
    /// The file will never do.
    Broken(String),
    /// The file may be sound: the disk is full, somebody has it locked.
    Passing(StoreError),
}

impl From<rusqlite::Error> for Unusable {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{
            CannotOpen, DatabaseBusy, DatabaseLocked, DiskFull, OutOfMemory, PermissionDenied, ReadOnly,
            SystemIoFailure,
        };
        match error.sqlite_error_code() {
            Some(
                CannotOpen | DatabaseBusy | DatabaseLocked | DiskFull | OutOfMemory | PermissionDenied
                | ReadOnly | SystemIoFailure,
            ) => Self::Passing(error.into()),
            _ => Self::Broken(format!("the database is broken ({error})")),
        }
    }
}

fn prepare(path: &Path) -> Result<Connection, Unusable> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // A power cut may take the last writes, which the folders still have, and never the database.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "cache_size", -2048)?;
    connection.pragma_update(None, "journal_size_limit", 4 << 20)?;
    let check: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if check != "ok" {
        return Err(Unusable::Broken(format!("the database is corrupt ({check})")));
    }
    migrate(&mut connection)?;
    // What was being made when the last server ended is not being made any more.
    connection.execute("DELETE FROM idempotency WHERE job IS NULL", [])?;
    connection.busy_timeout(BUSY)?;
    Ok(connection)
}

/// Brings the tables up to date, each step whole or not at all.
fn migrate(connection: &mut Connection) -> Result<(), Unusable> {
    let version: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let newest = MIGRATIONS.len() as u32;
    if version > newest {
        let why =
            format!("the database has version {version}, of a newer program, and this one knows {newest}");
        return Err(Unusable::Broken(why));
    }
    for (number, migration) in (1..).zip(MIGRATIONS).skip(version as usize) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(migration)?;
        transaction.pragma_update(None, "user_version", number)?;
        transaction.commit()?;
    }
    Ok(())
}

/// Gives the database and its companions another name.
fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let free = (1..).map(|number| format!(".broken-{number}")).find(|suffix| !beside(suffix).exists());
    let suffix = free.ok_or(io::ErrorKind::AlreadyExists)?;
    for companion in ["-wal", "-shm"] {
        match garden_files::rename(beside(companion), beside(&format!("{suffix}{companion}"))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    if fs::exists(path)? {
        garden_files::rename(path, beside(&suffix))?;
    }
    Ok(beside(&suffix))
}
