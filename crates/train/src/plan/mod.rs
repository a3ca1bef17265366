//! How much memory a run will take, computed before any of it runs.
//!
//! Takes the settings of a run, the model's sizes and the longest batch, which is known from a survey of the
//! rows or assumed. Gives a [`MemoryPlan`] with every part in bytes. The trainer lays out its memory by the
//! same plan, so a run does what its plan says.

mod cluster;
mod least;
mod planned;
mod report;

pub use cluster::{BadBandwidth, Bandwidth, Cluster, Network, Nodes, Speed, StepTime, StepWork};
pub use least::{Least, Setting};
pub use planned::{Planned, PlannedError};
pub use report::PlanReport;

use crate::{
    config::{Checkpointing, DataConfig, MemoryConfig, Method, OnMemoryLimit, RunConfig},
    group,
};
use garden_data::Survey;
use garden_memory::{ByteSize, probe::Probe, supervise::TELL_LEVEL};
use garden_model::{
    Checkpoint, CheckpointError, ConfigError, Held, MemoryPlan, ModelConfig, PlanError, PlanRequest,
    Recompute, Shapes, init::Preset, trained_shapes,
};
use std::{path::Path, thread};

/// Code, threads, allocator and the files that a run writes, besides everything that is planned: 25 MB with
/// `small`, 24 MB with `tiny` and photos (`bench/plan.py`).
const PROCESS: usize = 25_000_000;
/// What MPI takes in each of several processes: with Open MPI and `tiny`, 55 and 56 MB were resident in two to four processes
/// where one process alone has 43 and 44.
const MPI: usize = 12_000_000;
/// Bytes in memory for a byte of tokenizer.json: 37.5 MB for a file of 3.87 MB with 151,643 tokens.
const TOKENIZER: usize = 10;
/// Bytes of tokenizer.json for a token, where there is no file to look at: 7.0 MB for 151,643 tokens, as
/// published.
const TOKENIZER_FILE: usize = 46;
/// Bytes to decode a pixel, where there is no image to look at. A PNG takes three, or seven with alpha; a
/// JPEG takes none, or up to nine if it is progressive.
const PIXEL: usize = 6;
/// Bytes that a thread holds for each encoded byte of the largest image: the row's text in base64, the image,
/// its scan.
const ENCODED: usize = 4;
/// Batches prepared ahead, where the user does not say: enough to keep the threads busy while one batch is
/// used.
const AHEAD: usize = 4;
/// Batches besides those prepared ahead: the one in use and the one being filled.
const BATCHES: usize = 2;
/// A plan is exact to a twentieth: this fraction of the machine's free memory is left unplanned.
const MARGIN: u64 = 20;
/// Bytes of a token in a batch: its number, its label, and the text that they come from.
const TOKEN: usize = 16;

/// What a plan must know about a model besides its sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// How the weights lie in the files.
    pub stored: Held,
    /// Bytes of its tokenizer.json.
    pub tokenizer: usize,
}

impl Source {
    /// From what `config.json` says alone.
    pub fn assumed(model: &ModelConfig) -> Self {
        Self { stored: model.stored(), tokenizer: TOKENIZER_FILE * model.text.vocab_size }
    }

    /// From the files in a model folder, as far as they are there.
    pub fn in_folder(model: &ModelConfig, folder: &Path) -> Result<Self, CheckpointError> {
        let assumed = Self::assumed(model);
        let stored = match Checkpoint::open(folder) {
            Ok(weights) => {
                weights.check(model)?;
                weights.stored(model)?
            }
            Err(CheckpointError::NoWeights { .. }) => assumed.stored,
            Err(other) => return Err(other),
        };
        let tokenizer = std::fs::metadata(folder.join("tokenizer.json"));
        Ok(Self { stored, tokenizer: tokenizer.map_or(assumed.tokenizer, |file| file.len() as usize) })
    }

    /// Bytes that a process takes for itself and the model's tokenizer.
    pub fn process_bytes(&self) -> usize {
        PROCESS + TOKENIZER * self.tokenizer
    }

    /// Finds a model by its folder, by its config.json alone, or by the name of a shape.
    pub fn find(name: &str) -> Result<(ModelConfig, Self), SourceError> {
        let path = Path::new(name);
        if path.is_dir() {
            let model = ModelConfig::read(path)?;
            let source = Self::in_folder(&model, path)?;
            return Ok((model, source));
        }
        let model = match Preset::named(name) {
            Some(preset) if !path.exists() => preset.model_config()?,
            _ => {
                garden_data::check_exists(path, "model")?;
                ModelConfig::read_file(path)?
            }
        };
        let source = Self::assumed(&model);
        Ok((model, source))
    }
}

