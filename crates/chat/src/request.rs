//! What is asked and what is answered, as it travels between the server and the process that owns a model.
//!
//! Images travel in base64 as clients send them, so that the server need not decode them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Who said something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speaker {
    /// What holds for the whole conversation.
    System,
    /// Who asks.
    User,
    /// The model.
    Assistant,
}

/// A piece of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MessagePart {
    /// Words.
    Text(String),
    /// An encoded image (PNG, JPEG ...) in base64.
    Image(String),
}

/// What one speaker said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who.
    pub role: Speaker,
    /// Texts and images in order.
    pub parts: Vec<MessagePart>,
}

/// What an answer has to look like.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Anything.
    #[default]
    Text,
    /// Some JSON object.
    JsonObject,
    /// JSON that a schema allows.
    JsonSchema {
        /// The schema.
        schema: Value,
        /// Whether a keyword that cannot be enforced is refused; else it is passed over.
        strict: bool,
    },
}

/// A question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChatRequest {
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// The longest answer in tokens; without it, as long as the host allows.
    #[serde(default)]
    pub max_tokens: Option<usize>,
    /// 0 always takes the likeliest token.
    #[serde(default)]
    pub temperature: f32,
    /// Draws only from the likeliest tokens that together have this share.
    #[serde(default = "all")]
    pub top_p: f32,
    /// With a temperature, the same seed gives the same answer.
    #[serde(default)]
    pub seed: u64,
    /// Texts that end the answer and are no part of it.
    #[serde(default)]
    pub stop: Vec<String>,
    /// Tells how likely each token was, beside this many of the likeliest.
    #[serde(default)]
    pub logprobs: Option<usize>,
    /// What the answer has to look like.
    #[serde(default)]
    pub format: Format,
}

fn all() -> f32 {
    1.0
}

impl ChatRequest {
    /// A question in words, answered by the likeliest tokens.
    pub fn new(messages: Vec<Message>) -> Self {
        Self {
            messages,
            max_tokens: None,
            temperature: 0.0,
            top_p: 1.0,
            seed: 0,
            stop: Vec::new(),
            logprobs: None,
            format: Format::Text,
        }
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// The model ended its turn, a stop text came, or the JSON was complete.
    Stop,
    /// The longest answer was reached.
    Length,
}

/// What a request took, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Of the question, images included.
    pub prompt_tokens: usize,
    /// Of the answer.
    pub completion_tokens: usize,
    /// Those of the question that were kept from earlier ones.
    pub cached_tokens: usize,
    /// Those of the question that show images.
    pub image_tokens: usize,
}

/// A token that could have been chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopToken {
    /// Its text.
    pub token: String,
    /// The bytes of its text, which may be a part of a character.
    pub bytes: Vec<u8>,
    /// The logarithm of its probability.
    pub logprob: f64,
}

/// How likely a token of the answer was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLikelihood {
    /// The token itself.
    #[serde(flatten)]
    pub chosen: TopToken,
    /// The likeliest ones.
    pub top: Vec<TopToken>,
}

/// What kind of fault ended a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The request cannot be answered as it is.
    Request,
    /// Too many wait already.
    Busy,
    /// The model or the host is at fault.
    Model,
}

/// Why there is no answer, or no more of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// What kind.
    pub kind: FaultKind,
    /// In words.
    pub message: String,
    /// The field of the request that is at fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
}

impl Fault {
    /// A fault of the request.
    pub fn request(param: &str, message: impl ToString) -> Self {
        Self { kind: FaultKind::Request, message: message.to_string(), param: Some(param.to_owned()) }
    }

    /// A fault of the model.
    pub fn model(message: impl ToString) -> Self {
        Self { kind: FaultKind::Model, message: message.to_string(), param: None }
    }
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// More text.
    Piece {
        /// Whole characters.
        text: String,
        /// The tokens of it, where they were asked for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tokens: Vec<TokenLikelihood>,
    },
    /// The answer is complete.
    End {
        /// Why it ended.
        finish: Finish,
        /// What it took.
        usage: Usage,
    },
    /// There is no more.
    Fault(Fault),
}

impl Reply {
    /// Whether nothing follows.
    pub fn is_last(&self) -> bool {
        !matches!(self, Self::Piece { .. })
    }
}
