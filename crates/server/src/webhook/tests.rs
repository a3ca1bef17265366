use super::{endpoint::Secret, *};
use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    sync::mpsc::{Receiver, channel},
};

/// A request as it arrived.
struct Post {
    headers: HashMap<String, String>,
    body: String,
}

impl Post {
    /// Whether the signature is right, computed from the specification rather than with our own code.
    fn is_signed_with(&self, secret: &Secret) -> bool {
        let text = String::from(secret.clone());
        let key = STANDARD.decode(&text["whsec_".len()..]).unwrap();
        let signed =
            format!("{}.{}.{}", self.headers["webhook-id"], self.headers["webhook-timestamp"], self.body);
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        mac.update(signed.as_bytes());
        let wanted = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        self.headers["webhook-signature"].split(' ').any(|signature| signature == wanted)
    }
}

/// A receiver that gives one status after the other, the last one for ever, and passes on what it got.
fn receiver(statuses: &'static [u16]) -> (String, Receiver<Post>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (sender, posts) = channel();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut headers = HashMap::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                match line.trim().split_once(": ") {
                    Some((name, value)) => headers.insert(name.to_lowercase(), value.to_owned()),
                    None if line.trim().is_empty() => break,
                    None => None,
                };
            }
            let mut body = vec![0; headers["content-length"].parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            let _ = sender.send(Post { headers, body: String::from_utf8(body).unwrap() });
            let status = statuses[number.min(statuses.len() - 1)];
            let answer = format!("HTTP/1.1 {status} x\r\nlocation: /other\r\ncontent-length: 0\r\n\r\n");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    (url, posts)
}

fn data() -> (tempfile::TempDir, DataDir) {
    let folder = tempfile::tempdir().unwrap();
    let (data, _) = DataDir::open(folder.path()).unwrap();
    (folder, data)
}

fn open(data: &DataDir) -> Webhooks {
    Webhooks::open_with(data, Reach::Network.into(), Duration::from_millis(10)).unwrap()
}

fn add(webhooks: &Webhooks, url: &str) -> Endpoint {
    webhooks
        .endpoints()
        .create("mine".into(), url.into(), vec![EventKind::Succeeded, EventKind::Failed])
        .unwrap()
}

