//! From options to settings: fills in defaults and refuses contradictions.
//!
//! Takes [`TrainOptions`], all of them optional. Gives a [`RunConfig`], or an error with the setting that is
//! wrong and what would be right.

use super::{
    ConfigError, DataConfig, EvalRows, EvalStrategy, LoraConfig, MemoryConfig, Method, Portion, Precision,
    ReportTo, Resume, RunConfig, TrainOptions,
};
use crate::{optimizer::AdamSettings, schedule::Warmup, selective_loss::Level, trainer::When};
use garden_model::Adapter;
use std::{ops::RangeInclusive, path::Path};

// The largest runs: within these, no size in a plan, even of the largest model, comes near what a number can
// hold.
const ROWS_OF_A_BATCH: RangeInclusive<u64> = 1..=4096;
const BATCHES_OF_A_STEP: RangeInclusive<u64> = 1..=1 << 20;
const TOKENS_OF_A_ROW: RangeInclusive<u64> = 1..=1 << 20;
const TIMES_AN_EPOCH: RangeInclusive<u64> = 1..=1000;
const THREADS: RangeInclusive<u64> = 0..=1024;
const PREFETCH_BYTES: RangeInclusive<u64> = 0..=1 << 50;

impl RunConfig {
    /// Fills in defaults and refuses contradictions.
    pub fn resolve(options: TrainOptions) -> Result<Self, ConfigError> {
        let o = options;
        let engine = o.engine.unwrap_or_default();
        engine.check(&o)?;
        let eval_rows = eval_rows(&o)?;
        let has_eval = eval_rows != EvalRows::None;
        let config = Self {
            evaluate: evaluate(&o, has_eval)?,
            portions: portions(&o)?,
            eval_rows,
            precision: precision(&o)?,
            lora: lora(&o)?,
            data: data(&o)?,
            memory: memory(&o)?,
            warmup: warmup(&o)?,
            adam: adam(&o)?,
            base_model: o
                .base_model
                .filter(|name| !name.trim().is_empty())
                .ok_or(ConfigError::Missing("base-model"))?,
            dataset: o.dataset.ok_or(ConfigError::Missing("dataset"))?,
            output_dir: o.output_dir.ok_or(ConfigError::Missing("output-dir"))?,
            engine,
            python: o.python,
            method: o.method.unwrap_or_default(),
            epochs: within("epochs", o.epochs.unwrap_or(3.0), |x| x > 0.0 && x <= 1e6, "a number above 0")?,
            max_steps: o.max_steps.map(|steps| at_least_one("max-steps", steps)).transpose()?,
            batch_size: count("batch-size", o.batch_size.unwrap_or(2), ROWS_OF_A_BATCH)?,
            accumulation: count(
                "gradient-accumulation-steps",
                o.gradient_accumulation_steps.unwrap_or(4),
                BATCHES_OF_A_STEP,
            )?,
            learning_rate: within(
                "learning-rate",
                o.learning_rate.unwrap_or(2e-4),
                |x| x >= 0.0,
                NOT_NEGATIVE,
            )?,
            schedule: o.lr_scheduler_type.unwrap_or_default(),
            optimizer: o.optim.unwrap_or_default(),
            max_grad_norm: within(
                "max-grad-norm",
                o.max_grad_norm.unwrap_or(1.0),
                |x| x >= 0.0,
                NOT_NEGATIVE,
            )?,
            seed: o.seed.unwrap_or(3407),
            logging_steps: at_least_one("logging-steps", o.logging_steps.unwrap_or(10))?,
            save: match o.save_steps {
                Some(steps) => When::Steps(at_least_one("save-steps", steps)?),
                None => When::Epoch,
            },
            save_total_limit: at_least_one("save-total-limit", o.save_total_limit.unwrap_or(2) as u64)?
                as usize,
            resume: match o.resume.as_deref() {
                None | Some("auto") => Resume::Auto,
                Some("never") => Resume::Never,
                Some(path) => Resume::From(path.into()),
            },
            early_stopping_patience: match o.early_stopping_patience {
                Some(_) if !has_eval => {
                    return Err(ConfigError::Needs {
                        setting: "early-stopping-patience",
                        any_of: &["eval-dataset", "eval-split"],
                    });
                }
                patience => patience.map(|n| at_least_one("early-stopping-patience", n)).transpose()?,
            },
            report_to: o
                .report_to
                .unwrap_or_default()
                .into_iter()
                .filter(|to| *to != ReportTo::None)
                .collect(),
        };
        Ok(config)
    }
}

