//! Merging a tiny model with an adapter, from folder to folder.

use garden_model::{
    Adapter, Checkpoint, LayerGroups, LoraSettings, ModelConfig, ModelWeights, Precision,
    init::{Plan, Preset},
    parameters, read_matrix,
};
use garden_train::{MergeError, Merged, MergedAs, merge};
use half::bf16;
use std::path::{Path, PathBuf};

struct Folders {
    _temporary: tempfile::TempDir,
    base: PathBuf,
    adapter: PathBuf,
    output: PathBuf,
}

/// A tiny model and an adapter whose second halves are `strength` everywhere.
fn folders(strength: f32) -> (Folders, Adapter) {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| temporary.path().join(name);
    let (base, adapter_dir, output) = (path("base"), path("adapter"), path("merged"));
    Plan::new(Preset::Tiny).unwrap().write(&base, 7, |_| {}).unwrap();
    let config = ModelConfig::read(&base).unwrap();
    let settings = LoraSettings {
        rank: 4,
        alpha: 8.0,
        dropout: 0.0,
        rslora: false,
        target_modules: LayerGroups::default().pattern().unwrap(),
    };
    let mut adapter = Adapter::fresh(&config, settings, 1).unwrap();
    for pair in &mut adapter.pairs {
        pair.b.iter_mut().enumerate().for_each(|(i, b)| *b = strength * (i % 7) as f32);
    }
    std::fs::create_dir(&adapter_dir).unwrap();
    adapter.write(&adapter_dir, "base").unwrap();
    (Folders { _temporary: temporary, base, adapter: adapter_dir, output }, adapter)
}

fn run(folders: &Folders, merged_as: MergedAs) -> Result<Merged, MergeError> {
    merge(&folders.base, &folders.adapter, &folders.output, merged_as, |_| {})
}

fn matrix(dir: &Path, name: &str, shape: [usize; 2]) -> Vec<f32> {
    read_matrix(&Checkpoint::open(dir).unwrap(), name, shape).unwrap().to_f32()
}

#[test]
fn sixteen_bit_weights_are_base_plus_scaled_product() {
    let (folders, adapter) = folders(0.05);
    let merged = run(&folders, MergedAs::SixteenBit).unwrap();
    assert_eq!(merged.changed_matrices, adapter.pairs.len());
    let config = ModelConfig::read(&folders.output).unwrap();
    for parameter in parameters(&config) {
        let rows = parameter.shape[0];
        let cols = parameter.elements() / rows;
        let base = matrix(&folders.base, &parameter.name, [rows, cols]);
        let found = matrix(&folders.output, &parameter.name, [rows, cols]);
        let pair = adapter
            .pair(parameter.name.trim_end_matches(".weight"))
            .filter(|_| parameter.name.ends_with("weight"));
        for (index, (base, found)) in base.iter().zip(&found).enumerate() {
            let (row, col) = (index / cols, index % cols);
            let product = pair.map_or(0.0, |pair| {
                (0..4)
                    .map(|r| f64::from(pair.b[row * 4 + r]) * f64::from(pair.a[r * cols + col]))
                    .sum::<f64>()
            });
            let exact = f64::from(*base) + 2.0 * product;
            // bf16 keeps eight bits of the fraction.
            assert!(
                (f64::from(*found) - exact).abs() <= exact.abs() / 256.0 + 1e-9,
                "{} [{index}]",
                parameter.name
            );
            assert_eq!(*found, bf16::from_f32(*found).to_f32());
        }
    }
}

#[test]
fn weights_that_become_infinite_are_refused_and_nothing_is_left() {
    for merged_as in [MergedAs::SixteenBit, MergedAs::FourBit] {
        // Finite in the adapter; twice as much, the scale, is not.
        let (folders, _) = folders(5e37);
        let error = run(&folders, merged_as).unwrap_err().to_string();
        assert!(
            error.contains(": element ") && (error.contains("is NaN") || error.contains("inf:")),
            "{error}"
        );
        assert!(!folders.output.exists());
    }
}

