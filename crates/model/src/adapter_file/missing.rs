//! What to say of a folder that is no adapter.
//!
//! Takes a folder that lacks a file of an adapter and looks at what it holds instead: a whole model,
//! checkpoints of a run, an adapter one folder further down, or weights in PEFT's older format.

use super::{AdapterError, CONFIG, WEIGHTS};
use std::path::{Path, PathBuf};

/// Weights as PEFT wrote them before safetensors.
const PICKLED: &str = "adapter_model.bin";

/// Refuses a folder that lacks `file`, with what the user may have meant.
pub(super) fn check(dir: &Path, file: &'static str) -> Result<(), AdapterError> {
    match dir.join(file).exists() {
        true => Ok(()),
        false => Err(AdapterError::NotAnAdapter { dir: dir.to_owned(), file, advice: advice(dir) }),
    }
}

fn advice(dir: &Path) -> String {
    let has = |name: &str| dir.join(name).exists();
    if let Some(inner) = inner_adapter(dir) {
        format!("did you mean {}?", inner.display())
    } else if has(CONFIG) && has(PICKLED) {
        format!("it has {PICKLED}, which is not read: save it with PEFT's `save_pretrained` as safetensors")
    } else if has(CONFIG) {
        "was it copied whole?".to_owned()
    } else if has(WEIGHTS) {
        "PEFT and `train-vision` write it beside the weights; was the folder copied whole?".to_owned()
    } else if has("config.json") {
        "it is a whole model, which needs no adapter".to_owned()
    } else {
        "name a folder that `train-vision` or PEFT's `save_pretrained` wrote".to_owned()
    }
}

/// The adapter in a folder below this one: the newest checkpoint, else the first by name.
fn inner_adapter(dir: &Path) -> Option<PathBuf> {
    let whole = |folder: &PathBuf| [CONFIG, WEIGHTS].iter().all(|file| folder.join(file).is_file());
    let entries = std::fs::read_dir(dir).ok()?.flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(whole).collect();
    found.sort();
    let step = |folder: &&PathBuf| -> Option<u64> {
        folder.file_name()?.to_str()?.strip_prefix("checkpoint-")?.parse().ok()
    };
    let newest = found.iter().filter(|folder| step(folder).is_some()).max_by_key(step);
    newest.or(found.first()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folder_that_is_no_adapter_is_told_by_what_it_lacks_and_what_it_seems_to_be() {
        let top = tempfile::tempdir().unwrap();
        let said = |file: &'static str, files: &[&str], expected: &str| {
            let dir = top.path().join("it");
            for file in files {
                let path = dir.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            let error = check(&dir, file).unwrap_err().to_string();
            let error = error.replace(&format!("{}/", top.path().display()), "");
            assert_eq!(error, format!("it is no adapter: it has no {expected}"));
            fs::remove_dir_all(dir).unwrap();
        };
        let anything =
            "adapter_config.json; name a folder that `train-vision` or PEFT's `save_pretrained` wrote";
        said(CONFIG, &["notes.txt"], anything);
        said(CONFIG, &["config.json"], "adapter_config.json; it is a whole model, which needs no adapter");
        let steps = ["checkpoint-9/", "checkpoint-10/", "adapter/"];
        let run: Vec<String> =
            steps.iter().flat_map(|step| [CONFIG, WEIGHTS].map(|file| format!("{step}{file}"))).collect();
        let run: Vec<&str> = run.iter().map(String::as_str).collect();
        said(CONFIG, &run, "adapter_config.json; did you mean it/checkpoint-10?");
        said(CONFIG, &run[4..], "adapter_config.json; did you mean it/adapter?");
        said(
            WEIGHTS,
            &[CONFIG, PICKLED],
            "adapter_model.safetensors; it has adapter_model.bin, which is not read: save it with PEFT's \
             `save_pretrained` as safetensors",
        );
    }
}
