//! Which checkpoint a run continues from, and whether it is the same run.
//!
//! Takes the user's choice, the output folder and this run's identity. Gives a whole checkpoint or none, and
//! announces each one that was skipped and each setting that changed. Two runs are never mixed in one folder,
//! and a run that diverged is not repeated.

mod base;
mod divergence;
mod identity;
mod settings;

pub use divergence::Divergence;
pub use identity::{RunIdentity, SETTINGS_FILE};
pub use settings::Change;

use crate::{
    announce::Announcer,
    checkpoint::{Checkpoint, CheckpointError, CheckpointStore},
    config::Resume,
    event::Topic,
};
use garden_data::{DataError, check_folder};
use std::path::{Path, PathBuf};

/// Why a run cannot begin as asked.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint is not there.
    #[error("the checkpoint to resume from: {0}")]
    Missing(DataError),
    /// There are checkpoints, but the run is not to resume.
    #[error(
        "{} holds checkpoints (the newest is of step {step}), but the run must not resume from any: choose another output folder, or \
         remove them",
        dir.display()
    )]
    WouldMix {
        /// The output folder.
        dir: PathBuf,
        /// The newest checkpoint's step.
        step: u64,
    },
    /// Going back would leave newer checkpoints, which belong to another course of the run.
    #[error(
        "{} holds newer checkpoints than step {from} (the newest is of step {step}): remove them to go back, or choose \
         another output folder",
        dir.display()
    )]
    Newer {
        /// The output folder.
        dir: PathBuf,
        /// The step to go back to.
        from: u64,
        /// The newest checkpoint's step.
        step: u64,
    },
    /// Checkpoints are there, but none can be used.
    #[error(
        "no checkpoint can be used ({0} skipped): remove what is there to start anew, choose another output folder, or name the \
         checkpoint to resume from"
    )]
    NoneUsable(usize),
    /// The checkpoint belongs to a run with another base model.
    #[error(
        "{} was made from another base model: {base} differs from it in its {parts}. Go on with the model it was made from, or \
         choose another output folder to begin anew",
        path.display()
    )]
    AnotherBase {
        /// The checkpoint.
        path: PathBuf,
        /// What differs.
        parts: String,
        /// This run's model.
        base: String,
    },
    /// The checkpoint belongs to a run with other settings.
    #[error(
        "{} was made with other settings: {}. Go on with those of the checkpoint, or choose another output folder to begin \
         anew",
        path.display(), refusals(changes)
    )]
    AnotherRun {
        /// The checkpoint.
        path: PathBuf,
        /// The settings that must not change and did.
        changes: Vec<Change>,
    },
    /// The same command diverged after this checkpoint.
    #[error(
        "with these settings the run diverged at step {} after {} ({} was not finite), and it would again. Where a row is the \
         cause, fix it and choose another output folder",
        divergence.step, path.display(), divergence.what
    )]
    WouldDiverge {
        /// The checkpoint.
        path: PathBuf,
        /// How it diverged.
        divergence: Box<Divergence>,
    },
}

