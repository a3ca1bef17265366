//! Which settings make a run what it is: one table.
//!
//! Every option of a run has a row in [`SETTINGS`]. When a run resumes, the option must be the same; or it
//! may change, and the change is announced; or it has no effect on what is learned.

use crate::config::{EvalRows, LoraConfig, Method, Precision, RunConfig};
use garden_engine::Isa;
use garden_memory::counted;
use serde::Serialize;
use std::{collections::BTreeMap, fmt};

/// What happens if a setting differs from the checkpoint's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// It would be another run. Holds the reason, as the end of a sentence.
    Fixed(&'static str),
    /// The run goes on, and the change is announced.
    Told,
    /// It does not change what is learned, or it is compared in another way.
    Free,
}

/// One row of the table: an option by its key, or what several options make together.
pub(super) struct Setting {
    pub name: &'static str,
    pub rule: Rule,
    value: fn(&RunConfig) -> String,
}

const fn fixed(name: &'static str, reason: &'static str, value: fn(&RunConfig) -> String) -> Setting {
    Setting { name, rule: Rule::Fixed(reason), value }
}

const fn told(name: &'static str, value: fn(&RunConfig) -> String) -> Setting {
    Setting { name, rule: Rule::Told, value }
}

const fn free(name: &'static str) -> Setting {
    Setting { name, rule: Rule::Free, value: |_| String::new() }
}

/// What messages call the rows of a step; not an option of its own.
const ROWS_OF_A_STEP: &str = "batch-size x gradient-accumulation-steps";
/// The instructions that the processor computes with; not an option either. Others round sums at other
/// places.
const INSTRUCTIONS: &str = "vector-instructions";

const STEPS: &str = "a step would be of another size, and the schedule counts steps";
const ROWS: &str = "other rows would be used";
const MIXED: &str = "other rows would be used; each dataset has a weight";
const LABELS: &str = "other tokens would be learned";
const IMAGES: &str = "images would have other sizes";
const TRAINED: &str = "other values are trained";
const HELD: &str = "the frozen weights would differ";
const OPTIMIZER: &str = "the optimizer's state is of another kind";
const ORDER: &str = "the order of rows and the dropout would differ";
const JUDGED: &str = "it would be judged by rows that it has learned";

