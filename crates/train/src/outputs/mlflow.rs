//! MLflow over its REST interface: one run, its settings and its numbers.
//!
//! Takes the server's address and the log entries of a run, and sends HTTP requests. A server that cannot be
//! reached at the start is an error. One that fails later is asked more and more rarely, and its numbers are
//! kept and sent when it answers again.

use crate::trainer::LogEntry;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Numbers of one request; the server's own limit is 1000.
const LARGEST_BATCH: usize = 1000;
/// Numbers kept while the server does not answer; beyond that the oldest are dropped.
const MOST_KEPT: usize = 100_000;
/// The server's limit on the length of a setting's value.
const LONGEST_SETTING: usize = 6000;
/// How long to wait for an answer: a dead server must not hold up the training.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a server that failed is left alone at first; the time doubles with each failure.
const SHORTEST_REST: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(16 * 60);

/// Why MLflow cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("MLflow at {server}: {path}: {reason}")]
pub struct MlflowError {
    server: String,
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
    rest: Rest,
}

/// When a server that failed is asked again.
#[derive(Default)]
struct Rest {
    length: Duration,
    until: Option<Instant>,
}

impl Rest {
    fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    fn begin(&mut self, now: Instant) {
        self.length = (2 * self.length).clamp(SHORTEST_REST, LONGEST_REST);
        self.until = Some(now + self.length);
    }
}

impl MlflowRun {
    /// Starts a run, or continues one. `token` is sent as a bearer token.
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
        let mut run =
            Self { agent, uri, token, run_id: String::new(), waiting: Vec::new(), rest: Rest::default() };
        run.run_id = match resumed {
            Some(id) => {
                run.post("runs/update", json!({ "run_id": id, "status": "RUNNING" }))?;
                id.to_owned()
            }
            None => run.create(experiment, name)?,
        };
        Ok(run)
    }

    /// The run's id, to continue it later.
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

    /// Sends the numbers of a log entry, after those that wait. Only keeps them if the server failed a moment
    /// ago.
    pub fn add(&mut self, entry: &LogEntry) -> Result<(), MlflowError> {
        let timestamp = milliseconds();
        for (key, value) in entry.values.iter().filter(|(_, value)| value.is_finite()) {
            self.waiting
                .push(json!({ "key": key, "value": value, "timestamp": timestamp, "step": entry.step }));
        }
        let surplus = self.waiting.len().saturating_sub(MOST_KEPT);
        self.waiting.drain(..surplus);
        if !self.rest.is_over(Instant::now()) {
            return Ok(());
        }
        let sent = self.send_waiting();
        match sent {
            Ok(()) => self.rest = Rest::default(),
            Err(_) => self.rest.begin(Instant::now()),
        }
        sent
    }

    fn send_waiting(&mut self) -> Result<(), MlflowError> {
        while !self.waiting.is_empty() {
            let count = self.waiting.len().min(LARGEST_BATCH);
            let metrics = &self.waiting[..count];
            self.post("runs/log-batch", json!({ "run_id": self.run_id, "metrics": metrics }))?;
            self.waiting.drain(..count);
        }
        Ok(())
    }

    /// Sends what still waits, and marks the run as finished, or as killed where it will be resumed.
    pub fn end(&mut self, finished: bool) -> Result<(), MlflowError> {
        let sent = self.send_waiting();
        let status = if finished { "FINISHED" } else { "KILLED" };
        let body = json!({ "run_id": self.run_id, "status": status, "end_time": milliseconds() });
        let marked = self.post("runs/update", body).map(drop);
        sent.and(marked)
    }

    fn post(&self, path: &'static str, body: Value) -> Result<Value, MlflowError> {
        let failed = |reason: String| MlflowError { server: server(&self.uri), path, reason };
        let url = format!("{}/api/2.0/mlflow/{path}", self.uri);
        let mut request = self.agent.post(&url).header("Content-Type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let mut response = request.send(body.to_string()).map_err(|error| match error {
            // The error's text holds the whole address.
            ureq::Error::BadUri(_) => failed("not an http(s) address".to_owned()),
            error => failed(error.to_string()),
        })?;
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
            || MlflowError { server: server(&self.uri), path, reason: "the answer has no id".to_owned() };
        value.as_str().map(str::to_owned).ok_or_else(missing)
    }
}

/// Scheme, host and port of an address: the rest may hold a password.
fn server(uri: &str) -> String {
    let parsed = uri.parse::<ureq::http::Uri>().ok();
    let named = parsed.as_ref().and_then(|uri| Some((uri.scheme_str()?, uri.host()?, uri.port_u16())));
    match named {
        Some((scheme, host, Some(port))) => format!("{scheme}://{host}:{port}"),
        Some((scheme, host, None)) => format!("{scheme}://{host}"),
        None => "MLFLOW_TRACKING_URI".to_owned(),
    }
}

