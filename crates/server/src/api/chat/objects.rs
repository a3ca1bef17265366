//! Answers as OpenAI's SDK reads them, whole and in chunks.

use garden_chat::{Finish, TokenLikelihood, TopToken, Usage};
use serde::Serialize;
use utoipa::ToSchema;

/// What all chunks of an answer share.
pub(super) struct Heading {
    pub id: String,
    pub created: i64,
    pub model: String,
    pub logprobs: bool,
    pub include_usage: bool,
}

/// An answer.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChatCompletion {
    id: String,
    object: CompletionName,
    /// Seconds since 1970.
    created: i64,
    model: String,
    choices: Vec<Choice>,
    usage: CompletionUsage,
    system_fingerprint: Option<String>,
}

#[derive(Serialize, ToSchema)]
enum CompletionName {
    #[serde(rename = "chat.completion")]
    Completion,
}

#[derive(Serialize, ToSchema)]
struct Choice {
    index: u32,
    finish_reason: FinishReason,
    message: AnswerMessage,
    logprobs: Option<Logprobs>,
}

#[derive(Serialize, ToSchema)]
struct AnswerMessage {
    role: AssistantRole,
    content: String,
    refusal: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum AssistantRole {
    Assistant,
}

/// Why an answer ended.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum FinishReason {
    /// The model ended its turn, a stop text came, or the JSON was complete.
    Stop,
    /// The longest answer was reached.
    Length,
}

impl From<Finish> for FinishReason {
    fn from(finish: Finish) -> Self {
        match finish {
            Finish::Stop => Self::Stop,
            Finish::Length => Self::Length,
        }
    }
}

/// How likely the tokens of an answer were, by the model before temperature and share.
#[derive(Serialize, ToSchema)]
struct Logprobs {
    content: Vec<TokenLogprob>,
    refusal: Option<Vec<TokenLogprob>>,
}

#[derive(Serialize, ToSchema)]
struct TokenLogprob {
    token: String,
    bytes: Option<Vec<u8>>,
    logprob: f64,
    top_logprobs: Vec<TopLogprob>,
}

#[derive(Serialize, ToSchema)]
struct TopLogprob {
    token: String,
    bytes: Option<Vec<u8>>,
    logprob: f64,
}

/// What a request took, in tokens.
#[derive(Serialize, ToSchema)]
struct CompletionUsage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Serialize, ToSchema)]
struct PromptTokensDetails {
    /// Those that were kept from earlier questions.
    cached_tokens: usize,
    /// Those that show images.
    image_tokens: usize,
}

/// A part of an answer.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChatCompletionChunk {
    id: String,
    object: ChunkName,
    /// Seconds since 1970.
    created: i64,
    model: String,
    choices: Vec<ChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<CompletionUsage>>,
    system_fingerprint: Option<String>,
}

#[derive(Serialize, ToSchema)]
enum ChunkName {
    #[serde(rename = "chat.completion.chunk")]
    Chunk,
}

#[derive(Serialize, ToSchema)]
struct ChunkChoice {
    index: u32,
    delta: Delta,
    finish_reason: Option<FinishReason>,
    logprobs: Option<Logprobs>,
}

#[derive(Serialize, ToSchema, Default)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<AssistantRole>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

fn logprobs(heading: &Heading, tokens: Vec<TokenLikelihood>) -> Option<Logprobs> {
    let bytes = |bytes: Vec<u8>| (!bytes.is_empty()).then_some(bytes);
    let top = |top: TopToken| TopLogprob { token: top.token, bytes: bytes(top.bytes), logprob: top.logprob };
    let token = |TokenLikelihood { chosen, top: likeliest }| TokenLogprob {
        token: chosen.token,
        bytes: bytes(chosen.bytes),
        logprob: chosen.logprob,
        top_logprobs: likeliest.into_iter().map(top).collect(),
    };
    heading.logprobs.then(|| Logprobs { content: tokens.into_iter().map(token).collect(), refusal: None })
}

fn usage(usage: Usage) -> CompletionUsage {
    CompletionUsage {
        prompt_tokens: usage.prompt_tokens,
        completion_tokens: usage.completion_tokens,
        total_tokens: usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details: PromptTokensDetails {
            cached_tokens: usage.cached_tokens,
            image_tokens: usage.image_tokens,
        },
    }
}

/// A whole answer.
pub(super) fn completion(
    heading: &Heading,
    content: String,
    tokens: Vec<TokenLikelihood>,
    finish: Finish,
    used: Usage,
) -> ChatCompletion {
    let message = AnswerMessage { role: AssistantRole::Assistant, content, refusal: None };
    let logprobs = logprobs(heading, tokens);
    ChatCompletion {
        id: heading.id.clone(),
        object: CompletionName::Completion,
        created: heading.created,
        model: heading.model.clone(),
        choices: vec![Choice { index: 0, finish_reason: finish.into(), message, logprobs }],
        usage: usage(used),
        system_fingerprint: None,
    }
}

fn chunk(heading: &Heading, choices: Vec<ChunkChoice>, used: Option<Usage>) -> ChatCompletionChunk {
    ChatCompletionChunk {
        id: heading.id.clone(),
        object: ChunkName::Chunk,
        created: heading.created,
        model: heading.model.clone(),
        choices,
        // With the usage asked for, every other chunk says null.
        usage: heading.include_usage.then(|| used.map(usage)),
        system_fingerprint: None,
    }
}

fn choice(delta: Delta, finish: Option<Finish>, logprobs: Option<Logprobs>) -> Vec<ChunkChoice> {
    vec![ChunkChoice { index: 0, delta, finish_reason: finish.map(Into::into), logprobs }]
}

/// Who speaks.
pub(super) fn first_chunk(heading: &Heading) -> ChatCompletionChunk {
    let delta = Delta { role: Some(AssistantRole::Assistant), content: Some(String::new()) };
    chunk(heading, choice(delta, None, None), None)
}

/// More of the answer.
pub(super) fn content_chunk(
    heading: &Heading,
    content: String,
    tokens: Vec<TokenLikelihood>,
) -> ChatCompletionChunk {
    let delta = Delta { role: None, content: Some(content) };
    chunk(heading, choice(delta, None, logprobs(heading, tokens)), None)
}

/// Why it ended.
pub(super) fn end_chunk(heading: &Heading, finish: Finish) -> ChatCompletionChunk {
    chunk(heading, choice(Delta::default(), Some(finish), None), None)
}

/// What it took.
pub(super) fn usage_chunk(heading: &Heading, used: Usage) -> ChatCompletionChunk {
    chunk(heading, Vec::new(), Some(used))
}
