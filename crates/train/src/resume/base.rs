//! Identifies a base model by a few hundred characters.
//!
//! Takes a model folder and gives a sum for each part of it: weights, configuration, tokenizer, template,
//! processor. Two models that differ in a tensor's name, type, shape or values differ in the sum of their
//! weights, though only a small part of each tensor is read: seven gigabytes take milliseconds.

use crate::run::RunError;
use garden_model::{Checkpoint, TensorFile, TensorFileError};
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, fs, io, path::Path};

/// Bytes read of a tensor: its beginning, its middle and its end.
const LOOKED_AT: u64 = 256;

/// The files that decide what a model reads and says, by their purpose.
const FILES: [(&str, &[&str]); 4] = [
    ("configuration", &["config.json"]),
    ("tokenizer", &["tokenizer.json"]),
    ("chat template", &["chat_template.jinja", "chat_template.json", "tokenizer_config.json"]),
    ("image processor", &["preprocessor_config.json", "processor_config.json"]),
];

/// A sum for each part of the model in a folder.
pub(super) fn fingerprint(folder: &Path) -> Result<BTreeMap<String, String>, RunError> {
    let mut parts = BTreeMap::new();
    for (part, names) in FILES {
        let mut sum = Sha256::new();
        for name in names {
            let path = folder.join(name);
            match fs::read(&path) {
                Ok(bytes) => sum.update(&bytes),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(RunError::io(path)(error)),
            }
        }
        parts.insert(part.to_owned(), hex(sum));
    }
    let mut sum = Sha256::new();
    for file in Checkpoint::open(folder)?.files() {
        add_tensors(&mut sum, file).map_err(garden_model::CheckpointError::from)?;
    }
    parts.insert("weights".to_owned(), hex(sum));
    Ok(parts)
}

fn add_tensors(sum: &mut Sha256, file: &TensorFile) -> Result<(), TensorFileError> {
    let mut buffer = [0; LOOKED_AT as usize];
    for (name, entry) in file.entries() {
        sum.update(format!("{name} {} {:?}\n", entry.dtype, entry.shape));
        let (start, end) = (entry.bytes.start, entry.bytes.end);
        let piece = &mut buffer[..LOOKED_AT.min(end - start) as usize];
        let last = end - piece.len() as u64;
        for at in [start, start.midpoint(last), last] {
            file.read_at(at, piece)?;
            sum.update(&*piece);
        }
    }
    Ok(())
}

fn hex(sum: Sha256) -> String {
    sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_model::init::{Plan, Preset};

    fn differing(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> Vec<String> {
        a.iter().filter(|(part, sum)| b[*part] != **sum).map(|(part, _)| part.clone()).collect()
    }

    #[test]
    fn models_are_told_apart_by_the_part_that_differs() {
        let folder = tempfile::tempdir().unwrap();
        let model = |name: &str, seed| {
            let path = folder.path().join(name);
            Plan::new(Preset::Tiny).unwrap().write(&path, seed, |_| {}).unwrap();
            path
        };
        let (one, again, other) = (model("one", 1), model("again", 1), model("other", 2));
        let first = fingerprint(&one).unwrap();
        assert_eq!(fingerprint(&again).unwrap(), first, "wherever it lies");
        assert_eq!(differing(&first, &fingerprint(&other).unwrap()), ["weights"]);
        let template = again.join("chat_template.jinja");
        fs::write(&template, fs::read_to_string(&template).unwrap() + "\n").unwrap();
        assert_eq!(differing(&first, &fingerprint(&again).unwrap()), ["chat template"]);
    }
}
