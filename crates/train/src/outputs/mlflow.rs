//! MLflow over its REST interface: one run, its settings and its numbers.
//!
//! In come the server's address and the log entries of a run; out go HTTP requests. A server that cannot be reached at the start
//! is an error; one that fails later only costs its numbers, which are kept and sent with the next ones.

use crate::trainer::LogEntry;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Numbers of one request; the server's own limit is 1000.
const LARGEST_BATCH: usize = 1000;
/// Numbers kept while the server does not answer; beyond that the oldest go.
const MOST_KEPT: usize = 100_000;
/// The server's limit on the length of a setting's value.
const LONGEST_SETTING: usize = 6000;
/// How long to wait for an answer: a dead server must not hold up the training.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why MLflow cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("MLflow at {uri}: {path}: {reason}")]
pub struct MlflowError {
    uri: String,
    path: &'static str,
    reason: String,
}

/// A run on an MLflow server.
pub struct MlflowRun {
    agent: ureq::Agent,
    uri: String,
    token: Option<String>,
    run_id: String,
    waiting: Vec<Value>,
}

impl MlflowRun {
    /// Starts a run, or goes on with one. `token` is sent as a bearer token.
    pub fn start(
        uri: &str,
        token: Option<String>,
        experiment: &str,
        name: &str,
        resumed: Option<&str>,
    ) -> Result<Self, MlflowError> {
        let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false);
        let agent = config.build().new_agent();
        let uri = uri.trim_end_matches('/').to_owned();
        let mut run = Self { agent, uri, token, run_id: String::new(), waiting: Vec::new() };
        run.run_id = match resumed {
            Some(id) => {
                run.post("runs/update", json!({ "run_id": id, "status": "RUNNING" }))?;
                id.to_owned()
            }
            None => run.create(experiment, name)?,
        };
        Ok(run)
    }

    /// The run's id, to go on with it later.
    pub fn id(&self) -> &str {
        &self.run_id
    }

    fn create(&self, experiment: &str, name: &str) -> Result<String, MlflowError> {
        let found = self.post(
            "experiments/search",
            json!({ "max_results": 1, "filter": format!("name = '{}'", experiment.replace('\'', "''")) }),
        )?;
        let experiment_id = match found["experiments"][0]["experiment_id"].as_str() {
            Some(id) => id.to_owned(),
            None => {
                let path = "experiments/create";
                let created = self.post(path, json!({ "name": experiment }))?;
                self.text(&created["experiment_id"], path)?
            }
        };
        let path = "runs/create";
        let body = json!({ "experiment_id": experiment_id, "run_name": name, "start_time": milliseconds() });
        let created = self.post(path, body)?;
        self.text(&created["run"]["info"]["run_id"], path)
    }

    /// Sends the settings of the run.
    pub fn settings(&self, settings: &BTreeMap<String, String>) -> Result<(), MlflowError> {
        let cut = |value: &String| value.chars().take(LONGEST_SETTING).collect::<String>();
        let params: Vec<Value> =
            settings.iter().map(|(key, value)| json!({ "key": key, "value": cut(value) })).collect();
        // A request may hold a hundred settings.
        for params in params.chunks(100) {
            self.post("runs/log-batch", json!({ "run_id": self.run_id, "params": params }))?;
        }
        Ok(())
    }

    /// Sends the numbers of a log entry, after those that wait.
    pub fn add(&mut self, entry: &LogEntry) -> Result<(), MlflowError> {
        let timestamp = milliseconds();
        for (key, value) in entry.values.iter().filter(|(_, value)| value.is_finite()) {
            self.waiting
                .push(json!({ "key": key, "value": value, "timestamp": timestamp, "step": entry.step }));
        }
        let surplus = self.waiting.len().saturating_sub(MOST_KEPT);
        self.waiting.drain(..surplus);
        while !self.waiting.is_empty() {
            let count = self.waiting.len().min(LARGEST_BATCH);
            let metrics = &self.waiting[..count];
            self.post("runs/log-batch", json!({ "run_id": self.run_id, "metrics": metrics }))?;
            self.waiting.drain(..count);
        }
        Ok(())
    }

    /// Marks the run as finished, or as killed where it will be resumed.
    pub fn end(&self, finished: bool) -> Result<(), MlflowError> {
        let status = if finished { "FINISHED" } else { "KILLED" };
        let body = json!({ "run_id": self.run_id, "status": status, "end_time": milliseconds() });
        self.post("runs/update", body).map(drop)
    }

    fn post(&self, path: &'static str, body: Value) -> Result<Value, MlflowError> {
        let failed = |reason: String| MlflowError { uri: self.uri.clone(), path, reason };
        let url = format!("{}/api/2.0/mlflow/{path}", self.uri);
        let mut request = self.agent.post(&url).header("Content-Type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let mut response = request.send(body.to_string()).map_err(|error| failed(error.to_string()))?;
        let text = response.body_mut().read_to_string().map_err(|error| failed(error.to_string()))?;
        let answer: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        if response.status().is_success() {
            return Ok(answer);
        }
        let message = answer["message"].as_str().unwrap_or("no message");
        Err(failed(format!("status {}: {message}", response.status().as_u16())))
    }

    fn text(&self, value: &Value, path: &'static str) -> Result<String, MlflowError> {
        let missing =
            || MlflowError { uri: self.uri.clone(), path, reason: "the answer has no id".to_owned() };
        value.as_str().map(str::to_owned).ok_or_else(missing)
    }
}

fn milliseconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}
