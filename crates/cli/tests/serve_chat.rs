//! Chat with a model through the real server: its answers are those of `generate`, whole and as a stream.

mod support;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};
use support::{Finished, model_garden, training::Garden};

/// A server with the garden's model as `model`, ended with the test.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn new(garden: &Garden, flags: &[&str]) -> Self {
        let models = Path::new(&garden.path("model")).parent().unwrap().to_owned();
        let mut command = model_garden();
        command.args(["serve", "--port", "0", "--rate-limit", "0", "--data-dir", &garden.path("data")]);
        command.arg("--models-dir").arg(models).args(flags).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines.find_map(|line| Some(line.ok()?.split_once("http://")?.1.trim().to_owned()));
        thread::spawn(move || lines.for_each(drop));
        Self { child, address: address.expect("the server says where it listens") }
    }

    /// Sends a question and gives status and body; the connection ends with the answer.
    fn send(&self, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let body = body.to_string();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        stream
    }

    fn raw(&self, body: &Value) -> (u16, String) {
        let mut text = String::new();
        self.send(body).read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn ask(&self, body: &Value) -> Value {
        let (status, text) = self.raw(body);
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    fn refused(&self, body: &Value, status: u16) -> Value {
        let (found, text) = self.raw(body);
        assert_eq!(found, status, "{text}");
        serde_json::from_str::<Value>(&text).unwrap()["error"].clone()
    }

    /// The processes that answer.
    fn hosts(&self) -> Vec<u32> {
        let mut all: Vec<u32> = Vec::new();
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten() {
            let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(list.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        let is_host = |pid: &u32| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.windows(10).any(|part| part == b"serve-host"))
        };
        all.retain(is_host);
        all
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn image(garden: &Garden, index: usize) -> String {
    let folder = Path::new(&garden.path("rows")).join("images");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files[index].to_string_lossy().into_owned()
}

fn data_url(file: &str) -> Value {
    let url = format!("data:image/png;base64,{}", STANDARD.encode(fs::read(file).unwrap()));
    json!({"type": "image_url", "image_url": {"url": url, "detail": "auto"}})
}

/// What `generate` answers.
fn generate(garden: &Garden, flags: &[&str]) -> Value {
    let mut command = model_garden();
    command.args(["generate", "--model", &garden.path("model"), "--format", "json", "--max-tokens", "16"]);
    let done = Finished::of(command.args(flags));
    assert_eq!(done.code, Some(0), "{}", done.errors);
    serde_json::from_str(&done.output).unwrap()
}

/// Questions, each with what `generate` answers to it.
fn questions(garden: &Garden) -> Vec<(Value, Value)> {
    let [first, second] = [0, 1].map(|index| image(garden, index));
    let body = |content: Value, more: Value| {
        let mut body = json!({
            "model": "model", "max_tokens": 16, "temperature": 0, "messages": [{"role": "user", "content": content}],
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let two = json!([data_url(&first), data_url(&second), {"type": "text", "text": "What differs?"}]);
    let flags = ["--image", &first, "--image", &second, "--prompt", "What differs?"];
    let seeded = ["--temperature", "1.25", "--seed", "7"];
    vec![
        (body(json!("Hello"), json!({})), generate(garden, &["--prompt", "Hello"])),
        (body(two.clone(), json!({})), generate(garden, &flags)),
        (
            body(two, json!({"temperature": 1.25, "seed": 7})),
            generate(garden, &[&flags[..], &seeded].concat()),
        ),
        (
            body(json!("Hello"), json!({"temperature": 1.25, "seed": 7})),
            generate(garden, &[&["--prompt", "Hello"], &seeded[..]].concat()),
        ),
    ]
}

fn assert_same(answer: &Value, expected: &Value) {
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], expected["text"], "{answer}");
    let reason = if expected["end"] == "length" { "length" } else { "stop" };
    assert_eq!(choice["finish_reason"], reason);
    assert_eq!(answer["usage"]["prompt_tokens"], expected["prompt_tokens"]);
    assert_eq!(answer["usage"]["completion_tokens"], expected["tokens"].as_array().unwrap().len());
}

#[test]
fn the_served_answer_is_that_of_generate_alone_at_once_and_streamed() {
    let garden = Garden::new(3);
    let questions = questions(&garden);
    let server = Server::new(&garden, &[]);
    for (body, expected) in &questions {
        assert_same(&server.ask(body), expected);
    }
    thread::scope(|scope| {
        for client in 0..8 {
            let (server, (body, expected)) = (&server, &questions[client % questions.len()]);
            scope.spawn(move || assert_same(&server.ask(body), expected));
        }
    });
    assert_eq!(server.hosts().len(), 1, "all share one process");
    let (mut body, expected) = questions[1].clone();
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let (status, text) = server.raw(&body);
    assert_eq!(status, 200);
    let mut events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(events.pop(), Some("[DONE]"));
    let chunks: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["id"] == chunks[0]["id"] && chunk["object"] == "chat.completion.chunk")
    );
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let content: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(content, expected["text"].as_str().unwrap());
    let [.., end, usage] = &chunks[..] else { panic!("chunks") };
    assert!(end["choices"][0]["finish_reason"].is_string() && end["usage"].is_null());
    assert_eq!(usage["choices"], json!([]));
    assert!(usage["usage"]["prompt_tokens_details"]["cached_tokens"].is_u64(), "{usage}");
}

#[test]
fn refusals_have_a_status_and_a_process_that_dies_is_replaced() {
    let garden = Garden::new(1);
    let server = Server::new(&garden, &[]);
    let hello =
        json!({"model": "model", "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]});
    let with = |field: &str, value: Value| {
        let mut body = hello.clone();
        body[field] = value;
        body
    };
    assert_eq!(server.refused(&with("model", json!("none")), 404)["code"], "model_not_found");
    assert_eq!(server.refused(&with("n", json!(2)), 400)["param"], "n");
    let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": {"type": "nothing"}}});
    assert_eq!(server.refused(&with("response_format", schema.clone()), 400)["param"], "response_format");
    let mut streamed = with("response_format", schema);
    streamed["stream"] = true.into();
    assert_eq!(server.refused(&streamed, 400)["param"], "response_format", "a stream too");
    assert_eq!(server.refused(&with("max_tokens", json!(1_000_000)), 400)["param"], "max_tokens");

    // A client that leaves gives its place back: the process goes on with others.
    let mut long = with("max_tokens", json!(1500));
    long["stream"] = true.into();
    for _ in 0..20 {
        let mut gone = server.send(&long);
        gone.read_exact(&mut [0; 12]).unwrap();
    }
    server.ask(&hello);

    let [host] = server.hosts()[..] else { panic!("one process: {:?}", server.hosts()) };
    let pid = rustix::process::Pid::from_raw(host.cast_signed()).unwrap();
    let mut open = server.send(&long);
    open.read_exact(&mut [0; 12]).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let mut rest = String::new();
    open.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("the model's process ended: signal: 9 (SIGKILL)"), "{rest}");
    server.ask(&hello);
    assert_ne!(server.hosts(), [host], "another process answers");

    // It ends with the server.
    let hosts = server.hosts();
    drop(server);
    let deadline = Instant::now() + Duration::from_secs(20);
    while hosts.iter().any(|host| Path::new(&format!("/proc/{host}")).exists()) {
        assert!(Instant::now() < deadline, "a process outlived its server");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn too_many_questions_are_told_to_come_back() {
    let garden = Garden::new(1);
    let server = Server::new(&garden, &[]);
    // Long answers, so that none is over before all were asked.
    let long = json!({
        "model": "model", "max_tokens": 3000, "temperature": 2,
        "messages": [{"role": "user", "content": "Hello"}],
        "response_format": {"type": "json_object"},
    });
    let asked: Vec<TcpStream> = (0..60).map(|_| server.send(&long)).collect();
    let refused = asked.iter().find_map(|stream| {
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut head = [0; 600];
        let count = (&mut &*stream).read(&mut head).ok()?;
        let head = String::from_utf8_lossy(&head[..count]).to_ascii_lowercase();
        head.starts_with("http/1.0 429").then_some(head)
    });
    let refused = refused.expect("one of so many is refused");
    let wait = refused.lines().find_map(|line| line.strip_prefix("retry-after: ")).unwrap();
    assert!((1..=120).contains(&wait.trim().parse::<u64>().unwrap()), "{refused}");
    drop(asked);
}

#[test]
fn a_budget_that_the_model_does_not_fit_is_told() {
    let garden = Garden::new(1);
    let server = Server::new(&garden, &["--memory-budget", "10MB"]);
    let hello =
        json!({"model": "model", "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]});
    let error = server.refused(&hello, 400);
    assert!(error["message"].as_str().unwrap().contains("memory budget is 10"), "{error}");
}