/// Why a model cannot be planned with.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Its sizes are not known.
    #[error("{0} (a model is named by its folder, its config.json, or a shape such as 3b or 7b)")]
    Config(#[from] ConfigError),
    /// It is not there.
    #[error("{0} (a model is named by its folder, its config.json, or a shape such as 3b or 7b)")]
    Missing(#[from] garden_data::DataError),
    /// Its weights cannot be used.
    #[error(transparent)]
    Weights(#[from] CheckpointError),
}

/// The most that the rows of a run ask for at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// The longest batch.
    pub shapes: Shapes,
    /// Bytes that a thread needs to decode an image.
    pub decoding: usize,
    /// Bytes of the largest image as it is encoded.
    pub encoded: usize,
    /// Processes that share the batches of a step.
    pub processes: usize,
}

/// How many threads prepare rows, and how many bytes of batches they prepare ahead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Supply {
    pub batch_size: u64,
    pub workers: usize,
    pub prefetch_bytes: u64,
}

impl Supply {
    pub fn new(run: &RunConfig, patch_bytes: usize, load: &Load) -> Self {
        let (batch, workers) = (load.batch_bytes(patch_bytes), workers(&run.data));
        // Each thread has a row in hand, whatever the size of a batch.
        let ahead = AHEAD * batch + workers * batch.div_ceil(run.batch_size as usize);
        let prefetch_bytes = run.data.prefetch_bytes.unwrap_or(ahead as u64);
        Self { batch_size: run.batch_size, workers, prefetch_bytes }
    }

    /// What the threads hold, and what they have prepared.
    fn bytes(&self, load: &Load) -> usize {
        let image = load.decoding + ENCODED * load.encoded;
        self.prefetch_bytes as usize + self.workers * image
    }
}

impl Load {
    /// Rows of `tokens` tokens each, of which `image_tokens` belong to images; all remaining tokens are
    /// labelled. Without `image_tokens`, both are taken at their most: a whole row of image tokens, and a
    /// whole row of labels.
    pub fn assumed(model: &ModelConfig, rows: u64, tokens: usize, image_tokens: Option<usize>) -> Self {
        let rows = rows as usize;
        let learned = tokens - image_tokens.unwrap_or(0).min(tokens);
        let image_tokens = image_tokens.unwrap_or(tokens).min(tokens);
        let unit = model.vision.merge_unit();
        let side = model.vision.patch_size;
        let patches = image_tokens * unit;
        let shapes = Shapes { tokens: rows * tokens, patches: rows * patches, labels: rows * learned.max(1) };
        Self { shapes, decoding: PIXEL * patches * side * side, encoded: 0, processes: 1 }
    }

    /// The longest batch of `rows` rows that a surveyed dataset can make.
    pub fn surveyed(survey: &Survey, rows: u64) -> Self {
        let shapes = Shapes {
            tokens: survey.used_tokens.longest(rows) as usize,
            patches: survey.patches.longest(rows) as usize,
            labels: survey.label_tokens.longest(rows) as usize,
        };
        let (decoding, encoded) = (survey.most_decoding_bytes as usize, survey.most_image_bytes as usize);
        Self { shapes, decoding, encoded, processes: 1 }
    }

    /// The load that covers both.
    pub fn union(self, other: Self) -> Self {
        let (a, b) = (self.shapes, other.shapes);
        let shapes = Shapes {
            tokens: a.tokens.max(b.tokens),
            patches: a.patches.max(b.patches),
            labels: a.labels.max(b.labels),
        };
        Self {
            shapes,
            decoding: self.decoding.max(other.decoding),
            encoded: self.encoded.max(other.encoded),
            processes: self.processes,
        }
    }

    fn batch_bytes(&self, patch_bytes: usize) -> usize {
        TOKEN * self.shapes.tokens + patch_bytes * self.shapes.patches
    }
}

