//! A request that makes a job makes one, however often it is sent.
//!
//! Takes what a request asks for and the work that makes its job, and does that work or gives the job that is
//! there already. A repetition is known by its `Idempotency-Key`, by being equal to a request that is being
//! answered, or by the count with which OpenAI's SDK marks what it sends again. The work goes on though the
//! client leaves.

use crate::{api::error::ApiError, app::App, files::hex, job::record::KeyedRequest, store::Claim};
use axum::http::HeaderMap;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// How long a request that is sent twice waits for the first one's job.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the answer to a request is given again to a client that sends it once more: longer than the SDK
/// waits.
const REMEMBERED: Duration = Duration::from_secs(15 * 60);
/// Answers that are remembered.
const MOST_REMEMBERED: usize = 1000;

/// What came of a request: a job, or why there is none.
pub(super) type Made = Result<String, ApiError>;

/// Makes the job that `body` asks for at `route`, or gives the one that the same request has made.
pub(super) async fn once<F: Future<Output = Made> + Send + 'static>(
    app: &App,
    headers: &HeaderMap,
    route: &str,
    body: &Value,
    work: impl FnOnce(Option<KeyedRequest>) -> F + Send + 'static,
) -> Made {
    let hash = hex(&Sha256::digest(format!("{route} {}", sorted(body))));
    if let Some(key) = headers.get("idempotency-key") {
        let key = key.to_str().ok().filter(|key| (1..=255).contains(&key.len()));
        let key =
            key.ok_or_else(|| ApiError::bad_request("1 to 255 ASCII characters").param("Idempotency-Key"))?;
        let (app, request) = (app.clone(), KeyedRequest { key: key.to_owned(), hash });
        let made = tokio::spawn(async move { by_key(&app, request, work).await }).await;
        return made.unwrap_or_else(|error| Err(ApiError::internal(error)));
    }
    let retries = headers.get("x-stainless-retry-count").and_then(|count| count.to_str().ok()?.parse().ok());
    if retries.is_some_and(|count: u32| count > 0)
        && let Some(job) = app.creating.remembered(&hash)
        && app.store.get_job(&job).await?.is_some()
    {
        return Ok(job);
    }
    app.creating.once(hash, work(None)).await
}

/// A value whose text is the same however the fields of its objects were ordered.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            let fields = fields.into_iter().map(|(name, value)| (name.clone(), sorted(value)));
            Value::Object(Map::from_iter(fields))
        }
        Value::Array(values) => values.iter().map(sorted).collect(),
        value => value.clone(),
    }
}

/// The job of a request with a key: the same key gives the same job, for a day.
async fn by_key<F: Future<Output = Made>>(
    app: &App,
    request: KeyedRequest,
    work: impl FnOnce(Option<KeyedRequest>) -> F,
) -> Made {
    let KeyedRequest { key, hash } = &request;
    let begun = Instant::now();
    loop {
        match app.store.claim(key, hash).await? {
            Claim::New => break,
            Claim::Same(job) if app.store.get_job(&job).await?.is_some() => return Ok(job),
            Claim::Same(_) => {
                let message = "the job that was made with this idempotency key was deleted: use a new key";
                return Err(ApiError::bad_request(message).param("Idempotency-Key"));
            }
            Claim::Different => {
                let message = "this idempotency key was used for another request";
                return Err(ApiError::bad_request(message).param("Idempotency-Key"));
            }
            Claim::InFlight if begun.elapsed() > PATIENCE => {
                return Err(ApiError::busy("the same request is still being answered", 5));
            }
            Claim::InFlight => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    let made = work(Some(request.clone())).await;
    // The job's own record has the key: an index that cannot be written now has it again after the next start.
    let _ = match &made {
        Ok(job) => app.store.fulfil(key, job).await,
        Err(_) => app.store.release(key).await,
    };
    made
}

/// Requests without a key, by their hash.
#[derive(Clone, Default)]
pub(crate) struct Creating(Arc<Mutex<Requests>>);

#[derive(Default)]
struct Requests {
    /// Those that are being answered: an equal one is the same, and gets the same job.
    in_flight: HashMap<String, watch::Receiver<Option<Made>>>,
    /// Those that have made a job not long ago, the oldest first.
    made: VecDeque<(Instant, String, String)>,
}

impl Creating {
    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job that an equal request has made not long ago.
    fn remembered(&self, hash: &str) -> Option<String> {
        let requests = self.requests();
        let found = requests.made.iter().rev().find(|(_, made, _)| made == hash);
        found.filter(|(at, ..)| at.elapsed() < REMEMBERED).map(|(.., job)| job.clone())
    }

    /// Does the work, or waits for whoever does the same already.
    async fn once(&self, hash: String, work: impl Future<Output = Made> + Send + 'static) -> Made {
        let mut answer = {
            let mut requests = self.requests();
            match requests.in_flight.get(&hash) {
                Some(answer) => answer.clone(),
                None => {
                    let (sender, answer) = watch::channel(None);
                    requests.in_flight.insert(hash.clone(), answer.clone());
                    let creating = self.clone();
                    tokio::spawn(async move {
                        let made = work.await;
                        creating.requests().end(hash, &made);
                        sender.send_replace(Some(made));
                    });
                    answer
                }
            }
        };
        let gone = || ApiError::internal("the request could not be answered");
        let made = answer.wait_for(Option::is_some).await.map_err(|_| gone())?.clone();
        made.ok_or_else(gone)?
    }
}

impl Requests {
    fn end(&mut self, hash: String, made: &Made) {
        self.in_flight.remove(&hash);
        let Ok(job) = made else { return };
        if self.made.len() >= MOST_REMEMBERED {
            self.made.pop_front();
        }
        self.made.push_back((Instant::now(), hash, job.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_order_of_fields_does_not_tell_requests_apart() {
        let one: Value = serde_json::from_str(r#"{"a": 1, "b": {"c": [{"d": 2, "e": 3}], "f": 4}}"#).unwrap();
        let other: Value =
            serde_json::from_str(r#"{"b": {"f": 4, "c": [{"e": 3, "d": 2}]}, "a": 1}"#).unwrap();
        assert_eq!(sorted(&one).to_string(), sorted(&other).to_string());
        assert_ne!(sorted(&json!([1, 2])).to_string(), sorted(&json!([2, 1])).to_string());
    }

    #[tokio::test]
    async fn what_was_made_is_remembered_and_what_was_refused_is_not() {
        let creating = Creating::default();
        let refused = creating.once("a".into(), async { Err(ApiError::bad_request("no")) }).await;
        assert!(refused.is_err() && creating.remembered("a").is_none());
        for number in 0..=MOST_REMEMBERED {
            creating.once(format!("b{number}"), async move { Ok(format!("ftjob-{number}")) }).await.unwrap();
        }
        assert_eq!(creating.remembered("b1").as_deref(), Some("ftjob-1"));
        assert_eq!(creating.remembered("b0"), None, "no more than so many");
    }
}
