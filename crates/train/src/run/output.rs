//! Whether a run may write into a folder.
//!
//! Takes the settings and the base's model folder, before anything is written. Refuses a folder that the run
//! is made from, and one with files that no run wrote: a run replaces files that have its names, and loaders
//! would apply an adapter that lies beside a whole model.

use super::lock::LOCK;
use crate::{
    checkpoint::{MANIFEST, step_of},
    config::{EvalRows, Method, RunConfig},
    folders::Overlap,
};
use garden_model::{ADAPTER_CONFIG, ADAPTER_WEIGHTS};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Extensions of files of weights, ours and others'.
const WEIGHTS: [&str; 9] = ["safetensors", "bin", "pt", "pth", "ckpt", "gguf", "onnx", "h5", "msgpack"];
/// Extensions of the files into which a shell or a scheduler writes the lines of a run, before the run looks.
const LOGS: [&str; 3] = ["log", "out", "err"];

/// Why a run must not write into a folder.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// It belongs to what the run is made from.
    #[error(
        "the output folder {} {} {what} ({}): {harm}; choose a new folder elsewhere",
        output.display(), overlap.words(), source_folder.display()
    )]
    Overlap {
        /// The folder.
        output: PathBuf,
        /// How they touch.
        overlap: Overlap,
        /// What it touches.
        what: &'static str,
        /// Where that is.
        source_folder: PathBuf,
        /// What would happen.
        harm: &'static str,
    },
    /// It holds something that no run wrote.
    #[error(
        "the output folder {} holds {file}, which no run wrote: choose a new or empty folder, or the folder of a run to continue",
        output.display()
    )]
    Foreign {
        /// The folder.
        output: PathBuf,
        /// The first such file.
        file: String,
    },
    /// It holds weights that would be mixed with the run's.
    #[error(
        "the output folder {} holds {file}, which does not belong to a run with method {}: loaders would mix the two; \
         choose another folder",
        output.display(), if *method == Method::Full { "full" } else { "lora" }
    )]
    OtherWeights {
        /// The folder.
        output: PathBuf,
        /// The file.
        file: String,
        /// What the run trains.
        method: Method,
    },
    /// It is no folder.
    #[error("the output folder {} is a file: choose a new folder", .0.display())]
    File(PathBuf),
}

/// Refuses a folder that a run must not write into.
pub(super) fn check(config: &RunConfig, base: &Path) -> Result<(), OutputError> {
    let output = &config.output_dir;
    const OVERWRITES: &str = "the run would change or remove its files";
    const MIXES: &str = "what the run writes there would be read as rows the next time";
    apart(output, base, "the base model", OVERWRITES, |_| true)?;
    if let Some(adapter) = &config.lora.adapter {
        apart(output, adapter, "the adapter to start from", OVERWRITES, |_| true)?;
    }
    let mut rows: Vec<&str> = config.portions.iter().map(|portion| portion.dataset.as_str()).collect();
    if let EvalRows::Dataset { name, .. } = &config.eval_rows {
        rows.push(name);
    }
    for rows in rows.into_iter().map(Path::new).filter(|rows| rows.is_dir()) {
        // A run does not look into a folder of rows that is inside its own.
        apart(output, rows, "the folder of the rows", MIXES, |overlap| overlap != Overlap::Around)?;
    }
    if !output.is_dir() {
        return if output.exists() { Err(OutputError::File(output.clone())) } else { Ok(()) };
    }
    foreign(output, config.method)
}

fn apart(
    output: &Path,
    source: &Path,
    what: &'static str,
    harm: &'static str,
    matters: impl Fn(Overlap) -> bool,
) -> Result<(), OutputError> {
    match Overlap::of(output, source).filter(|overlap| matters(*overlap)) {
        None => Ok(()),
        Some(overlap) => Err(OutputError::Overlap {
            output: output.to_owned(),
            overlap,
            what,
            source_folder: source.to_owned(),
            harm,
        }),
    }
}

/// Refuses a folder by what is in it.
fn foreign(output: &Path, method: Method) -> Result<(), OutputError> {
    // A folder that cannot be listed is reported when the run begins to write.
    let Ok(entries) = fs::read_dir(output) else { return Ok(()) };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    let is_a_runs = names.iter().any(|name| is_mark(output, name));
    for file in names {
        if is_a_runs && is_of_another_kind(&file, method) {
            return Err(OutputError::OtherWeights { output: output.to_owned(), file, method });
        }
        if !is_a_runs && !may_come_first(&file) {
            return Err(OutputError::Foreign { output: output.to_owned(), file });
        }
    }
    Ok(())
}

/// Whether a run left this: its lock, or a checkpoint in a folder that was copied without the lock.
fn is_mark(output: &Path, name: &str) -> bool {
    name == LOCK || (step_of(name).is_some() && output.join(name).join(MANIFEST).is_file())
}