fn refusals(changes: &[Change]) -> String {
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Finds the checkpoint that a run continues from, and announces what was found.
pub fn choose(
    resume: &Resume,
    store: &CheckpointStore,
    dir: &Path,
    run: &RunIdentity,
    announcer: &Announcer<'_>,
) -> Result<Option<Checkpoint>, ResumeError> {
    let chosen = match resume {
        Resume::Never => match store.list()?.last() {
            Some(newest) => return Err(ResumeError::WouldMix { dir: dir.to_owned(), step: newest.step }),
            None => None,
        },
        Resume::From(path) => {
            check_folder(path).map_err(ResumeError::Missing)?;
            let step = CheckpointStore::check(path)?;
            if let Some(newest) = store.list()?.last().filter(|newest| newest.step > step) {
                return Err(ResumeError::Newer { dir: dir.to_owned(), from: step, step: newest.step });
            }
            Some(Checkpoint { step, path: path.clone() })
        }
        Resume::Auto => newest_usable(store, run, announcer)?,
    };
    if let Some(checkpoint) = &chosen {
        say_changes(checkpoint, run, announcer)?;
    }
    if let Err(error) = store.clear_unfinished() {
        announcer.note(Topic::Checkpoint, format!("what a killed run left could not be removed: {error}"));
    }
    Ok(chosen)
}

/// The newest whole checkpoint after which the run did not diverge.
fn newest_usable(
    store: &CheckpointStore,
    run: &RunIdentity,
    announcer: &Announcer<'_>,
) -> Result<Option<Checkpoint>, ResumeError> {
    let found = store.newest_unless(|checkpoint| {
        let divergence = Divergence::read(&checkpoint.path)?;
        Some(format!("the run diverged at step {} after it", divergence.step))
    })?;
    let from = found.newest.as_ref().map_or(0, |newest| newest.step);
    for Checkpoint { path, .. } in store.list()?.into_iter().filter(|ahead| ahead.step >= from) {
        // A run repeats itself: from an older checkpoint the same settings lead to the same step. A
        // checkpoint past that step was made with other settings, on another course.
        let again = Divergence::read(&path).filter(|divergence| divergence.settings == run.settings);
        if let Some(divergence) = again {
            return Err(ResumeError::WouldDiverge { path, divergence: Box::new(divergence) });
        }
    }
    found.skipped.iter().for_each(|error| announcer.note(Topic::Checkpoint, format!("skipped {error}")));
    match found.newest {
        None if !found.skipped.is_empty() => Err(ResumeError::NoneUsable(found.skipped.len())),
        newest => Ok(newest),
    }
}

/// Refuses another run's checkpoint, and announces what changed in this run.
fn say_changes(
    checkpoint: &Checkpoint,
    run: &RunIdentity,
    announcer: &Announcer<'_>,
) -> Result<(), ResumeError> {
    let path = checkpoint.path.display();
    let Some(then) = RunIdentity::read(&checkpoint.path)? else {
        announcer.note(Topic::Settings, format!(
            "{path} was written by an older version and does not hold its settings: only its rows and its seed are compared"
        ));
        return Ok(());
    };
    let changes = run.continues(&then, &checkpoint.path)?;
    if !changes.is_empty() {
        let said = changes.iter().map(|change| {
            let (then, now) = (settings::shown(&change.then), settings::shown(&change.now));
            format!("{} {then} -> {now}", change.name)
        });
        announcer.note(
            Topic::Settings,
            format!("changed since the checkpoint: {}", said.collect::<Vec<_>>().join(", ")),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{RunConfig, TrainOptions},
        event::Event,
    };
    use identity::FORMAT;
    use std::{collections::BTreeMap, fs, io};

    fn run_with(options: TrainOptions) -> RunIdentity {
        let options = TrainOptions {
            base_model: Some("model".into()),
            dataset: Some("rows.jsonl".into()),
            output_dir: Some("out".into()),
            ..options
        };
        let config = RunConfig::resolve(options).unwrap();
        let base = BTreeMap::from([("weights".to_owned(), "12ab".to_owned())]);
        RunIdentity { format: FORMAT, base, settings: settings::values(&config) }
    }

    fn folder_with_steps(steps: &[u64]) -> (tempfile::TempDir, CheckpointStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path()).unwrap();
        let settings = run_with(TrainOptions::default()).to_bytes();
        for step in steps {
            let fill = |dir: &Path| -> io::Result<()> {
                fs::write(dir.join(SETTINGS_FILE), &settings)?;
                fs::write(dir.join("x"), "x")
            };
            store.write(*step, fill).unwrap();
        }
        (dir, store)
    }

    fn chosen_by(
        run: &RunIdentity,
        resume: Resume,
        dir: &tempfile::TempDir,
        store: &CheckpointStore,
    ) -> Result<Option<u64>, String> {
        let mut nobody = |_: &Event| {};
        let announcer = Announcer::new(&mut nobody);
        let chosen =
            choose(&resume, store, dir.path(), run, &announcer).map_err(|error| error.to_string())?;
        Ok(chosen.map(|checkpoint| checkpoint.step))
    }

    fn chosen(
        resume: Resume,
        dir: &tempfile::TempDir,
        store: &CheckpointStore,
    ) -> Result<Option<u64>, String> {
        chosen_by(&run_with(TrainOptions::default()), resume, dir, store)
    }

    #[test]
    fn auto_takes_the_newest_whole_one_or_none() {
        let (dir, store) = folder_with_steps(&[]);
        assert_eq!(chosen(Resume::Auto, &dir, &store), Ok(None));
        let (dir, store) = folder_with_steps(&[5, 10]);
        assert_eq!(chosen(Resume::Auto, &dir, &store), Ok(Some(10)));
        fs::write(dir.path().join("checkpoint-10/x"), "y").unwrap();
        assert_eq!(chosen(Resume::Auto, &dir, &store), Ok(Some(5)));
        fs::write(dir.path().join("checkpoint-5/x"), "y").unwrap();
        assert!(
            chosen(Resume::Auto, &dir, &store)
                .unwrap_err()
                .starts_with("no checkpoint can be used (2 skipped)")
        );
    }

    #[test]
    fn never_does_not_mix_runs() {
        let (dir, store) = folder_with_steps(&[5]);
        assert!(chosen(Resume::Never, &dir, &store).unwrap_err().contains("step 5"));
    }

    #[test]
    fn a_path_is_checked() {
        let (dir, store) = folder_with_steps(&[5]);
        let path = dir.path().join("checkpoint-5");
        assert_eq!(chosen(Resume::From(path.clone()), &dir, &store), Ok(Some(5)));
        let (other, newer) = folder_with_steps(&[5, 10]);
        let message = chosen(Resume::From(path.clone()), &other, &newer).unwrap_err();
        assert!(message.contains("newer checkpoints than step 5 (the newest is of step 10)"), "{message}");
        let message = chosen(Resume::From(dir.path().join("checkpiont-5")), &dir, &store).unwrap_err();
        assert!(
            message.starts_with("the checkpoint to resume from: ") && message.contains("did you mean "),
            "{message}"
        );
        fs::remove_file(path.join("x")).unwrap();
        assert!(chosen(Resume::From(path), &dir, &store).unwrap_err().contains("x: missing"));
    }

    #[test]
    fn another_base_model_and_other_settings_are_refused_by_name() {
        let (dir, store) = folder_with_steps(&[5]);
        let mut other = run_with(TrainOptions::default());
        other.base.insert("weights".into(), "34cd".into());
        let error = chosen_by(&other, Resume::Auto, &dir, &store).unwrap_err();
        assert!(
            error.contains("made from another base model: model differs from it in its weights."),
            "{error}"
        );
        let other = run_with(TrainOptions { lora_r: Some(8), max_pixels: Some(784), ..Default::default() });
        let error = chosen_by(&other, Resume::Auto, &dir, &store).unwrap_err();
        assert!(error.contains("lora-r was 16, now 8 (other values are trained)"), "{error}");
        assert!(error.contains("max-pixels was not given, now 784 (images would have"), "{error}");
        let other = run_with(TrainOptions { learning_rate: Some(1e-4), ..Default::default() });
        assert_eq!(chosen_by(&other, Resume::Auto, &dir, &store), Ok(Some(5)));
    }

    #[test]
    fn a_run_that_got_past_a_divergence_with_other_settings_goes_on_with_any() {
        let (dir, store) = folder_with_steps(&[5, 10, 15]);
        let run = run_with(TrainOptions::default());
        run.divergence(12, "the loss".into()).mark(&dir.path().join("checkpoint-10")).unwrap();
        assert_eq!(chosen(Resume::Auto, &dir, &store), Ok(Some(15)));
        // Without the newest checkpoint, the same step lies ahead.
        fs::write(dir.path().join("checkpoint-15/x"), "y").unwrap();
        let error = chosen(Resume::Auto, &dir, &store).unwrap_err();
        assert!(error.starts_with("with these settings the run diverged at step 12 after "), "{error}");
    }

    #[test]
    fn a_checkpoint_after_which_the_run_diverged_is_not_gone_on_from() {
        let (dir, store) = folder_with_steps(&[5, 10]);
        let path = dir.path().join("checkpoint-10");
        let run = run_with(TrainOptions::default());
        run.divergence(12, "the loss".into()).mark(&path).unwrap();
        let error = chosen(Resume::Auto, &dir, &store).unwrap_err();
        assert!(error.starts_with("with these settings the run diverged at step 12 after "), "{error}");
        let slower = run_with(TrainOptions { learning_rate: Some(1e-4), ..Default::default() });
        assert_eq!(chosen_by(&slower, Resume::Auto, &dir, &store), Ok(Some(5)), "an older one, and slower");
        assert_eq!(chosen(Resume::From(path), &dir, &store), Ok(Some(10)), "who names it, has it");
        run.divergence(7, "the loss".into()).mark(&dir.path().join("checkpoint-5")).unwrap();
        let error = chosen_by(&slower, Resume::Auto, &dir, &store).unwrap_err();
        assert!(error.starts_with("no checkpoint can be used (2 skipped)"), "{error}");
    }
}
