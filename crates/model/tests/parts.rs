//! MLPs so wide that they are computed in parts: weights in f32 allow it, those of other types are multiplied
//! whole.

mod common;

use common::{Layout, Model as Golden, PLAIN, Packed, adapter, goldens, load_model, relative};
use garden_model::{Model, Precision, Recompute, Session, Shapes};
use safetensors::Dtype;

const SHAPES: Shapes = Shapes { tokens: 128, patches: 256, labels: 32 };

/// Several parts and a rest.
const INNER: usize = 3200;

fn wide() -> Vec<Golden> {
    goldens().into_iter().map(|(golden, _)| golden.with_inner_width(INNER)).collect()
}

/// With an adapter on both towers, on weights of 16 bits that are held as `precision` says.
fn model(golden: &Golden, precision: Precision, dropout: f32) -> Model {
    let weights = load_model(golden, Layout { dtype: Dtype::BF16, ..PLAIN }, precision);
    let mut adapter = adapter(golden, "both");
    adapter.settings.dropout = dropout;
    Model::with_adapter(golden.config(), weights, adapter)
}

/// The loss of a step, all its gradients, and the bytes of the arena.
fn step(model: &mut Model, golden: &Golden, recompute: Recompute) -> (f64, Vec<Vec<f32>>, usize) {
    let packed = Packed::new(golden, &golden.batch("mixed"));
    let mut session = Session::new(model, SHAPES, recompute).unwrap();
    let loss = session.step(model, &packed.batch(), 1.0, 7).unwrap().loss;
    let mut gradients = Vec::new();
    session.visit(model, &mut |tensor| gradients.push(tensor.gradient.to_vec()));
    (loss, gradients, session.usage().peak_bytes)
}

#[test]
fn parts_give_what_the_whole_gives() {
    for golden in wide() {
        for dropout in [0.0, 0.2] {
            let whole = step(&mut model(&golden, Precision::AsStored, dropout), &golden, Recompute::Always);
            let parts = step(&mut model(&golden, Precision::F32, dropout), &golden, Recompute::Always);
            assert!((parts.0 - whole.0).abs() < 1e-6 * whole.0, "loss {}, not {}", parts.0, whole.0);
            for (index, (parts, whole)) in parts.1.iter().zip(&whole.1).enumerate() {
                let difference = relative(parts, whole);
                assert!(difference < 2e-5, "tensor {index} differs by {difference}, dropout {dropout}");
            }
            assert!(parts.2 < whole.2, "{} bytes for parts, {} for the whole", parts.2, whole.2);
        }
    }
}

#[test]
fn recomputed_parts_are_equal_to_the_bit() {
    for golden in wide() {
        let mut models = vec![
            model(&golden, Precision::F32, 0.0),
            model(&golden, Precision::F32, 0.2),
            Model::full(golden.config(), load_model(&golden, PLAIN, Precision::F32)),
        ];
        for model in &mut models {
            let kept = step(model, &golden, Recompute::Never);
            let recomputed = step(model, &golden, Recompute::Always);
            assert_eq!((kept.0, kept.1), (recomputed.0, recomputed.1));
            assert!(recomputed.2 < kept.2);
        }
    }
}
