//! A byte-level BPE tokenizer, trained here, in the files that Hugging Face reads.
//!
//! Takes the size of a vocabulary and gives `tokenizer.json` and `tokenizer_config.json`. It is trained on a
//! fixed text, so it is the same wherever it is made. Its splitting rule and its special tokens are Qwen's,
//! and in a vocabulary of the published size the special tokens have the published ids.

use regex::Regex;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};

/// Ordinary English, JSON and code, and a long text that never changes.
const CORPUS: [&str; 2] = [include_str!("corpus.txt"), include_str!("../../../../LICENSE-APACHE")];
/// Pairs rarer than this teach nothing.
const RAREST_PAIR: usize = 2;
/// The published id of the first special token; smaller vocabularies have it right after the ordinary tokens.
const PUBLISHED_FIRST_SPECIAL: usize = 151_643;

/// Qwen's special tokens in the order of their ids.
const SPECIALS: [&str; 22] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];
/// From here on the list is markup that decoding keeps in the text.
const FIRST_KEPT: usize = 14;

/// How Qwen cuts text before merging; the lookahead keeps the last space of a run for the next word.
const SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same for training, where the spaces between words do not matter.
const TRAINING_SPLIT: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";

/// Tokens, how they are merged, and where the special ones begin.
pub(super) struct Tokenizer {
    tokens: Vec<String>,
    merges: Vec<(String, String)>,
    first_special: usize,
}

impl Tokenizer {
    /// Trains a tokenizer that fits an embedding table of `vocabulary` rows.
    pub(super) fn train(vocabulary: usize) -> Self {
        let room = vocabulary.saturating_sub(SPECIALS.len() + 256);
        let (mut tokens, merges) = train_merges(room);
        let first_special = match vocabulary >= PUBLISHED_FIRST_SPECIAL + SPECIALS.len() {
            true => PUBLISHED_FIRST_SPECIAL,
            false => tokens.len(),
        };
        for id in tokens.len()..first_special {
            tokens.push(format!("<|unused_{id}|>"));
        }
        Self { tokens, merges, first_special }
    }

    /// The id of a special token.
    pub(super) fn id(&self, special: &str) -> Option<usize> {
        Some(self.first_special + SPECIALS.iter().position(|name| *name == special)?)
    }

    /// `tokenizer.json`.
    pub(super) fn to_json(&self) -> Value {
        let vocab: Map<String, Value> =
            self.tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
        let merges: Vec<String> = self.merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
        let byte_level = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": use_regex});
        json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": self.added_tokens(),
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": false},
                byte_level(false)
            ]},
            "post_processor": byte_level(false), "decoder": byte_level(false),
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
                "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": merges
            }
        })
    }

    /// `tokenizer_config.json`.
    pub(super) fn to_config_json(&self) -> Value {
        let decoder: Map<String, Value> = self
            .added_tokens()
            .into_iter()
            .map(|mut token| {
                let id = token["id"].take();
                token.as_object_mut().map(|token| token.remove("id"));
                (id.to_string(), token)
            })
            .collect();
        json!({
            "tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": false, "added_tokens_decoder": decoder,
            "additional_special_tokens": &SPECIALS[1..FIRST_KEPT], "bos_token": null, "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>", "unk_token": null, "clean_up_tokenization_spaces": false,
            "errors": "replace", "model_max_length": 131_072, "split_special_tokens": false
        })
    }

    fn added_tokens(&self) -> Vec<Value> {
        let token = |(index, content): (usize, &&str)| {
            json!({
                "id": self.first_special + index, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": index < FIRST_KEPT
            })
        };
        SPECIALS.iter().enumerate().map(token).collect()
    }
}

/// A word of the corpus as token ids, and how often it occurs.
struct Word {
    pieces: Vec<usize>,
    count: usize,
}

