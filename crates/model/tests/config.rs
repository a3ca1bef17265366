//! `config.json` in both of its styles, the published sizes, and what is refused.

#![recursion_limit = "256"]

use garden_model::{ConfigError, LayerGroups, LoraSettings, ModelConfig, Part, parameters};
use serde_json::{Value, json};
use std::path::Path;

/// The 3B checkpoint's file as it was first published: flat, with the older keys.
fn published_3b() -> Value {
    json!({
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "vision_start_token_id": 151652,
        "vision_end_token_id": 151653, "vision_token_id": 151654, "image_token_id": 151655,
        "video_token_id": 151656, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 11008, "max_position_embeddings": 128000, "max_window_layers": 70,
        "model_type": "qwen2_5_vl", "num_attention_heads": 16, "num_hidden_layers": 36,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
        "use_sliding_window": false, "vocab_size": 151936,
        "vision_config": {
            "depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420,
            "num_heads": 16, "in_chans": 3, "out_hidden_size": 2048, "patch_size": 14,
            "spatial_merge_size": 2, "spatial_patch_size": 14, "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2, "temporal_patch_size": 2
        },
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}
    })
}

fn parse(value: &Value) -> Result<ModelConfig, ConfigError> {
    ModelConfig::parse(&value.to_string(), Path::new("config.json"))
}

/// The same model as a present-day save writes it: text keys nested, rotary under `rope_parameters`.
fn nested_3b() -> Value {
    let mut text = published_3b();
    let root = text.as_object_mut().unwrap();
    let vision = root.remove("vision_config").unwrap();
    root.remove("rope_scaling");
    root.remove("rope_theta");
    root.remove("tie_word_embeddings");
    root.insert(
        "rope_parameters".into(),
        json!({"rope_type": "default", "type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}),
    );
    json!({"model_type": "qwen2_5_vl", "text_config": text, "vision_config": vision,
        "tie_word_embeddings": true, "dtype": "bfloat16", "eos_token_id": 151645})
}

/// The 7B differs from the 3B in these keys only.
fn published_7b() -> Value {
    let mut value = published_3b();
    for (key, size) in [
        ("hidden_size", 3584),
        ("intermediate_size", 18944),
        ("num_attention_heads", 28),
        ("num_hidden_layers", 28),
        ("num_key_value_heads", 4),
        ("vocab_size", 152064),
    ] {
        value[key] = json!(size);
    }
    value["tie_word_embeddings"] = json!(false);
    value["vision_config"]["out_hidden_size"] = json!(3584);
    value
}

#[test]
fn flat_and_nested_files_say_the_same() {
    assert_eq!(parse(&published_3b()).unwrap(), parse(&nested_3b()).unwrap());
}

#[test]
fn published_models_have_their_published_number_of_parameters() {
    for (file, expected) in [(published_3b(), 3_754_622_976), (published_7b(), 8_292_166_656)] {
        let config = parse(&file).unwrap();
        let total: usize = parameters(&config).iter().map(|parameter| parameter.elements()).sum();
        assert_eq!(total, expected);
    }
}

#[test]
fn lora_on_attention_and_mlp_of_both_parts_has_the_count_public_runs_print() {
    for (file, expected) in [(published_3b(), 41_084_928), (published_7b(), 51_521_536)] {
        let config = parse(&file).unwrap();
        let target_modules = LayerGroups::default().pattern().unwrap();
        let lora = LoraSettings { rank: 16, alpha: 16.0, dropout: 0.0, rslora: false, target_modules };
        assert_eq!(lora.parameters(&config).unwrap(), expected);
    }
}

#[test]
fn parts_are_told_apart() {
    let config = parse(&published_3b()).unwrap();
    for parameter in parameters(&config) {
        let vision = parameter.name.starts_with("model.visual.");
        assert_eq!(parameter.part == Part::Vision, vision, "{}", parameter.name);
    }
}

#[test]
fn what_cannot_be_computed_is_refused_by_key() {
    let cases: [(&str, Value, &str); 11] = [
        ("/model_type", json!("llava"), "model_type"),
        ("/hidden_act", json!("gelu"), "hidden_act"),
        ("/use_sliding_window", json!(true), "use_sliding_window"),
        ("/num_attention_heads", json!(15), "num_attention_heads"),
        ("/num_key_value_heads", json!(0), "num_key_value_heads"),
        ("/rope_scaling/mrope_section", json!([16, 24, 23]), "mrope_section"),
        ("/vision_config/out_hidden_size", json!(1024), "vision_config.out_hidden_size"),
        ("/vision_config/patch_size", json!(100000), "vision_config.patch_size"),
        ("/hidden_size", json!(1u64 << 60), "hidden_size"),
        ("/num_hidden_layers", json!(1 << 22), "num_hidden_layers"),
        ("/vision_config/depth", json!(1 << 22), "vision_config.depth"),
    ];
    for (pointer, value, key) in cases {
        let mut file = published_3b();
        *file.pointer_mut(pointer).unwrap() = value;
        let message = parse(&file).unwrap_err().to_string();
        assert!(message.contains("config.json") && message.contains(key), "{pointer}: {message}");
    }
}

/// Each of these sizes is within its own bound. A matrix of the second merger would have 2^76 elements.
#[test]
fn sizes_that_are_absurd_only_together_are_refused() {
    let cases = [
        [("/num_hidden_layers", 1024), ("/intermediate_size", 1 << 22)],
        [("/vision_config/hidden_size", 1 << 22), ("/vision_config/spatial_merge_size", 256)],
    ];
    for changes in cases {
        let mut file = published_3b();
        file["vision_config"]["window_size"] = json!(4096);
        for (pointer, size) in changes {
            *file.pointer_mut(pointer).unwrap() = json!(size);
        }
        let message = parse(&file).unwrap_err().to_string();
        assert!(message.contains("parameters; is one of them wrong?"), "{changes:?}: {message}");
    }
}

#[test]
fn a_missing_size_is_named() {
    let mut file = published_3b();
    file.as_object_mut().unwrap().remove("intermediate_size");
    assert!(parse(&file).unwrap_err().to_string().contains("intermediate_size"));
}
