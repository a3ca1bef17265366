//! What the tests of whole runs share: a tiny model and a few rows with images.

use garden_data::{CreateKind, CreateOptions, create_dataset};
use garden_model::init::{Plan, Preset};
use garden_train::{RunConfig, TrainOptions};
use std::path::PathBuf;

/// Steps of a run with the options of [`Garden::config`].
pub const STEPS: u64 = 5;
const ROWS: u64 = 20;
const SIDE: u32 = 56;

/// A folder with a model and rows.
pub struct Garden {
    folder: tempfile::TempDir,
}

impl Garden {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Plan::new(Preset::Tiny).unwrap().write(&folder.path().join("model"), 1, |_| {}).unwrap();
        let options = CreateOptions {
            kind: CreateKind::Colours,
            rows: ROWS,
            width: SIDE,
            height: SIDE,
            seed: 1,
            workers: 1,
        };
        create_dataset(&folder.path().join("rows"), &options, &()).unwrap();
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A short run with two rows a batch and two batches a step, over these options.
    pub fn config(&self, output: &str, options: TrainOptions) -> RunConfig {
        let text = |name: &str| Some(self.path(name).to_string_lossy().into_owned());
        let short = TrainOptions {
            base_model: text("model"),
            dataset: text("rows"),
            output_dir: Some(self.path(output)),
            batch_size: Some(2),
            gradient_accumulation_steps: Some(2),
            max_steps: Some(STEPS),
            lora_r: Some(4),
            lora_dropout: Some(0.1),
            logging_steps: Some(2),
            ..TrainOptions::default()
        };
        RunConfig::resolve(options.over(short)).unwrap()
    }

    /// The bytes of a finished run's adapter.
    pub fn adapter(&self, output: &str) -> Vec<u8> {
        std::fs::read(self.path(output).join("adapter_model.safetensors")).unwrap()
    }
}
