//! What the tests of all optimizers share: tensors, gradients and settings of the goldens, and comparisons.

use super::{AdamSettings, Optimizer, OptimizerKind, StateValues};
use crate::testing::{Goldens, uniform};
use garden_model::{MatrixShape, TrainableTensor};

/// The constants of the goldens.
pub(super) const SETTINGS: AdamSettings =
    AdamSettings { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.05 };
/// The lengths of the goldens' tensors.
pub(super) const LENGTHS: [usize; 2] = [256 * 17 + 100, 300];

pub(super) fn vector(columns: usize) -> MatrixShape {
    MatrixShape { rows: 1, columns }
}

pub(super) fn tensor<'a>(values: &'a mut [f32], gradient: &'a [f32], decays: bool) -> TrainableTensor<'a> {
    TrainableTensor { name: "x", shape: vector(values.len()), values, gradient, decays }
}

/// Gradients that `goldens/make.py` makes, too: some of them zero, and one block zero for 50 steps.
pub(super) fn gradient(step: u32, len: usize) -> Vec<f32> {
    let mut values: Vec<f32> = uniform(len, 1000 + step).iter().map(|x| x * x * x * 0.01).collect();
    values.iter_mut().step_by(7).for_each(|x| *x = 0.0);
    if step < 50 {
        let end = len.min(512);
        values[256.min(len)..end].fill(0.0);
    }
    values
}

/// The optimizer and the values after a hundred steps with the goldens' gradients.
pub(super) fn hundred_steps(kind: OptimizerKind) -> (Optimizer, Vec<Vec<f32>>) {
    steps(kind, LENGTHS, 100)
}

/// The same for tensors of these lengths.
pub(super) fn steps(kind: OptimizerKind, lengths: [usize; 2], count: u32) -> (Optimizer, Vec<Vec<f32>>) {
    let mut params: Vec<Vec<f32>> = lengths.iter().map(|&len| uniform(len, len as u32)).collect();
    let mut optimizer = Optimizer::new(kind, SETTINGS, lengths.map(vector));
    for step in 0..count {
        optimizer.begin_step();
        for (index, param) in params.iter_mut().enumerate() {
            let gradient = gradient(step, param.len());
            optimizer.update(index, tensor(param, &gradient, true), 1e-3, 1.0);
        }
    }
    (optimizer, params)
}

/// To the bit; or, where the peer's roundings are not IEEE's, to a few units in the last place of the
/// tensor's scale.
pub(super) fn assert_close(name: &str, ours: &[f32], theirs: &[f32], exact: bool) {
    assert_eq!(ours.len(), theirs.len(), "{name}");
    let largest = theirs.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let tolerance = if exact { 0.0 } else { 5e-7 * largest };
    let wrong = ours.iter().zip(theirs).filter(|(a, b)| (*a - *b).abs() > tolerance).count();
    assert_eq!(wrong, 0, "{name}: values that differ, of {}", ours.len());
}

/// After a hundred steps, values and state are those of the tensors `<name>.<index>.<part>` in
/// `optimizers.safetensors`. `is_exact` says for a tensor's length whether f32 state is equal to the bit.
pub(super) fn assert_state_equals_golden(kind: OptimizerKind, name: &str, is_exact: fn(usize) -> bool) {
    let goldens = Goldens::open("optimizers.safetensors");
    let (optimizer, params) = hundred_steps(kind);
    for (index, param) in params.iter().enumerate() {
        let prefix = format!("{name}.{index}");
        // PyTorch's square root is not always rounded correctly, so values may differ in the last bit;
        // moments are made without it.
        assert_close(&prefix, param, &goldens.f32(&format!("{prefix}.param")), false);
        for (part, slice) in optimizer.state(index) {
            let key = format!("{prefix}.{part}");
            match slice {
                StateValues::F32(ours) => assert_close(&key, ours, &goldens.f32(&key), is_exact(param.len())),
                StateValues::U8(ours) => {
                    let wrong = ours.iter().zip(goldens.bytes(&key)).filter(|(a, b)| a != b).count();
                    assert_eq!(wrong, 0, "{key}: codes that differ");
                }
            }
        }
    }
}