/// The datasets with their weights.
fn portions(o: &TrainOptions) -> Result<Vec<Portion>, ConfigError> {
    let names: Vec<&String> = o.dataset.iter().chain(o.add_dataset.iter().flatten()).collect();
    let weights = o.dataset_weights.clone().unwrap_or_else(|| vec![1; names.len()]);
    if weights.len() != names.len() {
        let value = weights.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let reason = "one whole number for dataset and one for each add-dataset";
        return Err(ConfigError::Value { setting: "dataset-weights", value, reason });
    }
    for weight in &weights {
        count("dataset-weights", *weight, TIMES_AN_EPOCH)?;
    }
    // A row that occurs twice could be trained on and held out at once.
    if o.eval_split.is_some() && weights.iter().any(|weight| *weight > 1) {
        return Err(ConfigError::Conflict("dataset-weights", "eval-split"));
    }
    let portion = |(name, weight): (&String, u64)| Portion { dataset: name.clone(), weight };
    Ok(names.into_iter().zip(weights).map(portion).collect())
}

fn lora(o: &TrainOptions) -> Result<LoraConfig, ConfigError> {
    let fresh = LoraConfig {
        adapter: None,
        r: at_least_one("lora-r", o.lora_r.unwrap_or(16) as u64)? as usize,
        alpha: within("lora-alpha", o.lora_alpha.unwrap_or(16.0), |x| x > 0.0, "a number above 0")?,
        dropout: within(
            "lora-dropout",
            o.lora_dropout.unwrap_or(0.0),
            |x| (0.0..1.0).contains(&x),
            "at least 0 and below 1",
        )?,
        rslora: o.use_rslora.unwrap_or(false),
        target_modules: o.target_modules.clone(),
        vision: o.finetune_vision_layers.unwrap_or(true),
        language: o.finetune_language_layers.unwrap_or(true),
        attention: o.finetune_attention_modules.unwrap_or(true),
        mlp: o.finetune_mlp_modules.unwrap_or(true),
    };
    match &o.adapter {
        Some(_) if o.method == Some(Method::Full) => Err(ConfigError::Conflict("adapter", "method full")),
        Some(adapter) => started_from(adapter, o, fresh),
        None => Ok(fresh),
    }
}

/// The settings of an existing adapter. Its weights mean something only with its own rank, scale and layers;
/// dropout is the run's choice.
fn started_from(adapter: &Path, o: &TrainOptions, fresh: LoraConfig) -> Result<LoraConfig, ConfigError> {
    let switches = [
        ("target-modules", o.target_modules.is_some()),
        ("finetune-vision-layers", o.finetune_vision_layers.is_some()),
        ("finetune-language-layers", o.finetune_language_layers.is_some()),
        ("finetune-attention-modules", o.finetune_attention_modules.is_some()),
        ("finetune-mlp-modules", o.finetune_mlp_modules.is_some()),
    ];
    if let Some((flag, _)) = switches.into_iter().find(|(_, given)| *given) {
        return Err(ConfigError::Conflict(flag, "adapter"));
    }
    garden_data::check_folder(adapter).map_err(|error| ConfigError::Adapter(error.to_string()))?;
    let own =
        Adapter::read_settings_to_train(adapter).map_err(|error| ConfigError::Adapter(error.to_string()))?;
    let alpha = f64::from(own.alpha);
    let numbers = [
        ("lora-r", o.lora_r.map(|rank| rank as f64), own.rank as f64),
        ("lora-alpha", o.lora_alpha, alpha),
        ("use-rslora", o.use_rslora.map(f64::from), f64::from(own.rslora)),
    ];
    for (flag, asked, has) in numbers {
        if let Some(asked) = asked.filter(|asked| *asked != has) {
            let [asked, has] = [asked, has].map(|value| match flag {
                "use-rslora" => (value != 0.0).to_string(),
                _ => value.to_string(),
            });
            return Err(ConfigError::AdapterHas { setting: flag, asked, adapter: adapter.to_owned(), has });
        }
    }
    Ok(LoraConfig {
        adapter: Some(adapter.to_owned()),
        r: own.rank,
        alpha,
        dropout: o.lora_dropout.unwrap_or(f64::from(own.dropout)),
        rslora: own.rslora,
        target_modules: Some(own.target_modules),
        ..fresh
    })
}

