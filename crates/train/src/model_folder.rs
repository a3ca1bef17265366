//! A model folder, opened once and checked for contradictions.
//!
//! Reads `config.json`, the image processor's settings, the tokenizer with its chat template, and the headers
//! of the weights. Settings that are in two of these files must agree. A contradiction is refused with both
//! files and both values, because otherwise it would depend on the reader which one counts. Weights are not
//! read, and they may be missing until [`ModelFolder::weights`] is called: a plan does not need them.

use crate::plan::Source;
use garden_data::{
    DecodeLimits, Encoder, EncoderError, PixelLimits, Processor, ProcessorConfig, ProcessorError,
};
use garden_model::{
    CHANNEL_DEVIATION, CHANNEL_MEAN, Checkpoint, CheckpointError, ConfigError, ModelConfig, VisionConfig,
};
use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

const CONFIG: &str = "config.json";
const PROCESSOR: &str = "the image processor's settings";
const TOKENIZER: &str = "tokenizer.json";
const MODEL: &str = "the model";

/// The token before an image, as every tokenizer of this family writes it. Nothing here uses the one after it.
const VISION_START: &str = "<|vision_start|>";

/// Why a model folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelFolderError {
    /// The model's sizes are not known.
    #[error("the model: {0}")]
    Config(#[from] ConfigError),
    /// The weights cannot be used.
    #[error("the model: {0}")]
    Weights(#[from] CheckpointError),
    /// The image processor's settings cannot be used.
    #[error("the model's processor: {0}")]
    Processor(#[from] ProcessorError),
    /// The tokenizer or the chat template cannot be used.
    #[error("the model's tokenizer: {0}")]
    Tokenizer(#[from] EncoderError),
    /// Two files contradict each other.
    #[error("{}: {difference}; correct one of them", folder.display())]
    Contradiction {
        /// The folder.
        folder: PathBuf,
        /// What they disagree about.
        difference: Difference,
    },
}

/// A setting that two files disagree about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What it is about.
    pub setting: &'static str,
    /// One file, and what it says.
    pub one: (&'static str, String),
    /// The other file, and what it says.
    pub other: (&'static str, String),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, one: (file, value), other: (other_file, other_value) } = self;
        write!(f, "{setting} is {value} in {file}, but {other_value} in {other_file}")
    }
}

/// The files of a model folder, which agree with each other.
pub struct ModelFolder {
    path: PathBuf,
    config: ModelConfig,
    processor: ProcessorConfig,
    encoder: Arc<Encoder>,
    source: Source,
}

impl ModelFolder {
    /// Opens the model in the folder `path`.
    pub fn open(path: &Path) -> Result<Self, ModelFolderError> {
        let config = ModelConfig::read(path)?;
        let source = Source::in_folder(&config, path)?;
        let processor = ProcessorConfig::from_dir(path)?;
        let encoder = Encoder::from_dir(path)?;
        let difference =
            of_patches(&config.vision, &processor).or_else(|| of_tokens(&config, &Tokens::of(&encoder)));
        match difference {
            Some(difference) => Err(ModelFolderError::Contradiction { folder: path.to_owned(), difference }),
            None => Ok(Self { path: path.to_owned(), config, processor, encoder: Arc::new(encoder), source }),
        }
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model's sizes.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The tokenizer with the chat template.
    pub fn encoder(&self) -> &Arc<Encoder> {
        &self.encoder
    }

    /// What a plan must know about the model.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Turns images into patches, within the user's limits where there are any.
    pub fn processor(&self, pixels: PixelLimits) -> Result<Processor, ProcessorError> {
        Ok(Processor::new(self.processor.clone().with_limits(pixels)?, DecodeLimits::default()))
    }

    /// Opens the weights. They are not kept open here: mapped files would stay in memory after they were
    /// loaded.
    pub fn weights(&self) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::open(&self.path)
    }
}

/// The first patch setting that the model and its processor disagree about.
fn of_patches(vision: &VisionConfig, processor: &ProcessorConfig) -> Option<Difference> {
    let sizes = [
        ("the patch size", vision.patch_size, processor.patch_size),
        ("the temporal patch size", vision.temporal_patch_size, processor.temporal_patch_size),
        ("the merge size", vision.merge_size, processor.merge_size),
    ];
    let size = sizes.into_iter().find(|(_, model, processor)| *model != *processor as usize);
    let figures = [
        ("the mean of the channels", CHANNEL_MEAN.map(|value| value as f32), processor.mean),
        ("the deviation of the channels", CHANNEL_DEVIATION.map(|value| value as f32), processor.std),
    ];
    let figure = figures.into_iter().find(|(_, model, processor)| model != processor);
    let size = size.map(|(setting, model, processor)| Difference {
        setting,
        one: (CONFIG, model.to_string()),
        other: (PROCESSOR, processor.to_string()),
    });
    size.or_else(|| {
        figure.map(|(setting, model, processor)| Difference {
            setting,
            one: (MODEL, format!("{model:?}")),
            other: (PROCESSOR, format!("{processor:?}")),
        })
    })
}

/// What the tokenizer knows about the tokens that the model handles by number.
struct Tokens {
    image: Option<u32>,
    vision_start: Option<u32>,
    vocabulary: usize,
}

impl Tokens {
    fn of(encoder: &Encoder) -> Self {
        Self {
            image: encoder.image_token(),
            vision_start: encoder.special_token(VISION_START),
            vocabulary: encoder.vocabulary_size(),
        }
    }
}

/// The first token that the model and its tokenizer disagree about. A token that the tokenizer lacks
/// contradicts nothing. Neither does an embedding with spare rows, which published models have.
fn of_tokens(config: &ModelConfig, tokens: &Tokens) -> Option<Difference> {
    let ids = [
        ("the image token", config.image_token_id, tokens.image),
        ("the token before an image", config.vision_start_token_id, tokens.vision_start),
    ];
    let id = ids.into_iter().find_map(|(setting, model, tokenizer)| {
        tokenizer.filter(|id| *id != model).map(|id| Difference {
            setting,
            one: (CONFIG, model.to_string()),
            other: (TOKENIZER, id.to_string()),
        })
    });
    let rows = config.text.vocab_size;
    let larger = (tokens.vocabulary > rows).then(|| Difference {
        setting: "the size of the vocabulary",
        one: (CONFIG, rows.to_string()),
        other: (TOKENIZER, tokens.vocabulary.to_string()),
    });
    id.or(larger)
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_model::init::{Plan, Preset};
    use serde_json::{Value, json};
    use std::fs;

    fn model() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        Plan::new(Preset::Tiny).unwrap().write(&folder.path().join("model"), 1, |_| {}).unwrap();
        folder
    }

    fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
        let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        change(&mut value);
        fs::write(path, value.to_string()).unwrap();
    }

    #[test]
    fn folders_of_both_versions_of_transformers_are_opened() {
        let folder = model();
        let path = folder.path().join("model");
        let of_version_4 = ModelFolder::open(&path).unwrap();
        let own = path.join("preprocessor_config.json");
        let mut settings: Value = serde_json::from_slice(&fs::read(&own).unwrap()).unwrap();
        fs::remove_file(&own).unwrap();
        let object = settings.as_object_mut().unwrap();
        let [least, most] = ["min_pixels", "max_pixels"].map(|key| object.remove(key).unwrap());
        object.insert("size".into(), json!({ "shortest_edge": least, "longest_edge": most }));
        let joint = json!({ "image_processor": settings, "video_processor": {} });
        fs::write(path.join("processor_config.json"), joint.to_string()).unwrap();
        let of_version_5 = ModelFolder::open(&path).unwrap();
        assert_eq!(of_version_5.processor, of_version_4.processor);
        assert_eq!(of_version_5.source, of_version_4.source);
        let config = of_version_5.config();
        assert!(of_version_5.encoder().vocabulary_size() <= config.text.vocab_size);
        of_version_5.weights().unwrap().check(config).unwrap();
    }

    #[test]
    fn weights_may_be_missing_until_they_are_needed() {
        let folder = model();
        let path = folder.path().join("model");
        fs::remove_file(path.join("model.safetensors")).unwrap();
        let opened = ModelFolder::open(&path).unwrap();
        assert!(matches!(opened.weights(), Err(CheckpointError::NoWeights { .. })));
    }

    #[test]
    fn every_contradiction_between_files_is_refused_by_name() {
        let ids =
            [("image_token_id", "the image token"), ("vision_start_token_id", "the token before an image")];
        for (key, setting) in ids {
            let folder = model();
            let path = folder.path().join("model");
            let mut right = Value::Null;
            edit(&path.join("config.json"), |config| right = std::mem::replace(&mut config[key], json!(3)));
            let error = ModelFolder::open(&path).err().unwrap().to_string();
            let expected = format!("{setting} is 3 in config.json, but {right} in tokenizer.json");
            assert!(error.contains(&expected), "{error}");
            assert!(error.starts_with(path.to_str().unwrap()), "{error}");
        }
        for (key, setting, wrong) in [
            ("patch_size", "the patch size is 14", 16),
            ("temporal_patch_size", "the temporal patch size is 2", 1),
            ("merge_size", "the merge size is 2", 1),
        ] {
            let folder = model();
            let path = folder.path().join("model");
            edit(&path.join("preprocessor_config.json"), |settings| settings[key] = json!(wrong));
            let error = ModelFolder::open(&path).err().unwrap().to_string();
            let expected = format!("{setting} in config.json, but {wrong} in the image processor's settings");
            assert!(error.contains(&expected), "{error}");
        }
    }

    #[test]
    fn weights_that_lack_tensors_of_the_config_are_refused_with_their_number() {
        let folder = model();
        let path = folder.path().join("model");
        edit(&path.join("config.json"), |config| {
            let text = config.get_mut("text_config").unwrap();
            let layers = text["num_hidden_layers"].as_u64().unwrap();
            text["num_hidden_layers"] = json!(layers + 1);
        });
        let error = ModelFolder::open(&path).err().unwrap().to_string();
        assert!(error.contains("layers.") && error.contains("more tensors"), "{error}");
    }

    #[test]
    fn a_token_that_nothing_uses_need_not_be_stated() {
        let folder = model();
        let path = folder.path().join("model");
        edit(&path.join("config.json"), |config| {
            config.as_object_mut().unwrap().remove("vision_end_token_id");
        });
        ModelFolder::open(&path).unwrap();
    }

    #[test]
    fn a_tokenizer_may_be_smaller_than_the_embedding_and_not_larger() {
        let config = Preset::Tiny.model_config().unwrap();
        let rows = config.text.vocab_size;
        let tokens = |vocabulary| Tokens { image: None, vision_start: None, vocabulary };
        assert_eq!(of_tokens(&config, &tokens(rows - 7)), None);
        assert_eq!(of_tokens(&config, &tokens(rows)), None);
        let difference = of_tokens(&config, &tokens(rows + 1)).unwrap().to_string();
        let expected = format!("the size of the vocabulary is {rows} in config.json, but {} in", rows + 1);
        assert!(difference.starts_with(&expected), "{difference}");
    }

    #[test]
    fn patches_are_normalised_as_the_processor_says() {
        let config = Preset::Tiny.model_config().unwrap();
        assert_eq!(of_patches(&config.vision, &ProcessorConfig::default()), None);
        let other = ProcessorConfig { mean: [0.5; 3], ..ProcessorConfig::default() };
        let difference = of_patches(&config.vision, &other).unwrap();
        assert_eq!(difference.setting, "the mean of the channels");
        let other = ProcessorConfig { std: [0.5; 3], ..ProcessorConfig::default() };
        assert_eq!(of_patches(&config.vision, &other).unwrap().other.1, "[0.5, 0.5, 0.5]");
    }
}