/// Every option of a run.
pub(super) const SETTINGS: &[Setting] = &[
    // A folder may have moved: its contents are compared.
    told("base_model", |c| c.base_model.clone()),
    told("dataset", |c| c.dataset.clone()),
    told("add_dataset", |c| {
        // The first is the dataset itself.
        c.portions.iter().skip(1).map(|portion| portion.dataset.clone()).collect::<Vec<_>>().join(",")
    }),
    fixed("dataset_weights", MIXED, |c| {
        c.portions.iter().map(|portion| portion.weight.to_string()).collect::<Vec<_>>().join(",")
    }),
    // The rows themselves are compared.
    told("split", |c| word(&c.data.split)),
    free("output_dir"),
    // May change: fixing a row of a separate evaluation set must not block resuming.
    told("eval_dataset", |c| match &c.eval_rows {
        EvalRows::Dataset { name, .. } => name.clone(),
        _ => NONE.to_owned(),
    }),
    fixed("eval_split", JUDGED, |c| match &c.eval_rows {
        EvalRows::Share(share) => format!("{}%", 100.0 * share),
        EvalRows::Count(rows) => counted(*rows, "row"),
        EvalRows::Split(name) | EvalRows::Dataset { split: Some(name), .. } => name.clone(),
        EvalRows::None | EvalRows::Dataset { split: None, .. } => NONE.to_owned(),
    }),
    fixed("engine", OPTIMIZER, |c| c.engine.to_string()),
    free("python"),
    told("epochs", |c| c.epochs.to_string()),
    told("max_steps", |c| word(&c.max_steps)),
    fixed(ROWS_OF_A_STEP, STEPS, |c| counted(c.batch_size * c.accumulation, "row")),
    told("batch_size", |c| c.batch_size.to_string()),
    told("gradient_accumulation_steps", |c| c.accumulation.to_string()),
    fixed("max_seq_length", ROWS, |c| c.data.max_seq_length.to_string()),
    told("learning_rate", |c| c.learning_rate.to_string()),
    told("lr_scheduler_type", |c| word(&c.schedule)),
    told("warmup_steps", |c| match c.warmup {
        crate::schedule::Warmup::Steps(steps) => steps.to_string(),
        crate::schedule::Warmup::Ratio(_) => NONE.to_owned(),
    }),
    told("warmup_ratio", |c| match c.warmup {
        crate::schedule::Warmup::Ratio(ratio) => ratio.to_string(),
        crate::schedule::Warmup::Steps(_) => NONE.to_owned(),
    }),
    fixed("optim", OPTIMIZER, |c| word(&c.optimizer)),
    told("weight_decay", |c| c.adam.weight_decay.to_string()),
    told("max_grad_norm", |c| c.max_grad_norm.to_string()),
    told("adam_beta1", |c| c.adam.beta1.to_string()),
    told("adam_beta2", |c| c.adam.beta2.to_string()),
    told("adam_epsilon", |c| c.adam.epsilon.to_string()),
    fixed("seed", ORDER, |c| c.seed.to_string()),
    fixed("method", TRAINED, |c| word(&c.method)),
    // Its weights were only the start; the run goes on with those of the checkpoint.
    told("adapter", |c| lora(c, |lora| word(&lora.adapter))),
    fixed("lora_r", TRAINED, |c| lora(c, |lora| lora.r.to_string())),
    fixed("lora_alpha", TRAINED, |c| lora(c, |lora| lora.alpha.to_string())),
    fixed("lora_dropout", TRAINED, |c| lora(c, |lora| lora.dropout.to_string())),
    fixed("use_rslora", TRAINED, |c| lora(c, |lora| lora.rslora.to_string())),
    fixed("target_modules", TRAINED, |c| lora(c, |lora| word(&lora.target_modules))),
    fixed("finetune_vision_layers", TRAINED, |c| switch(c, |lora| lora.vision)),
    fixed("finetune_language_layers", TRAINED, |c| switch(c, |lora| lora.language)),
    fixed("finetune_attention_modules", TRAINED, |c| switch(c, |lora| lora.attention)),
    fixed("finetune_mlp_modules", TRAINED, |c| switch(c, |lora| lora.mlp)),
    fixed("load_in_4bit", HELD, |c| (c.precision == Precision::FourBit).to_string()),
    fixed("load_in_8bit", HELD, |c| (c.precision == Precision::EightBit).to_string()),
    fixed("load_in_16bit", HELD, |c| (c.precision == Precision::SixteenBit).to_string()),
    fixed("train_on", LABELS, |c| word(&c.data.train_on)),
    // A bad or long row that ends a run may be left out when it goes on.
    told("on_bad_row", |c| word(&c.data.on_bad_row)),
    told("on_long_row", |c| word(&c.data.on_long_row)),
    told("max_bad_rows", |c| format!("{}%", 100.0 * c.data.max_bad_share)),
    fixed("min_pixels", IMAGES, |c| word(&c.data.min_pixels)),
    fixed("max_pixels", IMAGES, |c| word(&c.data.max_pixels)),
    told("image_root", |c| word(&c.data.image_roots)),
    free("allow_remote_images"),
    fixed("columns", ROWS, |c| c.data.columns.to_string()),
    free("dataloader_num_workers"),
    free("prefetch_bytes"),
    fixed("selective_loss", LABELS, |c| word(&c.data.selective_loss)),
    fixed("selective_loss_keys", LABELS, |c| match &c.data.selective_loss_keys {
        Some(keys) => keys.join(","),
        None => NONE.to_owned(),
    }),
    fixed("selective_loss_start_epoch", LABELS, |c| c.data.selective_loss_start_epoch.to_string()),
    free("memory_budget"),
    // Recomputed or kept, activations are the same to the bit.
    free("gradient_checkpointing"),
    free("memory_every"),
    free("memory_limit"),
    free("on_memory_limit"),
    free("cleanup_every"),
    told("logging_steps", |c| c.logging_steps.to_string()),
    // Evaluations decide which checkpoint is the best, and when early stopping ends the run.
    told("eval_strategy", |c| match c.evaluate {
        crate::trainer::When::Never => "no".to_owned(),
        crate::trainer::When::Steps(_) => "steps".to_owned(),
        crate::trainer::When::Epoch => "epoch".to_owned(),
    }),
    told("eval_steps", |c| match c.evaluate {
        crate::trainer::When::Steps(steps) => steps.to_string(),
        _ => NONE.to_owned(),
    }),
    free("save_steps"),
    free("save_total_limit"),
    free("resume"),
    told("early_stopping_patience", |c| word(&c.early_stopping_patience)),
    free("report_to"),
    told(INSTRUCTIONS, |_| Isa::best().to_string()),
];

