//! A whole run: from names and settings to an adapter, its logs and its verdict.
//!
//! In comes a [`RunConfig`]; out comes the output folder of a finished run, or a checkpoint that the same command goes on from. What is said on
//! the way informs; the first line about memory is the plan, the last one the verdict.

mod data;
mod finish;
mod lock;
mod longest;
mod model;
mod output;

pub use data::{RunData, open as open_data};
pub use longest::Longest;
pub use model::VisionModel;
pub use output::OutputError;

use crate::{
    checkpoint::{Checkpoint, CheckpointError, CheckpointStore},
    config::{Method, RunConfig},
    interrupt::Interrupts,
    model_folder::{ModelFolder, ModelFolderError},
    monitor::{MemoryMonitor, MemorySummary},
    numbers::{grouped, none_can, verb},
    outputs::loggers::Loggers,
    plan::LimitTooLow,
    resume::{self, ResumeError, RunIdentity, SETTINGS_FILE},
    rows::SelectiveLog,
    schedule::{Schedule, ScheduleError},
    screen::{ProgressDisplay, Screen},
    trainer::{
        self, BatchSource, BoxError, Callback, EarlyStopping, End, Outcome, StepPlan, StopReason, TrainError,
        Trainer, TrainerSettings, TrainingData,
    },
};
use garden_data::{DataError, hub, processor::ProcessorError};
use garden_memory::{RunFacts, units::part};
use garden_model::{
    AdapterError, LoraError,
    compute::{PlanError, SessionError},
};
use lock::FolderLock;
use std::{collections::BTreeMap, io, path::PathBuf};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All steps were taken, or early stopping ended it.
    Done,
    /// It stopped before a memory limit, after a checkpoint.
    AtMemoryLimit,
    /// It was interrupted, after a checkpoint.
    Interrupted,
}

/// Why a run could not begin or go on.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum RunError {
    #[error(transparent)]
    Folder(#[from] ModelFolderError),
    #[error("the model: {0}")]
    Weights(#[from] garden_model::CheckpointError),
    #[error("{0}")]
    Lora(#[from] LoraError),
    #[error("the adapter: {0}")]
    Adapter(#[from] AdapterError),
    #[error(
        "--adapter {} holds {there} layers, not the {chosen} that its target_modules choose: train it further with the tool \
         that made it, or start without it",
        dir.display()
    )]
    AdapterLayers { dir: PathBuf, there: usize, chosen: usize },
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Limit(#[from] LimitTooLow),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("the model's processor: {0}")]
    Processor(#[from] ProcessorError),
    #[error("--eval-split holds out {}: nothing is left to train on", part(*held_out, *rows, "row"))]
    NothingLeft { held_out: u64, rows: u64 },
    #[error(
        "--eval-split holds out {} and none of the others can be used: nothing is left to train on; hold out fewer",
        part(*held_out, *rows, "row")
    )]
    NothingUsableLeft { held_out: u64, rows: u64 },
    #[error(
        "{} be used: {too_long} longer than --max-seq-length, {no_label} without \
         anything to learn, {bad} bad; hold out more",
        none_can(*rows, "that --eval-split holds out")
    )]
    NoUsableEvaluation { rows: u64, too_long: u64, no_label: u64, bad: u64 },
    #[error(
        "{} to train on {} bad, more than the {percent}% that may be skipped, such as {first}; mend bad rows (`dataset \
         check` lists them) or raise --max-bad-rows",
        part(*bad, *rows, "row"),
        verb(*bad, ["is", "are"])
    )]
    TooManyBadRows { bad: u64, rows: u64, percent: f64, first: String },
    #[error(
        "{} {} bad, such as {first}; mend bad rows (`dataset check` lists them) or use --on-bad-row skip",
        part(*bad, *rows, "row"),
        verb(*bad, ["is", "are"])
    )]
    BadRows { bad: u64, rows: u64, first: String },
    #[error(
        "{} {} more than --max-seq-length {limit} tokens, {longest}; or leave long rows out with --on-long-row drop",
        part(*too_long, *rows, "row"),
        verb(*too_long, ["has", "have"])
    )]
    LongRows { too_long: u64, rows: u64, limit: usize, longest: Longest },
    #[error("{} be used: {reasons}", none_can(*rows, &format!("of {dataset}")))]
    NoUsableRow { dataset: String, rows: u64, reasons: String },
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    #[error(transparent)]
    Resume(#[from] ResumeError),
    #[error("another run is at work in {}: wait for its end, or choose another --output-dir", dir.display())]
    Busy { dir: PathBuf },
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Other(BoxError),
}

