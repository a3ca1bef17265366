//! What a user may ask of a run: the flags of `train-vision` and the keys of its configuration file.
//!
//! One set of options serves flags and files; flags win. Everything is optional here: [`super::RunConfig`]
//! has the defaults and the checks.

use super::describe::OptionInfo;
use super::engine::Engine;
use crate::{optimizer::OptimizerKind, schedule::Shape, selective_loss::Level};
use garden_data::{Columns, OnLongRow, TrainOn};
use garden_memory::ByteSize;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Method {
    /// Low-rank adapters beside frozen weights.
    #[default]
    Lora,
    /// All weights; for small models.
    Full,
}

/// When to evaluate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum EvalStrategy {
    /// Never.
    No,
    /// Every --eval-steps steps.
    Steps,
    /// After each epoch.
    Epoch,
}

/// Whether activations are computed again in the backward pass instead of being kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Checkpointing {
    /// As few blocks as the memory budget makes necessary.
    #[default]
    Auto,
    /// Every block.
    On,
    /// No block.
    Off,
}

/// What to do near a memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum OnMemoryLimit {
    /// Write a checkpoint and end with exit code 75.
    #[default]
    CheckpointAndStop,
    /// Say so and go on.
    Warn,
}

/// Where numbers go besides metrics.jsonl.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum ReportTo {
    /// Nowhere else.
    None,
    /// TensorBoard event files in OUTPUT/runs.
    Tensorboard,
    /// The MLflow server named by MLFLOW_TRACKING_URI.
    Mlflow,
}

/// What to do with a row that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum OnBadRow {
    /// Stop and say which row and why.
    #[default]
    Fail,
    /// Leave it out, count it and list it at the end.
    Skip,
}