/// The value of an option that was not given and has no number to show.
const NONE: &str = "not given";

/// A value as a flag or a configuration file has it.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(serde_json::Value::Null) | Err(_) => NONE.to_owned(),
        Ok(serde_json::Value::Array(several)) => several.iter().map(word).collect::<Vec<_>>().join(","),
        Ok(other) => other.to_string(),
    }
}

/// A value in a message; one that is empty was not given.
pub(super) fn shown(value: &str) -> &str {
    if value.is_empty() { NONE } else { value }
}

/// A setting of adapters; none where all weights are trained.
fn lora(config: &RunConfig, value: impl Fn(&LoraConfig) -> String) -> String {
    if config.method == Method::Lora { value(&config.lora) } else { NONE.to_owned() }
}

/// One of the four switches, which have no effect where modules are named.
fn switch(config: &RunConfig, value: impl Fn(&LoraConfig) -> bool) -> String {
    lora(config, |lora| match lora.target_modules {
        Some(_) => NONE.to_owned(),
        None => value(lora).to_string(),
    })
}

/// Every setting that is compared, by name.
pub(super) fn values(config: &RunConfig) -> BTreeMap<String, String> {
    let compared = SETTINGS.iter().filter(|setting| setting.rule != Rule::Free);
    compared.map(|setting| (setting.name.replace('_', "-"), (setting.value)(config))).collect()
}

/// A setting that differs from the checkpoint's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The option, as a flag without its dashes.
    pub name: String,
    /// The checkpoint's value.
    pub then: String,
    /// This run's value.
    pub now: String,
    /// Why it makes another run; nothing if it does not.
    pub refused: Option<&'static str>,
}

/// The setting with both values and, where it is refused, why.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was {}, now {}", self.name, shown(&self.then), shown(&self.now))?;
        self.refused.map_or(Ok(()), |reason| write!(f, " ({reason})"))
    }
}

