//! A real server on a free port, and the plainest client.

#![allow(dead_code, reason = "each test uses its own part")]

use garden_server::{Listening, ServeConfig, ServeError, serve};
use serde_json::Value;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::mpsc,
    thread::JoinHandle,
    time::Duration,
};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// A server that ends with the test.
pub struct Server {
    pub address: SocketAddr,
    pub notes: Vec<String>,
    data: PathBuf,
    _folder: Option<TempDir>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        format!("{}\r\n\r\n{}", self.head, String::from_utf8_lossy(&self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The JSON of an answer that must be good.
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// The error of an answer, which must have OpenAI's form.
    pub fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        let error = self.json()["error"].clone();
        for field in ["message", "type", "param", "code"] {
            assert!(error.get(field).is_some(), "{field}: {error}");
        }
        error
    }
}

pub fn config(data: &Path) -> ServeConfig {
    ServeConfig { port: 0, rate_limit: 0, ..ServeConfig::new(data.to_owned(), "/nonexistent".into()) }
}

/// Starts a server, or says why it did not.
pub fn start(config: ServeConfig) -> Result<Server, ServeError> {
    let data = config.data_dir.clone();
    let (stop, stopped) = oneshot::channel();
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(32)
            .enable_all()
            .build()?;
        let ready = |listening: &Listening| drop(tell.send(listening.clone()));
        let end = runtime.block_on(serve(config, ready, async { drop(stopped.await) }));
        runtime.shutdown_timeout(Duration::from_secs(5));
        end
    });
    match told.recv() {
        Ok(Listening { address, notes, .. }) => {
            Ok(Server { address, notes, data, _folder: None, stop: Some(stop), thread: Some(thread) })
        }
        Err(_) => Err(thread.join().unwrap().expect_err("a server that listens says so")),
    }
}

impl Server {
    /// A server with the defaults, in a folder of its own.
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut ServeConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&folder.path().join("data"));
        change(&mut config);
        let mut server = start(config).unwrap();
        server._folder = Some(folder);
        server
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[("Content-Type", "application/json")], body.to_string().as_bytes())
    }

    /// Sends a form; a field with a file name is a file.
    pub fn form(&self, path: &str, fields: &[(&str, Option<&str>, &[u8])]) -> Answer {
        let mut body = Vec::new();
        for (name, file, bytes) in fields {
            let file = file.map(|file| format!("; filename=\"{file}\"")).unwrap_or_default();
            write!(body, "--XX\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n").unwrap();
            body.extend_from_slice(bytes);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"--XX--\r\n");
        self.send("POST", path, &[("Content-Type", "multipart/form-data; boundary=XX")], &body)
    }

    /// Uploads rows to train on and gives the file's id.
    pub fn upload(&self, name: &str, bytes: &[u8]) -> String {
        let fields = [("purpose", None, &b"fine-tune"[..]), ("file", Some(name), bytes)];
        self.form("/v1/files", &fields).ok()["id"].as_str().unwrap().to_owned()
    }

    /// Sends a request whose Host is the server's address unless `headers` has another.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        let mut stream = self.connect();
        // A server that refuses early may not take all of the body.
        let _ = stream.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| stream.write_all(body));
        answer(stream)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Ends the server, keeping its data for another.
    pub fn stop(mut self) -> Option<TempDir> {
        self.end();
        self._folder.take()
    }

    fn end(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

/// Reads an answer until the line is closed.
pub fn answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no answer: {}", String::from_utf8_lossy(&bytes)));
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
    let mut body = bytes[end + 4..].to_vec();
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        body = unchunk(&body);
    }
    Answer { status, head, body }
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap().trim(), 16).unwrap();
        if size == 0 {
            break;
        }
        body.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[end + 4 + size..];
    }
    body
}
