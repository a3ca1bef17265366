//! Checkpoints: folders that are whole or not there, found again when a run resumes.
//!
//! Takes a step and a closure that fills a folder, and leaves `checkpoint-STEP` beside the others, with a
//! manifest of sizes and SHA-256 sums. The folder is filled under a temporary name, synced and renamed, so a
//! kill, a crash or a full disk at any moment leaves the older checkpoints as they were.

mod finite;
mod manifest;

pub use manifest::{MANIFEST, Manifest};

use std::{
    fs, io,
    path::{Path, PathBuf},
};

const PREFIX: &str = "checkpoint-";
const UNFINISHED: &str = ".unfinished-checkpoint-";
const REPLACED: &str = ".replaced-checkpoint-";

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk is full; nothing was lost.
    #[error("no space left for checkpoint {step} in {}: the older checkpoints are intact; free some space and run again", dir.display())]
    Full {
        /// The step whose checkpoint did not fit.
        step: u64,
        /// The folder of checkpoints.
        dir: PathBuf,
    },
    /// A file is missing, or its size or content is wrong.
    #[error("{}: {reason}", path.display())]
    Damaged {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It is whole, but belongs to another run.
    #[error("{} {differs}", path.display())]
    AnotherRun {
        /// The checkpoint.
        path: PathBuf,
        /// What it was made with, as the rest of a sentence.
        differs: String,
    },
    /// The part of the program that fills the folder failed.
    #[error("{0}")]
    Contents(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl CheckpointError {
    /// Names the file that an operation failed on.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    fn damaged(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.into(), reason: reason.into() }
    }

    /// Whether a full disk (or quota, or file-size limit) is behind it.
    fn is_full(&self) -> bool {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
            if let Some(
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge,
            ) = kind
            {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

/// A whole checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Optimizer steps taken before it was written.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
}

/// What the search for the newest checkpoint found.
#[derive(Debug, Default)]
pub struct Found {
    /// The newest whole checkpoint.
    pub newest: Option<Checkpoint>,
    /// Why each newer one cannot be used; every reason names its checkpoint.
    pub skipped: Vec<CheckpointError>,
}

/// The checkpoints of one run.
#[derive(Debug, Clone)]
pub struct CheckpointStore {
    dir: PathBuf,
}

impl CheckpointStore {
    /// Opens the checkpoints in this folder, which is made if need be.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let dir = dir.into();
        garden_files::create_folder(&dir).map_err(CheckpointError::io(&dir))?;
        let store = Self { dir };
        store.put_back()?;
        Ok(store)
    }

    /// The checkpoints in a folder that another process of the run keeps in order.
    pub fn of_another(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Restores a checkpoint whose replacement was interrupted.
    fn put_back(&self) -> Result<(), CheckpointError> {
        for name in self.names()? {
            let Some(step) = name.strip_prefix(REPLACED) else { continue };
            let (replaced, path) = (self.dir.join(&name), self.dir.join(format!("{PREFIX}{step}")));
            match path.exists() {
                true => remove_folder(&replaced)?,
                false => rename_if_there(&replaced, &path)?,
            }
        }
        Ok(())
    }

    /// Where the checkpoint of a step is, or would be.
    pub fn path_of(&self, step: u64) -> PathBuf {
        self.dir.join(format!("{PREFIX}{step}"))
    }

    /// Writes the checkpoint of a step; `fill` is given an empty folder to write its files into.
    pub fn write<E>(
        &self,
        step: u64,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<Checkpoint, CheckpointError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let unfinished = self.dir.join(format!("{UNFINISHED}{step}"));
        remove_folder(&unfinished)?;
        let written = self.write_into(&unfinished, step, fill);
        if written.is_err() {
            // Free the space, and restore an older checkpoint of this step; the first error is the one to
            // report.
            let _ = remove_folder(&unfinished).and_then(|()| self.put_back());
        }
        written.map_err(|error| match error.is_full() {
            true => CheckpointError::Full { step, dir: self.dir.clone() },
            false => error,
        })
    }

    fn write_into<E>(
        &self,
        unfinished: &Path,
        step: u64,
        fill: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<Checkpoint, CheckpointError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        fs::create_dir(unfinished).map_err(CheckpointError::io(unfinished))?;
        fill(unfinished).map_err(|error| CheckpointError::Contents(error.into()))?;
        Manifest::seal(unfinished, step)?;
        self.name(unfinished, step)
    }

    /// Gives a finished checkpoint its name. An older one of the same step stays until then, so a kill leaves
    /// one of them.
    fn name(&self, finished: &Path, step: u64) -> Result<Checkpoint, CheckpointError> {
        let path = self.path_of(step);
        let replaced = self.dir.join(format!("{REPLACED}{step}"));
        rename_if_there(&path, &replaced)?;
        garden_files::rename(finished, &path).map_err(CheckpointError::io(&path))?;
        remove_folder(&replaced)?;
        Ok(Checkpoint { step, path })
    }

    /// The newest whole checkpoint, with those skipped on the way to it.
    #[cfg(test)]
    pub fn newest(&self) -> Result<Found, CheckpointError> {
        self.newest_unless(|_| None)
    }

    /// The same, leaving out those against which `skip` gives a reason.
    pub fn newest_unless(
        &self,
        skip: impl Fn(&Checkpoint) -> Option<String>,
    ) -> Result<Found, CheckpointError> {
        let mut found = Found::default();
        for checkpoint in self.list()?.into_iter().rev() {
            let whole = Self::check(&checkpoint.path).and_then(|step| {
                match skip(&checkpoint) {
                    _ if step != checkpoint.step => {
                        Err(format!("is named for step {} but holds step {step}", checkpoint.step))
                    }
                    Some(reason) => Err(reason),
                    None => Ok(()),
                }
                .map_err(|reason| CheckpointError::damaged(&checkpoint.path, reason))
            });
            match whole {
                Ok(()) => {
                    found.newest = Some(checkpoint);
                    break;
                }
                Err(error) => found.skipped.push(error),
            }
        }
        Ok(found)
    }

    /// Checks that a checkpoint is whole: the sums of its files, and that its values are finite. Gives its
    /// step.
    pub fn check(path: &Path) -> Result<u64, CheckpointError> {
        let manifest = Manifest::verify(path)?;
        finite::check(path)?;
        Ok(manifest.step)
    }

    /// Removes folders that a killed run left unfinished.
    pub fn clear_unfinished(&self) -> Result<(), CheckpointError> {
        for name in self.names()? {
            if name.starts_with(UNFINISHED) {
                remove_folder(&self.dir.join(name))?;
            }
        }
        Ok(())
    }

    /// Keeps the newest `limit` checkpoints up to step `written`, and also `best`. Checkpoints after
    /// `written` can only be damaged: if they counted, they would take the place of whole ones.
    pub fn prune(&self, limit: usize, best: Option<u64>, written: u64) -> Result<(), CheckpointError> {
        let mut all = self.list()?;
        all.retain(|checkpoint| checkpoint.step <= written);
        let surplus = all.len().saturating_sub(limit.max(1));
        for checkpoint in all.into_iter().take(surplus).filter(|checkpoint| Some(checkpoint.step) != best) {
            // Hide it first, on the disk too: a kill or a power cut halfway must not leave what looks like a
            // checkpoint.
            let doomed = self.dir.join(format!("{UNFINISHED}{}", checkpoint.step));
            remove_folder(&doomed)?;
            garden_files::rename(&checkpoint.path, &doomed).map_err(CheckpointError::io(&checkpoint.path))?;
            remove_folder(&doomed)?;
        }
        Ok(())
    }

    /// Every folder named as a checkpoint, oldest first, whole or not.
    pub fn list(&self) -> Result<Vec<Checkpoint>, CheckpointError> {
        let mut all: Vec<Checkpoint> = self
            .names()?
            .iter()
            .filter_map(|name| step_of(name).map(|step| Checkpoint { step, path: self.dir.join(name) }))
            .collect();
        all.sort_by_key(|checkpoint| checkpoint.step);
        Ok(all)
    }

    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let entries = fs::read_dir(&self.dir).map_err(CheckpointError::io(&self.dir))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }
}

/// The step of a checkpoint's folder, by its name.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// Makes a rename or a new file in a folder survive a power cut.
pub(crate) fn sync_folder(dir: &Path) -> Result<(), CheckpointError> {
    garden_files::sync_folder(dir).map_err(CheckpointError::io(dir))
}

/// Renames a folder if it is there, and replaces what a kill may have left under the new name.
fn rename_if_there(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    if !from.exists() {
        return Ok(());
    }
    remove_folder(to)?;
    garden_files::rename(from, to).map_err(CheckpointError::io(from))
}

fn remove_folder(dir: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CheckpointError::io(dir)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_model::{Dtype, TensorSpec, TensorWriter};

    fn store() -> (tempfile::TempDir, CheckpointStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path().join("out")).unwrap();
        (dir, store)
    }

    fn write(store: &CheckpointStore, step: u64) -> Checkpoint {
        let fill = |dir: &Path| {
            fs::create_dir(dir.join("sub"))?;
            fs::write(dir.join("sub/a.bin"), step.to_le_bytes())?;
            fs::write(dir.join("b.json"), "{}")
        };
        store.write(step, fill).unwrap()
    }

    fn steps(store: &CheckpointStore) -> Vec<u64> {
        store.list().unwrap().iter().map(|checkpoint| checkpoint.step).collect()
    }

    #[test]
    fn the_newest_whole_checkpoint_is_found_and_damage_is_named() {
        let (_dir, store) = store();
        for step in [9, 10, 100, 101, 102, 103] {
            write(&store, step);
        }
        let path = |name: &str| store.dir.join(name);
        fs::write(path("checkpoint-103/sub/a.bin"), [0; 8]).unwrap();
        fs::remove_file(path("checkpoint-102/b.json")).unwrap();
        fs::remove_file(path("checkpoint-101").join(MANIFEST)).unwrap();
        let found = store.newest().unwrap();
        assert_eq!(found.newest.unwrap().step, 100, "100 is newer than 9 and 10, by number");
        let reasons: Vec<String> = found.skipped.iter().map(ToString::to_string).collect();
        assert!(reasons[0].contains("a.bin: its SHA-256 sum differs"), "{reasons:?}");
        assert!(reasons[1].contains("b.json: missing"), "{reasons:?}");
        assert!(reasons[2].contains("no manifest"), "{reasons:?}");
    }

    #[test]
    fn a_checkpoint_of_values_that_are_not_finite_is_skipped_and_the_tensor_named() {
        let (_dir, store) = store();
        for (step, value) in [(1, 1.0), (2, f32::INFINITY), (3, f32::NAN)] {
            let fill = |dir: &Path| {
                let spec = TensorSpec { name: "layer.m".into(), dtype: Dtype::F32, shape: vec![3] };
                let mut writer = TensorWriter::create(&dir.join("optimizer.safetensors"), &[spec], &[])?;
                writer.write_f32(&[0.5, value, 0.5])?;
                writer.finish()
            };
            store.write(step, fill).unwrap();
        }
        let found = store.newest().unwrap();
        assert_eq!(found.newest.unwrap().step, 1);
        let reason = found.skipped[0].to_string();
        assert!(
            reason.contains("checkpoint-3/optimizer.safetensors: layer.m: value 1 is not finite"),
            "{reason}"
        );
        assert_eq!(found.skipped.len(), 2);
    }

    #[test]
    fn a_renamed_checkpoint_is_not_taken_for_another_step() {
        let (_dir, store) = store();
        let five = write(&store, 5);
        garden_files::rename(&five.path, store.dir.join("checkpoint-50")).unwrap();
        let found = store.newest().unwrap();
        assert!(found.newest.is_none());
        assert!(found.skipped[0].to_string().contains("holds step 5"));
    }

    #[test]
    fn a_failure_while_writing_leaves_the_others_and_no_debris() {
        let (_dir, store) = store();
        write(&store, 1);
        let fails = |dir: &Path| {
            fs::write(dir.join("half"), "x")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        };
        let error = store.write(2, fails).unwrap_err();
        assert!(matches!(error, CheckpointError::Full { step: 2, .. }), "{error}");
        assert!(error.to_string().contains("older checkpoints are intact"));
        assert_eq!(store.newest().unwrap().newest.unwrap().step, 1);
        assert_eq!(fs::read_dir(&store.dir).unwrap().count(), 1, "nothing but checkpoint-1");
    }

    #[test]
    fn a_checkpoint_gets_its_name_only_when_it_is_whole() {
        let (_folder, store) = store();
        write(&store, 4);
        let fill = |dir: &Path| {
            assert_eq!(steps(&store), [4], "nothing of this step has its name yet");
            fs::write(dir.join("a.bin"), "half")?;
            assert_eq!(steps(&store), [4]);
            io::Result::Ok(())
        };
        store.write(5, fill).unwrap();
        assert_eq!(steps(&store), [4, 5]);
    }

    #[test]
    fn what_a_killed_run_left_is_cleared() {
        let (_dir, store) = store();
        fs::create_dir(store.dir.join(format!("{UNFINISHED}7"))).unwrap();
        fs::write(store.dir.join(format!("{UNFINISHED}7/x")), "x").unwrap();
        write(&store, 6);
        store.clear_unfinished().unwrap();
        assert_eq!(fs::read_dir(&store.dir).unwrap().count(), 1);
    }

    #[test]
    fn pruning_keeps_the_newest_and_the_best() {
        let (_dir, store) = store();
        (1..=6).for_each(|step| drop(write(&store, step)));
        store.prune(2, Some(3), 9).unwrap();
        assert_eq!(steps(&store), [3, 5, 6]);
        store.prune(0, None, 9).unwrap();
        assert_eq!(steps(&store), [6], "the last one is never removed");
    }

    #[test]
    fn a_newer_damaged_one_takes_no_whole_ones_place() {
        let (_dir, store) = store();
        [10, 12, 17].iter().for_each(|&step| drop(write(&store, step)));
        fs::remove_file(store.dir.join("checkpoint-17").join(MANIFEST)).unwrap();
        store.prune(1, None, 12).unwrap();
        assert_eq!(steps(&store), [12, 17]);
        assert_eq!(store.newest().unwrap().newest.unwrap().step, 12);
    }

    #[test]
    fn a_kill_between_two_checkpoints_of_one_step_leaves_one_of_them() {
        let (_dir, store) = store();
        write(&store, 4);
        let replaced = store.dir.join(format!("{REPLACED}4"));
        // The new one never got its name, and the old one has lost it.
        store.name(&store.dir.join("nothing"), 4).unwrap_err();
        assert!(steps(&store).is_empty());
        let again = CheckpointStore::open(&store.dir).unwrap();
        assert_eq!(again.newest().unwrap().newest.unwrap().step, 4);
        // Killed a moment later, both are there: the new one counts.
        fs::create_dir(&replaced).unwrap();
        let again = CheckpointStore::open(&store.dir).unwrap();
        assert_eq!(again.newest().unwrap().newest.unwrap().step, 4);
        assert!(!replaced.exists());
    }

    #[test]
    fn a_step_can_be_written_again() {
        let (_dir, store) = store();
        write(&store, 4);
        write(&store, 4);
        assert_eq!(store.newest().unwrap().newest.unwrap().step, 4);
    }
}
