//! A whole run: from names and settings to an adapter, its logs and its verdict.
//!
//! [`train`] takes a [`RunConfig`], tells an observer what happens, and leaves either the output folder of a
//! finished run or a checkpoint from which the same settings continue. It draws nothing, listens to no signal
//! and changes no setting of the process, so a program may run it on any thread, as often as it likes.

mod data;
mod error;
mod finish;
mod lock;
mod longest;
mod model;
mod output;
mod report;
mod together;

pub use data::{RunData, open as open_data};
pub use error::RunError;
pub use longest::{Longest, Unusable};
pub use model::{VisionModel, first_adapter};
pub use output::OutputError;
pub use report::RunReport;

use crate::{
    announce::{Announcer, StepsOfRun, Teller},
    cancel::Cancel,
    checkpoint::{Checkpoint, CheckpointStore},
    config::RunConfig,
    event::{self, Event, ModelLoaded, Observer, PlanPart, Topic},
    group::Group,
    model_folder::ModelFolder,
    monitor::{MemoryMonitor, MemorySummary, TensorUsage, Trace},
    outputs::loggers::Loggers,
    plan::room,
    python_engine::{Interpreter, PythonLearner},
    resume::{self, RunIdentity, SETTINGS_FILE},
    rows::SelectiveLog,
    schedule::Schedule,
    trainer::{
        self, BatchSource, Callback, EarlyStopping, End, Learner, NativeLearner, Outcome, StepPlan,
        TrainError, Trainer, TrainerSettings, TrainingData,
    },
};
use garden_data::{Batch, model_folder};
use garden_memory::RunFacts;
use garden_model::MemoryPlan;
use lock::FolderLock;
use std::{collections::BTreeMap, time::Instant};

/// Trains, or continues training, until all steps are taken, a limit is near, or `cancel` asks for the end.
/// The observer is called on this thread; the last event is always [`Event::End`].
///
/// A cancel is heard before and after each long piece of work at the start (fetching, the survey, loading), after
/// each step, and after each batch of an evaluation. A supervisor that `MODEL_GARDEN_SOCKET` names is told the steps.
pub fn train(
    config: &RunConfig,
    observer: &mut dyn Observer,
    cancel: &Cancel,
) -> Result<RunReport, RunError> {
    train_together(config, observer, cancel, &Group::alone())
}

/// The same in each process of a group, to the same result. Only the first one writes into the output folder, apart from a
/// memory trace of each; a cancel or a limit in any of them ends all after a checkpoint. An error that the others cannot
/// know of leaves them waiting: then the group must be given up ([`Group::abort`]).
pub fn train_together(
    config: &RunConfig,
    observer: &mut dyn Observer,
    cancel: &Cancel,
    group: &Group,
) -> Result<RunReport, RunError> {
    let announcer = Announcer::new(observer);
    // The folder is this run's until its last event is written.
    let mut lock = None;
    let result = run(config, &announcer, cancel, group, &mut lock);
    announcer.tell(Event::End(Box::new(report::end(&result, announcer.last()))));
    result
}

fn run(
    config: &RunConfig,
    announcer: &Announcer<'_>,
    cancel: &Cancel,
    group: &Group,
    lock: &mut Option<FolderLock>,
) -> Result<RunReport, RunError> {
    let output = &config.output_dir;
    let is_cancelled = || together::is_cancelled(group, cancel);
    if is_cancelled()? {
        return RunReport::cancelled_early(output, None);
    }
    together::check(config, group)?;
    // What is missing is said before anything is fetched.
    let python = config.engine.is_python().then(|| Interpreter::find(config)).transpose()?;
    let base = group.first_then_others(|| model_folder(&config.base_model, announcer))?;
    let base = group.all_well(base.map_err(RunError::from))?;
    let store = group.by_first(
        || {
            output::check(config, &base)?;
            *lock = Some(FolderLock::take(output)?);
            Ok::<_, RunError>(CheckpointStore::open(output)?)
        },
        || CheckpointStore::of_another(output),
    )?;
    let identity = group.all_well(RunIdentity::of(config, &base))?;
    together::compare(config, &identity, group)?;
    // A checkpoint that cannot be resumed is refused before rows are read and weights are loaded.
    let checkpoint = together::checkpoint(group, || {
        Ok(resume::choose(&config.resume, &store, output, &identity, announcer)?)
    })?;
    let folder = group.all_well(ModelFolder::open(&base).map_err(RunError::from))?;
    let mut data = data::open_together(config, &folder, announcer, group)?;
    let beside = together::beside(group)?;
    let run = Run { config, announcer, store, identity, group, beside };
    if let Some(checkpoint) = &checkpoint {
        let end = group.by_first(|| run.finished(&data, checkpoint), || None)?;
        if let Some(end) = group.of_first(|| end)? {
            return RunReport::already(end, output, checkpoint);
        }
        announcer.tell(Event::Resumed(checkpoint.into()));
    }
    announcer.tell(Event::RowsSurveyed(Box::new(data.describe())));
    data.warning().into_iter().for_each(|warning| announcer.note(Topic::SharedRows, warning));
    if is_cancelled()? {
        return RunReport::cancelled_early(output, checkpoint);
    }
    let settings = run.trainer_settings(&data);
    let Some(Trained { outcome, memory, parameters }) = (match &python {
        None => {
            let mut model = run.load(&folder, &data)?;
            let about = Learned::native(&model);
            let mut learner = NativeLearner::new(&mut model, &settings, group);
            run.train(&mut learner, about, &mut data, &checkpoint, cancel)?
        }
        Some(python) => {
            let Some(mut worker) = run.start(python, &folder, &data, cancel)? else {
                return RunReport::cancelled_early(output, checkpoint);
            };
            let about = Learned { parameters: worker.parameters(), plan: None, usage: worker.usage() };
            run.train(&mut worker, about, &mut data, &checkpoint, cancel)?
        }
    }) else {
        return RunReport::cancelled_early(output, checkpoint);
    };
    let ranks = together::memory_of_all(group, &memory)?;
    together::worst(&ranks).into_iter().for_each(|worst| announcer.note(Topic::Memory, worst));
    let left_out = together::left_out(group, &data)?;
    group.by_first(|| run.finish(parameters, &data, &base, &outcome, &memory, &left_out), || ())?;
    Ok(RunReport::of(output, outcome, memory))
}

