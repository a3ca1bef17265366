//! Which checkpoint a run continues from.
//!
//! In come the user's choice and the output folder; out comes a whole checkpoint or none, with a line for each that was skipped. Two
//! runs are never mixed in one folder.

use crate::{
    checkpoint::{Checkpoint, CheckpointError, CheckpointStore, Manifest},
    config::Resume,
    screen::Screen,
};
use std::path::PathBuf;

/// Why a run cannot begin as asked.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// There are checkpoints where none may be.
    #[error(
        "{} holds checkpoints (the newest is of step {step}) and --resume is never: choose another --output-dir, or remove them",
        dir.display()
    )]
    WouldMix {
        /// The output folder.
        dir: PathBuf,
        /// The newest checkpoint's step.
        step: u64,
    },
    /// Going back would leave newer checkpoints of another course of the run.
    #[error(
        "{} holds newer checkpoints than step {from} (the newest is of step {step}): remove them to go back, or choose another --output-dir",
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
    /// Checkpoints are there, but none is whole.
    #[error("none of the {0} checkpoints is whole: remove them to start anew")]
    NoneWhole(usize),
}

/// Finds the checkpoint to continue from and says what was found.
pub fn choose(
    resume: &Resume,
    store: &CheckpointStore,
    dir: &std::path::Path,
    screen: &Screen,
) -> Result<Option<Checkpoint>, ResumeError> {
    let chosen = match resume {
        Resume::Never => match store.list()?.last() {
            Some(newest) => return Err(ResumeError::WouldMix { dir: dir.to_owned(), step: newest.step }),
            None => None,
        },
        Resume::From(path) => {
            let step = Manifest::verify(path)?.step;
            if let Some(newest) = store.list()?.last().filter(|newest| newest.step > step) {
                return Err(ResumeError::Newer { dir: dir.to_owned(), from: step, step: newest.step });
            }
            Some(Checkpoint { step, path: path.clone() })
        }
        Resume::Auto => {
            let found = store.newest()?;
            for (path, error) in &found.skipped {
                screen.note(&format!("skipped {}: {error}", path.display()));
            }
            if found.newest.is_none() && !found.skipped.is_empty() {
                return Err(ResumeError::NoneWhole(found.skipped.len()));
            }
            found.newest
        }
    };
    if let Some(checkpoint) = &chosen {
        screen.line(&format!("continuing from {}", checkpoint.path.display()));
    }
    if let Err(error) = store.clear_unfinished() {
        screen.note(&format!("what a killed run left could not be removed: {error}"));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogFormat;
    use std::{fs, io, path::Path};

    fn folder_with_steps(steps: &[u64]) -> (tempfile::TempDir, CheckpointStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path()).unwrap();
        for step in steps {
            store.write(*step, |dir: &Path| -> io::Result<()> { fs::write(dir.join("x"), "x") }).unwrap();
        }
        (dir, store)
    }

    fn chosen(
        resume: Resume,
        dir: &tempfile::TempDir,
        store: &CheckpointStore,
    ) -> Result<Option<u64>, String> {
        let screen = Screen::new(LogFormat::Text, true);
        let chosen = choose(&resume, store, dir.path(), &screen).map_err(|error| error.to_string())?;
        Ok(chosen.map(|checkpoint| checkpoint.step))
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
            chosen(Resume::Auto, &dir, &store).unwrap_err().starts_with("none of the 2 checkpoints is whole")
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
        fs::remove_file(path.join("x")).unwrap();
        assert!(chosen(Resume::From(path), &dir, &store).unwrap_err().contains("x: missing"));
    }
}
