//! Rotary positions and attention windows, exactly as Hugging Face computes them, over fifty grids.

use crate::config::ModelConfig;
use crate::positions::{Grid, PositionError, mrope_positions};
use crate::windows::window_layout;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const MERGE: usize = 2;

#[derive(Deserialize)]
struct Manifest {
    models: Vec<Model>,
    grids: Grids,
}

#[derive(Deserialize)]
struct Model {
    config: serde_json::Value,
    rows: BTreeMap<String, Row>,
    batches: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct Row {
    tokens: Vec<u32>,
    grids: Vec<Grid>,
}

#[derive(Deserialize)]
struct Grids {
    image_token: u32,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    tokens: Vec<u32>,
    grids: Vec<Grid>,
    window: usize,
}

fn goldens(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(name)
}

fn manifest() -> Manifest {
    serde_json::from_slice(&std::fs::read(goldens("goldens.json")).unwrap()).unwrap()
}

/// The whole numbers of a stored tensor.
fn integers(file: &[u8], name: &str) -> Vec<i64> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let tensor = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let data = tensor.data();
    match tensor.dtype() {
        Dtype::I16 => data.as_chunks::<2>().0.iter().map(|bytes| i16::from_le_bytes(*bytes).into()).collect(),
        Dtype::I32 => data.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into()).collect(),
        other => panic!("{name} holds {other:?}"),
    }
}

#[test]
fn positions_of_fifty_samples_equal_hugging_face() {
    let grids = manifest().grids;
    let stored = std::fs::read(goldens("grids.safetensors")).unwrap();
    assert_eq!(grids.cases.len(), 50);
    for (index, case) in grids.cases.iter().enumerate() {
        let ours = mrope_positions(&case.tokens, &case.grids, grids.image_token, MERGE).unwrap();
        let ours: Vec<i64> = ours.into_iter().flatten().map(i64::from).collect();
        assert_eq!(ours, integers(&stored, &format!("{index}.positions")), "case {index}: {:?}", case.grids);
    }
}

#[test]
fn windows_of_fifty_grids_equal_hugging_face() {
    let stored = std::fs::read(goldens("grids.safetensors")).unwrap();
    for (index, case) in manifest().grids.cases.iter().enumerate() {
        let layout = window_layout(&case.grids, case.window, MERGE);
        let wide = |values: &[u32]| values.iter().copied().map(i64::from).collect::<Vec<_>>();
        assert_eq!(wide(&layout.order), integers(&stored, &format!("{index}.order")), "case {index}");
        assert_eq!(
            wide(&layout.window_bounds),
            integers(&stored, &format!("{index}.bounds")),
            "case {index}"
        );
    }
}

#[test]
fn positions_of_whole_batches_equal_hugging_face() {
    for (index, model) in manifest().models.iter().enumerate() {
        let stored = std::fs::read(goldens(&format!("model{index}.safetensors"))).unwrap();
        let config = ModelConfig::parse(&model.config.to_string(), Path::new("config.json")).unwrap();
        for (name, rows) in &model.batches {
            let mut ours = Vec::new();
            for row in rows.iter().map(|row| &model.rows[row]) {
                let positions =
                    mrope_positions(&row.tokens, &row.grids, config.image_token_id, MERGE).unwrap();
                ours.extend(positions.into_iter().flatten().map(i64::from));
            }
            assert_eq!(ours, integers(&stored, &format!("{name}.positions")), "model {index}, {name}");
        }
    }
}

#[test]
fn tokens_that_do_not_fit_the_images_are_refused() {
    const IMAGE: u32 = 9;
    let positions = |tokens: &[u32], grids: &[Grid]| mrope_positions(tokens, grids, IMAGE, MERGE);
    let one_short = positions(&[1, IMAGE, IMAGE, IMAGE, 2], &[[1, 4, 4]]).unwrap_err();
    assert!(matches!(one_short, PositionError::TokensDiffer { index: 0, needed: 4, found: 3, .. }));
    // Three times so many merged tokens wrap to one.
    let wraps = positions(&[1, IMAGE], &[[0xAAAA_AAAA_AAAA_AAAB, 2 * 3, 2]]).unwrap_err();
    assert!(matches!(wraps, PositionError::TokensDiffer { needed: usize::MAX, found: 1, .. }));
    let no_image = positions(&[1, IMAGE], &[]).unwrap_err();
    assert_eq!(no_image, PositionError::ImagesDiffer { found: 1, given: 0 });
    let no_tokens = positions(&[1, 2], &[[1, 2, 2]]).unwrap_err();
    assert_eq!(no_tokens, PositionError::ImagesDiffer { found: 0, given: 1 });
    let odd = positions(&[IMAGE], &[[1, 3, 2]]).unwrap_err();
    assert!(matches!(odd, PositionError::BadGrid { index: 0, .. }));
}
