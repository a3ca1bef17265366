//! Choice of layers, fresh values, and adapters in PEFT's files.

mod common;

use common::{Layout, Named, PLAIN, Tensors, manifest, write_adapter};
use garden_model::{Adapter, AdapterError, Dtype, LayerGroups, LoraSettings, ModelConfig, target_pattern};
use serde_json::json;
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
    assert_eq!(targets(r".*merger.*").unwrap().len(), 2);
    assert!(targets("lm_head").unwrap_err().to_string().contains("lm_head"));
    assert!(targets("(").unwrap_err().to_string().contains("not a regular expression"));
}

/// What PEFT's `target_modules` may say, and the layers of the golden model that it takes.
#[test]
fn names_and_all_linear_choose_what_they_choose_in_peft() {
    let targets = |text: &str| settings(&target_pattern(text)).targets(&config());
    for (text, expected) in [
        ("q_proj", 3),
        ("q_proj, v_proj", 3 * 2),
        ("q_proj,v_proj,qkv", 3 * 2 + 3),
        // As PEFT writes all linear layers into an adapter's settings.
        ("self_attn.q_proj,mlp.0,mlp.2,attn.proj", 3 + 2 + 3),
        ("model.language_model.layers.0.self_attn.q_proj", 1),
        ("all-linear", 3 * 7 + 3 * 5 + 2),
        ("All-Linear", 3 * 7 + 3 * 5 + 2),
        (r".*\.(q_proj|v_proj)", 6),
    ] {
        assert_eq!(targets(text).unwrap().len(), expected, "{text}");
    }
    // Layers that PEFT would adapt and this model cannot.
    for (text, module) in [("proj", "model.visual.patch_embed.proj"), ("q_proj,lm_head", "lm_head")] {
        let error = targets(text).unwrap_err().to_string();
        assert!(error.contains(&format!("matches `{module}`")), "{error}");
    }
    let error = targets("query").unwrap_err().to_string();
    assert!(error.contains("matches no layer") && error.contains("all-linear"), "{error}");
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

/// An adapter of these tensors, written and read.
fn read_with(tensors: &[Named]) -> Result<Adapter, AdapterError> {
    let dir = tempfile::tempdir().unwrap();
    write_adapter(dir.path(), tensors, Dtype::F32);
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

/// A layer of the golden model, whole.
const Q: [Named; 2] = [
    ("base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight", [3, 48]),
    ("base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_B.weight", [48, 3]),
];

#[test]
fn a_layer_under_its_old_and_its_new_name_is_refused() {
    let old = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";
    let message = read_with(&[Q[0], Q[1], (old, [48, 3])]).unwrap_err().to_string();
    assert!(message.contains(old) && message.contains(Q[1].0) && message.contains("twice"), "{message}");
}

#[test]
fn adapters_of_16_bits_are_read() {
    for dtype in [Dtype::BF16, Dtype::F16] {
        let dir = tempfile::tempdir().unwrap();
        write_adapter(dir.path(), &Q, dtype);
        let adapter = Adapter::read(dir.path(), &config()).unwrap();
        let rounded = Layout { dtype, ..PLAIN }.rounded(vec![0.3; 3 * 48]);
        assert_eq!((&adapter.pairs[0].a, &adapter.pairs[0].b), (&rounded, &rounded), "{dtype:?}");
    }
}

#[test]
fn damaged_tensors_are_refused_by_name() {
    type Damage = fn(&mut Vec<u8>);
    // The file ends with the last value of lora_B.
    let nan: Damage = |bytes| bytes.iter_mut().rev().take(4).for_each(|byte| *byte = 0xFF);
    let truncated: Damage = |bytes| bytes.truncate(bytes.len() - 5);
    let cases = [("element 143 is NaN", nan), ("truncated", truncated)];
    for (problem, damage) in cases {
        let dir = tempfile::tempdir().unwrap();
        write_adapter(dir.path(), &Q, Dtype::F32);
        let path = dir.path().join("adapter_model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        damage(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        let message = Adapter::read(dir.path(), &config()).unwrap_err().to_string();
        assert!(message.contains(problem) && message.contains(Q[1].0), "{message}");
    }
}

/// Reads PEFT's own settings with `key` set to `value`.
fn settings_with(key: &str, value: &serde_json::Value) -> Result<LoraSettings, AdapterError> {
    Adapter::read_settings(folder_with(key, value).path())
}

/// A folder with PEFT's own settings, with `key` set to `value`.
fn folder_with(key: &str, value: &serde_json::Value) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let source = std::fs::read_to_string(common::folder().join("adapter/adapter_config.json")).unwrap();
    let mut file: serde_json::Value = serde_json::from_str(&source).unwrap();
    file[key] = value.clone();
    std::fs::write(dir.path().join("adapter_config.json"), file.to_string()).unwrap();
    dir
}

/// The tensors of an adapter say which layers it has, so it can be used; a run that goes on from it would not
/// know.
#[test]
fn an_adapter_of_a_part_of_its_layers_is_used_but_not_trained_further() {
    for (key, value, unset) in [
        ("layers_to_transform", json!([0, 1]), json!(null)),
        ("layers_to_transform", json!(0), json!([])),
        ("layers_pattern", json!("layers"), json!("")),
        ("exclude_modules", json!(["visual"]), json!([])),
        ("exclude_modules", json!(".*visual.*"), json!(null)),
    ] {
        let narrowed = folder_with(key, &value);
        assert!(Adapter::read_settings(narrowed.path()).is_ok(), "{key}");
        let message = Adapter::read_settings_to_train(narrowed.path()).unwrap_err().to_string();
        assert!(message.contains(&format!("adapter_config.json: `{key}`: training a part of")), "{message}");
        assert!(Adapter::read_settings_to_train(folder_with(key, &unset).path()).is_ok(), "{key} {unset}");
    }
}

#[test]
fn settings_may_begin_with_a_byte_order_mark() {
    let dir = folder_with("r", &json!(8));
    let path = dir.path().join("adapter_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("\u{feff}{text}")).unwrap();
    assert_eq!(Adapter::read_settings(dir.path()).unwrap().rank, 8);
}

#[test]
fn a_choice_of_layers_is_refused_in_the_words_that_were_written() {
    let refused = |words: &str| settings(&target_pattern(words)).targets(&config()).unwrap_err().to_string();
    for word in ["all_linear", "all linear", "ALL_LINEAR", "alllinear"] {
        let expected = format!("target_modules `{word}` matches no layer: did you mean `all-linear`?");
        assert_eq!(refused(word), expected);
    }
    let names = refused("query, self_attn.value");
    assert!(
        names.starts_with("target_modules `query,self_attn.value` matches no layer: give names"),
        "{names}"
    );
    let pattern = refused(r"(.*\.)?x(a|b)");
    assert!(pattern.starts_with(r"target_modules `(.*\.)?x(a|b)` matches no layer"), "{pattern}");
    let head = refused("lm_head");
    assert!(head.starts_with("target_modules `lm_head` matches `lm_head`, but only"), "{head}");
}

#[test]
fn settings_of_another_kind_are_refused_by_key() {
    for (key, value) in [
        ("peft_type", json!("IA3")),
        ("use_dora", json!(true)),
        ("bias", json!("all")),
        ("fan_in_fan_out", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("rank_pattern", json!({"q_proj": 4})),
        ("alpha_pattern", json!({"q_proj": 4})),
        ("alora_invocation_tokens", json!([5, 6])),
        ("layer_replication", json!([[0, 2], [1, 3]])),
    ] {
        let message = settings_with(key, &value).unwrap_err().to_string();
        assert!(message.contains(key) && message.contains("adapter_config.json"), "{message}");
    }
    let nowhere = Adapter::read_settings(Path::new("/nowhere")).unwrap_err().to_string();
    assert!(nowhere.contains("adapter_config.json"), "{nowhere}");
}

/// PEFT changes the base's weights when it loads some adapters; on the base as it is they would compute
/// something else.
#[test]
fn adapters_of_a_changed_base_are_refused_with_what_to_do() {
    for (start, remedy) in [
        ("pissa", "path_initial_model_for_weight_conversion"),
        ("pissa_niter_16", "path_initial_model_for_weight_conversion"),
        ("corda", "path_initial_model_for_weight_conversion"),
        ("OLoRA", "path_initial_model_for_weight_conversion"),
        ("loftq", "merge_and_unload"),
    ] {
        let message = settings_with("init_lora_weights", &json!(start)).unwrap_err().to_string();
        assert!(message.contains("init_lora_weights") && message.contains(remedy), "{start}: {message}");
    }
    for start in
        [json!(true), json!(false), json!(null), json!("gaussian"), json!("eva"), json!("orthogonal")]
    {
        settings_with("init_lora_weights", &start).unwrap_or_else(|error| panic!("{start}: {error}"));
    }
}

#[test]
fn target_modules_may_be_a_list_of_ends() {
    let read = settings_with("target_modules", &json!(["q_proj", "attn.qkv"])).unwrap();
    assert_eq!(read.targets(&config()).unwrap().len(), 3 + 3);
}
