//! Fine-tuning runs: a trainer whose memory is flat, whose checkpoints resume exactly, and which says so at the end.
//!
//! In come a model, a dataset and settings; out come an adapter with its logs, report and memory verdict. The crate
//! joins the model, the data and the memory half; it holds no arithmetic besides the optimizer's.

pub mod checkpoint;
pub mod config;
pub mod demo;
mod folders;
pub mod generate;
pub mod interrupt;
pub mod isolate;
pub mod merge;
mod model_folder;
pub mod monitor;
pub mod numbers;
pub mod optimizer;
pub mod outputs;
pub mod plan;
pub mod resume;
pub mod rows;
pub mod run;
pub mod schedule;
pub mod screen;
pub mod selective_loss;
mod supervisor_link;
pub mod trainer;

pub use garden_engine::{Isa, IsaError};
pub use model_folder::{Difference, ModelFolder, ModelFolderError};

#[cfg(test)]
mod testing;