fn data(o: &TrainOptions) -> Result<DataConfig, ConfigError> {
    let keys = |text: &String| {
        text.split(',').map(|key| key.trim().to_owned()).filter(|key| !key.is_empty()).collect()
    };
    let selective_loss = o.selective_loss.unwrap_or_default();
    if o.selective_loss_keys.is_some() && selective_loss != Level::Aggressive {
        return Err(ConfigError::Needs {
            setting: "selective-loss-keys",
            any_of: &["selective-loss aggressive"],
        });
    }
    Ok(DataConfig {
        train_on: o.train_on.unwrap_or_default(),
        on_bad_row: o.on_bad_row.unwrap_or_default(),
        on_long_row: o.on_long_row.unwrap_or_default(),
        max_bad_share: match o.max_bad_rows.as_deref() {
            None => 0.01,
            Some(text) => share(text).ok_or(ConfigError::Value {
                setting: "max-bad-rows",
                value: text.to_owned(),
                reason: "a share such as 1%",
            })?,
        },
        min_pixels: o.min_pixels,
        max_pixels: o.max_pixels,
        split: o.split.clone(),
        image_roots: o.image_root.clone().unwrap_or_default(),
        allow_remote_images: o.allow_remote_images.unwrap_or(false),
        columns: o.columns.clone().unwrap_or_default(),
        workers: o
            .dataloader_num_workers
            .map(|threads| count("dataloader-num-workers", threads, THREADS))
            .transpose()?,
        prefetch_bytes: o
            .prefetch_bytes
            .map(|size| count("prefetch-bytes", size.0, PREFETCH_BYTES))
            .transpose()?,
        max_seq_length: count("max-seq-length", o.max_seq_length.unwrap_or(2048), TOKENS_OF_A_ROW)?,
        selective_loss,
        selective_loss_keys: o.selective_loss_keys.as_ref().map(keys),
        selective_loss_start_epoch: o.selective_loss_start_epoch.unwrap_or(0),
    })
}

fn memory(o: &TrainOptions) -> Result<MemoryConfig, ConfigError> {
    Ok(MemoryConfig {
        budget: o.memory_budget.map(|size| size.0),
        checkpointing: o.gradient_checkpointing.unwrap_or_default(),
        every: at_least_one("memory-every", o.memory_every.unwrap_or(10))?,
        limit: o.memory_limit.map(|size| size.0),
        on_limit: o.on_memory_limit.unwrap_or_default(),
        cleanup_every: o.cleanup_every.unwrap_or(0),
    })
}

fn adam(o: &TrainOptions) -> Result<AdamSettings, ConfigError> {
    let beta = |flag, value| within(flag, value, |x| (0.0..1.0).contains(&x), "at least 0 and below 1");
    Ok(AdamSettings {
        beta1: beta("adam-beta1", o.adam_beta1.unwrap_or(0.9))?,
        beta2: beta("adam-beta2", o.adam_beta2.unwrap_or(0.999))?,
        epsilon: within("adam-epsilon", o.adam_epsilon.unwrap_or(1e-8), |x| x > 0.0, "a number above 0")?,
        weight_decay: within("weight-decay", o.weight_decay.unwrap_or(0.01), |x| x >= 0.0, NOT_NEGATIVE)?,
    })
}

