//! Help for tests of the job server: a real server on a free port, with a tiny model and a file of rows.

use super::{from_terminal, model_garden, training::Garden};
use procfs::process::{Process, all_processes};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a test waits for what must happen. No test fails for being slow: this is for what never happens.
const PATIENCE: Duration = Duration::from_secs(300);

/// A server with its folders.
pub struct Server {
    pub garden: Garden,
    flags: Vec<String>,
    environment: Vec<(String, String)>,
    data: PathBuf,
    child: Option<Child>,
    address: String,
}

impl Server {
    /// A server with these flags besides its folders.
    pub fn start(rows: u64, flags: &[&str]) -> Self {
        Self::start_with(rows, flags, &[])
    }

    /// As [`Server::start`], with these variables of the environment.
    pub fn start_with(rows: u64, flags: &[&str], environment: &[(&str, &str)]) -> Self {
        let garden = Garden::new(rows);
        fs::create_dir(garden.path("models")).unwrap();
        garden_files::rename(Path::new(&garden.path("model")), Path::new(&garden.path("models/tiny")))
            .unwrap();
        garden.run(&["dataset", "convert", &garden.path("rows"), &garden.path("rows.jsonl")]);
        let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
        let asked = flags.iter().position(|flag| flag == "--data-dir").map(|index| flags[index + 1].clone());
        let data = asked.unwrap_or_else(|| garden.path("data"));
        let environment = environment.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let mut server = Self {
            garden,
            flags,
            environment: environment.collect(),
            data: data.into(),
            child: None,
            address: String::new(),
        };
        server.restart();
        server
    }