/// Waits until nothing waits any more.
fn drained(data: &DataDir) {
    while fs::read_dir(data.undelivered()).unwrap().count() > 0 {
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_endpoint_gets_what_it_asked_for_signed_and_once() {
    let (_folder, data) = data();
    let webhooks = open(&data);
    let (url, posts) = receiver(&[204]);
    let endpoint = add(&webhooks, &url);
    webhooks.send(EventKind::Cancelled, "ftjob-a", 6).unwrap();
    webhooks.send(EventKind::Succeeded, "ftjob-a", 7).unwrap();
    drained(&data);
    let post = posts.recv().unwrap();
    assert!(post.is_signed_with(&endpoint.secret));
    let event: serde_json::Value = serde_json::from_str(&post.body).unwrap();
    let id = &post.headers["webhook-id"];
    let wanted = json!({"id": id, "object": "event", "created_at": 7, "type": "fine_tuning.job.succeeded", "data": {"id": "ftjob-a"}});
    assert_eq!(event, wanted);
    assert!(posts.try_recv().is_err(), "nobody asked for the cancelled one");
}

#[test]
fn refused_events_are_tried_again_under_the_same_id() {
    let (_folder, data) = data();
    let webhooks = open(&data);
    let (url, posts) = receiver(&[500, 302, 200]);
    let endpoint = add(&webhooks, &url);
    webhooks.send(EventKind::Failed, "ftjob-a", 7).unwrap();
    drained(&data);
    let posts: Vec<Post> = posts.try_iter().collect();
    assert_eq!(posts.len(), 3, "a redirect is no answer, and is not followed");
    assert!(posts.iter().all(|post| post.headers["webhook-id"] == posts[0].headers["webhook-id"]));
    assert!(posts.iter().all(|post| post.is_signed_with(&endpoint.secret)));
}

#[test]
fn events_that_were_not_received_survive_a_restart() {
    let (_folder, data) = data();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let webhooks = open(&data);
    let endpoint = add(&webhooks, &format!("http://{free}/"));
    webhooks.send(EventKind::Failed, "ftjob-a", 7).unwrap();
    webhooks.send(EventKind::Failed, "ftjob-a", 7).unwrap();
    assert_eq!(fs::read_dir(data.undelivered()).unwrap().count(), 1, "one end, one event");
    drop(webhooks);

    let (url, posts) = receiver(&[200]);
    let webhooks = open(&data);
    webhooks.endpoints().update(&endpoint.id, Change { url: Some(url), ..Change::default() }).unwrap();
    drained(&data);
    assert!(posts.recv().unwrap().is_signed_with(&endpoint.secret));
}

#[test]
fn events_of_a_deleted_endpoint_and_of_yesterday_are_given_up() {
    let (_folder, data) = data();
    let (url, posts) = receiver(&[500]);
    let webhooks = open(&data);
    let deleted = add(&webhooks, &url);
    let kept = add(&webhooks, &url);
    drop(webhooks);
    let (queue, _) = Queue::open(data.undelivered()).unwrap();
    let event = Event::new(EventKind::Failed, "ftjob-a", 7);
    queue.add(&event, &deleted.id).unwrap();
    let old = queue::Entry { queued_at: now() - 90_000, ..queue.add(&event, &kept.id).unwrap().unwrap() };
    let path = data.undelivered().join(format!("{}.{}.json", event.id, kept.id));
    fs::write(path, serde_json::to_vec(&old).unwrap()).unwrap();
    let endpoints = Endpoints::open(data.webhooks(), Reach::Network.into()).unwrap();
    endpoints.delete(&deleted.id).unwrap();

    let _webhooks = open(&data);
    drained(&data);
    assert_eq!(posts.try_iter().count(), 1, "even an old event is tried once: the clock may have jumped");
}

#[test]
fn after_a_rotation_both_secrets_sign_for_a_day_if_asked() {
    let (_folder, data) = data();
    let webhooks = open(&data);
    let (url, posts) = receiver(&[200]);
    let first = add(&webhooks, &url);
    let second = webhooks.endpoints().rotate(&first.id, true).unwrap();
    webhooks.test(&first.id, EventKind::Failed).unwrap();
    let post = posts.recv().unwrap();
    assert!(post.is_signed_with(&first.secret) && post.is_signed_with(&second.secret));
    let third = webhooks.endpoints().rotate(&first.id, false).unwrap();
    webhooks.test(&first.id, EventKind::Failed).unwrap();
    let post = posts.recv().unwrap();
    assert!(post.is_signed_with(&third.secret) && !post.is_signed_with(&second.secret));
}

#[test]
fn secrets_are_in_a_file_that_nobody_else_reads_and_in_no_debug_output() {
    let (_folder, data) = data();
    let webhooks = open(&data);
    let endpoint = add(&webhooks, "https://example.org/hook");
    assert_eq!(fs::metadata(data.webhooks()).unwrap().permissions().mode() & 0o777, 0o600);
    let secret = String::from(endpoint.secret.clone());
    assert!(!format!("{endpoint:?}").contains(&secret["whsec_".len()..]));
    assert!(secret.ends_with(&endpoint.secret.hint()["whsec_...".len()..]));
    assert_eq!(open(&data).endpoints().list(), [endpoint], "as it was written");
}

#[test]
fn wrong_endpoints_are_refused_with_the_reason() {
    let (_folder, data) = data();
    let webhooks = Webhooks::open(&data, Reach::Public).unwrap();
    let create = |name: &str, url: &str, kinds| {
        webhooks.endpoints().create(name.into(), url.into(), kinds).unwrap_err().to_string()
    };
    let all = || EventKind::ALL.to_vec();
    for (url, words) in [
        ("", "give an address like"),
        ("/hook", "begins with https"),
        ("ftp://example.org", "begins with https"),
        ("https://me:secret@example.org", "leave names and passwords out"),
        ("http://127.0.0.1/", "public addresses only"),
        ("http://[::1]:80/", "public addresses only"),
    ] {
        assert!(create("a", url, all()).contains(words), "{url}: {}", create("a", url, all()));
    }
    assert!(create("", "https://example.org", all()).starts_with("name"));
    assert!(create("a", "https://example.org", vec![]).starts_with("event_types"));
    for _ in 0..32 {
        add(&webhooks, "https://example.org");
    }
    assert!(create("a", "https://example.org", all()).contains("delete one first"));
    // A name that leads to this machine is found out when it is resolved.
    let endpoint = webhooks.endpoints().list().pop().unwrap();
    let local = Change { url: Some("http://localhost:9/".into()), ..Change::default() };
    webhooks.endpoints().update(&endpoint.id, local).unwrap();
    let error = webhooks.test(&endpoint.id, EventKind::Failed).unwrap_err().to_string();
    assert!(error.ends_with("does not lead to an address that events are sent to"), "{error}");
}

#[test]
fn a_damaged_file_of_endpoints_is_named() {
    let (_folder, data) = data();
    fs::write(data.webhooks(), "[{").unwrap();
    let error = Webhooks::open(&data, Reach::Public).unwrap_err().to_string();
    assert!(error.contains("webhooks.json: ") && error.contains("mend it, or move it away"), "{error}");
}
