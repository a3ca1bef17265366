//! What the tests of this crate share: golden files, the same numbers as the goldens' script makes, and rows
//! for a tiny model.

use crate::{
    config::{RunConfig, TrainOptions},
    model_folder::ModelFolder,
    run::{RunData, RunError, open_data},
};
use garden_model::init::{Plan, Preset};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

/// Tensors of one golden file.
pub struct Goldens {
    tensors: HashMap<String, Vec<u8>>,
}

impl Goldens {
    pub fn open(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(name);
        let file = std::fs::read(path).expect("golden file");
        let tensors = safetensors::SafeTensors::deserialize(&file).expect("golden file parses");
        let tensors = tensors.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect();
        Self { tensors }
    }

    pub fn bytes(&self, name: &str) -> &[u8] {
        self.tensors.get(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.bytes(name).chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }
}

/// Uniform numbers in [-1, 1) from the generator that `goldens/make.py` uses.
pub fn uniform(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (f64::from(state >> 8) / f64::from(1 << 23) - 1.0) as f32
    };
    (0..count).map(|_| next()).collect()
}

/// Writes a tiny model into the folder's `model`.
pub fn tiny_model(folder: &Path) {
    Plan::new(Preset::Tiny).unwrap().write(&folder.join("model"), 1, |_| {}).unwrap();
}

/// A row with a question and this answer.
pub fn answered(answer: &str) -> String {
    let turn = |role: &str, text: &str| serde_json::json!({ "role": role, "content": text });
    serde_json::json!({ "messages": [turn("user", "Describe it."), turn("assistant", answer)] }).to_string()
}

/// Opens rows as a run with the folder's model does.
pub fn open_rows(folder: &Path, rows: &[String], options: TrainOptions) -> Result<RunData, RunError> {
    fs::write(folder.join("rows.jsonl"), rows.join("\n")).unwrap();
    let text = |name: &str| Some(folder.join(name).to_string_lossy().into_owned());
    let options = TrainOptions {
        base_model: text("model"),
        dataset: text("rows.jsonl"),
        output_dir: Some(folder.join("out")),
        batch_size: Some(1),
        ..options
    };
    let config = RunConfig::resolve(options).unwrap();
    open_data(&config, &ModelFolder::open(&folder.join("model"))?, &())
}