/// What may be in a folder before its run: logs that the shell opened, and hidden files.
fn may_come_first(name: &str) -> bool {
    name.starts_with('.') || name == "lost+found" || LOGS.iter().any(|end| extension(name) == *end)
}

/// Whether a file is weights, or names weights, that a run with this method does not write.
fn is_of_another_kind(name: &str, method: Method) -> bool {
    let (own, other) = match method {
        Method::Lora => (ADAPTER_WEIGHTS, "config.json"),
        Method::Full => ("model.safetensors", ADAPTER_CONFIG),
    };
    name == other || (name != own && WEIGHTS.iter().any(|end| extension(name) == *end))
}

fn extension(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(_, end)| end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainOptions;

    /// `base/` with weights, `rows/`, and a run's settings.
    fn check_in(top: &Path, output: &str, method: Method) -> Result<(), String> {
        let path = |name: &str| top.join(name).to_string_lossy().into_owned();
        let options = TrainOptions {
            base_model: Some(path("base")),
            dataset: Some(path("rows")),
            output_dir: Some(top.join(output)),
            add_dataset: Some(vec![path("more")]),
            method: Some(method),
            ..TrainOptions::default()
        };
        let config = RunConfig::resolve(options).unwrap();
        check(&config, &top.join("base")).map_err(|error| error.to_string())
    }

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let top = tempfile::tempdir().unwrap();
        for name in ["base/model.safetensors", "rows/train.jsonl", "more/train.jsonl"].iter().chain(files) {
            fs::create_dir_all(top.path().join(name).parent().unwrap()).unwrap();
            fs::write(top.path().join(name), "").unwrap();
        }
        top
    }

    #[test]
    fn what_a_run_is_made_from_is_never_its_output() {
        let top = folder(&["base/.lock", "out/.lock", "out/checkpoint-3/model.safetensors"]);
        std::os::unix::fs::symlink(top.path().join("base"), top.path().join("link")).unwrap();
        for (output, words) in [
            ("base", "is the base model"),
            ("link", "is the base model"),
            ("base/out", "is inside the base model"),
            ("", "holds the base model"),
            ("rows", "is the folder of the rows"),
            ("rows/out", "is inside the folder of the rows"),
            ("more/out", "is inside the folder of the rows"),
        ] {
            for method in [Method::Lora, Method::Full] {
                let error = check_in(top.path(), output, method).unwrap_err();
                assert!(error.contains(words) && error.contains("choose a new folder"), "{output}: {error}");
            }
        }
    }

    #[test]
    fn a_folder_with_foreign_files_is_refused_by_the_first_of_them() {
        for file in ["model.safetensors", "README.md", "thesis.odt", "config.json", "checkpoint-7/notes"] {
            let top = folder(&[&format!("out/{file}"), "out/.gitignore"]);
            let error = check_in(top.path(), "out", Method::Lora).unwrap_err();
            let named = file.split('/').next().unwrap();
            assert!(error.contains(&format!("holds {named}, which no run wrote")), "{error}");
        }
        let top = folder(&["out"]);
        assert!(check_in(top.path(), "out", Method::Lora).unwrap_err().contains("is a file"));
    }

    #[test]
    fn a_new_folder_and_that_of_a_run_are_fine() {
        let top = folder(&["logged/train.log", "logged/slurm-1.out", "logged/.gitkeep"]);
        fs::create_dir(top.path().join("empty")).unwrap();
        for output in ["new", "new/deeper", "empty", "logged"] {
            check_in(top.path(), output, Method::Lora).unwrap();
        }
        let of_a_run = ["out/.lock", "out/adapter_model.safetensors", "out/README.md", "out/notes.txt"];
        check_in(folder(&of_a_run).path(), "out", Method::Lora).unwrap();
        let copied = ["out/checkpoint-30/manifest.json", "out/trainer_state.json"];
        check_in(folder(&copied).path(), "out", Method::Lora).unwrap();
        let full = ["out/.lock", "out/model.safetensors", "out/config.json"];
        check_in(folder(&full).path(), "out", Method::Full).unwrap();
    }

    #[test]
    fn an_adapter_and_a_whole_model_are_not_mixed_in_one_folder() {
        for (file, method) in [
            ("model.safetensors", Method::Lora),
            ("config.json", Method::Lora),
            ("pytorch_model.bin", Method::Lora),
            ("model-00001-of-00002.safetensors", Method::Full),
            ("adapter_config.json", Method::Full),
        ] {
            let top = folder(&["out/.lock", &format!("out/{file}")]);
            let error = check_in(top.path(), "out", method).unwrap_err();
            assert!(error.contains(&format!("holds {file}, which does not belong")), "{error}");
        }
    }
}
