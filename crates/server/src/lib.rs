//! A server of fine-tuning jobs: OpenAI's API and pages, over jobs that run in processes of their own.
//!
//! [`serve`] takes a [`ServeConfig`] and answers requests until it is told to end. A job is a folder below the data
//! folder and a process beside the server; the database is only an index over these folders. The server itself
//! computes nothing, so its memory stays where it was after its first request.

mod api;
mod app;
mod budget;
mod chat;
mod config;
mod connections;
mod data_dir;
mod energy;
mod files;
mod guard;
mod helper;
mod id;
mod job;
mod listen;
mod models;
mod notify;
mod pages;
mod serve;
mod store;
mod unstalled;
mod webhook;

/// Named keys of a data folder: added, listed, revoked, with a server running there or without.
pub mod keys {
    pub use crate::guard::keys::{KeyInfo, KeysError, add, list, revoke};
}

pub use config::{Runner, ServeConfig};
pub use data_dir::DataDirError;
pub use job::keeper::{KeepError, KeepOrders, keep};
pub use job::planner::plan_job;
pub use job::runner::ENDS_WITH_STDIN;
pub use serve::{Listening, ServeError, run, serve};
pub use store::StoreError;
