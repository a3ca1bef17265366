//! Files in the index: what lists and clean-up ask for. The records themselves are in the data folder.

use super::{Page, Store, StoreError, place};
use rusqlite::{Connection, OptionalExtension, Transaction, params, params_from_iter, types::Value};

/// A file as the index has it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FileRow {
    pub id: String,
    pub created_at: i64,
    pub purpose: String,
    pub sha256: String,
    pub expires_at: Option<i64>,
    /// The record, as JSON.
    pub record: String,
}

/// Which end of a list comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Order {
    OldestFirst,
    #[default]
    NewestFirst,
}

/// Which files to list.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileQuery {
    /// Only files that come after this one in the list.
    pub after: Option<String>,
    pub limit: usize,
    pub order: Order,
    pub purpose: Option<String>,
}

impl Store {
    /// Writes files' rows, new or not; a file keeps its place in the list.
    pub(crate) fn put_files_blocking(&self, rows: Vec<FileRow>) -> Result<(), StoreError> {
        self.write_blocking(move |transaction| rows.iter().try_for_each(|row| put(transaction, row)))
    }

    pub(crate) fn delete_files_blocking(&self, ids: Vec<String>) -> Result<(), StoreError> {
        self.write_blocking(move |transaction| {
            let mut statement = transaction.prepare_cached("DELETE FROM files WHERE id = ?")?;
            ids.iter().try_for_each(|id| statement.execute([id]).map(drop))
        })
    }

    /// The record of a file.
    pub(crate) async fn get_file(&self, id: &str) -> Result<Option<String>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| record(connection, &id)).await
    }

    pub(crate) fn get_file_blocking(&self, id: &str) -> Result<Option<String>, StoreError> {
        self.read_blocking(|connection| record(connection, id))
    }

    /// A page of files' records.
    pub(crate) async fn list_files(&self, query: FileQuery) -> Result<Page<String>, StoreError> {
        self.read(move |connection| list(connection, &query)).await
    }

    /// Every file's id.
    pub(crate) fn all_file_ids(&self) -> Result<Vec<String>, StoreError> {
        self.read_blocking(|connection| texts(connection, "SELECT id FROM files ORDER BY seq", Vec::new()))
    }

    /// The records of files that have this content.
    pub(crate) fn files_with_content(&self, sha256: &str) -> Result<Vec<String>, StoreError> {
        let sql = "SELECT record FROM files WHERE sha256 = ?";
        self.read_blocking(|connection| texts(connection, sql, vec![Value::Text(sha256.to_owned())]))
    }

    /// Files whose time has come.
    pub(crate) fn expired_files(&self, now: i64) -> Result<Vec<String>, StoreError> {
        let sql = "SELECT id FROM files WHERE expires_at <= ?";
        self.read_blocking(|connection| texts(connection, sql, vec![Value::Integer(now)]))
    }
}

fn record(connection: &Connection, id: &str) -> Result<Option<String>, StoreError> {
    let mut statement = connection.prepare_cached("SELECT record FROM files WHERE id = ?")?;
    Ok(statement.query_row([id], |row| row.get(0)).optional()?)
}

fn put(transaction: &Transaction<'_>, row: &FileRow) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO files (id, created_at, purpose, sha256, expires_at, record) VALUES (?, ?, ?, ?, ?, ?)
             ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at, purpose = excluded.purpose,
             sha256 = excluded.sha256, expires_at = excluded.expires_at, record = excluded.record",
        )?
        .execute(params![row.id, row.created_at, row.purpose, row.sha256, row.expires_at, row.record])
        .map(drop)
}

fn list(connection: &Connection, query: &FileQuery) -> Result<Page<String>, StoreError> {
    let (than, direction) = match query.order {
        Order::OldestFirst => (">", "ASC"),
        Order::NewestFirst => ("<", "DESC"),
    };
    let mut sql = "SELECT record FROM files WHERE true".to_owned();
    let mut values = Vec::new();
    if let Some(after) = &query.after {
        values.push(Value::Integer(place(connection, "files", after)?));
        sql += &format!(" AND seq {than} ?");
    }
    if let Some(purpose) = &query.purpose {
        values.push(Value::Text(purpose.clone()));
        sql += " AND purpose = ?";
    }
    values.push(Value::Integer(i64::try_from(query.limit).unwrap_or(i64::MAX).saturating_add(1)));
    sql += &format!(" ORDER BY seq {direction} LIMIT ?");
    Ok(Page::cut(texts(connection, &sql, values)?, query.limit))
}

fn texts(connection: &Connection, sql: &str, values: Vec<Value>) -> Result<Vec<String>, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    let texts = statement.query_map(params_from_iter(values), |row| row.get(0))?.collect::<Result<_, _>>()?;
    Ok(texts)
}
