//! Engines in Python: the steps of a run, computed by PyTorch in a worker process.
//!
//! This program keeps everything else: it surveys and encodes the rows, decides when to log, evaluate, save
//! and end, and watches the memory. The worker (`python -m model_garden.worker`) is given the batches of one
//! step at a time and answers with its loss. It ends with this process, however this process ends.

mod death;
mod find;
mod learner;
mod settings;
mod worker;

pub use find::{Interpreter, PythonError};
pub use learner::PythonLearner;
pub use worker::WorkerError;
