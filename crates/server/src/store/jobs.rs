//! Jobs in the index.

use super::{Page, Store, StoreError, place};
use rusqlite::{Row, Transaction, params, params_from_iter, types::Value};
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// States that a job does not leave.
const FINISHED: [&str; 3] = ["succeeded", "failed", "cancelled"];

/// A job as the index has it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JobRow {
    pub id: String,
    pub created_at: i64,
    pub state: String,
    pub priority: i64,
    pub metadata: BTreeMap<String, String>,
    pub record: serde_json::Value,
}

/// Tells when a row is in the index.
pub(crate) type Written = oneshot::Receiver<Result<(), StoreError>>;

/// Which jobs to list, newest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobQuery {
    /// Only jobs that come after this one in the list.
    pub after: Option<String>,
    pub limit: usize,
    /// Only jobs that have all of these.
    pub metadata: Vec<(String, String)>,
    /// Only jobs that have no metadata.
    pub without_metadata: bool,
    pub state: Option<String>,
}

impl Store {
    /// Writes a job's row, new or not, as soon as it can be, however long the database is locked or the disk full; a job
    /// keeps its place in the list. Rows of one job are written in the order they were given. Who must see the row
    /// waits for what is given back; nobody else needs to.
    pub(crate) fn put_job_later(&self, row: JobRow) -> Result<Written, StoreError> {
        Ok(self.writer.send_later(put(row)?))
    }

    /// Writes many rows at once, the oldest first so that lists have their order again: for a new index.
    pub(crate) fn refill_jobs_blocking(&self, rows: Vec<JobRow>) -> Result<(), StoreError> {
        let mut puts = rows.into_iter().map(put).collect::<Result<Vec<_>, _>>()?;
        self.write_blocking(move |transaction| puts.iter_mut().try_for_each(|put| put(transaction)))
    }

    pub(crate) async fn get_job(&self, id: &str) -> Result<Option<JobRow>, StoreError> {
        let id = id.to_owned();
        self.read(move |connection| one(connection, &id)).await
    }

    /// A page of jobs, newest first.
    pub(crate) async fn list_jobs(&self, query: JobQuery) -> Result<Page<JobRow>, StoreError> {
        self.read(move |connection| list(connection, &query)).await
    }

    /// Removes a job's row as soon as it can be, in turn with what was written of it.
    pub(crate) fn delete_job_later(&self, id: &str) -> Written {
        let mut delete = delete(id.to_owned());
        self.writer.send_later(move |transaction| delete(transaction).map(drop))
    }

    pub(crate) fn delete_job_blocking(&self, id: &str) -> Result<bool, StoreError> {
        self.write_blocking(delete(id.to_owned()))
    }

    /// Every job's id, oldest first.
    pub(crate) fn all_job_ids(&self) -> Result<Vec<String>, StoreError> {
        self.read_blocking(|connection| ids(connection, "SELECT id FROM jobs ORDER BY seq"))
    }

    /// The ids of the jobs that the index holds to be over.
    pub(crate) fn finished_job_ids(&self) -> Result<Vec<String>, StoreError> {
        self.read_blocking(|connection| ids(connection, "SELECT id FROM jobs WHERE finished"))
    }

    /// How many jobs are in each state.
    pub(crate) async fn jobs_by_state(&self) -> Result<Vec<(String, u32)>, StoreError> {
        self.read(|connection| {
            let sql = "SELECT state, count(*) FROM jobs GROUP BY state ORDER BY state";
            let mut statement = connection.prepare_cached(sql)?;
            let counts = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(counts.collect::<Result<_, _>>()?)
        })
        .await
    }
}

fn put(row: JobRow) -> Result<impl FnMut(&Transaction<'_>) -> rusqlite::Result<()> + Send, StoreError> {
    let record = serde_json::to_string(&row.record)?;
    Ok(move |transaction: &Transaction<'_>| {
        let finished = FINISHED.contains(&row.state.as_str());
        transaction
            .prepare_cached(
                "INSERT INTO jobs (id, created_at, state, priority, finished, record) VALUES (?, ?, ?, ?, ?, ?)
                 ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at, state = excluded.state,
                 priority = excluded.priority, finished = excluded.finished, record = excluded.record",
            )?
            .execute(params![row.id, row.created_at, row.state, row.priority, finished, record])?;
        transaction.prepare_cached("DELETE FROM job_metadata WHERE job = ?")?.execute([&row.id])?;
        let mut insert =
            transaction.prepare_cached("INSERT INTO job_metadata (job, key, value) VALUES (?, ?, ?)")?;
        row.metadata.iter().try_for_each(|(key, value)| insert.execute([&row.id, key, value]).map(drop))
    })
}

fn delete(id: String) -> impl FnMut(&Transaction<'_>) -> rusqlite::Result<bool> + Send {
    move |transaction| Ok(transaction.execute("DELETE FROM jobs WHERE id = ?", [&id])? > 0)
}

fn ids(connection: &rusqlite::Connection, sql: &str) -> Result<Vec<String>, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?)
}

fn one(connection: &rusqlite::Connection, id: &str) -> Result<Option<JobRow>, StoreError> {
    let sql = "SELECT id, created_at, state, priority, record FROM jobs WHERE id = ?";
    Ok(rows(connection, sql, vec![Value::Text(id.to_owned())])?.pop())
}

fn list(connection: &rusqlite::Connection, query: &JobQuery) -> Result<Page<JobRow>, StoreError> {
    let mut sql = "SELECT id, created_at, state, priority, record FROM jobs WHERE true".to_owned();
    let mut values = Vec::new();
    if let Some(after) = &query.after {
        values.push(Value::Integer(place(connection, "jobs", after)?));
        sql += " AND seq < ?";
    }
    if let Some(state) = &query.state {
        values.push(Value::Text(state.clone()));
        sql += " AND state = ?";
    }
    for (key, value) in &query.metadata {
        values.extend([Value::Text(key.clone()), Value::Text(value.clone())]);
        sql += " AND id IN (SELECT job FROM job_metadata WHERE key = ? AND value = ?)";
    }
    if query.without_metadata {
        sql += " AND id NOT IN (SELECT job FROM job_metadata)";
    }
    values.push(Value::Integer(i64::try_from(query.limit).unwrap_or(i64::MAX).saturating_add(1)));
    sql += " ORDER BY seq DESC LIMIT ?";
    Ok(Page::cut(rows(connection, &sql, values)?, query.limit))
}

fn rows(connection: &rusqlite::Connection, sql: &str, values: Vec<Value>) -> Result<Vec<JobRow>, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut found = statement.query(params_from_iter(values))?;
    let mut jobs = Vec::new();
    while let Some(row) = found.next()? {
        let mut job = job(row)?;
        let mut metadata = connection.prepare_cached("SELECT key, value FROM job_metadata WHERE job = ?")?;
        let pairs = metadata.query_map([&job.id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        job.metadata = pairs.collect::<Result<_, _>>()?;
        jobs.push(job);
    }
    Ok(jobs)
}

fn job(row: &Row<'_>) -> Result<JobRow, StoreError> {
    Ok(JobRow {
        id: row.get(0)?,
        created_at: row.get(1)?,
        state: row.get(2)?,
        priority: row.get(3)?,
        metadata: BTreeMap::new(),
        record: serde_json::from_str(row.get_ref(4)?.as_str().map_err(rusqlite::Error::from)?)?,
    })
}
