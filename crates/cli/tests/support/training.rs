//! Help for tests that train: a tiny model, a few rows, and runs of the real binary.

use super::{Finished, model_garden};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A folder with a tiny model in `model` and images of shapes in `rows`.
pub struct Garden {
    folder: tempfile::TempDir,
}

impl Garden {
    pub fn new(rows: u64) -> Self {
        let garden = Self { folder: tempfile::tempdir().unwrap() };
        garden.run(&["init", "--preset", "tiny", "--seed", "7", "--output", &garden.path("model")]);
        let size = ["--size", "56x56", "--rows", &rows.to_string()];
        garden.run(
            &[&["dataset", "create", "--kind", "shapes", "--output", &garden.path("rows")], &size[..]]
                .concat(),
        );
        garden
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    /// Runs a command that must succeed.
    pub fn run(&self, arguments: &[&str]) -> Finished {
        let finished = Finished::of(model_garden().args(arguments));
        assert_eq!(finished.code, Some(0), "{arguments:?}: {}", finished.errors);
        finished
    }

    /// `train-vision` into the folder `output` with small adapters; `flags` win.
    pub fn training(&self, output: &str, flags: &[&str]) -> Command {
        let usual = [
            ("--base-model", self.path("model")),
            ("--dataset", self.path("rows")),
            ("--output-dir", self.path(output)),
            ("--lora-r", "4".to_owned()),
            ("--learning-rate", "1e-3".to_owned()),
        ];
        let mut command = model_garden();
        command.arg("train-vision").args(flags);
        for (flag, value) in usual.iter().filter(|(flag, _)| !flags.contains(flag)) {
            command.args([flag, &value.as_str()]);
        }
        command
    }

    /// The same, to its good end.
    pub fn train(&self, output: &str, flags: &[&str]) -> Finished {
        let finished = Finished::of(&mut self.training(output, flags));
        assert_eq!(finished.code, Some(0), "{flags:?}: {}", finished.errors);
        finished
    }

    pub fn output(&self, name: &str) -> OutputFolder {
        OutputFolder(self.folder.path().join(name))
    }
}

/// What a run left.
pub struct OutputFolder(pub PathBuf);

impl OutputFolder {
    pub fn bytes(&self, file: &str) -> Vec<u8> {
        fs::read(self.0.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    pub fn text(&self, file: &str) -> String {
        String::from_utf8(self.bytes(file)).unwrap()
    }

    pub fn adapter(&self) -> Vec<u8> {
        self.bytes("adapter_model.safetensors")
    }

    pub fn state(&self) -> Value {
        serde_json::from_slice(&self.bytes("trainer_state.json")).unwrap()
    }

    /// Steps and values that were logged under a name.
    pub fn series(&self, name: &str) -> Vec<(u64, f64)> {
        let state = self.state();
        let history = state["log_history"].as_array().unwrap();
        let point = |entry: &Value| Some((entry["step"].as_u64()?, entry[name].as_f64()?));
        history.iter().filter_map(point).collect()
    }

    /// Memory of its own (anonymous, shared, swapped) at each sampled step.
    pub fn memory(&self) -> Vec<(u64, u64)> {
        let owned = |line: &str| {
            let sample: Value = serde_json::from_str(line).ok()?;
            let bytes = |name: &str| sample[name].as_u64();
            Some((bytes("step")?, bytes("anon")? + bytes("shmem")? + bytes("swap")?))
        };
        self.text("memory.jsonl").lines().filter_map(owned).collect()
    }

    pub fn checkpoints(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.retain(|name| name.starts_with("checkpoint-"));
        names.sort_by_key(|name| name.split('-').next_back().and_then(|step| step.parse::<u64>().ok()));
        names
    }

    pub fn exists(&self, file: &str) -> bool {
        Path::new(&self.0).join(file).exists()
    }
}
