//! The numbers that all goldens of this crate are made from.

mod common;

use common::{Tensors, manifest};

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
