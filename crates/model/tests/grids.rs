//! Rotary positions and attention windows, exactly as Hugging Face computes them, over fifty grids.

mod common;

use common::{Tensors, manifest};
use garden_model::positions::{PositionError, mrope_positions};
use garden_model::windows::window_layout;

const MERGE: usize = 2;

#[test]
fn positions_of_fifty_samples_equal_hugging_face() {
    let grids = manifest().grids;
    let stored = Tensors::open("grids.safetensors");
    assert_eq!(grids.cases.len(), 50);
    for (index, case) in grids.cases.iter().enumerate() {
        let ours = mrope_positions(&case.tokens, &case.grids, grids.image_token, MERGE).unwrap();
        let ours: Vec<i64> = ours.into_iter().flatten().map(i64::from).collect();
        assert_eq!(ours, stored.integers(&format!("{index}.positions")), "case {index}: {:?}", case.grids);
    }
}

#[test]
fn windows_of_fifty_grids_equal_hugging_face() {
    let stored = Tensors::open("grids.safetensors");
    for (index, case) in manifest().grids.cases.iter().enumerate() {
        let layout = window_layout(&case.grids, case.window, MERGE);
        let wide = |values: &[u32]| values.iter().copied().map(i64::from).collect::<Vec<_>>();
        assert_eq!(wide(&layout.order), stored.integers(&format!("{index}.order")), "case {index}");
        assert_eq!(wide(&layout.window_bounds), stored.integers(&format!("{index}.bounds")), "case {index}");
    }
}

#[test]
fn positions_of_whole_batches_equal_hugging_face() {
    for (index, model) in manifest().models.iter().enumerate() {
        let stored = Tensors::open(&format!("model{index}.safetensors"));
        let config = model.config();
        for name in model.batches.keys() {
            let mut ours = Vec::new();
            for row in model.batch(name) {
                let positions =
                    mrope_positions(&row.tokens, &row.grids, config.image_token_id, MERGE).unwrap();
                ours.extend(positions.into_iter().flatten().map(i64::from));
            }
            assert_eq!(ours, stored.integers(&format!("{name}.positions")), "model {index}, {name}");
        }
    }
}

#[test]
fn tokens_that_do_not_fit_the_pictures_are_refused() {
    const IMAGE: u32 = 9;
    let positions = |tokens: &[u32], grids: &[[usize; 3]]| mrope_positions(tokens, grids, IMAGE, MERGE);
    let one_short = positions(&[1, IMAGE, IMAGE, IMAGE, 2], &[[1, 4, 4]]).unwrap_err();
    assert!(matches!(one_short, PositionError::TokensDiffer { index: 0, needed: 4, found: 3, .. }));
    // Three times so many merged tokens wrap to one.
    let wraps = positions(&[1, IMAGE], &[[0xAAAA_AAAA_AAAA_AAAB, 2 * 3, 2]]).unwrap_err();
    assert!(matches!(wraps, PositionError::TokensDiffer { needed: usize::MAX, found: 1, .. }));
    let no_picture = positions(&[1, IMAGE], &[]).unwrap_err();
    assert_eq!(no_picture, PositionError::PicturesDiffer { found: 1, given: 0 });
    let no_tokens = positions(&[1, 2], &[[1, 2, 2]]).unwrap_err();
    assert_eq!(no_tokens, PositionError::PicturesDiffer { found: 0, given: 1 });
    let odd = positions(&[IMAGE], &[[1, 3, 2]]).unwrap_err();
    assert!(matches!(odd, PositionError::BadGrid { index: 0, .. }));
}

/// The generator is the ground the other goldens stand on: PEFT's file holds numbers the script drew with it.
#[test]
fn the_generator_draws_the_numbers_the_script_drew() {
    let model = &manifest().models[0];
    let stored = Tensors::open("adapter/adapter_model.safetensors");
    let names = stored.names();
    assert_eq!(names.len(), 2 * (3 * 7 + 3 * 5));
    for name in names {
        assert_eq!(common::weight(model.seed, &name, &stored.shape(&name)), stored.f32(&name), "{name}");
    }
}
