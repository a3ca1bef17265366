//! Advice about the errors and notes of `garden-train`.

use super::{Advice, data};
use garden_data::RowError;
use garden_memory::ByteSize;
use garden_train::{
    CheckpointError, ConfigError, LimitTooLow, Longest, OutputError, PythonError, ResumeError, RunError,
    ScheduleError, TrainError, Unusable, events::Topic,
};
use std::error::Error;

const OTHER_FOLDER: &str = "--output-dir names another folder";

/// What the command line adds to an error of `garden-train`.
pub fn advice(error: &(dyn Error + 'static)) -> Option<Advice> {
    let instead = None
        .or_else(|| error.downcast_ref().map(with_flags))
        .or_else(|| error.downcast_ref().map(with_output_flag))
        .or_else(|| error.downcast_ref().map(with_limit_flag))
        .or_else(|| error.downcast_ref().and_then(with_changed_flags))
        .or_else(|| error.downcast_ref().and_then(with_resume_flags));
    if let Some(instead) = instead {
        return Some(Advice::Instead(instead));
    }
    if let Some(inner) = inside(error) {
        return super::about(inner);
    }
    let also = None
        .or_else(|| error.downcast_ref().and_then(about_run))
        .or_else(|| error.downcast_ref().and_then(about_training))
        .or_else(|| error.downcast_ref().and_then(about_resuming))
        .or_else(|| error.downcast_ref().map(about_schedule))
        .or_else(|| error.downcast_ref().and_then(about_python))
        .or_else(|| error.downcast_ref().and_then(about_checkpoint));
    also.map(Advice::Also)
}

/// The error that this one only passes on.
fn inside<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let of_run = error.downcast_ref().and_then(|error: &RunError| -> Option<&(dyn Error + 'static)> {
        Some(match error {
            RunError::Session(inner) => inner,
            RunError::Plan(inner) => inner,
            RunError::Limit(inner) => inner,
            RunError::Data(inner) => inner,
            RunError::Schedule(inner) => inner,
            RunError::Resume(inner) => inner,
            RunError::Output(inner) => inner,
            RunError::Checkpoint(inner) => inner,
            RunError::Train(inner) => inner,
            RunError::Python(inner) => inner,
            RunError::Other(inner) => inner.as_ref(),
            _ => return None,
        })
    });
    of_run.or_else(|| match error.downcast_ref()? {
        TrainError::Checkpoint(inner) => Some(inner),
        _ => None,
    })
}

/// What the command line adds to a note on this topic.
pub fn about_note(topic: Topic) -> Option<&'static str> {
    (topic == Topic::MemoryLimit).then_some("as --on-memory-limit warn says")
}

/// What helps where rows are too long.
pub fn about_long_rows(longest: &Longest) -> String {
    match longest.pixels {
        Some(pixels) => format!("lower --max-pixels ({pixels} would do) or raise --max-seq-length"),
        None => "raise --max-seq-length".to_owned(),
    }
}

/// The same error with flags in the place of settings.
fn with_flags(error: &ConfigError) -> String {
    match error {
        ConfigError::Missing(setting) => format!("--{setting} is needed"),
        ConfigError::Value { setting: "dataset-weights", value, .. } => {
            format!(
                "--dataset-weights {value}: one whole number for --dataset and one for each --add-dataset"
            )
        }
        ConfigError::Value { .. } | ConfigError::Count { .. } | ConfigError::Adapter(_) => {
            format!("--{error}")
        }
        ConfigError::Conflict(one, other) => format!("--{one} and --{other} exclude each other"),
        ConfigError::AdapterHas { setting, asked, adapter, has } => format!(
            "--{setting} {asked} contradicts --adapter {}, which has {has}: leave --{setting} out",
            adapter.display()
        ),
        ConfigError::NotFollowed { setting, engine, reason } => {
            let reason = reason.replace("memory-limit", "--memory-limit");
            format!("--{setting} is not followed by --engine {engine}: {reason}")
        }
        ConfigError::Needs { setting, any_of } => {
            let any_of: Vec<String> = any_of.iter().map(|setting| format!("--{setting}")).collect();
            format!("--{setting} needs {}", any_of.join(" or "))
        }
    }
}

/// A refused output folder, by the flag that names it.
fn with_output_flag(error: &OutputError) -> String {
    let text = error.to_string().replacen("the output folder ", "--output-dir ", 1);
    text.replacen(" with method ", " with --method ", 1)
}

/// A refused memory limit, with the flags that help.
fn with_limit_flag(error: &LimitTooLow) -> String {
    let less = if error.recomputes { "" } else { ", or less with --gradient-checkpointing auto" };
    format!(
        "--memory-limit {} is too low: the run would stop there at its first step. It needs\n{}\nThe lowest that works is \
         --memory-limit {}MB{less}. `memory plan` with the same flags says what needs less",
        ByteSize(error.limit),
        error.table,
        error.least_megabytes
    )
}

