//! What a worker must know before it is ready: `run.json`, without secrets.
//!
//! Takes the settings of a run and writes them, with the adapter that training begins with, into a folder
//! that only this user can read. The adapter is the native engine's: both engines begin with the same values.

use crate::{
    config::{Checkpointing, Engine, Method, Precision, RunConfig},
    model_folder::ModelFolder,
    optimizer::{AdamSettings, OptimizerKind},
    run::{RunError, first_adapter},
    schedule::{Schedule, Shape},
};
use garden_model::LoraSettings;
use serde::Serialize;
use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// Version of the messages between this program and the worker.
const PROTOCOL: u32 = 1;
/// The settings' file name.
const RUN: &str = "run.json";
/// The folder of the settings, in the run's.
const PRIVATE: &str = ".worker";

/// A folder that only this user can read, in the run's folder until it is dropped. A run that is killed meanwhile
/// leaves it to the next one, which removes it: in the system's folder for such files nobody would.
#[derive(Debug)]
pub struct PrivateFolder(PathBuf);

impl PrivateFolder {
    /// Makes the folder, empty. The lock of the run's folder keeps others away.
    pub fn make(output: &Path) -> Result<Self, RunError> {
        let path = output.join(PRIVATE);
        let make = || {
            let path = std::path::absolute(&path)?;
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => DirBuilder::new().mode(0o700).create(&path)?,
            }
            Ok(Self(path))
        };
        make().map_err(RunError::io(&path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // What cannot be removed is left to the next run.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The settings of a worker.
#[derive(Debug, Serialize)]
pub struct WorkerSettings<'a> {
    protocol: u32,
    engine: Engine,
    /// The worker ends when this process does.
    parent: u32,
    base: &'a Path,
    method: Method,
    precision: Precision,
    /// A folder in PEFT's layout.
    adapter: Option<PathBuf>,
    /// The settings of that adapter.
    lora: Option<Lora>,
    /// Whether activations are recomputed; nothing if the worker decides.
    recompute: Option<bool>,
    max_steps: u64,
    batch_size: u64,
    max_seq_length: usize,
    learning_rate: f64,
    schedule: Shape,
    warmup_steps: u64,
    optimizer: OptimizerKind,
    adam: AdamSettings,
    max_grad_norm: f64,
    seed: u64,
}

#[derive(Debug, Serialize)]
struct Lora {
    rank: usize,
    alpha: f32,
    dropout: f32,
    rslora: bool,
    target_modules: String,
}

impl From<LoraSettings> for Lora {
    fn from(lora: LoraSettings) -> Self {
        let LoraSettings { rank, alpha, dropout, rslora, target_modules } = lora;
        Self { rank, alpha, dropout, rslora, target_modules }
    }
}

impl<'a> WorkerSettings<'a> {
    /// The settings of a run of so many steps; writes its first adapter into `private`.
    pub fn of(
        config: &RunConfig,
        folder: &'a ModelFolder,
        schedule: &Schedule,
        max_steps: u64,
        private: &Path,
    ) -> Result<Self, RunError> {
        let adapter = match config.method {
            Method::Lora => Some(first_adapter(config, folder.config())?),
            Method::Full => None,
        };
        let place = private.join("adapter");
        if let Some(adapter) = &adapter {
            garden_files::create_folder(&place).map_err(RunError::io(&place))?;
            adapter.write(&place, &config.base_model)?;
        }
        Ok(Self {
            protocol: PROTOCOL,
            engine: config.engine,
            parent: std::process::id(),
            base: folder.path(),
            method: config.method,
            precision: config.precision,
            lora: adapter.as_ref().map(|adapter| adapter.settings.clone().into()),
            adapter: adapter.is_some().then_some(place),
            recompute: match config.memory.checkpointing {
                Checkpointing::On => Some(true),
                Checkpointing::Off => Some(false),
                Checkpointing::Auto => None,
            },
            max_steps,
            batch_size: config.batch_size,
            max_seq_length: config.data.max_seq_length,
            learning_rate: config.learning_rate,
            schedule: config.schedule,
            warmup_steps: schedule.warmup(),
            optimizer: config.optimizer,
            adam: config.adam,
            max_grad_norm: config.max_grad_norm,
            seed: config.seed,
        })
    }

    /// Writes the settings into a folder; gives the file.
    pub fn write(&self, private: &Path) -> Result<PathBuf, RunError> {
        let path = private.join(RUN);
        let text = serde_json::to_vec_pretty(self).map_err(|error| RunError::Other(error.into()))?;
        garden_files::write(&path, &text).map_err(RunError::io(&path))?;
        Ok(path)
    }
}
