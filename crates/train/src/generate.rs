//! Asks a model a question with images.
//!
//! Takes a model, a conversation that ends with a question, and its images still encoded, and gives the
//! answer, piece by piece while it grows. Tokenizer, template and image limits are the model's own. Without a
//! temperature the answer is the one that Hugging Face gives on the same weights.

use crate::model_folder::{ModelFolder, ModelFolderError};
use garden_data::{
    BadRow, Conversation, Encoder, ImageHeader, ImageSource, ImageWorkspace, Part, PixelLimits,
    ProcessorError, Purpose, Recipe, Role, TextError, Turn,
};
use garden_model::{
    Adapter, AdapterError, CheckpointError, Decoder, Grid, Model, ModelWeights, Precision, PromptImage,
    SampleError, Sampler, SessionError,
};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Instant,
};

/// A generation_config.json has a dozen short keys.
const LARGEST_CONFIG: u64 = 1 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum GenerateError {
    #[error(transparent)]
    Folder(#[from] ModelFolderError),
    #[error("the model: {0}")]
    Weights(#[from] CheckpointError),
    #[error("the adapter: {0}")]
    Adapter(#[from] AdapterError),
    #[error("the model's processor: {0}")]
    Processor(#[from] ProcessorError),
    #[error(transparent)]
    Sample(#[from] SampleError),
    #[error("the question: {0}")]
    Question(#[source] BadRow),
    #[error("the answer: {0}")]
    Text(#[from] TextError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(
        "{tokens} tokens of question and {answer} of answer are more than the model's {limit}; ask for less"
    )]
    TooLong { tokens: usize, answer: usize, limit: usize },
    #[error("{}: {problem}", path.display())]
    File { path: PathBuf, problem: String },
}

/// How an answer is made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// The longest answer, in tokens.
    pub max_tokens: usize,
    /// 0 always takes the likeliest token.
    pub temperature: f32,
    /// With a temperature, the same seed gives the same answer.
    pub seed: u64,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// The model ended its turn.
    Stop,
    /// The longest answer was reached.
    Length,
}

/// What a model said.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// Its words.
    pub text: String,
    /// Its tokens, without the one that ended it.
    pub tokens: Vec<u32>,
    /// Tokens of the question, images included.
    pub prompt_tokens: usize,
    /// Why it ended.
    pub end: End,
    /// Seconds to read the question.
    pub prompt_seconds: f64,
    /// Seconds for the tokens after the first.
    pub answer_seconds: f64,
}

/// Loads a model to ask, with an adapter if one is given; `progress` is told the share loaded.
pub fn load_model(
    folder: &ModelFolder,
    adapter: Option<&Path>,
    precision: Precision,
    progress: impl FnMut(f32),
) -> Result<Model, GenerateError> {
    let config = folder.config().clone();
    // A wrong adapter is reported before gigabytes are read.
    let adapter = adapter.map(|adapter| Adapter::read(adapter, &config)).transpose()?;
    let weights = ModelWeights::load(&folder.weights()?, &config, precision, progress)?;
    Ok(match adapter {
        Some(adapter) => Model::with_adapter(config, weights, adapter),
        None => Model::frozen(config, weights),
    })
}

/// A question of one turn: images first, then words.
pub fn question(words: &str, images: usize) -> Conversation {
    let image = || Part::Image(ImageSource::Bytes(Vec::new()));
    let mut parts: Vec<Part> = (0..images).map(|_| image()).collect();
    parts.push(Part::Text(words.to_owned()));
    Conversation::new(vec![Turn::new(Role::User, parts)])
}

/// What `generation_config.json` says, as far as it is followed.
#[derive(Debug, Default, Deserialize)]
struct GenerationConfig {
    eos_token_id: Option<Ends>,
    repetition_penalty: Option<f32>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Ends {
    One(u32),
    Several(Vec<u32>),
}

impl GenerationConfig {
    /// The model folder's own; nothing where it has none.
    fn read(folder: &Path) -> Result<Self, GenerateError> {
        let path = folder.join("generation_config.json");
        let fault = |problem: String| GenerateError::File { path: path.clone(), problem };
        let length = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            other => other.map_err(|error| fault(error.to_string()))?.len(),
        };
        if length > LARGEST_CONFIG {
            return Err(fault(format!("{length} bytes are too many for a configuration")));
        }
        let text = fs::read_to_string(&path).map_err(|error| fault(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| fault(error.to_string()))
    }
}

/// A question as the model reads it.
#[derive(Debug, Clone)]
pub struct Question {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Its images in order.
    pub images: Vec<PromptImage>,
}

/// A question as the model reads it, and how to answer it. Making one checks both, before gigabytes of
/// weights are read.
pub struct Prompt {
    question: Question,
    sampler: Sampler,
    max_tokens: usize,
}

/// Turns questions into tokens and tokens into words, as one model folder says.
pub struct Interpreter {
    recipe: Recipe,
    work: ImageWorkspace,
    ends: Vec<u32>,
    penalty: f32,
    max_positions: usize,
}

impl Interpreter {
    /// Interprets for the model in a folder, with these limits on the size of images.
    pub fn new(folder: &ModelFolder, pixels: PixelLimits) -> Result<Self, GenerateError> {
        let generation = GenerationConfig::read(folder.path())?;
        let ends = match generation.eos_token_id {
            Some(Ends::One(id)) => vec![id],
            Some(Ends::Several(ids)) => ids,
            None => folder.config().eos_token_ids.clone(),
        };
        Ok(Self {
            recipe: Recipe {
                encoder: folder.encoder().clone(),
                processor: folder.processor(pixels)?,
                purpose: Purpose::Answer,
            },
            work: ImageWorkspace::default(),
            ends,
            penalty: generation.repetition_penalty.unwrap_or(1.0),
            max_positions: folder.config().text.max_positions,
        })
    }

    /// What the headers of images tell, before anything is decoded.
    pub fn headers(&self, images: &[Vec<u8>]) -> Result<Vec<ImageHeader>, GenerateError> {
        self.recipe.processor.headers(images).map_err(GenerateError::Question)
    }

    /// Reads a conversation to be answered; `images` are its images, still encoded and in order.
    pub fn read(&mut self, asked: &Conversation, images: &[Vec<u8>]) -> Result<Question, GenerateError> {
        let headers = self.headers(images)?;
        let encoded = self.recipe.encode(asked, headers).map_err(GenerateError::Question)?;
        let mut patches = Vec::new();
        let decoded = self.recipe.append_patches(&encoded, images, &mut self.work, &mut patches);
        decoded.map_err(GenerateError::Question)?;
        let grid = |image: &ImageHeader| [1, image.grid.rows as usize, image.grid.columns as usize];
        let grids: Vec<Grid> = encoded.images.iter().map(grid).collect();
        let count: usize = grids.iter().map(|grid| grid.iter().product::<usize>()).sum();
        let bytes = patches.len() / count.max(1);
        let mut rest = patches.as_slice();
        let images = grids.into_iter().map(|grid| {
            let (own, others) = rest.split_at(grid.iter().product::<usize>() * bytes);
            rest = others;
            PromptImage { patches: own.to_vec(), grid }
        });
        Ok(Question { images: images.collect(), ids: encoded.tokens.ids })
    }

    /// A sampler with the model's own repetition penalty.
    pub fn sampler(&self, temperature: f32, seed: u64) -> Result<Sampler, SampleError> {
        Sampler::new(temperature, self.penalty, seed)
    }

    /// The tokens that end an answer.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The tokenizer.
    pub fn encoder(&self) -> &Encoder {
        &self.recipe.encoder
    }

    /// Tokens that the model can read and write at the most.
    pub fn max_positions(&self) -> usize {
        self.max_positions
    }

    /// Prepares a conversation to be asked; `images` are its images, still encoded and in order.
    pub fn prompt(
        &mut self,
        asked: &Conversation,
        images: &[Vec<u8>],
        sampling: Sampling,
    ) -> Result<Prompt, GenerateError> {
        let Sampling { max_tokens, temperature, seed } = sampling;
        let sampler = self.sampler(temperature, seed)?;
        let question = self.read(asked, images)?;
        let (tokens, limit) = (question.ids.len(), self.max_positions);
        if tokens.saturating_add(max_tokens) > limit {
            return Err(GenerateError::TooLong { tokens, answer: max_tokens, limit });
        }
        Ok(Prompt { question, sampler, max_tokens })
    }

    /// The answer of `model`, which must be the one in this folder. `say` is given each piece as soon as it
    /// is whole characters.
    pub fn answer(
        &self,
        model: &Model,
        prompt: Prompt,
        say: &mut dyn FnMut(&str),
    ) -> Result<Answer, GenerateError> {
        let Prompt { question: Question { ids, images }, mut sampler, max_tokens } = prompt;
        let start = Instant::now();
        let mut decoder = Decoder::for_images(model, ids.len(), &images, max_tokens)?;
        let mut logits = decoder.read(model, &ids, images)?;
        let prompt_seconds = start.elapsed().as_secs_f64();
        let mut seen = ids;
        let prompt_tokens = seen.len();
        let mut words = Words::after(prompt_tokens);
        let mut text = String::new();
        let mut tell = |seen: &[u32], last: bool| -> Result<(), TextError> {
            let piece = words.next(&self.recipe.encoder, seen, last)?;
            if !piece.is_empty() {
                say(&piece);
                text.push_str(&piece);
            }
            Ok(())
        };
        let start = Instant::now();
        let end = loop {
            if seen.len() - prompt_tokens == max_tokens {
                break End::Length;
            }
            let token = sampler.choose(logits, &seen)?;
            if self.ends.contains(&token) {
                break End::Stop;
            }
            seen.push(token);
            tell(&seen, false)?;
            if seen.len() - prompt_tokens < max_tokens {
                logits = decoder.next(model, token)?;
            }
        };
        tell(&seen, true)?;
        Ok(Answer {
            text,
            tokens: seen.split_off(prompt_tokens),
            prompt_tokens,
            end,
            prompt_seconds,
            answer_seconds: start.elapsed().as_secs_f64(),
        })
    }
}

/// Tokens on their way to words. A token may end in the middle of a character, whose rest comes with the next
/// one.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    /// Tokens that were passed on.
    told: usize,
}

impl Words {
    /// Tells what comes after so many tokens.
    pub fn after(tokens: usize) -> Self {
        Self { told: tokens }
    }

    /// The text of the tokens since the last piece; empty while they end within a character, unless they are
    /// the last.
    pub fn next(&mut self, encoder: &Encoder, tokens: &[u32], last: bool) -> Result<String, TextError> {
        let piece = encoder.decode(&tokens[self.told..])?;
        if piece.is_empty() || (piece.ends_with(char::REPLACEMENT_CHARACTER) && !last) {
            return Ok(String::new());
        }
        self.told = tokens.len();
        Ok(piece)
    }
}
