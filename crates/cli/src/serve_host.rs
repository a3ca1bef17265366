//! `model-garden serve-host`: the process in which the server has a model answer.

use crate::flags::PrecisionFlags;
use anyhow::Result;
use garden_chat::{
    HostSettings,
    host::{HostOrders, run as host},
};
use std::{path::PathBuf, process::ExitCode};

/// Words of `serve-host`.
#[derive(clap::Args)]
pub struct Args {
    /// The socket that the server listens at.
    #[arg(long)]
    socket: PathBuf,
    /// The model folder.
    #[arg(long)]
    model: PathBuf,
    /// The adapter's folder.
    #[arg(long)]
    adapter: Option<PathBuf>,
    /// What to lay out, as JSON; what suits the model where nothing is said.
    #[arg(long, value_parser = settings)]
    settings: Option<HostSettings>,
    /// Bytes of memory that the process may ask for.
    #[arg(long)]
    limit: Option<u64>,
    #[command(flatten)]
    weights: PrecisionFlags,
}

fn settings(text: &str) -> Result<HostSettings, serde_json::Error> {
    serde_json::from_str(text)
}

/// Answers until the line breaks.
pub fn run(args: Args) -> Result<ExitCode> {
    garden_train::return_large_pieces();
    if let Some(limit) = args.limit {
        garden_chat::host::limit_memory(limit)?;
    }
    let precision = args.weights.precision();
    let Args { socket, model, adapter, settings, .. } = args;
    host(&HostOrders { socket, model, adapter, precision, settings })?;
    Ok(ExitCode::SUCCESS)
}