/// The settings that must not change and did, by their flags.
fn with_changed_flags(error: &ResumeError) -> Option<String> {
    let ResumeError::AnotherRun { path, changes } = error else { return None };
    let changes: Vec<String> = changes.iter().map(|change| format!("--{change}")).collect();
    Some(format!(
        "{} was made with other settings: {}. Go on with those of the checkpoint, or choose another --output-dir to begin anew",
        path.display(),
        changes.join(", ")
    ))
}

/// A checkpoint that cannot be gone on from, by the flags that choose another.
fn with_resume_flags(error: &ResumeError) -> Option<String> {
    let text = error.to_string().replace("another output folder", "another --output-dir");
    match error {
        ResumeError::WouldMix { dir, step } => Some(format!(
            "{} holds checkpoints (the newest is of step {step}) and --resume is never: choose another --output-dir, or \
             remove them",
            dir.display()
        )),
        ResumeError::NoneUsable(skipped) => Some(format!(
            "no checkpoint can be used ({skipped} skipped): remove what is there to start anew, choose another \
             --output-dir, or name a checkpoint with --resume"
        )),
        ResumeError::Newer { .. } | ResumeError::AnotherBase { .. } => Some(text),
        ResumeError::WouldDiverge { path, .. } => Some(format!(
            "{text}. Lower --learning-rate or add --warmup-steps; --resume {} goes on nevertheless",
            path.display()
        )),
        _ => None,
    }
}

fn about_run(error: &RunError) -> Option<String> {
    const FIX: &str = "fix bad rows (`dataset check` lists them)";
    Some(match error {
        RunError::NothingLeft { .. } | RunError::NothingUsableLeft { .. } => {
            "hold out fewer with --eval-split".to_owned()
        }
        RunError::NoUsableEvaluation { .. } => "hold out more with --eval-split".to_owned(),
        RunError::TooManyBadRows { first, .. } => {
            with_row(first.as_deref(), format!("{FIX} or raise --max-bad-rows"))
        }
        RunError::BadRows { first, .. } => {
            with_row(first.as_deref(), format!("{FIX} or use --on-bad-row skip"))
        }
        RunError::LongRows { longest, .. } => {
            format!("{}; or leave long rows out with --on-long-row drop", about_long_rows(longest))
        }
        RunError::NoUsableRow { unusable, .. } => about_unusable(unusable),
        RunError::Busy { .. } => OTHER_FOLDER.to_owned(),
        RunError::FewBatches { processes, .. } => {
            format!(
                "--gradient-accumulation-steps {processes} or more says how many there are, over all processes"
            )
        }
        RunError::EngineInGroup(_) => "--engine chooses it".to_owned(),
        RunError::Unlike { differs, .. } if differs.starts_with("vector-instructions") => {
            "MODEL_GARDEN_ISA=avx2 in the environment makes all of them compute alike".to_owned()
        }
        RunError::NotShared { .. } => OTHER_FOLDER.to_owned(),
        _ => return None,
    })
}

/// Advice about rows, after what helps about the one that is named.
fn with_row(row: Option<&RowError>, advice: String) -> String {
    let about = row.and_then(|row| data::about_row(&row.reason));
    about.map(|about| format!("{about}; {advice}")).unwrap_or(advice)
}

fn about_unusable(unusable: &Unusable) -> String {
    let long = (unusable.too_long > 0).then(|| about_long_rows(&unusable.longest));
    let unlearned = (unusable.no_label > 0).then(|| "--train-on says what is learned".to_owned());
    let bad = (unusable.bad > 0)
        .then(|| with_row(unusable.first_bad.as_ref(), "`dataset check` lists bad rows".to_owned()));
    [long, unlearned, bad].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn about_training(error: &TrainError) -> Option<String> {
    match error {
        TrainError::Diverged { .. } | TrainError::NotFinite { .. } => {
            Some("lower --learning-rate, or add --warmup-steps".to_owned())
        }
        _ => None,
    }
}

fn about_resuming(error: &ResumeError) -> Option<String> {
    match error {
        ResumeError::Missing(_) => Some("--resume names the folder of a checkpoint".to_owned()),
        _ => None,
    }
}

fn about_schedule(error: &ScheduleError) -> String {
    match error {
        ScheduleError::Ratio(_) => "--warmup-ratio sets it".to_owned(),
        _ => "--learning-rate sets it".to_owned(),
    }
}

fn about_python(error: &PythonError) -> Option<String> {
    match error {
        PythonError::NoCuda { .. } => Some("--engine chooses it".to_owned()),
        _ => Some("--python names another interpreter".to_owned()),
    }
}

fn about_checkpoint(error: &CheckpointError) -> Option<String> {
    match error {
        CheckpointError::Full { .. } => {
            Some("lower --save-total-limit, or run again with --resume auto".to_owned())
        }
        CheckpointError::AnotherRun { .. } => Some(OTHER_FOLDER.to_owned()),
        _ => None,
    }
}