fn warmup(o: &TrainOptions) -> Result<Warmup, ConfigError> {
    match (o.warmup_steps, o.warmup_ratio) {
        (Some(_), Some(_)) => Err(ConfigError::Conflict("warmup-steps", "warmup-ratio")),
        (_, Some(ratio)) => Ok(Warmup::Ratio(within(
            "warmup-ratio",
            ratio,
            |x| (0.0..1.0).contains(&x),
            "at least 0 and below 1",
        )?)),
        (steps, None) => Ok(Warmup::Steps(steps.unwrap_or(0))),
    }
}

fn precision(o: &TrainOptions) -> Result<Precision, ConfigError> {
    let asked: Vec<_> = [
        ("load-in-4bit", o.load_in_4bit, Precision::FourBit),
        ("load-in-8bit", o.load_in_8bit, Precision::EightBit),
        ("load-in-16bit", o.load_in_16bit, Precision::SixteenBit),
    ]
    .into_iter()
    .filter(|(_, asked, _)| *asked == Some(true))
    .collect();
    match asked.as_slice() {
        [] => Ok(Precision::AsStored),
        [(flag, _, precision)] if o.method == Some(Method::Full) && *precision != Precision::SixteenBit => {
            Err(ConfigError::Conflict(flag, "method full"))
        }
        [(_, _, precision)] => Ok(*precision),
        [(first, ..), (second, ..), ..] => Err(ConfigError::Conflict(first, second)),
    }
}

fn eval_rows(o: &TrainOptions) -> Result<EvalRows, ConfigError> {
    let dataset = |name: &String, split| EvalRows::Dataset { name: name.clone(), split };
    let Some(text) = &o.eval_split else {
        return Ok(o.eval_dataset.as_ref().map_or(EvalRows::None, |name| dataset(name, None)));
    };
    // The name of a split begins with a letter; a number does not.
    let is_name = text.starts_with(|first: char| first.is_alphabetic());
    match &o.eval_dataset {
        Some(name) if is_name => Ok(dataset(name, Some(text.clone()))),
        Some(_) => Err(ConfigError::Conflict("eval-dataset", "eval-split")),
        None if is_name => Ok(EvalRows::Split(text.clone())),
        None => {
            let count = || text.parse::<u64>().ok().filter(|count| *count > 0).map(EvalRows::Count);
            let by_share = share(text).filter(|share| *share > 0.0 && *share < 1.0).map(EvalRows::Share);
            count().or(by_share).ok_or(ConfigError::Value {
                setting: "eval-split",
                value: text.clone(),
                reason: "a share such as 5% or 0.05, a number of rows, or the name of a split",
            })
        }
    }
}

fn evaluate(o: &TrainOptions, has_eval: bool) -> Result<When, ConfigError> {
    let needs = Err(ConfigError::Needs { setting: "eval-strategy", any_of: &["eval-dataset", "eval-split"] });
    match o.eval_strategy {
        Some(EvalStrategy::No) => Ok(When::Never),
        Some(_) if !has_eval => needs,
        Some(EvalStrategy::Steps) => match o.eval_steps {
            Some(steps) => Ok(When::Steps(at_least_one("eval-steps", steps)?)),
            None => Err(ConfigError::Needs { setting: "eval-strategy steps", any_of: &["eval-steps"] }),
        },
        None if has_eval && o.eval_steps.is_some() => {
            Ok(When::Steps(at_least_one("eval-steps", o.eval_steps.unwrap_or(1))?))
        }
        None if !has_eval => Ok(When::Never),
        Some(EvalStrategy::Epoch) | None => Ok(When::Epoch),
    }
}

