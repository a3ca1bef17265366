//! Qwen2.5-VL, from the files of a model folder to trained adapters.
//!
//! Takes a folder in Hugging Face's layout and batches of tokens and patches, and gives losses, gradients,
//! adapters and answers. Every size is taken from `config.json`, and what a file holds is checked against it
//! before any arithmetic happens.
//!
//! The main path: [`ModelConfig::read`] and [`Checkpoint::open`] a folder, [`ModelWeights::load`] it, join it
//! with an [`Adapter`] to a [`Model`], and compute steps in a [`Session`] or answers with a [`Decoder`].
//! [`MemoryPlan`] tells what a session will take; [`init`] makes new models, [`inspect`] looks at folders,
//! and [`TensorFile`] and [`TensorWriter`] read and write safetensors files.
//!
//! ```
//! use garden_model::init::{Plan, Preset};
//! use garden_model::{Checkpoint, ModelConfig, ModelWeights, Precision};
//! use garden_model::{Model, PackedBatch, Recompute, Session, Shapes};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("tiny");
//! Plan::new(Preset::Tiny)?.write(&path, 1, |_| {})?;
//!
//! let config = ModelConfig::read(&path)?;
//! let weights = ModelWeights::load(&Checkpoint::open(&path)?, &config, Precision::AsStored, |_| {})?;
//! let model = Model::frozen(config, weights);
//! let shapes = Shapes { tokens: 4, patches: 0, labels: 3 };
//! let mut session = Session::new(&model, shapes, Recompute::Never)?;
//!
//! let (ids, labels) = ([5, 6, 7, 8], [-100, 6, 7, 8]);
//! let batch = PackedBatch { ids: &ids, labels: &labels, segments: &[0, 4], patches: &[], grids: &[] };
//! let sums = session.evaluate(&model, &batch)?;
//! assert_eq!(sums.tokens, 3);
//! // A fresh model has no favourites: each token costs about the logarithm of the vocabulary.
//! let vocabulary = model.config().text.vocab_size as f64;
//! assert!((sums.loss / 3.0 - vocabulary.ln()).abs() < 0.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adapter_file;
mod checkpoint;
mod compute;
mod config;
#[cfg(test)]
mod grid_tests;
mod held;
mod inspection;
mod lora;
mod new_model;
mod parameters;
mod positions;
mod random;
mod sample;
mod tensor_file;
mod weights;
mod windows;

// The files of a model folder.
pub use checkpoint::{Checkpoint, CheckpointError, Located};
pub use config::{
    CHANNEL_DEVIATION, CHANNEL_MEAN, ConfigError, ModelConfig, Quantization, TextConfig, VisionConfig,
};
pub use tensor_file::{
    Dtype, TensorEntry, TensorFile, TensorFileError, TensorSpec, TensorWriter, first_not_finite,
};

// Every matrix and vector that a configuration asks for.
pub use parameters::{Linear, MatrixShape, Parameter, Part, Role, parameters};

// Weights in memory, and the bytes they take.
pub use held::Held;
pub use weights::{
    LinearWeights, MlpWeights, ModelWeights, Precision, TextLayerWeights, TextWeights, VisionBlockWeights,
    VisionWeights, read_matrix,
};

// Adapters, and their two files.
pub use adapter_file::{AdapterError, CONFIG as ADAPTER_CONFIG, WEIGHTS as ADAPTER_WEIGHTS};
pub use lora::{Adapter, LayerGroups, LoraError, LoraPair, LoraSettings, target_pattern};

// Steps: forward and backward in one planned arena.
pub use compute::{
    BatchError, LossSums, Model, PackedBatch, Recompute, Session, SessionError, Shapes, Stage,
    TrainableTensor,
};
pub use positions::{Grid, PositionError};

// The memory of a session, before it is taken.
pub use compute::{MemoryPlan, PlanError, PlanRequest, trained_shapes};

// Answers, a token at a time.
pub use compute::{BatchDecoder, Decoder, DecoderRoom, PromptImage, SequenceId, SequenceUse};
pub use sample::{LogProbabilities, SampleError, Sampler};

/// New models with random weights, in folders that Hugging Face loads as they are.
pub mod init {
    pub use crate::new_model::{InitError, NewModel, Plan, Preset};
}

/// What a checkpoint, an adapter or a file of tensors is, and what is wrong with it.
pub mod inspect {
    pub use crate::inspection::{
        AdapterReport, FileReport, InspectError, ModelReport, PartReport, Report, Sizes, inspect,
    };
}
