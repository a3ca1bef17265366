//! Fine-tuning runs: a trainer whose memory is flat, whose checkpoints resume exactly, and which says so at the end.
//!
//! In come a model, a dataset and settings; out come an adapter with its logs, report and memory verdict. The crate
//! joins the model, the data and the memory half; it holds no arithmetic besides the optimizer's.

mod announce;
mod cancel;
pub mod checkpoint;
pub mod config;
pub mod demo;
pub mod events;
mod folders;
pub mod generate;
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
pub mod selective_loss;
pub mod trainer;

pub use cancel::Cancel;
pub use events::{Event, Observer};
pub use garden_engine::{Isa, IsaError, return_large_pieces};
pub use model_folder::{Difference, ModelFolder, ModelFolderError};
pub use run::{RunError, RunReport, train};

#[cfg(test)]
mod testing;
