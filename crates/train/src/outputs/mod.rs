//! What a run leaves beside its adapter: metrics, event files, a model card, a report.
//!
//! Takes the state and the logs of a run and writes files that other tools read. Files that are replaced are
//! written under another name first, synced and renamed.

pub mod loggers;
pub mod metrics;
pub mod mlflow;
pub mod report;
pub mod summary;
pub mod tensorboard;
