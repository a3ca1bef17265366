//! The index: rows in and out, and what it does when the database is locked, broken, too new, or the disk is full.

use super::*;
use rusqlite::Connection;
use serde_json::json;
use std::{fs, thread, time::Instant};

fn data() -> (tempfile::TempDir, DataDir, fs::File) {
    let folder = tempfile::tempdir().unwrap();
    let (data, lock) = DataDir::open(folder.path()).unwrap();
    (folder, data, lock)
}

fn store(data: &DataDir) -> Store {
    Store::with_patience(data, Duration::from_millis(300)).unwrap().0
}

fn job(id: &str) -> JobRow {
    JobRow {
        id: id.to_owned(),
        created_at: 7,
        state: "queued".to_owned(),
        priority: 0,
        metadata: [("team".to_owned(), "a".to_owned())].into(),
        record: json!({"id": id, "words": "ä\u{0}"}),
    }
}

fn ids(page: &Page<JobRow>) -> Vec<&str> {
    page.data.iter().map(|row| row.id.as_str()).collect()
}

#[tokio::test]
async fn jobs_are_kept_listed_newest_first_and_deleted() {
    let (_folder, data, _lock) = data();
    let store = store(&data);
    for number in 0..5 {
        put(&store, job(&format!("ftjob-{number}"))).await.unwrap();
    }
    assert_eq!(store.get_job("ftjob-3").await.unwrap(), Some(job("ftjob-3")));
    assert_eq!(store.get_job("ftjob-9").await.unwrap(), None);
    let changed = JobRow {
        state: "succeeded".to_owned(),
        priority: 5,
        metadata: [("team".to_owned(), "b".to_owned()), ("x".to_owned(), "y".to_owned())].into(),
        ..job("ftjob-1")
    };
    put(&store, changed.clone()).await.unwrap();
    assert_eq!(store.get_job("ftjob-1").await.unwrap(), Some(changed), "written anew");

    let list = async |query: JobQuery| store.list_jobs(query).await.unwrap();
    let first = list(JobQuery { limit: 2, ..JobQuery::default() }).await;
    assert_eq!((ids(&first), first.has_more), (vec!["ftjob-4", "ftjob-3"], true));
    let next = list(JobQuery { limit: 9, after: Some("ftjob-3".to_owned()), ..JobQuery::default() }).await;
    assert_eq!((ids(&next), next.has_more), (vec!["ftjob-2", "ftjob-1", "ftjob-0"], false), "in its place");
    let metadata = |pairs: &[(&str, &str)]| JobQuery {
        limit: 9,
        metadata: pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..JobQuery::default()
    };
    assert_eq!(ids(&list(metadata(&[("team", "b")])).await), ["ftjob-1"]);
    assert_eq!(ids(&list(metadata(&[("team", "b"), ("x", "y")])).await), ["ftjob-1"]);
    assert!(list(metadata(&[("team", "a"), ("x", "y")])).await.data.is_empty());
    assert!(list(metadata(&[("team' OR true --", "a")])).await.data.is_empty());
    let state = JobQuery { limit: 9, state: Some("succeeded".to_owned()), ..JobQuery::default() };
    assert_eq!(ids(&list(state).await), ["ftjob-1"]);
    let nowhere = JobQuery { limit: 1, after: Some("ftjob-x".to_owned()), ..JobQuery::default() };
    assert!(matches!(store.list_jobs(nowhere).await, Err(StoreError::NoCursor(_))));

    put(&store, JobRow { metadata: Default::default(), ..job("ftjob-2") }).await.unwrap();
    let plain = JobQuery { limit: 9, without_metadata: true, ..JobQuery::default() };
    assert_eq!(ids(&list(plain).await), ["ftjob-2"]);

    assert_eq!(store.jobs_by_state().await.unwrap(), [("queued".to_owned(), 4), ("succeeded".to_owned(), 1)]);
    assert!(delete(&store, "ftjob-0").await.unwrap());
    assert!(!delete(&store, "ftjob-0").await.unwrap());
    assert_eq!(store.all_job_ids().unwrap(), ["ftjob-1", "ftjob-2", "ftjob-3", "ftjob-4"]);
    assert!(delete(&store, "ftjob-3").await.unwrap());
    let next = list(JobQuery { limit: 9, after: Some("ftjob-3".to_owned()), ..JobQuery::default() }).await;
    assert_eq!(ids(&next), ["ftjob-2", "ftjob-1"], "its place is remembered");
}

#[tokio::test]
async fn places_of_what_is_gone_are_kept_for_the_last_ten_thousand() {
    let (_folder, data, _lock) = data();
    let store = store(&data);
    let insert =
        "INSERT INTO files (id, created_at, purpose, sha256, record) VALUES (?, 1, 'vision', '', '{}')";
    let work = move |transaction: &Transaction<'_>| {
        for number in 0..10_001 {
            transaction.prepare_cached(insert)?.execute([format!("file-{number}")])?;
        }
        transaction.execute("DELETE FROM files", [])
    };
    store.write(work).await.unwrap();
    let after = |id: &str| FileQuery { after: Some(id.to_owned()), limit: 1, ..FileQuery::default() };
    assert!(matches!(store.list_files(after("file-0")).await, Err(StoreError::NoCursor(_))));
    assert!(store.list_files(after("file-1")).await.unwrap().data.is_empty());
    let other = JobQuery { after: Some("file-1".to_owned()), limit: 1, ..JobQuery::default() };
    assert!(matches!(store.list_jobs(other).await, Err(StoreError::NoCursor(_))), "of another list");
}

