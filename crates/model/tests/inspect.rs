//! What `inspect` says about models, adapters and files, whole and broken.

mod common;

use common::{PLAIN, manifest, write_adapter, write_model};
use garden_model::{
    Dtype,
    inspect::{Report, inspect},
};

#[test]
fn a_quantised_checkpoint_is_told_as_such() {
    let Report::Model(report) = inspect(&common::folder().join("bnb-nested"), false).unwrap() else {
        panic!("not a model")
    };
    let blocks: usize = 3 * (2 * 48 * 48 + 2 * 24 * 48 + 3 * 80 * 48) + 3 * (4 * 32 * 32 + 3 * 44 * 32);
    let merger = 128 * 128 + 48 * 128;
    let quantised = blocks + merger;
    assert_eq!(report.stored["nf4"], quantised);
    assert_eq!(report.stored["bf16"] + quantised, report.parameters);
    let missing: Vec<&String> =
        report.problems.iter().filter(|problem| problem.contains("missing")).collect();
    assert_eq!(missing.len(), 3, "the folder has no tokenizer and no processor: {missing:?}");
}

#[test]
fn an_adapter_is_told_by_its_rank_and_layers() {
    let Report::Adapter(report) = inspect(&common::folder().join("adapter"), true).unwrap() else {
        panic!("not an adapter")
    };
    assert_eq!((report.rank, report.language_layers, report.vision_layers), (3, 21, 15));
    assert!((report.scale - 6.0 / 3f32.sqrt()).abs() < 1e-6);
    assert!(report.problems.is_empty());
}

#[test]
fn every_fault_of_an_adapters_header_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let layer = |index: usize, half: &str| {
        format!("base_model.model.model.language_model.layers.{index}.self_attn.q_proj.{half}.weight")
    };
    let faulty = [
        (layer(0, "lora_A"), [3, 48], "lora_B, is missing"),
        (layer(1, "lora_A"), [8, 48], "rank 3 makes it [3, inputs]"),
        (layer(1, "lora_B"), [48, 8], "rank 3 makes it [outputs, 3]"),
        (layer(2, "lora_B"), [48, 3], "lora_A, is missing"),
        ("lora_magnitude_vector".to_owned(), [1, 48], "neither a lora_A nor a lora_B"),
    ];
    let tensors: Vec<_> = faulty.iter().map(|(name, shape, _)| (name.as_str(), *shape)).collect();
    write_adapter(dir.path(), &tensors, Dtype::F32);
    let problems = inspect(dir.path(), false).unwrap().problems().to_vec();
    assert_eq!(problems.len(), faulty.len(), "{problems:?}");
    for (name, _, problem) in &faulty {
        assert!(problems.iter().any(|found| found.contains(name) && found.contains(problem)), "{problems:?}");
    }
    write_adapter(dir.path(), &tensors[..1], Dtype::I32);
    let problems = inspect(dir.path(), false).unwrap().problems().to_vec();
    assert!(problems[0].contains("it holds I32"), "{problems:?}");
    write_adapter(dir.path(), &[], Dtype::F32);
    assert!(inspect(dir.path(), false).unwrap().problems()[0].contains("no LoRA tensors"));
}

#[test]
fn all_faults_are_listed_not_only_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let models = manifest().models;
    write_model(dir.path(), &models[0], PLAIN);
    // Another model's configuration over these weights: many shapes differ.
    std::fs::write(dir.path().join("config.json"), models[1].config_json()).unwrap();
    let report = inspect(dir.path(), false).unwrap();
    let shapes = report.problems().iter().filter(|problem| problem.contains("shape")).count();
    let unknown = report.problems().iter().filter(|problem| problem.contains("no such tensor")).count();
    assert!(shapes > 10 && unknown > 5, "{shapes} shapes, {unknown} unknown");
}

#[test]
fn values_are_looked_at_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), &manifest().models[0], PLAIN);
    let path = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].fill(0xFF);
    std::fs::write(&path, bytes).unwrap();
    assert!(inspect(&path, false).unwrap().problems().is_empty());
    let problems = inspect(&path, true).unwrap().problems().to_vec();
    assert!(
        problems[0].contains("model.language_model.norm.weight") && problems[0].contains("47"),
        "{problems:?}"
    );
}

#[test]
fn what_is_none_of_these_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(inspect(dir.path(), false).unwrap_err().to_string().contains("neither a folder"));
    let text = dir.path().join("text.safetensors");
    std::fs::write(&text, "hello").unwrap();
    assert!(inspect(&text, false).unwrap_err().to_string().contains("only 5 bytes"));
}
