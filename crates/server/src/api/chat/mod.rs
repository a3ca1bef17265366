//! `POST /v1/chat/completions`: questions to a model, a base one or one that was tuned here.
//!
//! Takes what OpenAI's SDK sends and gives what it reads, whole or as a stream. The first part of an answer decides
//! the status: what cannot be answered is an error with a status of its own, also where a stream was asked for. A
//! client that leaves cancels its question.

mod body;
mod objects;
mod request;

pub(crate) use body::Bodies;

use super::{error::ApiError, extract::Json};
use crate::{
    app::{App, Stopping},
    chat::{Answer, HostKey},
    guard::{Client, StreamPermit},
    id::Kind,
};
use axum::{
    extract::{DefaultBodyLimit, Request, State},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::stream;
use garden_chat::{Fault, FaultKind, Finish, LARGEST_QUESTION, Reply, TokenLikelihood, Usage};
use objects::{Heading, completion, content_chunk, end_chunk, first_chunk, usage_chunk};
use request::{Asked, ChatCompletionRequest};
use serde_json::json;
use std::{collections::VecDeque, convert::Infallible, time::Duration};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Seconds after which a question that found too many others may be asked again.
const SOON: u64 = 5;
/// Time between the comments that keep a stream open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(create)).layer(DefaultBodyLimit::max(LARGEST_QUESTION))
}

/// Ask a model.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    tag = "Chat",
    request_body = ChatCompletionRequest,
    responses(
        (status = 200, description = "The answer: whole, or with `stream` as server-sent events of `chat.completion.chunk`",
            content((objects::ChatCompletion = "application/json"), (objects::ChatCompletionChunk = "text/event-stream"))),
        (status = 400, description = "The request cannot be answered"),
        (status = 404, description = "There is no such model"),
        (status = 429, description = "Too many questions, or no memory for the model now"),
    )
)]
async fn create(State(app): State<App>, client: Client, request: Request) -> Result<Response, ApiError> {
    let (bytes, on_its_way) = app.bodies.take(request).await?;
    let models = app.models.clone();
    let read = super::blocking(move || {
        let asked = request::read(body::object(&bytes)?)?;
        let key = HostKey::new(&models.find_ready(&asked.model)?, asked.precision);
        Ok((asked, key))
    });
    let (Asked { model, request, stream, include_usage, longest, .. }, key) = read.await?;
    let streaming = stream.then(|| app.streams.open(&client)).transpose()?;
    let logprobs = request.logprobs.is_some();
    let mut answer = app.chat.ask(&model, key, request).await?;
    let first = answer.next().await;
    // The model has read the question.
    drop(on_its_way);
    let first = first.ok_or_else(|| ApiError::internal("the model's process gave no answer"))?;
    if let Reply::Fault(fault) = first {
        let error = refusal(fault);
        let of_length = error.param.as_deref() == Some("max_tokens");
        return Err(if of_length { error.param(longest) } else { error });
    }
    let heading = Heading {
        id: Kind::Completion.fresh(),
        created: crate::job::keeper::seconds_now() as i64,
        model,
        logprobs,
        include_usage,
    };
    match streaming {
        Some(place) => Ok(streamed(heading, first, answer, place, app.stopping.clone())),
        None => whole(heading, first, answer).await,
    }
}

/// The error of a fault.
fn refusal(fault: Fault) -> ApiError {
    let error = match fault.kind {
        FaultKind::Request => ApiError::bad_request(fault.message),
        FaultKind::Busy => ApiError::busy(fault.message, SOON),
        FaultKind::Model => ApiError::internal(fault.message),
    };
    match fault.param {
        Some(param) => error.param(param),
        None => error,
    }
}

async fn whole(heading: Heading, first: Reply, mut answer: Answer) -> Result<Response, ApiError> {
    let mut text = String::new();
    let mut tokens: Vec<TokenLikelihood> = Vec::new();
    let mut next = Some(first);
    while let Some(reply) = next {
        match reply {
            Reply::Piece { text: piece, tokens: more } => {
                text.push_str(&piece);
                tokens.extend(more);
            }
            Reply::End { finish, usage } => {
                return Ok(Json(completion(&heading, text, tokens, finish, usage)).into_response());
            }
            Reply::Fault(fault) => return Err(refusal(fault)),
        }
        next = answer.next().await;
    }
    Err(ApiError::internal("the model's process broke off its answer"))
}

/// An answer as events.
struct Streamed {
    heading: Heading,
    answer: Answer,
    /// One of the streams that the server has at once.
    _place: StreamPermit,
    stopping: Stopping,
    ready: VecDeque<Event>,
    over: bool,
}

impl Streamed {
    fn push(&mut self, chunk: impl serde::Serialize) {
        match serde_json::to_string(&chunk) {
            Ok(text) => self.ready.push_back(Event::default().data(text)),
            Err(_) => self.over = true,
        }
    }

    fn take(&mut self, reply: Reply) {
        match reply {
            Reply::Piece { text, tokens } => self.push(content_chunk(&self.heading, text, tokens)),
            Reply::End { finish, usage } => self.finish(finish, usage),
            Reply::Fault(fault) => {
                let error = refusal(fault);
                let error = json!({
                    "message": error.message, "type": "server_error", "param": error.param, "code": error.code,
                });
                self.push(json!({"error": error}));
                self.over = true;
            }
        }
    }

    fn finish(&mut self, finish: Finish, usage: Usage) {
        self.push(end_chunk(&self.heading, finish));
        if self.heading.include_usage {
            self.push(usage_chunk(&self.heading, usage));
        }
        self.ready.push_back(Event::default().data("[DONE]"));
        self.over = true;
    }

    /// The next event, and the rest.
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some((Ok(event), self));
            }
            if self.over {
                return None;
            }
            let reply = tokio::select! {
                reply = self.answer.next() => reply.ok_or("the model's process broke off its answer"),
                () = self.stopping.wait() => Err("the server is ending"),
            };
            self.take(reply.unwrap_or_else(|words| Reply::Fault(Fault::model(words))));
        }
    }
}

fn streamed(
    heading: Heading,
    first: Reply,
    answer: Answer,
    place: StreamPermit,
    stopping: Stopping,
) -> Response {
    let role = first_chunk(&heading);
    let mut streamed =
        Streamed { heading, answer, _place: place, stopping, ready: VecDeque::new(), over: false };
    streamed.push(role);
    streamed.take(first);
    let events = stream::unfold(streamed, Streamed::next);
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}