#[tokio::test]
async fn an_idempotency_key_belongs_to_its_first_request_for_a_day() {
    let (_folder, data, _lock) = data();
    let store = store(&data);
    assert_eq!(store.claim("k", "one").await.unwrap(), Claim::New);
    assert_eq!(store.claim("k", "one").await.unwrap(), Claim::InFlight);
    assert_eq!(store.claim("k", "two").await.unwrap(), Claim::Different);
    store.fulfil("k", "ftjob-a").await.unwrap();
    assert_eq!(store.claim("k", "one").await.unwrap(), Claim::Same("ftjob-a".to_owned()));
    store.release("k").await.unwrap();
    assert_eq!(store.claim("k", "one").await.unwrap(), Claim::Same("ftjob-a".to_owned()), "made is made");
    assert_eq!(store.claim("failed", "one").await.unwrap(), Claim::New);
    store.release("failed").await.unwrap();
    assert_eq!(store.claim("failed", "one").await.unwrap(), Claim::New);
    for days in [1, -1] {
        let at = now() + days * (24 * 60 * 60 + 5);
        let claimed =
            store.write(move |transaction| Ok(idempotency::claim_at(transaction, "k", "two", at))).await;
        assert_eq!(claimed.unwrap(), Claim::New, "{days} day later, or the clock jumped");
    }
    assert_eq!(store.claim("lost", "one").await.unwrap(), Claim::New);
    drop(store);
    let store = self::store(&data);
    assert_eq!(store.claim("lost", "one").await.unwrap(), Claim::New, "nobody answers it after a restart");
}

/// Holds the write lock of a database.
/// Writes a row on a thread that may wait.
async fn put(store: &Store, row: JobRow) -> Result<(), StoreError> {
    let store = store.clone();
    tokio::task::spawn_blocking(move || store.refill_jobs_blocking(vec![row])).await.unwrap()
}

async fn delete(store: &Store, id: &'static str) -> Result<bool, StoreError> {
    let store = store.clone();
    tokio::task::spawn_blocking(move || store.delete_job_blocking(id)).await.unwrap()
}

fn lock(data: &DataDir) -> Connection {
    let other = Connection::open(data.database()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    other
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_database_is_read_and_written_as_soon_as_it_can_be() {
    let (_folder, data, _file) = data();
    let store = store(&data);
    put(&store, job("ftjob-a")).await.unwrap();
    let other = lock(&data);
    assert!(store.get_job("ftjob-a").await.unwrap().is_some(), "reads do not wait");
    let start = Instant::now();
    let all = (0..8).map(|number| put(&store, job(&format!("ftjob-{number}"))));
    for end in futures_util::future::join_all(all).await {
        assert!(matches!(end, Err(StoreError::Locked)), "{end:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(5), "all lose their patience together");
    store.put_job_later(job("ftjob-b")).unwrap();
    let waiting = store.clone();
    let waiting = thread::spawn(move || waiting.refill_jobs_blocking(vec![job("ftjob-c")]));
    thread::sleep(Duration::from_millis(50));
    other.execute_batch("ROLLBACK").unwrap();
    waiting.join().unwrap().unwrap();
    assert_eq!(store.all_job_ids().unwrap(), ["ftjob-a", "ftjob-b", "ftjob-c"], "what failed left nothing");
}

#[tokio::test]
async fn what_is_told_about_errors_fits_them() {
    let status = |error: StoreError| ApiError::from(error).status.as_u16();
    assert_eq!(status(StoreError::Locked), 429);
    assert_eq!(status(StoreError::Full), 507);
    assert_eq!(status(StoreError::NoCursor("x".to_owned())), 400);
    assert_eq!(status(StoreError::Ended), 500);
}

#[test]
fn a_database_that_cannot_be_used_is_set_aside() {
    let (_folder, data, _lock) = data();
    let path = data.database();
    let (store, opened) = Store::open(&data).unwrap();
    assert!(opened.rebuilt.unwrap().contains("no database"));
    store.refill_jobs_blocking(vec![job("ftjob-a")]).unwrap();
    drop(store);
    let (store, opened) = Store::open(&data).unwrap();
    assert_eq!((opened.rebuilt, store.all_job_ids().unwrap().len()), (None, 1));
    drop(store);

    fs::write(&path, vec![0xa5; 50_000]).unwrap();
    let (store, opened) = Store::open(&data).unwrap();
    let why = opened.rebuilt.unwrap();
    assert!(why.contains("broken") && why.contains("broken-1"), "{why}");
    assert!(store.all_job_ids().unwrap().is_empty());
    for number in 0..500 {
        store.refill_jobs_blocking(vec![job(&format!("ftjob-{number}"))]).unwrap();
    }
    drop(store);

    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 3..bytes.len() / 3 * 2;
    bytes[middle].fill(0x5a);
    fs::write(&path, bytes).unwrap();
    let (store, opened) = Store::open(&data).unwrap();
    assert!(opened.rebuilt.unwrap().contains("broken-2"));
    drop(store);

    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let (_store, opened) = Store::open(&data).unwrap();
    let why = opened.rebuilt.unwrap();
    assert!(why.contains("version 99, of a newer program"), "{why}");
    assert!(fs::exists(data.root().join("garden.sqlite.broken-3")).unwrap());
}

#[test]
fn a_new_index_lists_in_the_order_that_it_is_given() {
    let (_folder, data, _lock) = data();
    let store = store(&data);
    let rows = ["ftjob-b", "ftjob-c", "ftjob-a"];
    store.refill_jobs_blocking(rows.map(job).to_vec()).unwrap();
    assert_eq!(store.all_job_ids().unwrap(), rows);
}
