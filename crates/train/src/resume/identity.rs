//! What makes two runs the same run: the model they start from and their settings.
//!
//! Every checkpoint carries it, so that a run is never continued from a checkpoint of another one.

use super::{Change, Divergence, ResumeError, base, settings};
use crate::{
    checkpoint::CheckpointError,
    config::{Engine, RunConfig},
    run::RunError,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs, io, path::Path};

/// The file of a checkpoint that says which run it belongs to.
pub const SETTINGS_FILE: &str = "settings.json";
pub(super) const FORMAT: u32 = 1;

/// What a run is: the model it starts from and its settings. Each checkpoint carries it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunIdentity {
    pub(super) format: u32,
    /// A sum for each part of the base model.
    pub(super) base: BTreeMap<String, String>,
    /// Every setting that is compared.
    pub(super) settings: BTreeMap<String, String>,
}

impl RunIdentity {
    /// The identity of a run with this configuration and the model in this folder.
    pub fn of(config: &RunConfig, base: &Path) -> Result<Self, RunError> {
        Ok(Self { format: FORMAT, base: base::fingerprint(base)?, settings: settings::values(config) })
    }

    /// A sum for each part of the base model.
    pub fn base(&self) -> &BTreeMap<String, String> {
        &self.base
    }

    /// Every setting that is compared.
    pub fn settings(&self) -> &BTreeMap<String, String> {
        &self.settings
    }

    /// The contents of [`SETTINGS_FILE`].
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// The note that a run with these settings diverged.
    pub fn divergence(&self, step: u64, what: String) -> Divergence {
        Divergence { step, what, settings: self.settings.clone() }
    }

    /// What a checkpoint says about its run; nothing if it was written before such files existed.
    pub(super) fn read(checkpoint: &Path) -> Result<Option<Self>, CheckpointError> {
        let path = checkpoint.join(SETTINGS_FILE);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(CheckpointError::io(&path))?,
        };
        let read = serde_json::from_slice::<Self>(&text).map_err(|error| error.to_string());
        let known = read.and_then(|mut read| match read.format {
            FORMAT => {
                // Checkpoints from before there was a choice.
                read.settings.entry("engine".into()).or_insert_with(|| Engine::Native.to_string());
                Ok(read)
            }
            other => Err(format!("was written in format {other}; this version reads {FORMAT}")),
        });
        known.map(Some).map_err(|reason| CheckpointError::Damaged { path, reason })
    }

    /// Whether this run can continue from a checkpoint of `then`; gives what changed.
    pub(super) fn continues(&self, then: &Self, path: &Path) -> Result<Vec<Change>, ResumeError> {
        let differs =
            self.base.iter().filter(|(part, sum)| then.base.get(*part).is_some_and(|then| then != *sum));
        let parts: Vec<&str> = differs.map(|(part, _)| part.as_str()).collect();
        if !parts.is_empty() {
            let base = self.settings.get("base-model").cloned().unwrap_or_default();
            return Err(ResumeError::AnotherBase { path: path.to_owned(), parts: parts.join(" and "), base });
        }
        let changes = settings::changes(&then.settings, &self.settings);
        let (refused, told): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| change.refused.is_some());
        match refused.is_empty() {
            true => Ok(told),
            false => Err(ResumeError::AnotherRun { path: path.to_owned(), changes: refused }),
        }
    }
}
