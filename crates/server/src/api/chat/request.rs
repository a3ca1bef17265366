//! What OpenAI's SDK asks, read field by field.
//!
//! Takes the JSON object of a request and gives the question. A field that is unknown or cannot be honoured is
//! refused by its name; one that asks for what happens anyway (`n: 1`, `presence_penalty: 0`, no tools) is taken. A
//! field that is null counts as absent, as in the SDK.

use crate::{api::error::ApiError, id};
use garden_chat::{ChatRequest, Format, Message, MessagePart, Speaker};
use garden_model::Precision;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A question to a model. Fields of OpenAI's API that are not listed are refused unless they ask for nothing.
#[derive(Deserialize, ToSchema)]
#[allow(
    dead_code,
    reason = "the form for the OpenAPI document; fields are read one by one, to name what is wrong"
)]
pub(super) struct ChatCompletionRequest {
    /// The model's name, as `/v1/models` lists it.
    model: String,
    /// The conversation so far.
    #[schema(min_items = 1)]
    messages: Vec<RequestMessage>,
    /// The longest answer, in tokens.
    #[schema(minimum = 1)]
    max_completion_tokens: Option<u64>,
    /// The same, by its older name.
    #[schema(minimum = 1)]
    max_tokens: Option<u64>,
    /// How random the answer is; 0 always takes the likeliest token.
    #[schema(minimum = 0, maximum = 2, default = 1)]
    temperature: Option<f64>,
    /// Draws only from the likeliest tokens that together have this share.
    #[schema(minimum = 0, maximum = 1, default = 1)]
    top_p: Option<f64>,
    /// The same seed gives the same answer.
    seed: Option<i64>,
    /// Up to four texts that end the answer and are no part of it.
    stop: Option<Stop>,
    /// Whether to tell how likely each token was.
    logprobs: Option<bool>,
    /// How many of the likeliest tokens to tell beside each.
    #[schema(minimum = 0, maximum = 20)]
    top_logprobs: Option<u64>,
    /// What the answer has to look like.
    response_format: Option<ResponseFormat>,
    /// Whether to send the answer as it grows.
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// Answers to give; only 1.
    #[schema(minimum = 1, maximum = 1)]
    n: Option<u64>,
    /// Hold the weights in 4 bits.
    load_in_4bit: Option<bool>,
    /// Hold the weights in 8 bits.
    load_in_8bit: Option<bool>,
    /// Hold the weights in 16 bits.
    load_in_16bit: Option<bool>,
    /// Who asks; not used.
    user: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "as above")]
enum Stop {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize, ToSchema)]
#[allow(dead_code, reason = "as above")]
struct StreamOptions {
    /// Whether a last chunk tells what the answer took.
    include_usage: Option<bool>,
}

#[derive(Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(dead_code, reason = "as above")]
enum ResponseFormat {
    Text,
    JsonObject,
    JsonSchema { json_schema: JsonSchema },
}

#[derive(Deserialize, ToSchema)]
#[allow(dead_code, reason = "as above")]
struct JsonSchema {
    name: String,
    description: Option<String>,
    schema: Option<Map<String, Value>>,
    /// Refuse a schema with keywords that cannot be enforced, rather than pass over them.
    strict: Option<bool>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(dead_code, reason = "as above")]
enum RequestRole {
    System,
    Developer,
    User,
    Assistant,
}

#[derive(Deserialize, ToSchema)]
#[allow(dead_code, reason = "as above")]
struct RequestMessage {
    role: RequestRole,
    content: Content,
    name: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "as above")]
enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(dead_code, reason = "as above")]
enum ContentPart {
    Text { text: String },
    ImageUrl { image_url: ImageUrl },
}

#[derive(Deserialize, ToSchema)]
#[allow(dead_code, reason = "as above")]
struct ImageUrl {
    /// `data:image/png;base64,...`
    #[schema(pattern = "^data:image/")]
    url: String,
    detail: Option<String>,
}

/// A question that was read.
#[derive(Debug)]
pub(super) struct Asked {
    pub model: String,
    pub request: ChatRequest,
    pub precision: Precision,
    /// What the client calls the length of the longest answer.
    pub longest: &'static str,
    pub stream: bool,
    pub include_usage: bool,
}

/// The fields that are left to read.
struct Fields {
    left: Map<String, Value>,
}

fn wrong(param: impl Into<String>, message: impl std::fmt::Display) -> ApiError {
    ApiError::bad_request(message).param(param).code("invalid_value")
}