/// What a run knows of its learner besides how to train it.
struct Learned {
    /// Trained parameters, and all parameters.
    parameters: (u64, u64),
    /// Bytes planned for the peak.
    plan: Option<u64>,
    usage: TensorUsage,
}

impl Learned {
    fn native(model: &VisionModel) -> Self {
        let plan = Some(model.plan().total() as u64);
        Self { parameters: model.parameters(), plan, usage: model.usage() }
    }
}

/// What training came to.
struct Trained {
    outcome: Outcome,
    memory: MemorySummary,
    /// Trained parameters, and all parameters.
    parameters: (u64, u64),
}

/// A run in progress.
struct Run<'a, 'o> {
    config: &'a RunConfig,
    announcer: &'a Announcer<'o>,
    store: CheckpointStore,
    identity: RunIdentity,
    group: &'a Group,
    /// Processes of the group on this machine.
    beside: usize,
}

impl<'a, 'o> Run<'a, 'o> {
    fn trainer_settings(&self, data: &RunData) -> TrainerSettings {
        TrainerSettings { data_fingerprint: data.fingerprint, ..self.config.trainer() }
    }

    /// Why the run already ended with this checkpoint, if it did and the results are written. A checkpoint of
    /// other rows is refused: "already finished" would claim that these rows were trained on.
    fn finished(&self, data: &RunData, checkpoint: &Checkpoint) -> Result<Option<End>, RunError> {
        let settings = self.trainer_settings(data);
        let steps = settings.steps(data.training.usable_rows(), data.training.batch_size()).total;
        let patience = self.config.early_stopping_patience;
        let end = trainer::end_of(checkpoint, &settings, steps, patience)?;
        Ok(end.filter(|_| finish::is_delivered(&self.config.output_dir, checkpoint.step)))
    }

    /// Loads the model and tells what it is and what it will need.
    fn load(&self, folder: &ModelFolder, data: &RunData) -> Result<VisionModel, RunError> {
        let config = self.config;
        let begun = Instant::now();
        let loading = self.announcer.loading();
        let room = room().map(|room| room / self.beside as u64);
        let model = VisionModel::load(config, folder, &data.load, room, |share| loading.advance_to(share));
        drop(loading);
        let model = self.group.all_well(model)?;
        self.tell_loaded(model.parameters(), begun);
        self.announcer.tell(Event::Plan(plan_event(model.plan())));
        Ok(model)
    }

    /// Starts the worker of an engine in Python and tells what its model is. It has no plan to tell. Gives nothing
    /// if the run is to end before the worker is ready.
    fn start(
        &self,
        python: &Interpreter,
        folder: &ModelFolder,
        data: &RunData,
        cancel: &Cancel,
    ) -> Result<Option<PythonLearner<'a, 'o>>, RunError> {
        let begun = Instant::now();
        let loading = self.announcer.loading();
        let (StepPlan { total, .. }, schedule) = self.schedule(data)?;
        let worker =
            PythonLearner::start(python, self.config, folder, &schedule, total, self.announcer, cancel);
        drop(loading);
        let worker = worker?;
        if let Some(worker) = &worker {
            self.tell_loaded(worker.parameters(), begun);
        }
        Ok(worker)
    }