impl RunError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

/// Trains, or goes on training.
pub fn train(config: &RunConfig) -> Result<Ended, RunError> {
    // What comes and goes, a checkpoint's buffers or an image, must leave no level behind.
    garden_engine::return_large_pieces();
    let screen = Screen::new(config.log_format, config.quiet);
    let base = hub::model_folder(&config.base_model, &screen)?;
    output::check(config, &base)?;
    let output = &config.output_dir;
    let _lock = FolderLock::take(output)?;
    let store = CheckpointStore::open(output)?;
    let identity = RunIdentity::of(config, &base)?;
    // What cannot be gone on from is refused before rows are read and weights are loaded.
    let checkpoint = resume::choose(&config.resume, &store, output, &identity, &screen)?;
    let folder = ModelFolder::open(&base)?;
    let mut data = data::open(config, &folder, &screen)?;
    let run = Run { config, screen: &screen, store, identity };
    if let Some(checkpoint) = &checkpoint {
        if let Some(end) = run.finished(&data, checkpoint)? {
            let more = match end {
                End::Steps => "with more --epochs or --max-steps",
                End::Patience => "with a larger --early-stopping-patience",
            };
            screen.line(&format!(
                "already finished at step {}: nothing was done; {more} it goes on",
                checkpoint.step
            ));
            return Ok(Ended::Done);
        }
        screen.line(&format!("continuing from {}", checkpoint.path.display()));
    }
    let waiting = screen.waiting("loading the model");
    let mut model = VisionModel::load(config, &folder, &data.load, |_| {})?;
    let loading = waiting.done();
    let (trained, all) = model.parameters();
    let share = 100.0 * trained as f64 / all as f64;
    let what = if config.method == Method::Full { "all weights" } else { "LoRA" };
    screen.line(&format!(
        "model: {} ({} parameters), {what}: {} trained ({share:.2} %), loaded in {loading:.1} s",
        config.base_model,
        grouped(all),
        grouped(trained)
    ));
    data.describe().iter().for_each(|line| screen.line(line));
    data.warning().iter().for_each(|warning| screen.note(warning));
    // Listens until the results are written: a second signal tells which checkpoint is the last, whenever it comes.
    let mut interrupts = Interrupts::listen(&screen, checkpoint.as_ref().map(|last| last.path.as_path()))
        .map_err(RunError::io("signals"))?;
    let (outcome, memory) = run.train(&mut model, &mut data, checkpoint.as_ref(), &mut interrupts)?;
    run.finish(&model, &data, &base, &outcome, &memory)?;
    Ok(run.say_end(&outcome, &memory))
}

/// A run in progress.
struct Run<'a> {
    config: &'a RunConfig,
    screen: &'a Screen,
    store: CheckpointStore,
    identity: RunIdentity,
}