#[test]
fn four_bit_weights_are_what_quantising_the_merged_ones_gives() {
    let (folders, _) = folders(0.05);
    run(&folders, MergedAs::SixteenBit).unwrap();
    let sixteen = folders.output.with_file_name("sixteen");
    garden_files::rename(&folders.output, &sixteen).unwrap();
    run(&folders, MergedAs::FourBit).unwrap();

    let config = ModelConfig::read(&folders.output).unwrap();
    assert!(config.quantization.as_ref().unwrap().load_in_4bit);
    let load = |dir: &Path| {
        let checkpoint = Checkpoint::open(dir).unwrap();
        ModelWeights::load(&checkpoint, &config, Precision::Bits4, |_| {}).unwrap()
    };
    let (ours, quantised_on_load) = (load(&folders.output), load(&sixteen));
    let both = ours.text.layers.iter().zip(&quantised_on_load.text.layers);
    for (a, b) in both {
        assert_eq!(a.q.weight.to_f32(), b.q.weight.to_f32());
        assert_eq!(a.mlp.down.weight.to_f32(), b.mlp.down.weight.to_f32());
    }
    assert_eq!(
        ours.vision.blocks[0].qkv.weight.to_f32(),
        quantised_on_load.vision.blocks[0].qkv.weight.to_f32()
    );
}

#[test]
fn the_folder_is_complete() {
    let (folders, _) = folders(0.05);
    run(&folders, MergedAs::SixteenBit).unwrap();
    for name in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "preprocessor_config.json",
    ] {
        assert!(folders.output.join(name).is_file(), "{name}");
    }
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folders.output.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["dtype"], "bfloat16");
}

#[test]
fn an_adapter_that_changes_nothing_is_refused_and_leaves_nothing() {
    let (folders, _) = folders(0.0);
    let error = run(&folders, MergedAs::SixteenBit).unwrap_err();
    assert!(matches!(error, MergeError::Unchanged(_)), "{error}");
    let left: Vec<_> = std::fs::read_dir(folders.output.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name != "base" && name != "adapter")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn nothing_is_overwritten() {
    let (folders, _) = folders(0.05);
    std::fs::create_dir(&folders.output).unwrap();
    std::fs::write(folders.output.join("thesis.odt"), "").unwrap();
    let error = run(&folders, MergedAs::SixteenBit).unwrap_err().to_string();
    assert!(error.contains("merged exists already and is not an empty folder"), "{error}");
    for (output, words) in [
        (folders.base.clone(), "is the base model"),
        (folders.base.join("merged"), "is inside the base model"),
        (folders.adapter.clone(), "is the adapter"),
    ] {
        let error = merge(&folders.base, &folders.adapter, &output, MergedAs::SixteenBit, |_| {});
        let error = error.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    std::fs::remove_file(folders.output.join("thesis.odt")).unwrap();
    run(&folders, MergedAs::SixteenBit).expect("an empty folder is as good as none");
}

/// A base that Hugging Face quantised, merger and all: what comes out has the merger in 16 bits, as its
/// configuration says.
#[test]
fn a_base_in_four_bits_is_merged() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/goldens");
    let base = goldens.join("bnb-nested");
    let merger = "model.visual.merger.mlp.2.weight";
    let expected: Vec<f32> =
        matrix(&base, merger, [48, 128]).iter().map(|value| bf16::from_f32(*value).to_f32()).collect();
    for merged_as in [MergedAs::SixteenBit, MergedAs::FourBit] {
        let temporary = tempfile::tempdir().unwrap();
        let output = temporary.path().join("merged");
        merge(&base, &goldens.join("adapter"), &output, merged_as, |_| {}).unwrap();
        let config = ModelConfig::read(&output).unwrap();
        Checkpoint::open(&output).unwrap().check(&config).unwrap();
        assert_eq!(matrix(&output, merger, [48, 128]), expected, "{merged_as:?}");
    }
}

#[test]
fn a_folder_named_partial_is_somebody_elses() {
    let (folders, _) = folders(0.05);
    let partial = folders.output.with_file_name("merged.partial");
    std::fs::create_dir(&partial).unwrap();
    std::fs::write(partial.join("model-00001-of-00002.safetensors"), "mine").unwrap();
    run(&folders, MergedAs::SixteenBit).unwrap();
    assert!(!folders.output.join("model-00001-of-00002.safetensors").exists());
    assert_eq!(std::fs::read(partial.join("model-00001-of-00002.safetensors")).unwrap(), b"mine");
}

#[test]
fn an_empty_folder_behind_a_link_is_filled() {
    let (folders, _) = folders(0.05);
    let (real, link) = (folders.output.with_file_name("real"), folders.output.clone());
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    run(&folders, MergedAs::SixteenBit).unwrap();
    assert!(link.is_symlink() && real.join("config.json").is_file());
}