/// The plan of a run, whether it fits or not. `room` is what the machine has left. Where the run may choose
/// what to recompute, it recomputes as little as it takes to fit there, in its budget, and below the limit at
/// which it would stop.
pub fn plan(
    run: &RunConfig,
    model: &ModelConfig,
    source: Source,
    load: &Load,
    room: Option<u64>,
) -> Result<MemoryPlan, PlanError> {
    let lora = match run.method {
        Method::Lora => Some(run.lora.settings()?),
        Method::Full => None,
    };
    let trained = trained_shapes(model, lora.as_ref())?;
    let values = trained.iter().map(|shape| shape.elements()).sum();
    let process = source.process_bytes() + if load.processes > 1 { MPI } else { 0 };
    let request = PlanRequest {
        held: source.stored.loaded(run.weights_precision()),
        lora: lora.as_ref(),
        optimizer: trained.into_iter().map(|shape| run.optimizer.bytes(shape)).sum(),
        gradient_sum: group::bytes(values, run.accumulation, load.processes),
        shapes: load.shapes,
        batches: batches(run, model, load),
        process,
    };
    let room = room.map(|room| room - room / MARGIN);
    let limit = run.memory.budget.into_iter().chain(room).chain(usable(&run.memory)).min();
    let with = |recompute| MemoryPlan::new(model, &request, recompute);
    match (run.memory.checkpointing, limit) {
        (Checkpointing::On, _) => with(Recompute::Always),
        (Checkpointing::Off, _) | (Checkpointing::Auto, None) => with(Recompute::Never),
        (Checkpointing::Auto, Some(limit)) => match with(Recompute::Never)? {
            everything if everything.total() as u64 <= limit => Ok(everything),
            _ => MemoryPlan::within(model, &request, limit as usize),
        },
    }
}

/// What a run can use before it stops at its limit, if it has a limit to stop at.
fn usable(memory: &MemoryConfig) -> Option<u64> {
    let limit = memory.limit.filter(|_| memory.on_limit == OnMemoryLimit::CheckpointAndStop)?;
    Some((limit as f64 * TELL_LEVEL) as u64)
}

/// A memory limit at which the run would stop at its first step, however often it is started again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a memory limit of {} is too low, the run would stop there at its first step. It needs\n{table}\nThe lowest limit that \
     works is {least_megabytes} MB",
    ByteSize(*limit)
)]
pub struct LimitTooLow {
    /// The limit.
    pub limit: u64,
    /// The plan, a line for each part.
    pub table: String,
    /// The least limit that does.
    pub least_megabytes: u64,
    /// Whether the plan recomputes what it can.
    pub recomputes: bool,
}

/// Refuses a run whose own plan is above the limit that it stops at.
pub fn check_limit(run: &RunConfig, plan: &MemoryPlan) -> Result<(), LimitTooLow> {
    let (Some(limit), Some(usable)) = (run.memory.limit, usable(&run.memory)) else { return Ok(()) };
    let total = plan.total();
    if total as u64 <= usable {
        return Ok(());
    }
    let line = |(name, bytes): (&str, usize)| format!("  {name:<12} {:>9}\n", ByteSize(bytes as u64));
    Err(LimitTooLow {
        limit,
        table: plan.parts().into_iter().chain([("total", total)]).map(line).collect(),
        // Rounded up, so that the limit named is high enough.
        least_megabytes: (total as f64 / TELL_LEVEL / 1e6).ceil() as u64,
        recomputes: run.memory.checkpointing != Checkpointing::Off,
    })
}

/// Batches at work, and what the threads that prepare them hold.
fn batches(run: &RunConfig, model: &ModelConfig, load: &Load) -> usize {
    let patch = model.vision.patch_bytes();
    BATCHES * load.batch_bytes(patch) + Supply::new(run, patch, load).bytes(load)
}

/// Threads that prepare rows.
pub(crate) fn workers(config: &DataConfig) -> usize {
    config.workers.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
}