macro_rules! options {
    ($($heading:literal { $($(#[doc = $doc:literal])+ $(#[arg($($arg:tt)*)])? $name:ident: $type:ty,)+ })+) => {
        /// Every option of a training run.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
        #[cfg_attr(feature = "clap", derive(clap::Args))]
        pub struct TrainOptions {
            $($(
                $(#[doc = $doc])+
                #[serde(skip_serializing_if = "Option::is_none")]
                #[cfg_attr(feature = "clap", arg(long, help_heading = $heading, $($($arg)*)?))]
                pub $name: Option<$type>,
            )+)+
        }

        impl TrainOptions {
            /// The keys that a configuration file may have.
            pub const KEYS: &'static [&'static str] = &[$($(stringify!($name),)+)+];

            /// What each of them is, in the order of the table.
            pub fn describe() -> Vec<OptionInfo> {
                vec![$($(OptionInfo::of::<$type>(stringify!($name), $heading, &[$($doc),+]),)+)+]
            }

            /// These options where they are given, and those of `file` elsewhere.
            pub fn over(self, file: Self) -> Self {
                Self { $($($name: self.$name.or(file.$name),)+)+ }
            }
        }
    };
}

options! {
    "What" {
        /// Folder or hub id of the model to start from.
        #[arg(value_name = "DIR|HUB_ID")]
        base_model: String,
        /// Rows to train on: a file, a folder or a hub id.
        #[arg(value_name = "PATH|HUB_ID")]
        dataset: String,
        /// More rows to train on, mixed with those of --dataset; may be given several times.
        #[arg(value_name = "PATH|HUB_ID")]
        add_dataset: Vec<String>,
        /// How often an epoch sees each row of --dataset and of each --add-dataset, in that order (1 each).
        #[arg(value_delimiter = ',', value_name = "N,...")]
        dataset_weights: Vec<u64>,
        /// Where the adapter, checkpoints, logs and the report go.
        #[arg(value_name = "DIR")]
        output_dir: PathBuf,
        /// Which split of --dataset to train on: train, validation, test, a name, several joined with +, or
        /// all; CONFIG/train where its README has configurations (train, or the files of no split).
        #[arg(value_name = "NAME")]
        split: String,
        /// Rows to evaluate on; of a folder or hub dataset, the validation split or else the test split.
        #[arg(value_name = "PATH|HUB_ID")]
        eval_dataset: String,
        /// Rows to hold out for evaluation, as a share such as 5% or a number; or the split to evaluate on,
        /// such as validation.
        #[arg(value_name = "SHARE|NAME")]
        eval_split: String,
        /// What computes the steps: this program, or PyTorch in a Python process (native).
        engine: Engine,
        /// Interpreter for an engine in Python (that of VIRTUAL_ENV or CONDA_PREFIX, or python3 on PATH).
        #[arg(value_name = "PATH")]
        python: PathBuf,
    }
    "Length" {
        /// Passes over the data (3).
        epochs: f64,
        /// End after this many optimizer steps, whatever --epochs says.
        max_steps: u64,
        /// Rows per forward pass (2).
        batch_size: u64,
        /// Batches per optimizer step (4).
        gradient_accumulation_steps: u64,
        /// Longest row in tokens; longer rows are dropped and counted, see --on-long-row (2048).
        max_seq_length: usize,
    }
    "Learning" {
        /// Peak learning rate (2e-4).
        learning_rate: f64,
        /// How the learning rate changes over the run (linear).
        lr_scheduler_type: Shape,
        /// Warm-up steps (0).
        warmup_steps: u64,
        /// Warm-up as a share of all steps, instead of --warmup-steps.
        #[arg(conflicts_with = "warmup_steps")]
        warmup_ratio: f64,
        /// Optimizer (adamw_8bit).
        optim: OptimizerKind,
        /// Decoupled weight decay (0.01).
        weight_decay: f64,
        /// Largest norm of a gradient; larger ones are scaled down, unless this is 0 (1).
        max_grad_norm: f64,
        /// Decay of the first moment (0.9).
        adam_beta1: f64,
        /// Decay of the second moment (0.999).
        adam_beta2: f64,
        /// Added to the divisor of each update to keep it finite (1e-8).
        adam_epsilon: f64,
        /// Seed of the shuffle, a fresh adapter's weights and dropout (3407).
        seed: u64,
    }
    "Adapter" {
        /// What to train: adapters or all weights (lora).
        method: Method,
        /// Start from this adapter instead of a fresh one; the run takes over its rank, alpha and layers.
        #[arg(value_name = "DIR")]
        adapter: PathBuf,
        /// Rank of the adapters (16).
        lora_r: usize,
        /// Alpha of the adapters, which are scaled by alpha / r (16).
        lora_alpha: f64,
        /// Share of an adapter's inputs set to zero (0).
        lora_dropout: f64,
        /// Scale the adapters by alpha / sqrt(r) instead of alpha / r.
        #[arg(num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
        use_rslora: bool,
        /// Modules to adapt, instead of the four switches below: names (q_proj,v_proj), all-linear, or a
        /// regular expression over whole paths.
        #[arg(value_name = "NAMES|all-linear|REGEX")]
        target_modules: String,
        /// Adapt the vision tower (true).
        #[arg(num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
        finetune_vision_layers: bool,
        /// Adapt the language model (true).
        #[arg(num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
        finetune_language_layers: bool,
        /// Adapt attention (true).
        #[arg(num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
        finetune_attention_modules: bool,
        /// Adapt the MLPs (true).
        #[arg(num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
        finetune_mlp_modules: bool,
        /// Hold frozen weights in 4 bits (NF4).
        #[arg(num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", conflicts_with_all = ["load_in_8bit", "load_in_16bit"])]
        load_in_4bit: bool,
        /// Hold frozen weights in 8 bits.
        #[arg(num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", conflicts_with = "load_in_16bit")]
        load_in_8bit: bool,
        /// Hold frozen weights in 16 bits (bf16). Without any of these three options they stay as they are
        /// stored.
        #[arg(num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
        load_in_16bit: bool,
    }
    "Data" {
        /// Which turns to learn (assistant).
        train_on: TrainOn,
        /// What to do with a bad row (fail).
        on_bad_row: OnBadRow,
        /// What to do with a row longer than --max-seq-length; rows are never cut (drop).
        on_long_row: OnLongRow,
        /// Largest share of bad rows that --on-bad-row skip accepts (1%).
        #[arg(value_name = "SHARE")]
        max_bad_rows: String,
        /// Smallest image area in pixels (the limit in the model folder).
        min_pixels: u64,
        /// Largest image area in pixels (the limit in the model folder).
        max_pixels: u64,
        /// Also let rows read images below this folder, not only below the folder of their file; relative
        /// paths are looked up here first. May be given several times.
        #[arg(value_name = "DIR")]
        image_root: Vec<PathBuf>,
        /// Fetch images from http(s) addresses in the rows.
        #[arg(num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
        allow_remote_images: bool,
        /// What columns mean, where their names do not say it:
        /// image=photo,prompt=question,response=answer.
        #[arg(value_name = "MEANING=COLUMN,...")]
        columns: Columns,
        /// Threads that prepare batches (one per core).
        dataloader_num_workers: usize,
        /// Most memory for batches prepared ahead (that of four batches).
        #[arg(value_name = "SIZE")]
        prefetch_bytes: ByteSize,
        /// How much of the JSON layout to leave out of the loss (none).
        selective_loss: Level,
        /// Keys that `aggressive` masks, comma-separated (those found in the first rows).
        #[arg(value_name = "KEYS")]
        selective_loss_keys: String,
        /// First epoch with selective loss, counted from 0 (0).
        selective_loss_start_epoch: u64,
    }
    "Memory" {
        /// Memory for the whole run; blocks are recomputed until the run fits.
        #[arg(value_name = "SIZE")]
        memory_budget: ByteSize,
        /// Whether to recompute activations (auto).
        gradient_checkpointing: Checkpointing,
        /// Steps between memory samples (10).
        memory_every: u64,
        /// Memory that must not be exceeded; the limits of the cgroup and of the machine always count.
        #[arg(value_name = "SIZE")]
        memory_limit: ByteSize,
        /// What to do before a limit is reached (checkpoint-and-stop).
        on_memory_limit: OnMemoryLimit,
        /// Steps between clean-ups of memory, for measurements; a run needs none (0).
        cleanup_every: u64,
    }
    "Log" {
        /// Steps between logs (10).
        logging_steps: u64,
        /// When to evaluate (epoch, if there are rows to evaluate on).
        eval_strategy: EvalStrategy,
        /// Steps between evaluations with --eval-strategy steps.
        eval_steps: u64,
        /// Steps between checkpoints (one at the end of each epoch).
        save_steps: u64,
        /// Checkpoints to keep, besides the best (2).
        save_total_limit: usize,
        /// Which checkpoint to continue from: auto for the newest whole one, a checkpoint's folder, or never
        /// (auto).
        #[arg(value_name = "auto|PATH|never")]
        resume: String,
        /// End after this many evaluations without improvement; the best adapter is then the result.
        early_stopping_patience: u64,
        /// Where to send numbers besides metrics.jsonl (none).
        #[arg(value_delimiter = ',')]
        report_to: Vec<ReportTo>,
    }
}
