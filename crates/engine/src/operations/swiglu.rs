//! SwiGLU: `silu(gate) * up`, the gated half of a feed-forward block.
//!
//! Takes the outputs of the gate and the up-projection, and gives their activation or their gradients. Only
//! `gate` and `up` are kept for the backward: the activation is cheap to compute again, and the gradients may
//! replace them.

use super::TASK;
use super::math::sigmoid;
use crate::simd::vectorised;
use rayon::prelude::*;

/// `out = silu(gate) * up`.
pub fn forward(gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == out.len() && up.len() == out.len(), "lengths of an activation");
    let parts = (out.par_chunks_mut(TASK), gate.par_chunks(TASK), up.par_chunks(TASK));
    parts.into_par_iter().for_each(|(out, gate, up)| {
        vectorised(
            #[inline(always)]
            || {
                for ((out, &gate), up) in out.iter_mut().zip(gate).zip(up) {
                    *out = gate * sigmoid(gate) * up;
                }
            },
        );
    });
}

/// Replaces `gate` and `up` by their gradients, given that of the activation.
pub fn backward_in_place(gate: &mut [f32], up: &mut [f32], grad_out: &[f32]) {
    assert!(gate.len() == grad_out.len() && up.len() == grad_out.len(), "lengths of an activation");
    let parts = (gate.par_chunks_mut(TASK), up.par_chunks_mut(TASK), grad_out.par_chunks(TASK));
    parts.into_par_iter().for_each(|(gate, up, grad_out)| {
        vectorised(
            #[inline(always)]
            || {
                for ((gate, up), grad) in gate.iter_mut().zip(up).zip(grad_out) {
                    (*gate, *up) = gradients(*gate, *up, *grad);
                }
            },
        );
    });
}

/// `silu'(x) = s * (1 + x * (1 - s))` with `s = sigmoid(x)`.
#[inline(always)]
fn gradients(gate: f32, up: f32, grad: f32) -> (f32, f32) {
    let s = sigmoid(gate);
    (grad * up * s * (1.0 + gate * (1.0 - s)), grad * gate * s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::testing::{Numbers, assert_close, assert_gradient, to_f64, weighted};

    fn reference(gate: &[f64], up: &[f64]) -> Vec<f64> {
        gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect()
    }

    #[test]
    fn activations_of_any_length_follow_the_formula() {
        let mut numbers = Numbers::new(1);
        for len in [0, 1, 17, 1000, 40_001] {
            let (gate, up) = (numbers.values(len), numbers.values(len));
            let gate: Vec<f32> = gate.iter().map(|v| v * 10.0).collect();
            let mut out = vec![f32::NAN; len];
            forward(&gate, &up, &mut out);
            assert_close("forward", &out, &reference(&to_f64(&gate), &to_f64(&up)), 1e-6);
        }
    }

    #[test]
    fn the_gradients_are_those_of_finite_differences() {
        let mut numbers = Numbers::new(2);
        let [gate, up, grad] = [(); 3].map(|()| numbers.values(60));
        let (mut grad_gate, mut grad_up) = (gate.clone(), up.clone());
        backward_in_place(&mut grad_gate, &mut grad_up, &grad);
        assert_gradient("gate", &grad_gate, &gate, |gate| weighted(&reference(gate, &to_f64(&up)), &grad));
        assert_gradient("up", &grad_up, &up, |up| weighted(&reference(&to_f64(&gate), up), &grad));
    }

    #[test]
    fn a_far_negative_gate_gives_zero_and_not_nan() {
        let mut out = [f32::NAN; 2];
        forward(&[-1e4, -200.0], &[1.0, 1.0], &mut out);
        assert_eq!(out, [0.0; 2]);
        let (mut gate, mut up) = ([-1e4, 1e4], [1.0, 1.0]);
        backward_in_place(&mut gate, &mut up, &[1.0, 1.0]);
        assert_eq!((gate, up), ([0.0, 1.0], [0.0, 1e4]));
    }
}
