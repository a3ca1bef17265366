//! Compares a plan with the run that it was made for: alone in its process, because a process has one peak.

use garden_data::{CreateKind, CreateOptions, create_dataset};
use garden_model::init::{Plan, Preset};
use garden_train::{
    Cancel, Checkpointing, ModelFolder, RunConfig, Source, TrainOptions,
    events::{EndReason, Event},
    open_data, plan, room, train,
};
use std::path::Path;

/// The most that this process ever had in memory.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    1024.0 * line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap()
}

fn config(folder: &Path) -> RunConfig {
    let text = |name: &str| folder.join(name).to_string_lossy().into_owned();
    RunConfig::resolve(TrainOptions {
        base_model: Some(text("model")),
        dataset: Some(text("rows")),
        output_dir: Some(folder.join("out")),
        batch_size: Some(16),
        gradient_accumulation_steps: Some(1),
        // More batches than are prepared ahead: else what is planned for them is never used.
        max_steps: Some(8),
        gradient_checkpointing: Some(Checkpointing::Off),
        prefetch_bytes: Some("16MB".parse().unwrap()),
        ..TrainOptions::default()
    })
    .unwrap()
}

#[test]
fn a_run_takes_what_was_planned() {
    garden_train::return_large_pieces();
    let folder = tempfile::tempdir().unwrap();
    Plan::new(Preset::Tiny).unwrap().write(&folder.path().join("model"), 1, |_| {}).unwrap();
    let images =
        CreateOptions { kind: CreateKind::Shapes, rows: 64, width: 336, height: 336, seed: 1, workers: 2 };
    create_dataset(&folder.path().join("rows"), &images, &()).unwrap();
    let config = config(folder.path());
    let base = folder.path().join("model");
    let (model, source) = Source::find(&config.base_model).unwrap();
    let load = open_data(&config, &ModelFolder::open(&base).unwrap(), &()).unwrap().load;
    let planned = plan(&config, &model, source, &load, room()).unwrap();
    assert!(
        planned.total() > 4 * planned.process,
        "the parts that are known must outweigh the one that is measured"
    );
    let report = train(&config, &mut |_: &Event| {}, &Cancel::default()).unwrap();
    assert_eq!(report.reason, EndReason::Finished);
    let ratio = planned.total() as f64 / peak();
    assert!(
        (0.95..1.05).contains(&ratio),
        "planned {} bytes, took {}: {:?}",
        planned.total(),
        peak(),
        planned
    );
}
