//! Choice of layers, fresh values, and adapters in PEFT's files.

mod common;

use common::{Tensors, manifest};
use garden_model::adapter_file::AdapterError;
use garden_model::tensor_file::{Dtype, TensorSpec, TensorWriter};
use garden_model::{Adapter, LayerGroups, LoraSettings, ModelConfig};
use std::path::Path;

fn settings(target_modules: &str) -> LoraSettings {
    LoraSettings { rank: 3, alpha: 6.0, dropout: 0.0, rslora: true, target_modules: target_modules.into() }
}

fn config() -> ModelConfig {
    manifest().models[0].config()
}

/// The layers of the golden model (3 language layers of 7, 3 vision blocks of 5) that each choice takes.
#[test]
fn groups_choose_the_layers_their_flags_name() {
    for (vision, language, attention, mlp, expected) in [
        (true, true, true, true, 3 * 7 + 3 * 5),
        (false, true, true, true, 3 * 7),
        (true, false, true, true, 3 * 5),
        (true, true, true, false, 3 * 4 + 3 * 2),
        (false, true, false, true, 3 * 3),
    ] {
        let groups = LayerGroups { vision, language, attention, mlp };
        let targets = settings(&groups.pattern().unwrap()).targets(&config()).unwrap();
        assert_eq!(targets.len(), expected, "{groups:?}");
    }
    let nothing = LayerGroups { attention: false, mlp: false, ..LayerGroups::default() };
    assert!(nothing.pattern().is_err());
}

#[test]
fn a_pattern_must_match_whole_paths_and_only_fit_layers() {
    let targets = |pattern: &str| settings(pattern).targets(&config());
    assert_eq!(targets(r".*\.(q_proj|v_proj)").unwrap().len(), 6);
    assert!(targets("q_proj").unwrap_err().to_string().contains("matches no layer"));
    assert!(targets(r".*\.proj").unwrap_err().to_string().contains("model.visual.patch_embed.proj"));
    assert!(targets(r".*merger.*").unwrap_err().to_string().contains("model.visual.merger.mlp.0"));
    assert!(targets("lm_head").unwrap_err().to_string().contains("lm_head"));
    assert!(targets("(").unwrap_err().to_string().contains("not a regular expression"));
}

#[test]
fn the_scale_is_pefts() {
    let plain = LoraSettings { rslora: false, rank: 16, alpha: 32.0, ..settings(".*") };
    assert_eq!(plain.scale(), 2.0);
    assert_eq!(LoraSettings { rslora: true, ..plain }.scale(), 8.0);
}

#[test]
fn settings_that_make_no_adapter_are_refused() {
    let good = settings(r".*\.q_proj");
    for bad in [
        LoraSettings { rank: 0, ..good.clone() },
        LoraSettings { rank: 1 << 40, ..good.clone() },
        LoraSettings { alpha: f32::NAN, ..good.clone() },
        LoraSettings { dropout: 1.0, ..good.clone() },
    ] {
        assert!(Adapter::fresh(&config(), bad.clone(), 0).is_err(), "{bad:?}");
    }
}

#[test]
fn a_fresh_adapter_changes_nothing_and_has_pefts_spread() {
    let pattern = LayerGroups::default().pattern().unwrap();
    let adapter = Adapter::fresh(&config(), LoraSettings { rank: 64, ..settings(&pattern) }, 5).unwrap();
    for pair in &adapter.pairs {
        assert!(pair.b.iter().all(|value| *value == 0.0), "{}", pair.module);
        let bound = 1.0 / (pair.inputs as f32).sqrt();
        let largest = pair.a.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        assert!(largest <= bound && largest > 0.98 * bound, "{}: {largest} of {bound}", pair.module);
    }
    let again = Adapter::fresh(&config(), adapter.settings.clone(), 5).unwrap();
    assert_eq!(again, adapter, "one seed, one adapter");
    assert_ne!(Adapter::fresh(&config(), adapter.settings.clone(), 6).unwrap(), adapter);
}

#[test]
fn an_adapter_that_peft_wrote_is_read() {
    let adapter = Adapter::read(&common::folder().join("adapter"), &config()).unwrap();
    assert_eq!((adapter.settings.rank, adapter.settings.alpha, adapter.settings.rslora), (3, 6.0, true));
    assert_eq!(adapter.pairs.len(), 3 * 7 + 3 * 5);
    let stored = Tensors::open("adapter/adapter_model.safetensors");
    for pair in &adapter.pairs {
        let name = |half: &str| format!("base_model.model.{}.{half}.weight", pair.module);
        assert_eq!(pair.a, stored.f32(&name("lora_A")));
        assert_eq!(pair.b, stored.f32(&name("lora_B")));
    }
    assert_eq!(adapter.parameters(), adapter.settings.parameters(&config()).unwrap());
}

