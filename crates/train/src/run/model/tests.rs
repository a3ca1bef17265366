//! A model behind the trainer's interface: what it reads back, and what it refuses.

use super::*;
use crate::config::TrainOptions;
use garden_model::init::{Plan, Preset};

fn tiny_model(folder: &Path, method: Method) -> VisionModel {
    let base = folder.join("model");
    Plan::new(Preset::Tiny).unwrap().write(&base, 1, |_| {}).unwrap();
    let options = TrainOptions {
        base_model: Some(base.to_string_lossy().into_owned()),
        dataset: Some("rows".into()),
        output_dir: Some(folder.join("out")),
        method: Some(method),
        ..TrainOptions::default()
    };
    let config = RunConfig::resolve(options).unwrap();
    let load = Load::assumed(&ModelConfig::read(&base).unwrap(), 1, 32, None);
    VisionModel::load(&config, &ModelFolder::open(&base).unwrap(), &load, None, |_| {}).unwrap()
}

#[test]
fn an_adapter_that_lacks_layers_is_not_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = tiny_model(folder.path(), Method::Lora);
    let saved = folder.path().join("saved");
    std::fs::create_dir(&saved).unwrap();
    model.save(&saved).unwrap();
    TrainableModel::load(&mut model, &saved).unwrap();

    let before = model.model().adapter().unwrap().clone();
    let mut partial: Adapter = before.clone();
    partial.pairs.remove(3);
    partial.write(&saved, "model").unwrap();
    let message = TrainableModel::load(&mut model, &saved).unwrap_err().to_string();
    let (here, there) = (before.pairs.len(), partial.pairs.len());
    assert!(message.contains(&format!("{there} layers, not the {here}")), "{message}");
    assert_eq!(model.model().adapter().unwrap(), &before, "what is refused changes nothing");
}

#[test]
fn a_whole_model_says_that_its_weights_are_f32() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = tiny_model(folder.path(), Method::Full);
    // As if the base had been one of 4 bits.
    let path = folder.path().join("model/config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["torch_dtype"] = "bfloat16".into();
    config["quantization_config"] = serde_json::json!({"quant_method": "bitsandbytes", "load_in_4bit": true});
    std::fs::write(&path, config.to_string()).unwrap();
    let saved = folder.path().join("saved");
    std::fs::create_dir(&saved).unwrap();
    model.save(&saved).unwrap();
    let config = ModelConfig::read(&saved).unwrap();
    assert_eq!((config.dtype.as_deref(), config.quantization.is_none()), (Some("float32"), true));
    TrainableModel::load(&mut model, &saved).unwrap();
}