/// Plain byte-pair encoding: join the most frequent pair until there is no room or no pair worth it.
fn train_merges(room: usize) -> (Vec<String>, Vec<(String, String)>) {
    let alphabet = byte_alphabet();
    let mut tokens: Vec<String> = Vec::with_capacity(256);
    let mut byte_ids = [0; 256];
    for (byte, symbol) in alphabet {
        byte_ids[usize::from(byte)] = tokens.len();
        tokens.push(symbol.to_string());
    }
    let mut words = words(&byte_ids);
    let mut merges = Vec::new();
    while merges.len() < room {
        let Some(pair) = most_frequent_pair(&words) else { break };
        let joined = tokens.len();
        merges.push((tokens[pair.0].clone(), tokens[pair.1].clone()));
        tokens.push(format!("{}{}", tokens[pair.0], tokens[pair.1]));
        for word in &mut words {
            join(&mut word.pieces, pair, joined);
        }
    }
    (tokens, merges)
}

fn words(byte_ids: &[usize; 256]) -> Vec<Word> {
    // The pattern is a constant that a test compiles.
    let Ok(split) = Regex::new(TRAINING_SPLIT) else { return Vec::new() };
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for text in CORPUS {
        for part in split.find_iter(text) {
            *counts.entry(part.as_str()).or_default() += 1;
        }
    }
    let pieces = |word: &str| word.bytes().map(|byte| byte_ids[usize::from(byte)]).collect();
    counts.into_iter().map(|(word, count)| Word { pieces: pieces(word), count }).collect()
}

/// The most frequent pair; of equals the one of the older tokens, so that the result is the same everywhere.
fn most_frequent_pair(words: &[Word]) -> Option<(usize, usize)> {
    let mut counts: HashMap<(usize, usize), usize> = HashMap::new();
    for word in words {
        for pair in word.pieces.windows(2) {
            *counts.entry((pair[0], pair[1])).or_default() += word.count;
        }
    }
    let best = counts.into_iter().max_by_key(|&(pair, count)| (count, std::cmp::Reverse(pair)))?;
    (best.1 >= RAREST_PAIR).then_some(best.0)
}

fn join(pieces: &mut Vec<usize>, pair: (usize, usize), joined: usize) {
    let mut at = 0;
    while at + 1 < pieces.len() {
        if (pieces[at], pieces[at + 1]) == pair {
            pieces[at] = joined;
            pieces.remove(at + 1);
        }
        at += 1;
    }
}

/// Every byte with the printable character that stands for it in byte-level files, in the order of their ids.
fn byte_alphabet() -> Vec<(u8, char)> {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let plain = (0..=255u8).filter(printable).map(|byte| (byte, char::from(byte)));
    let moved = (0..=255u8).filter(|byte| !printable(byte));
    let shifted = moved.zip('\u{100}'..);
    plain.chain(shifted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_is_the_same_every_time_and_fills_no_more_than_its_room() {
        let (first, second) = (Tokenizer::train(4096), Tokenizer::train(4096));
        assert_eq!(first.merges, second.merges);
        assert!(first.merges.len() > 1000, "{} merges", first.merges.len());
        let cramped = Tokenizer::train(300);
        assert_eq!(cramped.tokens.len() + SPECIALS.len(), 300);
    }

    #[test]
    fn frequent_words_become_single_tokens() {
        let tokenizer = Tokenizer::train(4096);
        for word in ["Ġthe", "Ġimage", "Ġcircle", "Ġred"] {
            assert!(tokenizer.tokens.iter().any(|token| token == word), "{word}");
        }
    }

    #[test]
    fn published_vocabularies_have_the_published_ids() {
        for vocabulary in [151_936, 152_064] {
            let tokenizer = Tokenizer::train(vocabulary);
            assert_eq!(tokenizer.id("<|endoftext|>"), Some(151_643));
            assert_eq!(tokenizer.id("<|im_end|>"), Some(151_645));
            assert_eq!(tokenizer.id("<|vision_start|>"), Some(151_652));
            assert_eq!(tokenizer.id("<|image_pad|>"), Some(151_655));
            assert_eq!(tokenizer.tokens.len(), 151_643);
        }
    }

    #[test]
    fn every_byte_has_a_symbol_of_its_own() {
        let alphabet = byte_alphabet();
        let bytes: std::collections::BTreeSet<u8> = alphabet.iter().map(|(byte, _)| *byte).collect();
        let symbols: std::collections::BTreeSet<char> = alphabet.iter().map(|(_, symbol)| *symbol).collect();
        assert_eq!((bytes.len(), symbols.len()), (256, 256));
        assert!(alphabet.contains(&(b' ', 'Ġ')) && alphabet.contains(&(b'\n', 'Ċ')));
    }
}