impl Fields {
    fn take(&mut self, name: &str) -> Option<Value> {
        self.left.remove(name).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &mut self,
        name: &str,
        what: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        read(&value)
            .map(Some)
            .ok_or_else(|| wrong(name, format!("{name} must be {what}")).code("invalid_type"))
    }

    fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        Ok(self.typed(name, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    fn number(&mut self, name: &str, least: f64, most: f64) -> Result<Option<f32>, ApiError> {
        let number = self.typed(name, "a number", Value::as_f64)?;
        match number {
            Some(number) if !(least..=most).contains(&number) => {
                Err(wrong(name, format!("{name} must be from {least} to {most}")))
            }
            number => Ok(number.map(|number| number as f32)),
        }
    }

    fn count(&mut self, name: &str) -> Result<Option<usize>, ApiError> {
        let count = self.typed(name, "a whole number from 0 on", Value::as_u64)?;
        Ok(count.map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
    }
}

/// Reads a request.
pub(super) fn read(body: Map<String, Value>) -> Result<Asked, ApiError> {
    let mut fields = Fields { left: body };
    let required = |name: &str| wrong(name, format!("{name} is missing")).code("missing_required_parameter");
    let model = fields.typed("model", "a text", |value| value.as_str().map(str::to_owned))?;
    let model = model.ok_or_else(|| required("model"))?;
    let messages = fields.take("messages").ok_or_else(|| required("messages"))?;
    let messages = read_messages(messages)?;
    let (newer, older) = (fields.count("max_completion_tokens")?, fields.count("max_tokens")?);
    for (name, count) in [("max_completion_tokens", newer), ("max_tokens", older)] {
        if count == Some(0) {
            return Err(wrong(name, format!("{name} must be 1 or more")));
        }
    }
    let logprobs = fields.flag("logprobs")?;
    let top = fields.count("top_logprobs")?;
    if top.is_some_and(|top| top > 20) {
        return Err(wrong("top_logprobs", "top_logprobs must be from 0 to 20"));
    }
    if top.is_some_and(|top| top > 0) && !logprobs {
        return Err(wrong("top_logprobs", "top_logprobs needs logprobs: true"));
    }
    let top_p = fields.number("top_p", 0.0, 1.0)?.unwrap_or(1.0);
    // The likeliest token alone is what a share of nothing comes to.
    let top_p = if top_p == 0.0 { f32::MIN_POSITIVE } else { top_p };
    let seed = fields.typed("seed", "a whole number", |value| {
        value.as_i64().map(i64::cast_unsigned).or_else(|| value.as_u64())
    })?;
    let request = ChatRequest {
        messages,
        max_tokens: newer.or(older),
        temperature: fields.number("temperature", 0.0, 2.0)?.unwrap_or(1.0),
        top_p,
        seed: seed.unwrap_or_else(|| u64::from_le_bytes(id::random())),
        stop: read_stop(fields.take("stop"))?,
        logprobs: logprobs.then_some(top.unwrap_or(0)),
        format: read_format(fields.take("response_format"))?,
    };
    let precision = read_precision(&mut fields)?;
    let stream = fields.flag("stream")?;
    let include_usage = read_stream_options(fields.take("stream_options"), stream)?;
    fields.left.iter().try_for_each(|(name, value)| harmless(name, value))?;
    let longest = if newer.is_some() { "max_completion_tokens" } else { "max_tokens" };
    Ok(Asked { model, request, precision, longest, stream, include_usage })
}

fn read_precision(fields: &mut Fields) -> Result<Precision, ApiError> {
    let names = [
        ("load_in_4bit", Precision::Bits4),
        ("load_in_8bit", Precision::Bits8),
        ("load_in_16bit", Precision::Bits16),
    ];
    let mut asked = Precision::AsStored;
    for (name, precision) in names {
        if fields.flag(name)? {
            if asked != Precision::AsStored {
                return Err(wrong(name, "weights are held in one precision: ask for one"));
            }
            asked = precision;
        }
    }
    Ok(asked)
}

fn read_stream_options(value: Option<Value>, stream: bool) -> Result<bool, ApiError> {
    let Some(value) = value else { return Ok(false) };
    const NAME: &str = "stream_options";
    if !stream {
        return Err(wrong(NAME, "stream_options needs stream: true"));
    }
    let Value::Object(options) = value else { return Err(wrong(NAME, "stream_options must be an object")) };
    let mut fields = Fields { left: options };
    let include = fields.flag("include_usage")?;
    fields.flag("include_obfuscation")?;
    match fields.left.iter().find(|(_, value)| !value.is_null()) {
        Some((name, _)) => Err(unknown(&format!("{NAME}.{name}"))),
        None => Ok(include),
    }
}

fn read_stop(value: Option<Value>) -> Result<Vec<String>, ApiError> {
    let refused = || wrong("stop", "stop must be a text, or up to 4 texts");
    let stops = match value {
        None => Vec::new(),
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => {
            let text = |value: Value| match value {
                Value::String(text) => Ok(text),
                _ => Err(refused()),
            };
            several.into_iter().map(text).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(refused()),
    };
    if stops.len() > 4 { Err(refused()) } else { Ok(stops) }
}

fn read_format(value: Option<Value>) -> Result<Format, ApiError> {
    const NAME: &str = "response_format";
    let Some(mut value) = value else { return Ok(Format::Text) };
    match value["type"].as_str() {
        Some("text") => Ok(Format::Text),
        Some("json_object") => Ok(Format::JsonObject),
        Some("json_schema") => {
            let strict = value["json_schema"]["strict"].as_bool().unwrap_or(false);
            match value.pointer_mut("/json_schema/schema").map(Value::take).unwrap_or_default() {
                Value::Null => Err(wrong("response_format.json_schema.schema", "the schema is missing")),
                schema @ Value::Object(_) => Ok(Format::JsonSchema { schema, strict }),
                _ => Err(wrong("response_format.json_schema.schema", "the schema must be an object")),
            }
        }
        Some(other) => Err(wrong(
            "response_format.type",
            format!("there is no response format {other}: text, json_object and json_schema are known"),
        )),
        None => Err(wrong(NAME, "response_format must be an object with a type")),
    }
}

fn unknown(name: &str) -> ApiError {
    ApiError::bad_request(format!("unknown parameter: {name}")).param(name).code("unknown_parameter")
}

/// A field that is not read: taken where it asks for nothing.
fn harmless(name: &str, value: &Value) -> Result<(), ApiError> {
    let empty = || match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        _ => false,
    };
    let text = |known: &[&str]| value.as_str().is_some_and(|text| known.contains(&text));
    let known = match name {
        _ if value.is_null() => true,
        "n" => value.as_u64() == Some(1),
        "presence_penalty" | "frequency_penalty" => value.as_f64() == Some(0.0),
        "logit_bias" | "tools" | "functions" => empty(),
        "tool_choice" | "function_call" => text(&["none", "auto"]),
        "parallel_tool_calls" => value.is_boolean(),
        "modalities" => value.as_array().is_some_and(|list| list.iter().all(|one| one == "text")),
        "store" => value.as_bool() == Some(false),
        "metadata" => value.is_object(),
        "service_tier" => text(&["auto", "default"]),
        "reasoning_effort" => text(&["none"]),
        "verbosity" => text(&["medium"]),
        "user" | "safety_identifier" | "prompt_cache_key" | "prompt_cache_retention" => value.is_string(),
        "audio" | "prediction" | "web_search_options" | "moderation" => false,
        _ => return Err(unknown(name)),
    };
    match known {
        true => Ok(()),
        false => {
            let shown: String = value.to_string().chars().take(80).collect();
            let message = format!("{name}: {shown} is not supported here");
            Err(ApiError::bad_request(message).param(name).code("unsupported_parameter"))
        }
    }
}

fn read_messages(value: Value) -> Result<Vec<Message>, ApiError> {
    let Value::Array(messages) = value else {
        return Err(wrong("messages", "messages must be a list").code("invalid_type"));
    };
    if messages.is_empty() {
        return Err(wrong("messages", "there are no messages"));
    }
    messages.into_iter().enumerate().map(|(index, message)| read_message(index, message)).collect()
}

fn read_message(index: usize, message: Value) -> Result<Message, ApiError> {
    let at = |field: &str| format!("messages[{index}].{field}");
    let Value::Object(message) = message else {
        return Err(wrong(format!("messages[{index}]"), "a message must be an object").code("invalid_type"));
    };
    let mut fields = Fields { left: message };
    let role = fields.take("role");
    let role = match role.as_ref().and_then(Value::as_str) {
        Some("system" | "developer") => Speaker::System,
        Some("user") => Speaker::User,
        Some("assistant") => Speaker::Assistant,
        Some(other @ ("tool" | "function")) => {
            let message = format!("messages of the role {other} are not supported here");
            return Err(wrong(at("role"), message).code("unsupported_value"));
        }
        Some(other) => return Err(wrong(at("role"), format!("there is no role {other}"))),
        None => return Err(wrong(at("role"), "the role of a message is missing")),
    };
    let parts = match fields.take("content") {
        Some(Value::String(text)) => vec![MessagePart::Text(text)],
        Some(Value::Array(parts)) => {
            let part = |(number, part)| read_part(role, &format!("{}[{number}]", at("content")), part);
            parts.into_iter().enumerate().map(part).collect::<Result<_, _>>()?
        }
        None if role == Speaker::Assistant => Vec::new(),
        _ => return Err(wrong(at("content"), "the content of a message must be a text or a list of parts")),
    };
    for (name, value) in &fields.left {
        let nothing = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        let known = ["name", "refusal", "annotations", "audio", "tool_calls", "function_call"];
        match name.as_str() {
            "name" if value.is_string() => {}
            // What an answer of ours is sent back with.
            name if nothing && known.contains(&name) => {}
            name if known.contains(&name) => {
                let message = format!("{name} of a message is not supported here");
                return Err(wrong(at(name), message).code("unsupported_parameter"));
            }
            name => return Err(unknown(&at(name))),
        }
    }
    Ok(Message { role, parts })
}

fn read_part(role: Speaker, at: &str, part: Value) -> Result<MessagePart, ApiError> {
    let Value::Object(part) = part else { return Err(wrong(at, "a part of a message must be an object")) };
    let mut fields = Fields { left: part };
    let kind = fields.take("type");
    match kind.as_ref().and_then(Value::as_str) {
        Some("text") => match fields.take("text") {
            Some(Value::String(text)) => Ok(MessagePart::Text(text)),
            _ => Err(wrong(format!("{at}.text"), "text must be a text")),
        },
        Some("image_url") if role == Speaker::User => read_image(at, fields.take("image_url")),
        Some("image_url") => Err(wrong(at, "only messages of the user may have images")),
        Some(other) => {
            let message = format!("parts of the type {other} are not supported here: text and image_url are");
            Err(wrong(format!("{at}.type"), message).code("unsupported_value"))
        }
        None => Err(wrong(format!("{at}.type"), "the type of a part is missing")),
    }
}

fn read_image(at: &str, image: Option<Value>) -> Result<MessagePart, ApiError> {
    let at = format!("{at}.image_url");
    let Some(Value::Object(mut image)) = image else { return Err(wrong(at, "image_url must be an object")) };
    let detail = image.get("detail").filter(|detail| !detail.is_null());
    if detail.is_some_and(|detail| !matches!(detail.as_str(), Some("auto" | "low" | "high" | "original"))) {
        return Err(wrong(format!("{at}.detail"), "detail must be auto, low, high or original"));
    }
    let at = format!("{at}.url");
    let Some(Value::String(mut url)) = image.remove("url") else {
        return Err(wrong(at, "url must be a text"));
    };
    let remote = ["http:", "https:", "ftp:", "file:"];
    if remote
        .iter()
        .any(|scheme| url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
    {
        let shown: String = url.chars().take(100).collect();
        let message =
            format!("{shown}: images of other places are not fetched; send the image as a data: URL");
        return Err(wrong(at, message).code("unsupported_image_url"));
    }
    // A scheme and a media type may be written in either case.
    let is_image = |head: &str| {
        let head = head.to_ascii_lowercase();
        head.strip_prefix("data:image/").is_some_and(|kind| kind.ends_with(";base64"))
    };
    match url.find(',') {
        Some(comma) if comma < 60 && is_image(&url[..comma]) && comma + 1 < url.len() => {
            Ok(MessagePart::Image(url.split_off(comma + 1)))
        }
        _ => Err(wrong(at, "an image must be a URL of the form data:image/png;base64,...")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn asked(body: Value) -> Result<Asked, ApiError> {
        let Value::Object(mut body) = body else { unreachable!("an object") };
        body.entry("model").or_insert("tiny".into());
        body.entry("messages").or_insert(json!([{"role": "user", "content": "Hello"}]));
        read(body)
    }

    #[test]
    fn all_that_is_honoured_is_read() {
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD", "detail": "high"}});
        let asked = asked(json!({
            "messages": [
                {"role": "developer", "content": "Be brief"},
                {"role": "user", "content": [image, {"type": "text", "text": "What?"}, image], "name": "me"},
                {"role": "assistant", "content": "That", "refusal": null, "tool_calls": []},
                {"role": "user", "content": "Why?"},
            ],
            "max_tokens": 5, "max_completion_tokens": 7, "temperature": 0, "top_p": 0.5, "seed": -3, "stop": "END",
            "logprobs": true, "top_logprobs": 2, "stream": true, "stream_options": {"include_usage": true},
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": {"type": "object"}}},
            "load_in_8bit": true,
            "n": 1, "presence_penalty": 0.0, "tools": [], "tool_choice": "auto", "user": "u", "metadata": {"a": "b"}, "audio": null,
        }))
        .unwrap();
        assert!(asked.stream && asked.include_usage);
        assert_eq!((asked.model.as_str(), asked.precision), ("tiny", Precision::Bits8));
        let request = asked.request;
        assert_eq!((request.max_tokens, request.temperature, request.top_p), (Some(7), 0.0, 0.5));
        assert_eq!((request.seed, request.logprobs), (u64::MAX - 2, Some(2)));
        assert_eq!(request.stop, ["END"]);
        assert_eq!(request.format, Format::JsonSchema { schema: json!({"type": "object"}), strict: true });
        assert_eq!(request.messages.len(), 4);
        assert_eq!(request.messages[0].role, Speaker::System);
        let [first, _, third] = &request.messages[1].parts[..] else { panic!("three parts") };
        assert_eq!((first, third), (&MessagePart::Image("QUJD".into()), &MessagePart::Image("QUJD".into())));
    }

    #[test]
    fn the_scheme_of_an_image_may_be_written_in_either_case() {
        let read = |url: &str| read_image("at", Some(json!({"url": url})));
        for url in ["DATA:IMAGE/PNG;BASE64,QUJD", "data:image/png;base64,QUJD"] {
            assert_eq!(read(url).unwrap(), MessagePart::Image("QUJD".into()));
        }
        for url in ["data:image/png;base64,", "data:image/png,QUJD", "DATA:TEXT/PLAIN;base64,QUJD"] {
            assert!(read(url).is_err(), "{url}");
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        let user = |part: Value| json!({"messages": [{"role": "user", "content": [part]}]});
        let url = |url: &str| user(json!({"type": "image_url", "image_url": {"url": url}}));
        let cases = [
            (json!({"n": 2}), "n"),
            (json!({"presence_penalty": 0.5}), "presence_penalty"),
            (json!({"tools": [{}]}), "tools"),
            (json!({"nonsense": 1}), "nonsense"),
            (json!({"store": true}), "store"),
            (json!({"temperature": 2.5}), "temperature"),
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"top_p": -0.1}), "top_p"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_tokens": 1.5}), "max_tokens"),
            (json!({"top_logprobs": 3}), "top_logprobs"),
            (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
            (json!({"stop": ["a", "b", "c", "d", "e"]}), "stop"),
            (json!({"stream_options": {"include_usage": true}}), "stream_options"),
            (json!({"response_format": {"type": "xml"}}), "response_format.type"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema.schema"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": [null]}}),
                "response_format.json_schema.schema",
            ),
            (json!({"load_in_4bit": true, "load_in_8bit": true}), "load_in_8bit"),
            (json!({"messages": []}), "messages"),
            (json!({"messages": "Hello"}), "messages"),
            (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].role"),
            (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
            (
                json!({"messages": [{"role": "assistant", "content": "x", "tool_calls": [1]}]}),
                "messages[0].tool_calls",
            ),
            (user(json!({"type": "input_audio"})), "messages[0].content[0].type"),
            (url("https://example.org/a.png"), "messages[0].content[0].image_url.url"),
            (url("HTTP://example.org/a.png"), "messages[0].content[0].image_url.url"),
            (url("data:text/plain;base64,QUJD"), "messages[0].content[0].image_url.url"),
            (url("data:image/png,QUJD"), "messages[0].content[0].image_url.url"),
            (url("é"), "messages[0].content[0].image_url.url"),
        ];
        for (body, param) in cases {
            let error = asked(body.clone()).expect_err(&body.to_string());
            assert_eq!(
                (error.status.as_u16(), error.param.as_deref()),
                (400, Some(param)),
                "{body}: {error:?}"
            );
        }
        let missing = read(Map::new()).unwrap_err();
        assert_eq!(missing.param.as_deref(), Some("model"));
    }
}