/// The settings that differ between two runs, in the table's order. An option that a checkpoint does not know
/// is newer than the checkpoint, and cannot be compared.
pub(super) fn changes(then: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Vec<Change> {
    let change = |setting: &Setting| {
        let name = setting.name.replace('_', "-");
        let (then, now) = (then.get(&name)?, now.get(&name)?);
        let refused = match setting.rule {
            Rule::Fixed(reason) => Some(reason),
            Rule::Told | Rule::Free => None,
        };
        (then != now).then(|| Change { name, then: then.clone(), now: now.clone(), refused })
    };
    SETTINGS.iter().filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainOptions;
    use garden_data::TrainOn;

    fn resolved(options: TrainOptions) -> BTreeMap<String, String> {
        let options = TrainOptions {
            base_model: Some("model".into()),
            dataset: Some("rows.jsonl".into()),
            output_dir: Some("out".into()),
            ..options
        };
        values(&RunConfig::resolve(options).unwrap())
    }

    #[test]
    fn every_option_of_a_run_has_a_row_and_only_one() {
        for key in TrainOptions::KEYS {
            let rows = SETTINGS.iter().filter(|setting| setting.name == *key).count();
            assert_eq!(rows, 1, "`{key}` has {rows} rows in the table of resume/settings.rs");
        }
        let unknown =
            SETTINGS.iter().map(|setting| setting.name).filter(|name| !TrainOptions::KEYS.contains(name));
        assert_eq!(unknown.collect::<Vec<_>>(), [ROWS_OF_A_STEP, INSTRUCTIONS]);
    }

    #[test]
    fn a_processor_that_rounds_otherwise_is_told() {
        let now = resolved(TrainOptions::default());
        let mut then = now.clone();
        then.insert(INSTRUCTIONS.into(), "those of another processor".into());
        let found = changes(&then, &now);
        assert_eq!((found.len(), found[0].refused), (1, None), "{found:?}");
        assert_eq!((&*found[0].name, found[0].now.clone()), (INSTRUCTIONS, Isa::best().to_string()));
    }

    #[test]
    fn what_is_given_as_its_default_has_not_changed() {
        let given = TrainOptions { lora_r: Some(16), seed: Some(3407), ..TrainOptions::default() };
        assert_eq!(changes(&resolved(TrainOptions::default()), &resolved(given)), []);
    }

    #[test]
    fn lists_are_told_as_flags_have_them_and_what_is_empty_as_not_given() {
        let changed = |options| {
            let found = changes(&resolved(TrainOptions::default()), &resolved(options));
            let said = |change: &Change| {
                format!("{} {} -> {}", change.name, shown(&change.then), shown(&change.now))
            };
            found.iter().map(said).collect::<Vec<_>>()
        };
        let options = TrainOptions {
            image_root: Some(vec!["photos".into(), "scans".into()]),
            add_dataset: Some(vec!["more.jsonl".into()]),
            ..TrainOptions::default()
        };
        assert_eq!(
            changed(options),
            [
                "add-dataset not given -> more.jsonl",
                "dataset-weights 1 -> 1,1",
                "image-root not given -> photos,scans"
            ]
        );
        let columns =
            TrainOptions { columns: Some("prompt=question".parse().unwrap()), ..TrainOptions::default() };
        assert_eq!(changed(columns), ["columns not given -> prompt=question"]);
    }

    #[test]
    fn a_change_is_told_or_refused_by_its_row() {
        let changed = |options| {
            let found = changes(&resolved(TrainOptions::default()), &resolved(options));
            let said = |change: &Change| {
                let word = if change.refused.is_some() { "refused" } else { "told" };
                format!("{word} {} {} -> {}", change.name, change.then, change.now)
            };
            found.iter().map(said).collect::<Vec<_>>()
        };
        let default = TrainOptions::default;
        assert_eq!(
            changed(TrainOptions { learning_rate: Some(1e-4), ..default() }),
            ["told learning-rate 0.0002 -> 0.0001"]
        );
        assert_eq!(
            changed(TrainOptions { train_on: Some(TrainOn::All), max_pixels: Some(50176), ..default() }),
            ["refused train-on assistant -> all", "refused max-pixels not given -> 50176"]
        );
        // Eight rows a step either way: only the parts have changed.
        assert_eq!(
            changed(TrainOptions { batch_size: Some(4), gradient_accumulation_steps: Some(2), ..default() }),
            ["told batch-size 2 -> 4", "told gradient-accumulation-steps 4 -> 2"]
        );
        assert_eq!(
            changed(TrainOptions { batch_size: Some(4), ..default() }),
            ["refused batch-size x gradient-accumulation-steps 8 rows -> 16 rows", "told batch-size 2 -> 4"]
        );
        assert_eq!(
            changed(TrainOptions { save_steps: Some(5), memory_every: Some(5), ..default() }),
            [""; 0]
        );
        let full = changed(TrainOptions { method: Some(Method::Full), ..default() });
        assert!(full[0].starts_with("refused method lora -> full"), "{full:?}");
    }
}
