//! Requests to create a job that must create one job however often they are sent.
//!
//! A key belongs to the first request that brings it, for a day. A key whose request was being answered when the
//! server ended is free again at the next start, unless its job's folder says that the job was made.

use super::{Store, StoreError, now};
use rusqlite::{OptionalExtension, Transaction, params};

const KEPT_SECONDS: i64 = 24 * 60 * 60;

/// A job that a request with a key has made.
#[derive(Debug, Clone)]
pub(crate) struct MadeByKey {
    pub key: String,
    pub hash: String,
    /// Seconds since 1970.
    pub at: i64,
    pub job: String,
}

/// What became of a request with an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is the first: go on, then [`Store::fulfil`] or [`Store::release`] the key.
    New,
    /// The same request has made this job.
    Same(String),
    /// The key came with another request.
    Different,
    /// The same request is being answered.
    InFlight,
}

impl Store {
    /// Claims a key for a request, whose contents are told apart by `hash`.
    pub(crate) async fn claim(&self, key: &str, hash: &str) -> Result<Claim, StoreError> {
        let (key, hash) = (key.to_owned(), hash.to_owned());
        self.write(move |transaction| claim(transaction, &key, &hash, now())).await
    }

    /// The request has made this job.
    pub(crate) async fn fulfil(&self, key: &str, job: &str) -> Result<(), StoreError> {
        let (key, job) = (key.to_owned(), job.to_owned());
        self.write(move |transaction| {
            transaction.execute("UPDATE idempotency SET job = ? WHERE key = ?", [&job, &key]).map(drop)
        })
        .await
    }

    /// Keys of jobs that were made: for an index that does not know them. A key that is known stays as it is.
    pub(crate) fn refill_keys_blocking(&self, keys: Vec<MadeByKey>) -> Result<(), StoreError> {
        self.write_blocking(move |transaction| {
            let sql = "INSERT OR IGNORE INTO idempotency (key, hash, time, job) VALUES (?, ?, ?, ?)";
            let mut insert = transaction.prepare_cached(sql)?;
            keys.iter().try_for_each(|MadeByKey { key, hash, at, job }| {
                insert.execute(params![key, hash, at, job]).map(drop)
            })
        })
    }

    /// The request has made nothing: it may be sent again.
    pub(crate) async fn release(&self, key: &str) -> Result<(), StoreError> {
        let key = key.to_owned();
        self.write(move |transaction| {
            transaction.execute("DELETE FROM idempotency WHERE key = ? AND job IS NULL", [&key]).map(drop)
        })
        .await
    }
}

fn claim(transaction: &Transaction<'_>, key: &str, hash: &str, now: i64) -> rusqlite::Result<Claim> {
    // A key from the future was made before the clock jumped back.
    transaction
        .prepare_cached("DELETE FROM idempotency WHERE abs(?1 - time) > ?2")?
        .execute([now, KEPT_SECONDS])?;
    let found: Option<(String, Option<String>)> = transaction
        .prepare_cached("SELECT hash, job FROM idempotency WHERE key = ?")?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(match found {
        None => {
            transaction
                .prepare_cached("INSERT INTO idempotency (key, hash, time) VALUES (?, ?, ?)")?
                .execute(params![key, hash, now])?;
            Claim::New
        }
        Some((first, _)) if first != hash => Claim::Different,
        Some((_, Some(job))) => Claim::Same(job),
        Some((_, None)) => Claim::InFlight,
    })
}

#[cfg(test)]
pub(super) fn claim_at(transaction: &Transaction<'_>, key: &str, hash: &str, now: i64) -> Claim {
    claim(transaction, key, hash, now).unwrap()
}