#[test]
fn what_is_written_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let pattern = LayerGroups { vision: false, ..LayerGroups::default() }.pattern().unwrap();
    let mut adapter = Adapter::fresh(&config(), settings(&pattern), 1).unwrap();
    adapter.pairs[4].b[7] = 0.25;
    adapter.write(dir.path(), "some/base").unwrap();
    assert_eq!(Adapter::read(dir.path(), &config()).unwrap(), adapter);
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "no partial files are left: {left:?}");
}

/// Name and shape of a tensor.
type Named<'a> = (&'a str, [usize; 2]);

/// Writes an adapter folder with PEFT's settings and the given tensors of ones, and reads it.
fn read_with(tensors: &[Named]) -> Result<Adapter, AdapterError> {
    let dir = tempfile::tempdir().unwrap();
    let source = common::folder().join("adapter/adapter_config.json");
    std::fs::copy(source, dir.path().join("adapter_config.json")).unwrap();
    let spec =
        |&(name, shape): &Named| TensorSpec { name: name.into(), dtype: Dtype::F32, shape: shape.into() };
    let specs: Vec<TensorSpec> = tensors.iter().map(spec).collect();
    let path = dir.path().join("adapter_model.safetensors");
    let mut writer = TensorWriter::create(&path, &specs, &[]).unwrap();
    for (_, [rows, cols]) in tensors {
        writer.write_f32(&vec![1.0; rows * cols]).unwrap();
    }
    writer.finish().unwrap();
    Adapter::read(dir.path(), &config())
}

#[test]
fn names_of_older_versions_are_understood() {
    let adapter = read_with(&[
        ("base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight", [3, 48]),
        ("base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight", [24, 3]),
        ("base_model.model.visual.blocks.0.attn.proj.lora_A.weight", [3, 32]),
        ("base_model.model.visual.blocks.0.attn.proj.lora_B.weight", [32, 3]),
    ])
    .unwrap();
    let modules: Vec<&str> = adapter.pairs.iter().map(|pair| pair.module.as_str()).collect();
    let expected = ["model.visual.blocks.0.attn.proj", "model.language_model.layers.1.self_attn.k_proj"];
    assert_eq!(modules, expected);
}

#[test]
fn an_adapter_of_another_model_is_refused_with_the_tensors_name() {
    let q = "base_model.model.model.language_model.layers.0.self_attn.q_proj";
    let (a, b) = (format!("{q}.lora_A.weight"), format!("{q}.lora_B.weight"));
    let ninth = "base_model.model.model.language_model.layers.9.self_attn.q_proj.lora_A.weight";
    let cases: [(&str, Vec<Named>); 6] = [
        (&a, vec![(&a, [3, 64]), (&b, [48, 3])]),
        (&b, vec![(&a, [3, 48]), (&b, [48, 8])]),
        (&a, vec![(&a, [3, 48])]),
        (&b, vec![(&b, [48, 3])]),
        (ninth, vec![(ninth, [3, 48])]),
        ("lora_magnitude_vector", vec![(&a, [3, 48]), (&b, [48, 3]), ("lora_magnitude_vector", [1, 48])]),
    ];
    for (name, tensors) in cases {
        let message = read_with(&tensors).unwrap_err().to_string();
        assert!(message.contains(name) && message.contains("adapter_model.safetensors"), "{message}");
    }
    assert!(read_with(&[]).unwrap_err().to_string().contains("no LoRA tensors"));
}

#[test]
fn settings_of_another_kind_are_refused_by_key() {
    let source = std::fs::read_to_string(common::folder().join("adapter/adapter_config.json")).unwrap();
    for (key, value) in [
        ("peft_type", serde_json::json!("IA3")),
        ("use_dora", serde_json::json!(true)),
        ("bias", serde_json::json!("all")),
        ("modules_to_save", serde_json::json!(["lm_head"])),
        ("rank_pattern", serde_json::json!({"q_proj": 4})),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut file: serde_json::Value = serde_json::from_str(&source).unwrap();
        file[key] = value;
        std::fs::write(dir.path().join("adapter_config.json"), file.to_string()).unwrap();
        let message = Adapter::read_settings(dir.path()).unwrap_err().to_string();
        assert!(message.contains(key) && message.contains("adapter_config.json"), "{message}");
    }
    assert!(
        Adapter::read_settings(Path::new("/nowhere"))
            .unwrap_err()
            .to_string()
            .contains("adapter_config.json")
    );
}

#[test]
fn target_modules_may_be_a_list_of_ends() {
    let dir = tempfile::tempdir().unwrap();
    let source = std::fs::read_to_string(common::folder().join("adapter/adapter_config.json")).unwrap();
    let mut file: serde_json::Value = serde_json::from_str(&source).unwrap();
    file["target_modules"] = serde_json::json!(["q_proj", "attn.qkv"]);
    std::fs::write(dir.path().join("adapter_config.json"), file.to_string()).unwrap();
    let read = Adapter::read_settings(dir.path()).unwrap();
    assert_eq!(read.targets(&config()).unwrap().len(), 3 + 3);
}
