//! The hub, as a server on this machine plays it.

use super::*;
use crate::dataset::{Dataset, DatasetOptions, RowReader};
use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A server that speaks enough of the hub's protocol: the list of a dataset's files, and ranges of them.
/// Large files are redirected, as the hub does; a private dataset wants its token.
struct TestHub {
    endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl TestHub {
    fn start(files: &[(&str, &str)], token: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let files: HashMap<_, _> = files.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let (path, headers) = read_request(&stream);
                seen.lock().unwrap().push(path.clone());
                let _ = stream.write_all(&answer(&files, token, &path, &headers));
            }
        });
        Self { endpoint, requests }
    }

    fn client(&self, cache: &Path, token: Option<&str>, offline: bool) -> Hub {
        let cache = Cache::new(cache.to_owned());
        Hub { cache, endpoint: Some(self.endpoint.clone()), token: token.map(str::to_owned), offline }
    }

    fn requests(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

fn read_request(stream: &TcpStream) -> (String, String) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next().and_then(|line| line.split(' ').nth(1).map(str::to_owned)).unwrap_or_default();
    let headers = lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase() + "\n").collect();
    (path, headers)
}

fn answer(files: &HashMap<String, String>, token: Option<&str>, path: &str, headers: &str) -> Vec<u8> {
    let respond = |status: &str, more: &str, body: &str| {
        format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{more}\r\n{body}",
            body.len()
        )
    };
    let allowed = token.is_none_or(|token| headers.contains(&format!("authorization: bearer {token}\n")));
    let file = ["/datasets/garden/shapes", "/garden/tiny"]
        .iter()
        .find_map(|of| path.strip_prefix(&format!("{of}/resolve/{COMMIT}/")));
    let stored = path.strip_prefix("/storage/");
    let text = match (allowed, path, file.or(stored).and_then(|name| files.get_key_value(name))) {
        (false, ..) => respond("401 Unauthorized", "", "no"),
        (true, "/api/datasets/garden/shapes/revision/main" | "/api/models/garden/tiny/revision/main", _) => {
            let list: Vec<_> = files.keys().map(|name| format!(r#"{{"rfilename": "{name}"}}"#)).collect();
            let body = format!(r#"{{"sha": "{COMMIT}", "siblings": [{}]}}"#, list.join(","));
            respond("200 OK", "", &body)
        }
        (true, _, Some((name, _))) if file.is_some() && name.ends_with(".png") => {
            let more = format!(
                "Location: /storage/{name}\r\nX-Linked-Etag: \"{name}\"\r\nX-Repo-Commit: {COMMIT}\r\n"
            );
            respond("302 Found", &more.replace(&format!("\"{name}\""), &format!("\"e-{}\"", name.len())), "")
        }
        (true, _, Some((name, body))) => {
            let start = headers.split("range: bytes=").nth(1).and_then(|range| range.split('-').next());
            let start: usize = start.and_then(|start| start.parse().ok()).unwrap_or(0);
            let end = if headers.contains("range: bytes=0-0\n") { 1 } else { body.len() };
            let more = format!(
                "ETag: \"e{}\"\r\nX-Repo-Commit: {COMMIT}\r\nContent-Range: bytes {start}-{}/{}\r\n",
                name.bytes().map(u32::from).sum::<u32>(),
                end - 1,
                body.len()
            );
            respond("206 Partial Content", &more, &body[start..end])
        }
        _ => respond("404 Not Found", "", "gone"),
    };
    text.into_bytes()
}

const FILES: [(&str, &str); 4] = [
    ("data/train-00000.jsonl", "{\"text\": \"one\", \"image\": \"one.png\", \"response\": \"1\"}\n"),
    ("data/test-00000.jsonl", "{\"text\": \"held out\", \"response\": \"0\"}\n"),
    ("data/one.png", "picture"),
    ("README.md", "# Shapes"),
];

fn first_row(found: Found) -> (String, Vec<u8>) {
    let dataset = Dataset::from_files(found, &DatasetOptions::default(), &()).unwrap();
    assert_eq!(dataset.rows(), 1);
    let mut reader = RowReader::new(Arc::new(dataset));
    let row = reader.read(0).unwrap();
    let image = row.conversation.images().next().expect("an image");
    (format!("{:?}", row.conversation.turns[0].parts[1]), reader.image_bytes(0, image).unwrap().into_owned())
}

#[test]
fn downloads_the_training_files_once_with_their_images() {
    let (hub, cache) = (TestHub::start(&FILES, None), tempfile::tempdir().unwrap());
    let client = hub.client(cache.path(), None, false);
    let expected = ("Text(\"one\")".to_owned(), b"picture".to_vec());
    assert_eq!(first_row(client.dataset("garden/shapes", &SplitChoice::Training, &()).unwrap()), expected);
    let requests = hub.requests();
    assert_eq!(first_row(client.dataset("garden/shapes", &SplitChoice::Training, &()).unwrap()), expected);
    assert_eq!(hub.requests(), requests + 1, "the second time only the list is asked for");
}

#[test]
fn offline_reads_the_cache_and_asks_nobody() {
    let (hub, cache) = (TestHub::start(&FILES, None), tempfile::tempdir().unwrap());
    let offline = hub.client(cache.path(), None, true);
    let error = offline
        .dataset("garden/shapes", &SplitChoice::Training, &())
        .err()
        .expect("nothing cached yet")
        .to_string();
    assert!(error.contains("garden/shapes") && error.contains("HF_HUB_OFFLINE"), "{error}");
    assert_eq!(hub.requests(), 0);
    let online = first_row(
        hub.client(cache.path(), None, false).dataset("garden/shapes", &SplitChoice::Training, &()).unwrap(),
    );
    let requests = hub.requests();
    assert_eq!(first_row(offline.dataset("garden/shapes", &SplitChoice::Training, &()).unwrap()), online);
    assert_eq!(hub.requests(), requests);
}

#[test]
fn a_model_is_a_folder_with_what_it_needs() {
    let files = [
        ("config.json", "{}"),
        ("model.safetensors", "weights"),
        ("tokenizer.json", "[]"),
        ("chat_template.jinja", "{{ x }}"),
        ("README.md", "# Tiny"),
        ("onnx/model.json", "{}"),
    ];
    let (hub, cache) = (TestHub::start(&files, None), tempfile::tempdir().unwrap());
    let folder = hub.client(cache.path(), None, false).model("garden/tiny", &()).unwrap();
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), b"weights");
    let requests = hub.requests();
    assert_eq!(hub.client(cache.path(), None, true).model("garden/tiny", &()).unwrap(), folder);
    assert_eq!(hub.requests(), requests, "offline asks nobody");
    let error = hub.client(cache.path(), None, false).model("garden/gone", &()).unwrap_err().to_string();
    assert!(error.contains("garden/gone") && error.contains("no such model"), "{error}");
}

