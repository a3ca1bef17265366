//! Why a run could not begin or go on.
//!
//! An error says what is wrong and where, in terms of settings; front ends match on its fields and add what
//! their users can do about it.

use super::{
    Longest, OutputError,
    longest::{Unusable, such_as},
};
use crate::{
    checkpoint::CheckpointError,
    config::Engine,
    group::{Elsewhere, GroupError},
    model_folder::ModelFolderError,
    numbers::{none_can, verb},
    plan::LimitTooLow,
    python_engine::{PythonError, WorkerError},
    resume::ResumeError,
    schedule::ScheduleError,
    trainer::{BoxError, TrainError},
};
use garden_data::{DataError, ProcessorError, RowError};
use garden_memory::part;
use garden_model::{AdapterError, LoraError, PlanError, SessionError};
use std::{io, path::PathBuf};

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
        "the adapter {} holds {there} layers, not the {chosen} that its target_modules choose: train it further with the \
         tool that made it, or start without it",
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
    #[error(
        "{} {} held out for evaluation: nothing is left to train on",
        part(*held_out, *rows, "row"),
        verb(*held_out, ["is", "are"])
    )]
    NothingLeft { held_out: u64, rows: u64 },
    #[error(
        "{} {} held out for evaluation and none of the others can be used: nothing is left to train on",
        part(*held_out, *rows, "row"),
        verb(*held_out, ["is", "are"])
    )]
    NothingUsableLeft { held_out: u64, rows: u64 },
    #[error(
        "{} be used: {too_long} longer than a row may be, {no_label} without anything to learn, {bad} bad",
        none_can(*rows, "held out for evaluation")
    )]
    NoUsableEvaluation { rows: u64, too_long: u64, no_label: u64, bad: u64 },
    #[error(
        "{} to train on {} bad, more than the {percent}% that may be skipped{}",
        part(*bad, *rows, "row"),
        verb(*bad, ["is", "are"]),
        such_as(first.as_deref())
    )]
    TooManyBadRows { bad: u64, rows: u64, percent: f64, first: Option<Box<RowError>> },
    #[error("{} {} bad{}", part(*bad, *rows, "row"), verb(*bad, ["is", "are"]), such_as(first.as_deref()))]
    BadRows { bad: u64, rows: u64, first: Option<Box<RowError>> },
    #[error(
        "{} {} more than {limit} tokens, {longest}",
        part(*too_long, *rows, "row"),
        verb(*too_long, ["has", "have"])
    )]
    LongRows { too_long: u64, rows: u64, limit: usize, longest: Longest },
    #[error("{} be used: {unusable}", none_can(unusable.rows, &format!("of {dataset}")))]
    NoUsableRow { dataset: String, unusable: Box<Unusable> },
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    #[error(transparent)]
    Resume(#[from] ResumeError),
    #[error("another run is at work in {}: wait for its end", dir.display())]
    Busy { dir: PathBuf },
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Train(#[from] TrainError),
    #[error(transparent)]
    Python(#[from] PythonError),
    #[error(transparent)]
    Worker(#[from] WorkerError),
    #[error(
        "a step has {accumulation} micro-batches, fewer than the {processes} processes of this run: some would have nothing to do. \
         Let a step have as many micro-batches as there are processes, or start fewer processes"
    )]
    FewBatches { accumulation: u64, processes: usize },
    #[error("the engine {0} trains in one process: start one")]
    EngineInGroup(Engine),
    #[error("rank {rank} is another run than rank 0: {differs}")]
    Unlike { rank: usize, differs: String },
    #[error(
        "rank {rank} has other rows than rank 0: every process must find the same dataset under the name that was given"
    )]
    OtherRows { rank: usize },
    #[error(
        "{} is not there for rank {rank}: the output folder must be on a file system that all processes see",
        path.display()
    )]
    NotShared { path: PathBuf, rank: usize },
    #[error(transparent)]
    Elsewhere(#[from] Elsewhere),
    #[error(transparent)]
    Group(#[from] GroupError),
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
