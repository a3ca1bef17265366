//! The process that owns a model, spoken to over its socket: it outlives nonsense, stays within its plan, and ends
//! with its line.

mod support;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use garden_chat::{
    ChatRequest, Message, MessagePart, Reply, Speaker,
    host::{FromHost, ToHost},
};
use procfs::process::Process;
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    process::{Child, Stdio},
};
use support::{model_garden, training::Garden};

struct Host {
    child: Child,
    line: BufReader<UnixStream>,
    asked: u64,
}

impl Host {
    fn new(garden: &Garden) -> Self {
        let socket = garden.path("line");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut command = model_garden();
        command.args(["serve-host", "--socket", &socket, "--model", &garden.path("model")]);
        let child = command.stderr(Stdio::inherit()).spawn().unwrap();
        let line = BufReader::new(listener.accept().unwrap().0);
        let mut host = Self { child, line, asked: 0 };
        while !matches!(host.hear(), FromHost::Ready(_)) {}
        host
    }

    fn hear(&mut self) -> FromHost {
        let mut text = String::new();
        self.line.read_line(&mut text).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
    }

    fn tell(&mut self, text: &str) {
        self.line.get_mut().write_all(text.as_bytes()).unwrap();
        self.line.get_mut().write_all(b"\n").unwrap();
    }

    fn send(&mut self, message: &ToHost) {
        self.tell(&serde_json::to_string(message).unwrap());
    }

    fn ask(&mut self, request: ChatRequest) -> (String, Reply) {
        self.asked += 1;
        let asked = self.asked;
        self.send(&ToHost::Ask { id: asked, request });
        let mut whole = String::new();
        loop {
            match self.hear() {
                FromHost::Reply { id, reply: Reply::Piece { text, .. } } if id == asked => {
                    whole.push_str(&text)
                }
                FromHost::Reply { id, reply } if id == asked => return (whole, reply),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Bytes that only this process holds, now and at the most.
    fn memory(&self) -> (u64, u64) {
        let status = Process::new(self.child.id().cast_signed()).unwrap().status().unwrap();
        let kilobytes = |value: Option<u64>| value.unwrap() * 1024;
        (kilobytes(status.rssanon), kilobytes(status.vmhwm))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An image of a million pixels as a bitmap, another one for each number, in base64.
fn large_image(number: u8) -> MessagePart {
    let (width, height) = (1008u32, 980u32);
    let mut bytes = b"BM".to_vec();
    let size = 54 + width * height * 3;
    for word in [size, 0, 54, 40, width, height, 1 | 24 << 16, 0, 0, 0, 0, 0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend((0..width * height * 3).map(|at| (at / 7 % 251) as u8 ^ number));
    MessagePart::Image(BASE64.encode(bytes))
}

fn question(words: &str, max_tokens: usize) -> ChatRequest {
    let parts = vec![MessagePart::Text(words.into())];
    let messages = vec![Message { role: Speaker::User, parts }];
    ChatRequest { max_tokens: Some(max_tokens), temperature: 1.0, ..ChatRequest::new(messages) }
}

#[test]
fn nonsense_is_answered_in_words_and_the_process_ends_with_its_line() {
    let garden = Garden::new(1);
    let mut host = Host::new(&garden);
    let (answer, _) = host.ask(question("Hello", 8));
    for nonsense in
        ["", "{", "null", "{\"ask\": {\"id\": -1}}", "\u{0}\u{1}", "{\"cancel\": {\"id\": \"x\"}}", "[[[["]
    {
        host.tell(nonsense);
        assert!(matches!(host.hear(), FromHost::Malformed(_)), "{nonsense:?}");
    }
    host.line.get_mut().write_all(b"\xff\xfe\n").unwrap();
    assert!(matches!(host.hear(), FromHost::Malformed(_)));
    host.send(&ToHost::Cancel { id: 12345 });
    assert_eq!(host.ask(question("Hello", 8)).0, answer, "nothing changed");

    // A cancelled answer stops; the next one comes.
    host.send(&ToHost::Ask { id: 900, request: question("On and on", 1500) });
    assert!(matches!(host.hear(), FromHost::Reply { id: 900, .. }));
    host.send(&ToHost::Cancel { id: 900 });
    host.send(&ToHost::Ask { id: 901, request: question("Hello", 8) });
    let mut after = 0;
    let mut told = String::new();
    loop {
        match host.hear() {
            FromHost::Reply { id: 901, reply: Reply::Piece { text, .. } } => told.push_str(&text),
            FromHost::Reply { id: 901, .. } => break,
            FromHost::Reply { id: 900, reply } => {
                assert!(!reply.is_last());
                after += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(after < 1000, "{after} pieces after it was cancelled");
    assert_eq!(told, answer);

    host.line.get_ref().shutdown(std::net::Shutdown::Both).unwrap();
    assert!(host.child.wait().unwrap().success(), "a broken line is no fault");
}

#[test]
fn memory_stays_where_it_is_over_five_hundred_questions_and_within_the_plan() {
    let garden = Garden::new(1);
    let model = std::path::PathBuf::from(garden.path("model"));
    let plan = garden_chat::plan(&model, None, garden_model::Precision::AsStored, None).unwrap();
    let mut host = Host::new(&garden);
    // Other words each time, so that every page of the cache is used.
    let words = |number: usize| format!("{number} {}", "some words to read and to keep ".repeat(number % 40));
    (0..150).for_each(|number| drop(host.ask(question(&words(number), 4))));
    let (before, _) = host.memory();
    (150..650).for_each(|number| drop(host.ask(question(&words(number), 4))));
    let (after, _) = host.memory();
    assert!(after < before + (2 << 20), "{before} bytes, then {after}");
    // The largest images, so that all work is done that was planned for.
    for number in 0..4 {
        let mut request = question("What is this?", 4);
        request.messages[0].parts.insert(0, large_image(number));
        let (_, reply) = host.ask(request);
        assert!(matches!(reply, Reply::End { .. }), "{reply:?}");
    }
    let (_, peak) = host.memory();
    let planned = plan.total() as u64;
    let within = planned - planned / 20..=planned + planned / 20;
    assert!(within.contains(&peak), "the peak is {peak} bytes, planned are {planned}: {plan:?}");
}
