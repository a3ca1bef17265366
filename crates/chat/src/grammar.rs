//! Answers that are held to a JSON schema.
//!
//! Takes the model's tokenizer once and a format for each answer, and gives which tokens may come next. A schema
//! that cannot be enforced is refused in words; work and memory of a schema are limited by counts, so that a
//! refusal does not depend on the machine's speed.

use crate::request::{Fault, Format};
use garden_data::{Encoder, token_bytes};
use llguidance::{
    Matcher, ParserFactory,
    api::{ParserLimits, TopLevelGrammar},
    toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// The largest schema, in bytes.
const LARGEST_SCHEMA: usize = 256 << 10;

/// Limits of one grammar: about 20 ms to begin, 15 ms a token, and 16 MB.
fn limits() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 10_000,
        max_grammar_size: 100_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// The tokens of a model, and grammars over them.
pub(crate) struct Grammars {
    factory: ParserFactory,
}

/// One answer's grammar.
pub(crate) struct Grammar {
    matcher: Matcher,
}

impl Grammars {
    /// For the model's tokenizer and the tokens that end an answer; `vocabulary` counts the model's logits.
    pub fn new(encoder: &Encoder, ends: &[u32], vocabulary: usize) -> Result<Self, Fault> {
        let mut words = vec![Vec::new(); vocabulary];
        for (id, written) in encoder.ordinary_tokens() {
            if let Some(word) = words.get_mut(id as usize) {
                *word = token_bytes(&written);
            }
        }
        // A special token never stands for text, so a string cannot hold one.
        let special = |(id, word): (usize, &mut Vec<u8>)| {
            if word.is_empty() {
                *word = [&[TokTrie::SPECIAL_TOKEN_MARKER], format!("<[{id}]>").as_bytes()].concat();
            }
        };
        words.iter_mut().enumerate().for_each(special);
        let first = ends.first().copied().unwrap_or(0);
        let trie = TokTrie::from(&TokRxInfo::new(vocabulary as u32, first), &words);
        let trie = if ends.is_empty() { trie } else { trie.with_eos_tokens(ends) };
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let refused = |error: &dyn std::fmt::Display| Fault::model(format!("the tokenizer: {error}"));
        let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &[])
            .map_err(|error| refused(&error))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { factory })
    }

    /// The bytes that a token stands for; a special token's are none.
    pub fn bytes(&self, token: u32) -> &[u8] {
        let trie = self.factory.tok_env().tok_trie();
        match (token as usize) < trie.vocab_size() && !trie.is_special_token(token) {
            true => trie.token(token),
            false => &[],
        }
    }

    /// The grammar of a format; none for plain text.
    pub fn grammar(&self, format: &Format) -> Result<Option<Grammar>, Fault> {
        const PARAM: &str = "response_format";
        let schema = match format {
            Format::Text => return Ok(None),
            Format::JsonObject => options(json!({"type": "object"}), false),
            Format::JsonSchema { schema, strict } => {
                let length = schema.to_string().len();
                if length > LARGEST_SCHEMA {
                    let words = format!("the schema has {length} bytes, more than {LARGEST_SCHEMA}");
                    return Err(Fault::request(PARAM, words));
                }
                if !schema.is_object() {
                    return Err(Fault::request(PARAM, "the schema is no JSON object"));
                }
                options(schema.clone(), !strict)
            }
        };
        let parser = self.factory.create_parser(TopLevelGrammar::from_json_schema(schema));
        let parser = parser
            .map_err(|error| Fault::request(PARAM, format!("this schema cannot be enforced: {error:#}")))?;
        Ok(Some(Grammar { matcher: Matcher::new(Ok(parser)) }))
    }
}

/// JSON as models write it on one line: with whitespace left free, a model may write it for ever.
fn options(mut schema: Value, lenient: bool) -> Value {
    schema["x-guidance"] = json!({
        "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ", "lenient": lenient,
        "coerce_one_of": lenient,
    });
    schema
}

impl Grammar {
    /// The tokens that may come next.
    pub fn allowed(&mut self) -> Result<SimpleVob, Fault> {
        self.matcher.compute_mask_or_eos().map_err(|error| {
            Fault::request("response_format", format!("this schema takes too much work to follow: {error:#}"))
        })
    }

    /// Goes on with a token that is no end; tells whether the answer is complete with it.
    pub fn push(&mut self, token: u32) -> Result<bool, Fault> {
        let pushed = self.matcher.consume_token(token);
        pushed.map_err(|error| Fault::model(format!("the schema's grammar failed: {error:#}")))?;
        Ok(self.matcher.is_stopped())
    }
}