fn milliseconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufRead, BufReader, Read, Write},
        net::TcpListener,
        sync::{
            Arc, Mutex,
            atomic::{AtomicBool, Ordering},
        },
    };

    /// Answers as a tracking server does, and writes down what it was asked.
    struct Server {
        uri: String,
        requests: Arc<Mutex<Vec<(String, Value)>>>,
        failing: Arc<AtomicBool>,
    }

    impl Server {
        fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let uri = format!("http://{}", listener.local_addr().unwrap());
            let requests: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
            let failing = Arc::new(AtomicBool::new(false));
            let server = Self { uri, requests: requests.clone(), failing: failing.clone() };
            std::thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    let mut reader = BufReader::new(stream);
                    let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
                    reader.read_line(&mut first).unwrap();
                    while reader.read_line(&mut line).unwrap() > 2 {
                        let header = line.to_ascii_lowercase();
                        length = header
                            .strip_prefix("content-length:")
                            .map_or(length, |n| n.trim().parse().unwrap());
                        line.clear();
                    }
                    let mut body = vec![0; length];
                    reader.read_exact(&mut body).unwrap();
                    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
                    let answer = match path.rsplit_once("mlflow/").map(|(_, method)| method) {
                        Some("experiments/create") => json!({ "experiment_id": "7" }),
                        Some("runs/create") => json!({ "run": { "info": { "run_id": "abc" } } }),
                        _ => json!({}),
                    };
                    let status = if failing.load(Ordering::SeqCst) { "500 Oops" } else { "200 OK" };
                    requests.lock().unwrap().push((path, serde_json::from_slice(&body).unwrap()));
                    let text = answer.to_string();
                    let head = format!(
                        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                        text.len()
                    );
                    let _ = reader.get_mut().write_all((head + &text).as_bytes());
                }
            });
            server
        }

        fn asked(&self) -> Vec<(String, Value)> {
            std::mem::take(&mut *self.requests.lock().unwrap())
        }
    }

    fn entry(step: u64) -> LogEntry {
        let values = [("loss".to_owned(), 1.5), ("bad".to_owned(), f64::NAN)];
        LogEntry { epoch: 0.0, step, values: values.into() }
    }

    #[test]
    fn a_run_is_made_in_its_experiment_and_gets_its_numbers() {
        let server = Server::start();
        let mut run = MlflowRun::start(&server.uri, None, "garden", "out", None).unwrap();
        assert_eq!(run.id(), "abc");
        run.add(&entry(10)).unwrap();
        run.end(true).unwrap();
        let asked = server.asked();
        let paths: Vec<&str> = asked.iter().map(|(path, _)| path.rsplit_once("mlflow/").unwrap().1).collect();
        let expected =
            ["experiments/search", "experiments/create", "runs/create", "runs/log-batch", "runs/update"];
        assert_eq!(paths, expected);
        let metrics = &asked[3].1["metrics"];
        assert_eq!(metrics.as_array().unwrap().len(), 1, "what is not a number cannot be sent: {metrics}");
        assert_eq!((&metrics[0]["key"], &metrics[0]["step"]), (&json!("loss"), &json!(10)));
        assert_eq!(asked[4].1["status"], "FINISHED");
    }

    #[test]
    fn numbers_wait_while_the_server_fails_and_go_out_when_it_is_back() {
        let server = Server::start();
        let mut run = MlflowRun::start(&server.uri, None, "garden", "out", Some("known")).unwrap();
        server.failing.store(true, Ordering::SeqCst);
        let error = run.add(&entry(1)).unwrap_err().to_string();
        assert!(error.contains("runs/log-batch: status 500"), "{error}");
        server.failing.store(false, Ordering::SeqCst);
        server.asked();
        run.add(&entry(2)).unwrap();
        assert_eq!(server.asked().len(), 0, "it is left alone for a minute");
        run.rest.until = Some(Instant::now());
        run.add(&entry(3)).unwrap();
        let asked = server.asked();
        assert_eq!(asked[0].1["run_id"], "known", "a resumed run goes on");
        assert_eq!(asked[0].1["metrics"].as_array().unwrap().len(), 3);
        run.add(&entry(4)).unwrap();
        assert_eq!(server.asked().len(), 1, "and all is as before");
    }

    #[test]
    fn the_end_does_not_wait_to_send_what_is_left() {
        let server = Server::start();
        let mut run = MlflowRun::start(&server.uri, None, "garden", "out", Some("known")).unwrap();
        server.failing.store(true, Ordering::SeqCst);
        run.add(&entry(1)).unwrap_err();
        server.failing.store(false, Ordering::SeqCst);
        server.asked();
        run.end(true).unwrap();
        let asked = server.asked();
        assert_eq!(asked[0].1["metrics"][0]["step"], 1);
        assert_eq!(asked[1].1["status"], "FINISHED");
    }

    #[test]
    fn a_server_that_fails_again_and_again_is_asked_ever_more_rarely() {
        let (mut rest, now) = (Rest::default(), Instant::now());
        let minutes: Vec<u64> = std::iter::repeat_with(|| {
            rest.begin(now);
            assert!(!rest.is_over(now) && rest.is_over(now + rest.length));
            rest.length.as_secs() / 60
        })
        .take(7)
        .collect();
        assert_eq!(minutes, [1, 2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn errors_name_the_server_and_keep_its_password() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let uris = [format!("http://ann:secret@{gone}/secret?token=secret"), "ann:secret@nowhere".to_owned()];
        for uri in uris {
            let error = MlflowRun::start(&uri, None, "x", "y", None).err().unwrap().to_string();
            assert!(error.starts_with("MLflow at ") && !error.contains("secret"), "{error}");
        }
        assert_eq!(server("https://ann:secret@example.org/mlflow"), "https://example.org");
    }

    #[test]
    fn nobody_there_is_an_error_that_names_the_address() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = MlflowRun::start(&format!("http://{gone}/"), None, "x", "y", None).err().unwrap();
        assert!(
            error.to_string().starts_with(&format!("MLflow at http://{gone}: experiments/search")),
            "{error}"
        );
    }
}
