//! GELU in its exact form, `x * Phi(x)` with the normal distribution `Phi`, as the vision merger uses it.
//!
//! Takes values and gives activations, or the gradient of the values. Nothing but `x` needs to be kept.

use super::TASK;
use super::math::normal;
use crate::simd::vectorised;
use rayon::prelude::*;

/// `out = x * Phi(x)`.
pub fn forward(x: &[f32], out: &mut [f32]) {
    assert!(x.len() == out.len(), "lengths of an activation");
    out.par_chunks_mut(TASK).zip(x.par_chunks(TASK)).for_each(|(out, x)| {
        vectorised(
            #[inline(always)]
            || {
                for (out, &x) in out.iter_mut().zip(x) {
                    *out = x * normal(x).0;
                }
            },
        );
    });
}

/// Replaces the gradient of the output by that of `x`: times `Phi(x) + x * phi(x)`.
pub fn backward_in_place(x: &[f32], grad: &mut [f32]) {
    assert!(x.len() == grad.len(), "lengths of an activation");
    grad.par_chunks_mut(TASK).zip(x.par_chunks(TASK)).for_each(|(grad, x)| {
        vectorised(
            #[inline(always)]
            || {
                for (grad, &x) in grad.iter_mut().zip(x) {
                    let (below, density) = normal(x);
                    *grad *= below + x * density;
                }
            },
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::testing::{Numbers, assert_gradient, normal_f64, spread, weighted};

    fn reference(x: &[f64]) -> Vec<f64> {
        x.iter().map(|&x| x * normal_f64(x).0).collect()
    }

    #[test]
    fn activations_are_right_to_a_millionth_everywhere() {
        let x: Vec<f32> = spread(-12.0, 12.0, 100_001).collect();
        let mut out = vec![f32::NAN; x.len()];
        forward(&x, &mut out);
        for (x, out) in x.iter().zip(out) {
            let expected = reference(&[f64::from(*x)])[0];
            let error = (f64::from(out) - expected).abs();
            assert!(error <= 1e-6 * expected.abs().max(1.0), "gelu({x}) = {out} for {expected}");
        }
    }

    #[test]
    fn activations_and_gradients_are_those_of_pytorch() {
        // torch.nn.functional.gelu and its autograd in float64.
        let x = [-5.0, -3.0, -1.0, -0.1, 0.0, 0.3, 1.0, 2.5, 6.0];
        let expected = [
            -1.433_257_859_340_120_2e-6,
            -0.004_049_694_094_890_31,
            -0.158_655_253_931_457_02,
            -0.046_017_216_272_297_1,
            0.0,
            0.185_373_426_656_685_8,
            0.841_344_746_068_543,
            2.484_475_836_685_559_7,
            5.999_999_994_080_474,
        ];
        let expected_grad = [
            -7.146_946_001_803_465e-6,
            -0.011_945_647_204_183_92,
            -0.083_315_470_587_686_35,
            0.420_476_907_975_269_8,
            0.5,
            0.732_327_766_827_109_9,
            1.083_315_470_587_686_4,
            1.037_611_085_908_145,
            1.000_000_035_468_709_3,
        ];
        let mut out = [f32::NAN; 9];
        forward(&x, &mut out);
        let mut grad = [1.0; 9];
        backward_in_place(&x, &mut grad);
        for i in 0..9 {
            assert!((f64::from(out[i]) - expected[i]).abs() <= 5e-7, "gelu({}) = {}", x[i], out[i]);
            assert!((f64::from(grad[i]) - expected_grad[i]).abs() <= 5e-7, "gelu'({}) = {}", x[i], grad[i]);
        }
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let mut numbers = Numbers::new(3);
        let (x, grad_out) = (numbers.values(64), numbers.values(64));
        let mut grad = grad_out.clone();
        backward_in_place(&x, &mut grad);
        assert_gradient("x", &grad, &x, |x| weighted(&reference(x), &grad_out));
    }
}
