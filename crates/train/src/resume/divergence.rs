//! A note in a checkpoint's folder that the run diverged after it.
//!
//! Written when a loss or a value stops being finite. A run repeats itself to the bit, so the same command
//! would diverge at the same step: it is refused instead. A changed command goes on from an older checkpoint.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs, io, path::Path};

/// The note's file name.
const DIVERGED: &str = "diverged.json";

/// How a run diverged after a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Divergence {
    /// The step that failed, from 1.
    pub step: u64,
    /// What was not finite.
    pub what: String,
    /// The settings that led there.
    pub settings: BTreeMap<String, String>,
}

impl Divergence {
    /// Writes the note into a checkpoint's folder.
    pub fn mark(&self, checkpoint: &Path) -> io::Result<()> {
        garden_files::write(&checkpoint.join(DIVERGED), &serde_json::to_vec_pretty(self)?)
    }

    /// The note of a checkpoint, if it has one that can be read.
    pub fn read(checkpoint: &Path) -> Option<Self> {
        let text = fs::read(checkpoint.join(DIVERGED)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}
