//! Reads the tokenizer and chat template of a model folder.
//!
//! Takes `tokenizer.json`, `tokenizer_config.json` and the chat template, wherever the folder keeps it, and
//! gives an [`Encoder`]. The template's own file wins over one inside another file, as in HF.

use super::{
    Encoder, Specials,
    guard::{self, Edges},
    template::Template,
};
use minijinja::Value;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::{Path, PathBuf},
};
use tokenizers::{AddedToken, Tokenizer};

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
/// Where a template may be, the first one wins; in the JSON files it is the value of `chat_template`.
const TEMPLATES: [&str; 3] = ["chat_template.jinja", "chat_template.json", CONFIG];
/// The names under which templates expect special tokens.
const TOKEN_NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Why a checkpoint's text files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EncoderError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no template.
    #[error("{}: no chat template in chat_template.jinja, chat_template.json or tokenizer_config.json; \
             use a checkpoint tuned for chat, or add its template", path.display())]
    NoTemplate {
        /// The folder.
        path: PathBuf,
    },
}

#[derive(Deserialize, Default)]
struct Config {
    chat_template: Option<Templates>,
    image_token: Option<Token>,
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

/// One template, or several with names of which "default" is the one for chat.
#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

/// A special token: its text, or an object that holds it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Object { content: String },
}

impl Token {
    fn text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { content: text } => text,
        }
    }
}

/// Reads the folder.
pub(super) fn read(folder: &Path) -> Result<Encoder, EncoderError> {
    let path = folder.join(TOKENIZER);
    let bytes = fs::read(&path).map_err(|source| EncoderError::Io { path: path.clone(), source })?;
    let tokenizer = tokenizer(&bytes).map_err(|reason| EncoderError::Invalid { path, reason })?;
    let config: Config = optional_json(folder, CONFIG)?.unwrap_or_default();
    let (path, source) = find_template(folder)?;
    let named = token_names(config.others);
    let image_token = config.image_token.map_or_else(|| guard::IMAGE_TOKEN.to_owned(), Token::text);
    let invalid = |reason| EncoderError::Invalid { path, reason };
    encoder(tokenizer, &source, &named, &image_token).map_err(invalid)
}

/// A tokenizer that takes special tokens for text and neither cuts nor pads.
fn tokenizer(bytes: &[u8]) -> Result<Tokenizer, String> {
    let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
    tokenizer.set_encode_special_tokens(true);
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
    Ok(tokenizer)
}

fn encoder(
    tokenizer: Tokenizer,
    source: &str,
    named: &BTreeMap<String, String>,
    image_token: &str,
) -> Result<Encoder, String> {
    let mut added = tokenizer.get_added_tokens_decoder();
    added.retain(|_, token| token.special);
    let edges = added.iter().map(|(&id, token)| {
        let AddedToken { lstrip, rstrip, single_word, .. } = *token;
        (id, Edges { lstrip, rstrip, single_word })
    });
    let edges: HashMap<u32, Edges> = edges.filter(|(_, edges)| *edges != Edges::default()).collect();
    let special: HashMap<String, u32> = added.into_iter().map(|(id, token)| (token.content, id)).collect();
    let is_control = |text: &str| {
        guard::is_control(text)
            || source.contains(text)
            || text == image_token
            || named.values().any(|token| token == text)
    };
    let padding = ["pad_token", "eos_token"].into_iter().find_map(|name| named.get(name));
    Ok(Encoder {
        pad_token: padding.and_then(|token| tokenizer.token_to_id(token)),
        image_token: special.get(image_token).copied(),
        specials: Specials::new(special, is_control)?.with_edges(edges),
        template: Template::new(source, Value::from_pairs(named.clone()))?,
        tokenizer,
    })
}

fn token_names(others: BTreeMap<String, serde_json::Value>) -> BTreeMap<String, String> {
    let named = others.into_iter().filter(|(name, _)| TOKEN_NAMES.contains(&name.as_str()));
    named.filter_map(|(name, value)| Some((name, Token::deserialize(value).ok()?.text()))).collect()
}

fn find_template(folder: &Path) -> Result<(PathBuf, String), EncoderError> {
    for name in TEMPLATES {
        let path = folder.join(name);
        if name.ends_with(".jinja") {
            if let Some(source) = optional(&path)? {
                return Ok((path, source));
            }
            continue;
        }
        let config: Config = optional_json(folder, name)?.unwrap_or_default();
        let source = config.chat_template.and_then(|templates| match templates {
            Templates::One(source) => Some(source),
            Templates::Named(all) => {
                all.into_iter().find(|one| one.name == "default").map(|one| one.template)
            }
        });
        if let Some(source) = source {
            return Ok((path, source));
        }
    }
    Err(EncoderError::NoTemplate { path: folder.into() })
}

/// A text file, or nothing if there is none.
fn optional(path: &Path) -> Result<Option<String>, EncoderError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(EncoderError::Io { path: path.into(), source }),
    }
}

fn optional_json<T: for<'a> Deserialize<'a>>(folder: &Path, name: &str) -> Result<Option<T>, EncoderError> {
    let path = folder.join(name);
    let Some(text) = optional(&path)? else { return Ok(None) };
    let value = serde_json::from_str(&text);
    value.map(Some).map_err(|error| EncoderError::Invalid { path, reason: error.to_string() })
}
