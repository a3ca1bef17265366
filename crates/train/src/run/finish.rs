//! What a finished run leaves in its folder.
//!
//! Takes the last checkpoint, or the best one after early stopping, and writes its adapter, the base's
//! tokenizer and processor files, the history, the model card and the report.

use super::{Run, RunData, RunError, together::LeftOut};
use crate::{
    checkpoint::{Checkpoint, MANIFEST},
    event::Topic,
    merge::copy_companions,
    monitor::MemorySummary,
    outputs::summary::FinishedRun,
    resume::SETTINGS_FILE,
    trainer::{BatchSource, Outcome, StopReason},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Files of a checkpoint that only a resume needs.
const ONLY_TO_RESUME: [&str; 9] = [
    MANIFEST,
    SETTINGS_FILE,
    "optimizer.safetensors",
    "progress.json",
    "trainer_state.json",
    // Those of Hugging Face's Trainer.
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "training_args.bin",
];
/// Written when all results are: holds the step of the last checkpoint.
const FINISHED: &str = ".finished";

impl Run<'_, '_> {
    /// Writes the results; an interrupted run leaves them to the run that resumes it.
    pub(super) fn finish(
        &self,
        parameters: (u64, u64),
        data: &RunData,
        base: &Path,
        outcome: &Outcome,
        memory: &MemorySummary,
        left_out: &LeftOut,
    ) -> Result<(), RunError> {
        let output = &self.config.output_dir;
        if matches!(outcome.stopped, Some(StopReason::MemoryLimit(_) | StopReason::Cancelled)) {
            return Ok(());
        }
        let best = outcome.state.best_global_step.filter(|_| self.config.early_stopping_patience.is_some());
        let Delivered { step: delivered, path: source, missed } = chosen(output, best, &outcome.checkpoint);
        missed.into_iter().for_each(|missed| self.announcer.note(Topic::Checkpoint, missed));
        for entry in fs::read_dir(&source).map_err(RunError::io(&source))? {
            let path = entry.map_err(RunError::io(&source))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if path.is_file() && !ONLY_TO_RESUME.contains(&name) {
                let copy = output.join(name);
                garden_files::copy(&path, &copy).map_err(RunError::io(copy))?;
            }
        }
        copy_companions(base, output).map_err(|error| RunError::Other(error.into()))?;
        outcome.state.save(output).map_err(RunError::io(output))?;
        let dropped =
            [("too long", left_out.too_long), ("without a label", left_out.no_label), ("bad", left_out.bad)];
        let dropped: Vec<(String, u64)> = dropped
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(why, count)| (why.to_owned(), count))
            .collect();
        for row in &left_out.bad_rows {
            self.announcer.note(Topic::SkippedRow, format!("skipped {row}"));
        }
        for row in &left_out.bad_to_evaluate {
            self.announcer.note(Topic::SkippedRow, format!("skipped in evaluation {row}"));
        }
        let finished = FinishedRun {
            config: self.config,
            state: &outcome.state,
            memory,
            parameters,
            rows: data.training.rows(),
            dropped: &dropped,
            delivered,
        };
        finished.write(output).map_err(RunError::io(output))?;
        let mark = output.join(FINISHED);
        garden_files::write(&mark, outcome.checkpoint.step.to_string().as_bytes()).map_err(RunError::io(mark))
    }
}

/// Whether all results of a run that ended at this step are in its folder.
pub(super) fn is_delivered(output: &Path, step: u64) -> bool {
    fs::read_to_string(output.join(FINISHED)).is_ok_and(|text| text.trim() == step.to_string())
}

/// The checkpoint whose files are the result.
#[derive(Debug, PartialEq, Eq)]
struct Delivered {
    step: u64,
    path: PathBuf,
    /// What to announce if it is not the best one.
    missed: Option<String>,
}

/// Chooses the result: the best checkpoint, or the last one. A run that was resumed from another folder has
/// its best checkpoint there.
fn chosen(output: &Path, best: Option<u64>, last: &Checkpoint) -> Delivered {
    let the_last = |missed| Delivered { step: last.step, path: last.path.clone(), missed };
    let Some(step) = best.filter(|step| *step != last.step) else { return the_last(None) };
    let path = output.join(format!("checkpoint-{step}"));
    if path.is_dir() {
        return Delivered { step, path, missed: None };
    }
    the_last(Some(format!(
        "the best evaluation was at step {step}, whose checkpoint is not in {}: the result is that of step {}, the last",
        output.display(),
        last.step
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_the_best_checkpoint_or_the_last_where_the_best_is_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = |step: u64| folder.path().join(format!("checkpoint-{step}"));
        fs::create_dir(checkpoint(5)).unwrap();
        let last = Checkpoint { step: 9, path: checkpoint(9) };
        let choose = |best| chosen(folder.path(), best, &last);
        let result = |step| Delivered { step, path: checkpoint(step), missed: None };
        assert_eq!(choose(Some(5)), result(5));
        assert_eq!(choose(None), result(9));
        assert_eq!(choose(Some(9)), result(9), "wherever it is");
        let Delivered { step, path, missed } = choose(Some(3));
        assert_eq!((step, path), (9, checkpoint(9)));
        assert!(missed.unwrap().starts_with("the best evaluation was at step 3, whose checkpoint is not in"));
    }
}