impl Run<'_> {
    fn trainer_settings(&self, data: &RunData) -> TrainerSettings {
        TrainerSettings { data_fingerprint: data.fingerprint, ..self.config.trainer() }
    }

    /// Why a checkpoint is the end of this run, if it is and the results are written. A checkpoint of other rows is refused:
    /// "already finished" would claim that these were trained on.
    fn finished(&self, data: &RunData, checkpoint: &Checkpoint) -> Result<Option<End>, RunError> {
        let settings = self.trainer_settings(data);
        let steps = settings.steps(data.training.usable_rows(), data.training.batch_size()).total;
        let patience = self.config.early_stopping_patience;
        let end = trainer::end_of(checkpoint, &settings, steps, patience)?;
        Ok(end.filter(|_| finish::is_delivered(&self.config.output_dir, checkpoint.step)))
    }

    fn train(
        &self,
        model: &mut VisionModel,
        data: &mut RunData,
        checkpoint: Option<&Checkpoint>,
        interrupts: &mut Interrupts,
    ) -> Result<(Outcome, MemorySummary), RunError> {
        let config = self.config;
        let settings = self.trainer_settings(data);
        let (rows, batch_size) = (data.training.usable_rows(), data.training.batch_size());
        let StepPlan { per_epoch, total } = settings.steps(rows, batch_size);
        let schedule = Schedule::new(config.schedule, config.learning_rate, config.warmup, total)?;
        self.screen.line(&format!(
            "steps: {total} of {batch_size} x {} rows, {per_epoch} an epoch",
            config.accumulation
        ));
        let facts = RunFacts {
            dataset_size: Some(rows),
            samples_per_step: Some(batch_size * config.accumulation),
            ..RunFacts::default()
        };
        let plan = model.plan().total() as u64;
        let usage = model.usage();
        let mut monitor = MemoryMonitor::start(
            config.memory.clone(),
            facts,
            Some(plan),
            &config.output_dir,
            self.screen,
            Box::new(move || usage.get()),
        )
        .map_err(RunError::Other)?;
        let mut loggers =
            Loggers::new(&config.output_dir, &config.report_to, self.flat_settings(), self.screen);
        let mut display = ProgressDisplay::new(self.screen);
        let mut selective = SelectiveLog::new(data.training.selective_statistics());
        let mut early = config.early_stopping_patience.map(EarlyStopping::new);
        // The monitor comes first: what it adds to a log entry is there for the others.
        let mut callbacks: Vec<&mut dyn Callback> = vec![&mut monitor, &mut selective];
        callbacks.extend(early.as_mut().map(|early| early as &mut dyn Callback));
        callbacks.push(interrupts);
        callbacks.push(&mut loggers);
        callbacks.push(&mut display);
        let rows = TrainingData { training: &mut data.training, evaluation: data.evaluation.as_mut() };
        let mut trainer = Trainer::new(model, rows, settings, schedule, self.store.clone(), callbacks);
        trainer.carry(SETTINGS_FILE, self.identity.to_bytes());
        if let Some(checkpoint) = checkpoint {
            trainer.resume(checkpoint)?;
        }
        let outcome = trainer.run().inspect_err(|error| self.remember_divergence(error))?;
        let memory = monitor.summary().map_err(RunError::Other)?;
        Ok((outcome, memory))
    }

    /// Leaves a note beside the last checkpoint, so that the run is not repeated from it.
    fn remember_divergence(&self, error: &TrainError) {
        let Some((step, what)) = error.divergence() else { return };
        let checkpoints = self.store.list().unwrap_or_default();
        let Some(last) = checkpoints.iter().rfind(|checkpoint| checkpoint.step <= step) else { return };
        if let Err(error) = self.identity.divergence(step, what).mark(&last.path) {
            self.screen.note(&format!("{}: {error}", last.path.display()));
        }
    }

    /// The settings as names and values.
    fn flat_settings(&self) -> BTreeMap<String, String> {
        let mut flat = BTreeMap::new();
        if let Ok(value) = serde_json::to_value(self.config) {
            flatten("", &value, &mut flat);
        }
        flat
    }

    /// Says how the run ended. The last line is the verdict on a run that is over, and for one that can go on from which checkpoint.
    fn say_end(&self, outcome: &Outcome, memory: &MemorySummary) -> Ended {
        if outcome.stopped == Some(StopReason::EarlyStopping) {
            let best = outcome.state.best_global_step.unwrap_or_default();
            self.screen.line(&format!("stopped early: the best evaluation was at step {best}"));
        }
        self.screen.line(&memory.line);
        let checkpoint = outcome.checkpoint.path.display();
        let again = format!("wrote {checkpoint}, the same command goes on from there");
        match &outcome.stopped {
            None | Some(StopReason::EarlyStopping) => Ended::Done,
            Some(StopReason::MemoryLimit(reason)) => {
                self.screen.note(&format!("stopped at a memory limit: {reason}; {again}"));
                Ended::AtMemoryLimit
            }
            Some(StopReason::Interrupted) => {
                self.screen.note(&format!("interrupted; {again}"));
                Ended::Interrupted
            }
        }
    }
}

/// Writes nested settings with dots between their names.
fn flatten(prefix: &str, value: &serde_json::Value, flat: &mut BTreeMap<String, String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                flatten(&name, value, flat);
            }
        }
        serde_json::Value::Null => {}
        serde_json::Value::String(text) => drop(flat.insert(prefix.to_owned(), text.clone())),
        other => drop(flat.insert(prefix.to_owned(), other.to_string())),
    }
}