/// Reads `5%` or `0.05`.
fn share(text: &str) -> Option<f64> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().ok()? / 100.0,
        None => text.parse().ok()?,
    };
    (0.0..=1.0).contains(&share).then_some(share)
}

fn at_least_one(setting: &'static str, value: u64) -> Result<u64, ConfigError> {
    if value >= 1 {
        Ok(value)
    } else {
        Err(ConfigError::Value { setting, value: "0".into(), reason: "at least 1" })
    }
}

fn count<N>(setting: &'static str, value: N, accepted: RangeInclusive<u64>) -> Result<N, ConfigError>
where
    N: Copy + TryInto<u64>,
{
    let number = value.try_into().unwrap_or(u64::MAX);
    let (least, most) = accepted.into_inner();
    if (least..=most).contains(&number) {
        Ok(value)
    } else {
        Err(ConfigError::Count { setting, value: number, least, most })
    }
}

/// What a rate, a norm or a decay must be.
const NOT_NEGATIVE: &str = "a number that is neither negative nor infinite";

fn within(
    setting: &'static str,
    value: f64,
    holds: impl Fn(f64) -> bool,
    reason: &'static str,
) -> Result<f64, ConfigError> {
    let good = value.is_finite() && holds(value);
    if good { Ok(value) } else { Err(ConfigError::Value { setting, value: value.to_string(), reason }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_memory::ByteSize;

    fn minimal() -> TrainOptions {
        TrainOptions {
            base_model: Some("model".into()),
            dataset: Some("rows.jsonl".into()),
            output_dir: Some("out".into()),
            ..TrainOptions::default()
        }
    }

    #[test]
    fn three_options_are_enough() {
        let config = RunConfig::resolve(minimal()).unwrap();
        assert_eq!((config.batch_size, config.accumulation, config.lora.r), (2, 4, 16));
        assert_eq!((config.resume, config.evaluate), (Resume::Auto, When::Never));
    }

    #[test]
    fn contradictions_name_the_flags() {
        type Change = fn(&mut TrainOptions);
        let cases: [(Change, &str); 22] = [
            (|o| o.base_model = Some(" ".into()), "base-model is needed"),
            (|o| o.learning_rate = Some(f64::INFINITY), "learning-rate inf: a number that is neither"),
            (|o| o.dataset = None, "dataset is needed"),
            (|o| o.max_steps = Some(0), "max-steps 0: at least 1"),
            (|o| o.batch_size = Some(0), "batch-size 0: from 1 to 4096"),
            (|o| o.batch_size = Some(1 << 32), "batch-size 4294967296: from 1 to 4096"),
            (|o| o.max_seq_length = Some(1 << 32), "max-seq-length 4294967296: from 1 to 1048576"),
            (|o| o.dataloader_num_workers = Some(4000), "dataloader-num-workers 4000: from 0 to 1024"),
            (|o| o.prefetch_bytes = Some(ByteSize(u64::MAX)), "prefetch-bytes 18446744073709551615"),
            (|o| o.learning_rate = Some(f64::NAN), "learning-rate NaN"),
            (|o| o.adam_beta1 = Some(1.0), "adam-beta1 1: at least 0 and below 1"),
            (
                |o| (o.load_in_4bit, o.load_in_8bit) = (Some(true), Some(true)),
                "load-in-4bit and load-in-8bit",
            ),
            (
                |o| (o.load_in_4bit, o.method) = (Some(true), Some(Method::Full)),
                "load-in-4bit and method full",
            ),
            (|o| (o.warmup_steps, o.warmup_ratio) = (Some(1), Some(0.1)), "warmup-steps and warmup-ratio"),
            (|o| o.eval_split = Some("150%".into()), "eval-split 150%"),
            (|o| o.early_stopping_patience = Some(2), "early-stopping-patience needs eval-dataset"),
            (|o| o.eval_strategy = Some(EvalStrategy::Epoch), "eval-strategy needs"),
            (
                |o| o.selective_loss_keys = Some("a".into()),
                "selective-loss-keys needs selective-loss aggressive",
            ),
            (|o| o.dataset_weights = Some(vec![2, 1]), "dataset-weights 2,1: one whole number for dataset"),
            (|o| o.dataset_weights = Some(vec![0]), "dataset-weights 0: from 1 to 1000"),
            (
                |o| (o.dataset_weights, o.eval_split) = (Some(vec![2]), Some("5%".into())),
                "dataset-weights and eval-split exclude each other",
            ),
            (|o| o.max_bad_rows = Some("many".into()), "max-bad-rows many: a share such as 1%"),
        ];
        for (change, message) in cases {
            let mut options = minimal();
            change(&mut options);
            let error = RunConfig::resolve(options).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error:?} should start with {message:?}");
        }
    }

    #[test]
    fn a_split_is_a_share_or_a_number() {
        let split = |text: &str| {
            let options = TrainOptions { eval_split: Some(text.into()), ..minimal() };
            RunConfig::resolve(options).unwrap().eval_rows
        };
        assert_eq!(split("5%"), EvalRows::Share(0.05));
        assert_eq!(split("0.25"), EvalRows::Share(0.25));
        assert_eq!(split("40"), EvalRows::Count(40));
        assert_eq!(split("validation"), EvalRows::Split("validation".into()));
        let options =
            TrainOptions { eval_dataset: Some("data".into()), eval_split: Some("test".into()), ..minimal() };
        let expected = EvalRows::Dataset { name: "data".into(), split: Some("test".into()) };
        assert_eq!(RunConfig::resolve(options).unwrap().eval_rows, expected);
    }

    /// An adapter's settings as PEFT writes them.
    fn adapter() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"peft_type": "LORA", "r": 8, "lora_alpha": 32, "lora_dropout": 0.1, "target_modules": ["q_proj"]}"#;
        std::fs::write(folder.path().join("adapter_config.json"), text).unwrap();
        folder
    }

    #[test]
    fn a_run_from_an_adapter_has_its_rank_scale_and_layers() {
        let folder = adapter();
        let from = |change: fn(&mut TrainOptions)| {
            let mut options = TrainOptions { adapter: Some(folder.path().into()), ..minimal() };
            change(&mut options);
            RunConfig::resolve(options).map(|config| config.lora).map_err(|error| error.to_string())
        };
        let lora = from(|_| {}).unwrap();
        assert_eq!((lora.r, lora.alpha, lora.rslora), (8, 32.0, false));
        assert!((lora.dropout - 0.1).abs() < 1e-6);
        assert_eq!(lora.settings().unwrap().target_modules, r"(.*\.)?(q_proj)");
        assert_eq!(from(|o| o.lora_dropout = Some(0.0)).unwrap().dropout, 0.0, "a choice of the run");
        assert!(from(|o| o.lora_r = Some(8)).is_ok());
        type Change = fn(&mut TrainOptions);
        let cases: [(Change, &str); 5] = [
            (|o| o.lora_r = Some(16), "lora-r 16 contradicts the adapter "),
            (|o| o.lora_alpha = Some(16.0), "lora-alpha 16 contradicts the adapter "),
            (|o| o.use_rslora = Some(true), "use-rslora true contradicts the adapter "),
            (|o| o.target_modules = Some("v_proj".into()), "target-modules and adapter exclude"),
            (|o| o.method = Some(Method::Full), "adapter and method full exclude"),
        ];
        for (change, message) in cases {
            let error = from(change).unwrap_err();
            assert!(error.starts_with(message), "{error:?} should start with {message:?}");
        }
        std::fs::remove_file(folder.path().join("adapter_config.json")).unwrap();
        let error = from(|_| {}).unwrap_err();
        assert!(error.contains("is no adapter: it has no adapter_config.json; "), "{error}");
        std::fs::remove_dir(folder.path()).unwrap();
        assert!(from(|_| {}).unwrap_err().ends_with(": no such folder"));
    }
}
