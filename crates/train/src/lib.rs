//! Fine-tuning runs: memory that is flat, checkpoints that resume exactly, and a verdict at the end.
//!
//! [`train`] takes the settings of a run, tells an [`Observer`] what happens, and leaves an adapter with its logs, report and
//! memory verdict. It draws nothing, listens to no signal and changes no setting of the process. The crate joins the
//! model, the data and the memory half; it holds no arithmetic besides the optimizer's.
//!
//! ```
//! use garden_train::{Cancel, Event, RunConfig, TrainOptions, events::EndReason, train};
//! # use garden_data::{CreateKind, CreateOptions, create_dataset};
//! # use garden_model::init::{Plan, Preset};
//! # let folder = tempfile::tempdir()?;
//! # let (model, rows) = (folder.path().join("model"), folder.path().join("rows"));
//! # Plan::new(Preset::Tiny)?.write(&model, 1, |_| {})?;
//! # let options = CreateOptions { kind: CreateKind::Colours, rows: 8, width: 56, height: 56, seed: 1, workers: 1 };
//! # create_dataset(&rows, &options, &())?;
//! # let (model, rows) = (model.display().to_string(), rows.display().to_string());
//! let config = RunConfig::resolve(TrainOptions {
//!     base_model: Some(model),
//!     dataset: Some(rows),
//!     output_dir: Some(folder.path().join("adapter")),
//!     max_steps: Some(2),
//!     ..TrainOptions::default()
//! })?;
//! let mut losses = Vec::new();
//! let mut observer = |event: &Event| {
//!     if let Event::Step(step) = event {
//!         losses.push(step.loss);
//!     }
//! };
//! let report = train(&config, &mut observer, &Cancel::default())?;
//! assert_eq!(report.reason, EndReason::Finished);
//! assert_eq!(losses.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod announce;
mod cancel;
mod checkpoint;
mod config;
mod demo;
mod event;
mod folders;
mod generate;
mod group;
mod isolation;
mod merge;
mod model_folder;
mod monitor;
mod numbers;
mod optimizer;
mod outputs;
mod plan;
mod python_engine;
mod resume;
mod rows;
mod run;
mod schedule;
mod selective_loss;
#[cfg(test)]
mod testing;
mod trainer;

// A run: what it takes, what it tells, how it ends.
pub use cancel::Cancel;
pub use event::{Event, Observer};
pub use monitor::{MEMORY_TRACE, MemorySummary};
pub use run::{RunError, RunReport, train, train_together};
pub use trainer::{LogEntry, TrainerState};

/// What a run says: docs/events.md describes every field.
pub mod events {
    pub use crate::event::{
        CheckpointPlace, EVENT_VERSION, EVENTS, End, EndReason, Evaluation, Event, ExampleRow, ImageSize,
        Log, MemoryReading, MemoryVerdict, ModelLoaded, Note, Observer, Plan, PlanPart, Progress,
        ProgressUnit, Record, RowsSurveyed, Started, Step, Topic,
    };
}

/// Labels without the layout of JSON, for whoever makes batches without a run.
pub mod selective {
    pub use crate::selective_loss::{KeyFinder, Level, SelectiveLoss, Statistics, TokenBytes};
}

// Settings: options as people give them, and the run that they resolve to.
pub use config::{
    Checkpointing, ConfigError, Engine, EvalRows, EvalStrategy, FileError, FrontEndOptions, KeyError, Method,
    NoFrontEnd, OnBadRow, OnMemoryLimit, OptionInfo, ReportTo, RunConfig, TrainOptions, ValueKind,
};
pub use schedule::Shape as ScheduleShape;
pub use selective_loss::Level as SelectiveLoss;

/// Several processes that train one model together.
pub mod groups {
    #[cfg(feature = "mpi")]
    pub use crate::group::join_mpi;
    pub use crate::group::{Elsewhere, Group, GroupError, Launch, LaunchError, Link, launched};
}

// What can be wrong with a run, inside `RunError`.
pub use checkpoint::CheckpointError;
pub use python_engine::{PythonError, WorkerError};
pub use resume::ResumeError;
pub use run::{Longest, OutputError, Unusable};
pub use schedule::ScheduleError;
pub use trainer::TrainError;

// A model folder, opened and reconciled.
pub use model_folder::{Difference, ModelFolder, ModelFolderError};

// The memory of a run before it begins.
pub use plan::{
    Least, LimitTooLow, Load, PlanReport, Planned, PlannedError, Setting, Source, SourceError, plan, room,
};
pub use run::{RunData, open_data};

/// A run on several nodes: how long its steps take there, estimated.
pub mod cluster {
    pub use crate::plan::{BadBandwidth, Bandwidth, Cluster, Network, Nodes, Speed, StepTime, StepWork};
}

// A model that answers, an adapter that becomes one with its base, and the whole of it in a few minutes.
pub use demo::{DemoResult, demo};
pub use generate::{GenerateError, Interpreter, Prompt, Question, Sampling, Words, load_model, question};
pub use merge::{MergeError, Merged, MergedAs, merge};

/// Each part of the pipeline alone, or commands side by side: which one grows?
pub mod isolate {
    pub use crate::isolation::{
        Component, Difference, Host, Measured, Trial, Work, compare, measure, run_component,
    };
}

// The optimizer, for benchmarks of its own.
pub use optimizer::{AdamSettings, Optimizer, OptimizerKind};

// For whoever runs a training: numbers as people read them, the instructions that are used, and an allocator setting
// of the whole process that a program chooses once.
pub use garden_engine::{Isa, return_large_pieces, share_one_heap};
pub use numbers::grouped;
