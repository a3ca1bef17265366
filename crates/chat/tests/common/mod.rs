//! A tiny model, questions for it, and answers collected.

#![allow(dead_code, reason = "each test file uses its own part of this module")]

use base64::{Engine as _, engine::general_purpose::STANDARD};
use garden_chat::{
    ChatRequest, Engine, Fault, Finish, HostSettings, Message, MessagePart, Reply, Speaker, Usage,
};
use garden_data::{Conversation, ImageSource, Part, PixelLimits, Role, Turn};
use garden_model::{Precision, init};
use garden_train::{Interpreter, ModelFolder, Sampling, load_model};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

pub struct Garden {
    pub folder: tempfile::TempDir,
}

impl Garden {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let plan = init::Plan::new(init::Preset::Tiny).unwrap();
        plan.write(&folder.path().join("model"), 1, |_| {}).unwrap();
        Self { folder }
    }

    pub fn model(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    pub fn engine(&self) -> Engine {
        self.engine_with(None)
    }

    pub fn engine_with(&self, settings: Option<HostSettings>) -> Engine {
        Engine::load(&self.model(), None, Precision::AsStored, settings, |_| {}).unwrap()
    }

    /// What `model-garden generate` answers to the same question.
    pub fn alone(&self, request: &ChatRequest, max_tokens: usize) -> (String, Vec<u32>) {
        let folder = ModelFolder::open(&self.model()).unwrap();
        let mut interpreter = Interpreter::new(&folder, PixelLimits::default()).unwrap();
        let model = load_model(&folder, None, Precision::AsStored, |_| {}).unwrap();
        let mut images = Vec::new();
        let turns = request.messages.iter().map(|message| {
            let parts = message.parts.iter().map(|part| match part {
                MessagePart::Text(text) => Part::Text(text.clone()),
                MessagePart::Image(data) => {
                    images.push(STANDARD.decode(data).unwrap());
                    Part::Image(ImageSource::Bytes(Vec::new()))
                }
            });
            let role = match message.role {
                Speaker::System => Role::System,
                Speaker::User => Role::User,
                Speaker::Assistant => Role::Assistant,
            };
            Turn::new(role, parts.collect())
        });
        let asked = Conversation::new(turns.collect());
        let sampling = Sampling { max_tokens, temperature: request.temperature, seed: request.seed };
        let prompt = interpreter.prompt(&asked, &images, sampling).unwrap();
        let answer = interpreter.answer(&model, prompt, &mut |_| {}).unwrap();
        (answer.text, answer.tokens)
    }
}

pub fn image(name: &str) -> MessagePart {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/goldens/images").join(name);
    MessagePart::Image(STANDARD.encode(std::fs::read(path).unwrap()))
}

pub fn text(words: &str) -> MessagePart {
    MessagePart::Text(words.into())
}

pub fn user(parts: Vec<MessagePart>) -> ChatRequest {
    ChatRequest { max_tokens: Some(12), ..ChatRequest::new(vec![Message { role: Speaker::User, parts }]) }
}

/// An answer, whole.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Whole {
    pub text: String,
    pub tokens: Vec<garden_chat::TokenLikelihood>,
    pub end: Option<(Finish, Usage)>,
    pub fault: Option<Fault>,
}

impl Whole {
    pub fn finish(&self) -> Finish {
        self.end.expect("a whole answer").0
    }

    pub fn usage(&self) -> Usage {
        self.end.expect("a whole answer").1
    }
}

#[derive(Default)]
pub struct Collected(pub BTreeMap<u64, Whole>);

impl Collected {
    pub fn take(&mut self, id: u64, reply: Reply) {
        let whole = self.0.entry(id).or_default();
        assert!(whole.end.is_none() && whole.fault.is_none(), "nothing follows the end");
        match reply {
            Reply::Piece { text, tokens } => {
                whole.text.push_str(&text);
                whole.tokens.extend(tokens);
            }
            Reply::End { finish, usage } => whole.end = Some((finish, usage)),
            Reply::Fault(fault) => whole.fault = Some(fault),
        }
    }
}

pub fn finish(engine: &mut Engine, collected: &mut Collected) {
    while engine.step(&mut |id, reply| collected.take(id, reply)) {}
}

pub fn ask(engine: &mut Engine, request: &ChatRequest) -> Whole {
    let mut collected = Collected::default();
    engine.ask(1, request).unwrap();
    finish(engine, &mut collected);
    collected.0.remove(&1).unwrap()
}
