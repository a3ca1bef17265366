//! Fine-tuning jobs: asked for, planned, queued, run in processes of their own, and never lost.
//!
//! The truth of a job is its folder. One thread, the [`manager`], owns every job that is not over; requests are
//! messages to it.

pub(crate) mod blame;
pub(crate) mod ending;
pub(crate) mod folder;
pub(crate) mod journal;
pub(crate) mod keeper;
pub(crate) mod manager;
pub(crate) mod names;
pub(crate) mod planner;
pub(crate) mod progress;
pub(crate) mod record;
pub(crate) mod request;
pub(crate) mod results;
pub(crate) mod runner;
pub(crate) mod settings;
pub(crate) mod words;
