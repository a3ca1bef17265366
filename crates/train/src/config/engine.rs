//! What computes the steps of a run, and which options each engine follows.
//!
//! An engine in Python gets its batches from this program and its steps from PyTorch. An option is followed
//! by it or refused by name before anything starts: one table says which.

use super::{ConfigError, TrainOptions};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What computes the steps of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Engine {
    /// This program, on the processor.
    #[default]
    Native,
    /// Hugging Face's Trainer and PEFT in a Python process, on a GPU if there is one.
    Transformers,
    /// Unsloth in a Python process, on a GPU.
    Unsloth,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Transformers => "transformers",
            Self::Unsloth => "unsloth",
        })
    }
}

/// Options that an engine in Python does not follow, with the reason.
const REFUSED: [(&str, &str); 2] = [
    ("memory-budget", "it makes no plan that a budget could bound; memory-limit stops the run in time"),
    ("cleanup-every", "it measures the memory of the native engine"),
];

impl Engine {
    /// Whether the steps are computed by a Python process.
    pub fn is_python(self) -> bool {
        self != Self::Native
    }

    /// Refuses options that this engine would not follow.
    pub(super) fn check(self, options: &TrainOptions) -> Result<(), ConfigError> {
        if !self.is_python() {
            return match options.python {
                Some(_) => Err(ConfigError::Needs {
                    setting: "python",
                    any_of: &["engine transformers", "engine unsloth"],
                }),
                None => Ok(()),
            };
        }
        // What was not given is not written.
        let given = serde_json::to_value(options).unwrap_or_default();
        match REFUSED.iter().find(|(setting, _)| given.get(setting).is_some()) {
            Some(&(setting, reason)) => Err(ConfigError::NotFollowed { setting, engine: self, reason }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RunConfig, config::Checkpointing};

    /// Options that engines in Python follow. The first group is followed by the code that all engines share.
    const FOLLOWED: &[&[&str]] = &[
        // Rows, lengths, logs, checkpoints and the monitor.
        &["dataset", "add_dataset", "dataset_weights", "output_dir", "split", "eval_dataset", "eval_split"],
        &["epochs", "max_steps", "batch_size", "gradient_accumulation_steps", "max_seq_length"],
        &["learning_rate", "lr_scheduler_type", "warmup_steps", "warmup_ratio", "seed"],
        &["train_on", "on_bad_row", "on_long_row", "max_bad_rows", "min_pixels", "max_pixels", "image_root"],
        &["allow_remote_images", "columns", "dataloader_num_workers", "prefetch_bytes"],
        &["selective_loss", "selective_loss_keys", "selective_loss_start_epoch"],
        &["memory_every", "memory_limit", "on_memory_limit", "logging_steps", "eval_strategy", "eval_steps"],
        &["save_steps", "save_total_limit", "resume", "early_stopping_patience", "report_to"],
        // The adapter that training begins with is written for PEFT to read.
        &["adapter", "lora_r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules"],
        &["finetune_vision_layers", "finetune_language_layers"],
        &["finetune_attention_modules", "finetune_mlp_modules"],
        // What the worker itself reads.
        &["engine", "python", "base_model", "method", "load_in_4bit", "load_in_8bit", "load_in_16bit"],
        &["optim", "weight_decay", "max_grad_norm", "adam_beta1", "adam_beta2", "adam_epsilon"],
        &["gradient_checkpointing"],
    ];

    #[test]
    fn every_option_is_followed_or_refused_by_an_engine_in_python() {
        let refused = REFUSED.iter().map(|(setting, _)| setting.replace('-', "_"));
        let mut listed: Vec<String> =
            FOLLOWED.concat().into_iter().map(str::to_owned).chain(refused).collect();
        listed.sort_unstable();
        let mut all: Vec<String> = TrainOptions::KEYS.iter().map(|key| (*key).to_owned()).collect();
        all.sort_unstable();
        assert_eq!(listed, all, "say in the table of config/engine.rs what a Python engine does with it");
    }

    fn options(engine: Engine) -> TrainOptions {
        TrainOptions {
            base_model: Some("model".into()),
            dataset: Some("rows".into()),
            output_dir: Some("out".into()),
            engine: Some(engine),
            ..TrainOptions::default()
        }
    }

    #[test]
    fn what_cannot_be_followed_is_refused_by_name_and_the_rest_is_taken() {
        let size = Some("1GB".parse().unwrap());
        for engine in [Engine::Transformers, Engine::Unsloth] {
            let refused = RunConfig::resolve(TrainOptions { memory_budget: size, ..options(engine) });
            let error = refused.unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("memory-budget is not followed by engine {engine}: ")),
                "{error}"
            );
            let followed = TrainOptions {
                memory_limit: size,
                gradient_checkpointing: Some(Checkpointing::On),
                python: Some("/usr/bin/python3".into()),
                ..options(engine)
            };
            assert_eq!(RunConfig::resolve(followed).unwrap().engine, engine);
        }
        RunConfig::resolve(TrainOptions { memory_budget: size, ..options(Engine::Native) }).unwrap();
    }

    #[test]
    fn an_interpreter_means_nothing_to_the_native_engine() {
        let python = TrainOptions { python: Some("python3".into()), ..options(Engine::Native) };
        let error = RunConfig::resolve(python).unwrap_err().to_string();
        assert_eq!(error, "python needs engine transformers or engine unsloth");
    }
}