    fn tell_loaded(&self, (trained_parameters, parameters): (u64, u64), begun: Instant) {
        self.announcer.tell(Event::ModelLoaded(ModelLoaded {
            base_model: self.config.base_model.clone(),
            method: self.config.method,
            parameters,
            trained_parameters,
            seconds: begun.elapsed().as_secs_f64(),
        }));
    }

    /// The steps of the run, and their learning rates.
    fn schedule(&self, data: &RunData) -> Result<(StepPlan, Schedule), RunError> {
        let config = self.config;
        let (rows, batch_size) = (data.training.usable_rows(), data.training.batch_size());
        let steps = self.trainer_settings(data).steps(rows, batch_size);
        let schedule = Schedule::new(config.schedule, config.learning_rate, config.warmup, steps.total)?;
        Ok((steps, schedule))
    }

    /// Trains; nothing if the run was cancelled before its first step.
    fn train<L: Learner<Batch = Batch>>(
        &self,
        learner: &mut L,
        about: Learned,
        data: &mut RunData,
        checkpoint: &Option<Checkpoint>,
        cancel: &Cancel,
    ) -> Result<Option<Trained>, RunError> {
        if together::is_cancelled(self.group, cancel)? {
            return Ok(None);
        }
        let (config, announcer, group) = (self.config, self.announcer, self.group);
        let settings = self.trainer_settings(data);
        let (rows, batch_size) = (data.training.usable_rows(), data.training.batch_size());
        let (StepPlan { per_epoch, .. }, schedule) = self.schedule(data)?;
        let steps = StepsOfRun { steps_per_epoch: per_epoch, batch_size, accumulation: config.accumulation };
        let facts = RunFacts {
            // What one process sees of an epoch and of a step.
            dataset_size: Some(rows.div_ceil(group.size() as u64)),
            samples_per_step: Some(batch_size * config.accumulation.div_ceil(group.size() as u64)),
            ..RunFacts::default()
        };
        let output = &config.output_dir;
        let trace = Trace { folder: output, rank: group.rank() };
        let mut monitor =
            MemoryMonitor::start(config.memory.clone(), facts, about.plan, trace, announcer, about.usage)
                .map_err(RunError::Other)?;
        let mut loggers = Loggers::new(output, &config.report_to, self.flat_settings(), announcer);
        let mut selective = SelectiveLog::new(data.training.selective_statistics());
        let mut early = config.early_stopping_patience.map(EarlyStopping::new);
        let mut cancel = cancel.clone();
        let mut teller = Teller::new(announcer, group.is_first().then_some(output), steps);
        // The monitor comes first: the other callbacks see what it adds to a log entry.
        let mut callbacks: Vec<&mut dyn Callback> = vec![&mut monitor, &mut selective];
        callbacks.extend(early.as_mut().map(|early| early as &mut dyn Callback));
        if group.is_first() {
            callbacks.push(&mut loggers);
        }
        callbacks.push(&mut teller);
        // An observer that cancels on an event ends the run right after it.
        callbacks.push(&mut cancel);
        let rows = TrainingData { training: &mut data.training, evaluation: data.evaluation.as_mut() };
        let trainer = Trainer::new(learner, rows, settings, schedule, self.store.clone(), callbacks);
        let mut trainer = trainer.together(group);
        trainer.carry(SETTINGS_FILE, self.identity.to_bytes());
        if let Some(checkpoint) = checkpoint {
            trainer.resume(checkpoint)?;
        }
        let outcome = trainer.run().inspect_err(|error| self.remember_divergence(error))?;
        let memory = monitor.summary().map_err(RunError::Other)?;
        Ok(Some(Trained { outcome, memory, parameters: about.parameters }))
    }

    /// Leaves a note beside the last checkpoint, so that the run is not repeated from it.
    fn remember_divergence(&self, error: &TrainError) {
        let Some((step, what)) = error.divergence().filter(|_| self.group.is_first()) else { return };
        let checkpoints = self.store.list().unwrap_or_default();
        let Some(last) = checkpoints.iter().rfind(|checkpoint| checkpoint.step <= step) else { return };
        if let Err(error) = self.identity.divergence(step, what).mark(&last.path) {
            self.announcer.note(Topic::Checkpoint, format!("{}: {error}", last.path.display()));
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
}

fn plan_event(plan: &MemoryPlan) -> event::Plan {
    let part = |(name, bytes): (&str, usize)| PlanPart { name: name.to_owned(), bytes: bytes as u64 };
    event::Plan {
        total_bytes: plan.total() as u64,
        parts: plan.parts().into_iter().map(part).collect(),
        blocks: plan.blocks as u64,
        recomputed_blocks: plan.recomputed_blocks as u64,
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