#[test]
fn the_readme_tells_which_files_are_trained_on() {
    let row = |text: &str| format!("{{\"text\": \"{text}\", \"response\": \"1\"}}\n");
    let (one, two) = (row("one"), row("two"));
    let card = "---\nconfigs:\n- data_files:\n  - {split: test, path: a.jsonl}\n  - {split: train, path: b.jsonl}\n---\n";
    let files = [("a.jsonl", &*one), ("b.jsonl", &*two), ("README.md", card)];
    let (hub, cache) = (TestHub::start(&files, None), tempfile::tempdir().unwrap());
    for offline in [false, true] {
        let found =
            hub.client(cache.path(), None, offline).dataset("garden/shapes", &SplitChoice::Training, &());
        let files = found.unwrap().chosen.files;
        assert_eq!(files.iter().map(|file| file.file_name().unwrap()).collect::<Vec<_>>(), ["b.jsonl"]);
    }
    let asked = hub.requests.lock().unwrap().join(" ");
    assert!(asked.contains("b.jsonl") && !asked.contains("a.jsonl"), "{asked}");
}

#[test]
fn a_private_dataset_needs_its_token() {
    let (hub, cache) = (TestHub::start(&FILES, Some("secret")), tempfile::tempdir().unwrap());
    let error = hub
        .client(cache.path(), None, false)
        .dataset("garden/shapes", &SplitChoice::Training, &())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("HF_TOKEN"), "{error}");
    first_row(
        hub.client(cache.path(), Some("secret"), false)
            .dataset("garden/shapes", &SplitChoice::Training, &())
            .unwrap(),
    );
}

#[test]
fn says_that_there_is_no_such_dataset() {
    let (hub, cache) = (TestHub::start(&FILES, None), tempfile::tempdir().unwrap());
    let error = hub
        .client(cache.path(), None, false)
        .dataset("garden/gone", &SplitChoice::Training, &())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("garden/gone") && error.contains("no such dataset"), "{error}");
}

#[test]
fn a_name_from_the_server_never_leaves_the_cache() {
    for name in ["../../evil.jsonl", "/evil.jsonl", "a/../../evil.jsonl"] {
        let (hub, cache) = (TestHub::start(&[(name, "{}")], None), tempfile::tempdir().unwrap());
        let error = hub
            .client(cache.path(), None, false)
            .dataset("garden/shapes", &SplitChoice::Training, &())
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("outside the dataset"), "{error}");
    }
}

#[test]
fn a_mistyped_folder_is_told_as_one() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("qwen")).unwrap();
    let near = folder.path().join("qwem");
    let error = model_folder(&near.to_string_lossy(), &()).unwrap_err().to_string();
    assert!(error.contains("qwem: no such folder; did you mean ") && error.ends_with("qwen?"), "{error}");
    let (hub, cache) = (TestHub::start(&[], None), tempfile::tempdir().unwrap());
    let error = hub.client(cache.path(), None, true).model("models/qwem", &()).unwrap_err();
    let error = nor_here(error, Path::new("models/qwem"), "folder").to_string();
    assert!(error.starts_with("models/qwem: no such folder (models is not there)"), "{error}");
    assert!(error.contains("; and on the hub: not in the cache"), "both are said: {error}");
}

#[test]
fn tells_ids_from_paths() {
    for id in ["garden/shapes", "garden/shapes-v1.0@main"] {
        assert!(is_id(id), "{id}");
    }
    for path in ["shapes", "./shapes", "a/b/c", "/a/b", "data/train.jsonl", "../shapes", "a/"] {
        assert!(!is_id(path), "{path}");
    }
}