    /// Starts it with other flags from now on.
    pub fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(ToString::to_string).collect();
    }

    /// Starts the server, again after it was killed.
    pub fn restart(&mut self) {
        let mut command = model_garden();
        command.args(["serve", "--port", "0", "--rate-limit", "0"]);
        command.args(["--models-dir", &self.garden.path("models")]).args(&self.flags);
        if !self.flags.iter().any(|flag| flag == "--data-dir") {
            command.arg("--data-dir").arg(&self.data);
        }
        let mut command = from_terminal(&command);
        command.envs(self.environment.iter().cloned());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            said.push_str(&line);
            line.strip_prefix("serving at ").map(str::to_owned)
        });
        self.address = address.unwrap_or_else(|| panic!("the server did not start: {said}"));
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("server: {line}")));
        self.child = Some(child);
    }

    /// Kills the server as the kernel would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Ends it by a signal and gives its exit code.
    pub fn end_by(&mut self, signal: Signal) -> Option<i32> {
        let mut child = self.child.take()?;
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap().code()
    }

    pub fn pid(&self) -> i32 {
        self.child.as_ref().unwrap().id().cast_signed()
    }

    pub fn data(&self, path: &str) -> PathBuf {
        self.data.join(path)
    }

    /// A request with its status and JSON.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        match body {
            Some(body) => self.send(method, path, "application/json", body.to_string().as_bytes()),
            None => read(method, path, agent().run(self.request(method, path).body(()).unwrap())),
        }
    }

    fn request(&self, method: &str, path: &str) -> ureq::http::request::Builder {
        ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.address))
    }

    /// As [`Server::ask`], with a body of any kind.
    pub fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> (u16, Value) {
        let request = self.request(method, path).header("content-type", kind);
        read(method, path, agent().run(request.body(body).unwrap()))
    }

    /// The first bytes of a route that streams, until `enough`.
    pub fn listen(&self, path: &str, enough: impl Fn(&str) -> bool) -> String {
        let response = agent().run(self.request("GET", path).body(()).unwrap()).unwrap();
        let mut heard = String::new();
        for line in BufReader::new(response.into_body().into_reader()).lines().map_while(Result::ok) {
            heard = heard + &line + "\n";
            if enough(&heard) {
                break;
            }
        }
        heard
    }

    /// Asks until the answer is as it should be.
    pub fn poll(&self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let answer = self.get(path);
            if is_so(&answer) {
                return answer;
            }
            assert!(begun.elapsed() < PATIENCE, "{path}: {answer:#}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, None);
        assert_eq!(status, 200, "GET {path}: {body}");
        body
    }

    pub fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.ask("POST", path, Some(body));
        assert_eq!(status, 200, "POST {path} {body}: {answer}");
        answer
    }

    /// Uploads the rows and gives the file's id.
    pub fn upload(&self) -> String {
        self.upload_text("rows.jsonl", &fs::read_to_string(self.garden.path("rows.jsonl")).unwrap())
    }

    /// Uploads a text as a file and gives its id.
    pub fn upload_text(&self, name: &str, text: &str) -> String {
        let part = |name: &str, value: &str| {
            format!("--edge\r\nContent-Disposition: form-data; name={name}\r\n\r\n{value}\r\n")
        };
        let body = format!(
            "{}{}--edge--\r\n",
            part("\"purpose\"", "fine-tune"),
            part(&format!("\"file\"; filename=\"{name}\""), text)
        );
        let (status, file) =
            self.send("POST", "/v1/files", "multipart/form-data; boundary=edge", body.as_bytes());
        assert_eq!(status, 200, "{file}");
        file["id"].as_str().unwrap().to_owned()
    }

    /// Creates a job on the tiny model with small adapters and these settings; gives its id.
    pub fn create(&self, file: &str, settings: &Value) -> String {
        let mut body = json!({"model": "tiny", "training_file": file, "lora_r": 4, "learning_rate": 1e-3});
        body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        self.post("/v1/fine_tuning/jobs", &body)["id"].as_str().unwrap().to_owned()
    }

    /// Creates a job by a request with an idempotency key; gives its id.
    pub fn create_by_key(&self, key: &str, body: &Value) -> String {
        let path = "/v1/fine_tuning/jobs";
        let request = self.request("POST", path).header("content-type", "application/json");
        let request = request.header("idempotency-key", key).body(body.to_string()).unwrap();
        let (status, job) = read("POST", path, agent().run(request));
        assert_eq!(status, 200, "{job}");
        job["id"].as_str().unwrap().to_owned()
    }

    pub fn job(&self, id: &str) -> Value {
        self.get(&format!("/v1/fine_tuning/jobs/{id}"))
    }

    /// Waits until a job is as it should be.
    pub fn wait_for(&self, id: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let job = self.job(id);
            if is_so(&job) {
                return job;
            }
            assert!(begun.elapsed() < PATIENCE, "{id} is not {what}: {job:#}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn wait_until_over(&self, id: &str) -> Value {
        self.wait_for(id, "over", |job| {
            ["succeeded", "failed", "cancelled"].contains(&job["status"].as_str().unwrap())
        })
    }

    pub fn wait_for_step(&self, id: &str, step: u64) -> Value {
        self.wait_for(id, "that far", |job| job["garden"]["progress"]["step"].as_u64() >= Some(step))
    }

    /// The processes that train a job: at most one at any moment.
    pub fn trainers(&self, id: &str) -> Vec<i32> {
        self.processes("train-vision", id)
    }

    pub fn keepers(&self, id: &str) -> Vec<i32> {
        self.processes("serve-keep", id)
    }

    fn processes(&self, command: &str, id: &str) -> Vec<i32> {
        let settings = self.data("jobs").join(id);
        let settings = settings.to_string_lossy();
        let of_job = |process: &Process| {
            let Ok(words) = process.cmdline() else { return false };
            let trains = words.get(1).is_some_and(|word| word == command);
            trains
                && words.iter().any(|word| word.contains(&*settings))
                && process.stat().is_ok_and(|stat| stat.state != 'Z')
        };
        all_processes().unwrap().flatten().filter(of_job).map(|process| process.pid).collect()
    }
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    config.timeout_global(Some(Duration::from_secs(60))).build().into()
}

/// A response's status and JSON, or text.
fn read(
    method: &str,
    path: &str,
    response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> (u16, Value) {
    let mut response = response.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
    let status = response.status().as_u16();
    let bytes = response.body_mut().read_to_vec().unwrap();
    let json = serde_json::from_slice(&bytes);
    (status, json.unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned())))
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        // Keepers outlive a server; those of a test must not.
        for entry in fs::read_dir(self.data("jobs")).into_iter().flatten().flatten() {
            for pid in self.keepers(&entry.file_name().to_string_lossy()) {
                let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
            }
        }
    }
}

/// Kills a process as the kernel would; it may be gone already.
pub fn kill_9(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, Signal::KILL);
    }
}
