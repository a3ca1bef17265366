//! A model behind the trainer's interface: what it reads back, and what it refuses.

use garden_model::{
    Adapter, ModelConfig,
    init::{Plan, Preset},
};
use garden_train::{
    config::{RunConfig, TrainOptions},
    plan::Load,
    run::VisionModel,
    trainer::TrainableModel,
};
use std::path::Path;

fn tiny_model(folder: &Path) -> VisionModel {
    let base = folder.join("model");
    Plan::new(Preset::Tiny).unwrap().write(&base, 1, |_| {}).unwrap();
    let options = TrainOptions {
        base_model: Some(base.to_string_lossy().into_owned()),
        dataset: Some("rows".into()),
        output_dir: Some(folder.join("out")),
        ..TrainOptions::default()
    };
    let config = RunConfig::resolve(options).unwrap();
    let load = Load::assumed(&ModelConfig::read(&base).unwrap(), 1, 32, None);
    VisionModel::load(&config, &base, &load, |_| {}).unwrap()
}

#[test]
fn an_adapter_that_lacks_layers_is_not_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = tiny_model(folder.path());
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
