//! Qwen2.5-VL, from the files of a checkpoint to trained adapters.
//!
//! In come a folder in Hugging Face's layout and batches of tokens and patches; out come losses, gradients,
//! adapters and text. Every size is taken from `config.json`, and what a file holds is checked against it
//! before any arithmetic happens.

pub mod adapter_file;
pub mod checkpoint;
pub mod compute;
pub mod config;
mod held;
pub mod init;
pub mod inspect;
pub mod lora;
pub mod parameters;
pub mod positions;
pub mod random;
pub mod sample;
pub mod tensor_file;
pub mod weights;
pub mod windows;

pub use checkpoint::Checkpoint;
pub use config::{ConfigError, ModelConfig, TextConfig, VisionConfig};
pub use held::Held;
pub use lora::{Adapter, LayerGroups, LoraPair, LoraSettings};
pub use parameters::{Linear, MatrixShape, Parameter, Part, Role};
pub use weights::{ModelWeights, Precision};
