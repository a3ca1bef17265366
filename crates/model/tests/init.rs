//! New models: whole, the same for the same seed, and readable by our own loader.

use garden_model::init::{InitError, Plan, Preset};
use garden_model::inspect::{Report, inspect};
use garden_model::{Checkpoint, ModelConfig, ModelWeights, Precision};
use std::path::Path;

fn tiny(output: &Path, seed: u64) {
    Plan::new(Preset::Tiny).unwrap().write(output, seed, |_| {}).unwrap();
}

#[test]
fn presets_have_the_sizes_they_are_known_by() {
    let size = |preset| Plan::new(preset).unwrap().size();
    // The first three as Hugging Face counts the same shapes, the others as published.
    assert_eq!(size(Preset::Tiny).parameters, 1_637_784);
    assert_eq!(size(Preset::Small).parameters, 51_497_920);
    assert_eq!(size(Preset::Medium).parameters, 439_351_136);
    assert_eq!(size(Preset::B3).parameters, 3_754_622_976);
    assert_eq!(size(Preset::B3).bytes, 2 * 3_754_622_976);
    assert_eq!(size(Preset::B7).parameters, 8_292_166_656);
}

#[test]
fn published_shapes_have_the_published_token_ids() {
    for preset in [Preset::B3, Preset::B7] {
        let plan = Plan::new(preset).unwrap();
        let config = plan.config();
        assert_eq!((config.vision_start_token_id, config.vision_end_token_id), (151_652, 151_653));
        assert_eq!((config.image_token_id, config.video_token_id), (151_655, 151_656));
        assert_eq!(config.eos_token_ids, [151_645]);
    }
}

#[test]
fn a_new_model_is_whole_and_loads() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("nested/model");
    let mut last = 0;
    let plan = Plan::new(Preset::Tiny).unwrap();
    plan.write(&output, 1, |bytes| last = bytes).unwrap();
    assert_eq!(last, plan.size().bytes, "progress ends at the whole");
    let report = inspect(&output, true).unwrap();
    assert_eq!(report.problems(), [""; 0]);
    let Report::Model(report) = report else { panic!("{report:?}") };
    assert_eq!(report.parameters, 1_637_784);
    assert_eq!(report.parts.iter().map(|part| part.parameters).sum::<usize>(), report.parameters);
    assert_eq!(report.stored["f32"], report.parameters);
    let config = ModelConfig::read(&output).unwrap();
    let checkpoint = Checkpoint::open(&output).unwrap();
    let weights = ModelWeights::load(&checkpoint, &config, Precision::AsStored, |_| {}).unwrap();
    assert!(weights.text.norm.iter().all(|value| *value == 1.0));
    assert!(weights.text.layers[0].q.bias.as_ref().unwrap().iter().all(|value| *value == 0.0));
    let embedding = weights.text.embedding.to_f32();
    let square = embedding.iter().map(|value| f64::from(value * value)).sum::<f64>() / embedding.len() as f64;
    assert!((square.sqrt() - 0.02).abs() < 1e-4, "{}", square.sqrt());
    let beside: Vec<_> = std::fs::read_dir(dir.path().join("nested")).unwrap().collect();
    assert_eq!(beside.len(), 1, "nothing is left beside the model: {beside:?}");
}

#[test]
fn one_seed_makes_one_model() {
    let dir = tempfile::tempdir().unwrap();
    for (name, seed) in [("a", 1), ("b", 1), ("c", 2)] {
        tiny(&dir.path().join(name), seed);
    }
    let bytes = |name: &str, file: &str| std::fs::read(dir.path().join(name).join(file)).unwrap();
    for file in ["model.safetensors", "tokenizer.json", "config.json"] {
        assert!(bytes("a", file) == bytes("b", file), "{file}");
    }
    assert!(bytes("a", "model.safetensors") != bytes("c", "model.safetensors"));
}

#[test]
fn what_is_there_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    let refused = Plan::new(Preset::Tiny).unwrap().write(dir.path(), 0, |_| {});
    assert!(matches!(refused, Err(InitError::Exists(_))));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    tiny(&empty, 0);
    assert!(empty.join("config.json").is_file());
}