/// What a new process may still take from the machine, or from the control group that this process lives in.
pub fn room() -> Option<u64> {
    let mut probe = Probe::attach(std::process::id().cast_signed()).ok()?;
    let snapshot = probe.snapshot().ok()??;
    let of_group = snapshot.cgroup.and_then(|group| Some(group.limit?.saturating_sub(group.usage)));
    [snapshot.machine.available, of_group].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainOptions;

    fn run(options: TrainOptions) -> RunConfig {
        let options = TrainOptions {
            base_model: Some("3b".into()),
            dataset: Some("rows".into()),
            output_dir: Some("out".into()),
            load_in_4bit: Some(true),
            ..options
        };
        RunConfig::resolve(options).unwrap()
    }

    fn plan_3b(options: TrainOptions, room: Option<u64>) -> Result<MemoryPlan, PlanError> {
        let model = Preset::B3.model_config().unwrap();
        let load = Load::assumed(&model, 2, 274, Some(144));
        plan(&run(options), &model, Source::assumed(&model), &load, room)
    }

    #[test]
    fn weights_and_adapter_of_the_published_3b_are_those_that_are_known() {
        let one_batch = TrainOptions { gradient_accumulation_steps: Some(1), ..TrainOptions::default() };
        let plan = plan_3b(one_batch, None).unwrap();
        assert_eq!(plan.adapters, 4 * 41_084_928);
        assert_eq!(plan.gradients, plan.adapters);
        let of_more = plan_3b(TrainOptions::default(), None).unwrap();
        assert_eq!(of_more.gradients, 2 * plan.adapters, "that of a batch, and the sum");
        assert!((2.40e9..2.50e9).contains(&(plan.weights as f64)), "{}", plan.weights);
        assert_eq!(plan.recomputed_blocks, 0);
    }

    #[test]
    fn what_nobody_says_is_planned_for_at_its_most() {
        let model = Preset::B3.model_config().unwrap();
        let shapes = |image_tokens| Load::assumed(&model, 2, 100, image_tokens).shapes;
        assert_eq!(shapes(Some(60)), Shapes { tokens: 200, patches: 480, labels: 80 });
        assert_eq!(shapes(None), Shapes { tokens: 200, patches: 800, labels: 200 });
    }

    #[test]
    fn every_size_has_a_plan_without_weights() {
        let totals = Preset::ALL.map(|preset| {
            let model = preset.model_config().unwrap();
            let load = Load::assumed(&model, 2, 512, Some(256));
            plan(&run(TrainOptions::default()), &model, Source::assumed(&model), &load, None).unwrap().total()
        });
        assert!(totals.is_sorted(), "{totals:?}");
        assert!(totals[6] > 35_000_000_000);
    }

    #[test]
    fn a_budget_is_kept_with_as_few_recomputed_blocks_as_it_takes() {
        let free = plan_3b(TrainOptions::default(), None).unwrap();
        let budget = free.total() as u64 * 9 / 10;
        let options = TrainOptions { memory_budget: Some(ByteSize(budget)), ..TrainOptions::default() };
        let tight = plan_3b(options, None).unwrap();
        assert!(tight.total() as u64 <= budget && tight.recompute > 0);
        assert!((1..tight.blocks).contains(&tight.recomputed_blocks));
        let room = budget * 20 / 19;
        assert_eq!(plan_3b(TrainOptions::default(), Some(room)).unwrap(), tight, "the machine's room");
        // Whichever is less decides.
        let options = TrainOptions { memory_budget: Some(ByteSize(1 << 50)), ..TrainOptions::default() };
        assert_eq!(plan_3b(options, Some(room)).unwrap(), tight, "a budget beyond the machine");
        // A run that cannot be made to fit gets the smallest plan, which says how much is missing.
        let smallest = plan_3b(TrainOptions::default(), Some(1 << 30)).unwrap();
        assert_eq!(smallest.recomputed_blocks, smallest.blocks);
        let options = TrainOptions { memory_budget: Some(ByteSize(1 << 30)), ..TrainOptions::default() };
        assert_eq!(plan_3b(options, None).unwrap(), smallest);
    }

    #[test]
    fn a_run_that_would_exceed_its_budget_is_refused_however_it_recomputes() {
        let refused = |checkpointing, message: &str| {
            let options = TrainOptions {
                memory_budget: Some(ByteSize(1 << 30)),
                gradient_checkpointing: Some(checkpointing),
                ..TrainOptions::default()
            };
            let error = plan_3b(options, None).unwrap().keeping(Some(1 << 30)).unwrap_err().to_string();
            assert!(error.contains("the budget is 1073741824") && error.contains(message), "{error}");
        };
        refused(Checkpointing::Auto, "with 68 of 68 blocks recomputed");
        refused(Checkpointing::On, "with 68 of 68 blocks recomputed");
        refused(Checkpointing::Off, "with 0 of 68 blocks recomputed");
        refused(Checkpointing::Off, "or let more be recomputed");
        let plan = plan_3b(TrainOptions::default(), None).unwrap();
        assert_eq!(plan.keeping(Some(plan.total())).unwrap(), plan);
        assert!(plan.keeping(Some(plan.total() - 1)).is_err() && plan.keeping(None).is_ok());
    }

    #[test]
    fn the_least_that_would_do_names_the_flags_that_get_there() {
        let model = Preset::B3.model_config().unwrap();
        let source = Source::assumed(&model);
        let ways = |options| {
            let named = |name: &str| Some(name.to_owned());
            let config = RunConfig::resolve(TrainOptions {
                base_model: named("3b"),
                dataset: named("rows"),
                output_dir: Some("out".into()),
                ..options
            })
            .unwrap();
            let one_row = Load::assumed(&model, 1, 274, Some(144));
            Least::of(&config, &model, &source, &one_row).unwrap()
        };
        let found = ways(TrainOptions::default());
        let written = |setting: &Setting| format!("{} {}", setting.name, setting.value);
        assert_eq!(
            found[0].settings.iter().map(written).collect::<Vec<_>>(),
            ["batch-size 1", "gradient-accumulation-steps 8", "gradient-checkpointing on"]
        );
        assert_eq!(written(found[1].settings.last().unwrap()), "load-in-4bit true");
        let asked = plan_3b(TrainOptions::default(), None).unwrap().total();
        let totals: Vec<usize> = found.iter().map(|way| way.plan.total()).collect();
        assert!(totals[1] < totals[0] && totals[1] < asked, "{totals:?}, {asked}");
        let small = TrainOptions {
            batch_size: Some(1),
            gradient_checkpointing: Some(Checkpointing::On),
            method: Some(Method::Full),
            ..TrainOptions::default()
        };
        assert_eq!(ways(small), [], "nothing is left to give up");
    }

    #[test]
    fn a_limit_below_the_plan_is_refused_with_the_plan_and_the_least_that_does() {
        let limited = |bytes, checkpointing, on_limit| {
            let options = TrainOptions {
                memory_limit: Some(ByteSize(bytes)),
                gradient_checkpointing: Some(checkpointing),
                on_memory_limit: Some(on_limit),
                ..TrainOptions::default()
            };
            let planned = plan_3b(options.clone(), None).unwrap();
            check_limit(&run(options), &planned).map(|()| planned)
        };
        let stop = OnMemoryLimit::CheckpointAndStop;
        let refused = limited(1_000_000_000, Checkpointing::Auto, stop).unwrap_err();
        let said = refused.to_string();
        assert!(
            said.starts_with("a memory limit of 1.00 GB is too low") && said.contains("  weights "),
            "{said}"
        );
        let least = refused.least_megabytes * 1_000_000;
        let tight = limited(least, Checkpointing::Auto, stop).unwrap();
        // It is given in whole megabytes: the room that is left over may keep a small block.
        assert!(tight.recomputed_blocks + 1 >= tight.blocks, "what is said to be the least is enough");
        assert!(limited(least * 98 / 100, Checkpointing::Auto, stop).is_err());
        assert!(
            refused.recomputes && !limited(1_000_000_000, Checkpointing::Off, stop).unwrap_err().recomputes
        );
        assert!(limited(1_000_000_000, Checkpointing::Off, OnMemoryLimit::Warn).is_ok());
    }

    #[test]
    fn the_largest_settings_of_the_largest_model_have_a_plan() {
        let options = TrainOptions {
            batch_size: Some(4096),
            max_seq_length: Some(1 << 20),
            lora_r: Some(4096),
            dataloader_num_workers: Some(1024),
            prefetch_bytes: Some(ByteSize(1 << 50)),
            ..TrainOptions::default()
        };
        let (run, model) = (run(options), Preset::B72.model_config().unwrap());
        let load = Load::assumed(&model, run.batch_size, run.data.max_seq_length, None);
        let planned = plan(&run, &model, Source::assumed(&model), &load, Some(1 << 40)).unwrap();
        // The rows that go into the language model alone are 2^32 of 8192 values.
        assert!(planned.total() > 1 << 47 && planned.total() < 1 << 62, "{planned:?}");
        let error = plan_3b(TrainOptions { lora_r: Some(100_000), ..TrainOptions::default() }, None);
        assert_eq!(error.unwrap_err().to_string(), "LoRA rank 100000 is not between 1 and 4096");
    }

    #[test]
    fn a_model_that_is_not_there_is_told_how_to_be_named() {
        let error = Source::find("5b").unwrap_err().to_string();
        assert!(error.starts_with("5b: no such model (") && error.contains("such as 3b"), "{error}");
        let (model, source) = Source::find("7b").unwrap();
        assert_eq!(source, Source::assumed(&model));
    }

    #[test]
    fn this_machine_has_room() {
        assert!(room().is_some_and(|bytes| bytes > 1 << 20));
    }
}
