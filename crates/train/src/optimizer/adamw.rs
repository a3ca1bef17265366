//! AdamW with f32 moments.
//!
//! The order of roundings is that of PyTorch's CPU kernel. Fused multiply-adds are asked for by name, so that
//! every machine gets the same bits.

use super::{Algorithm, PIECE, StatePart, StateValues, Step, in_pieces};
use garden_model::{MatrixShape, TrainableTensor};
use rayon::prelude::*;

/// `torch.optim.AdamW`.
pub(super) struct AdamW;

impl Algorithm for AdamW {
    fn state(&self, shape: MatrixShape) -> Vec<StatePart> {
        vec![StatePart::f32("m", shape.elements()), StatePart::f32("v", shape.elements())]
    }

    fn update(&self, step: &Step<'_>, tensor: TrainableTensor<'_>, state: &mut [StateValues]) {
        let [StateValues::F32(m), StateValues::F32(v)] = state else { unreachable!("as `state` says") };
        let c = Coefficients::new(step, tensor.decays);
        let moments = m.par_chunks_mut(PIECE).zip(v.par_chunks_mut(PIECE));
        in_pieces(
            tensor,
            moments,
            #[inline(always)]
            |values, gradient, (m, v)| {
                for (((value, g), m), v) in values.iter_mut().zip(gradient).zip(m).zip(v) {
                    let gradient = g * c.scale;
                    // A step from the old moment towards the gradient, as torch computes it.
                    *m = (gradient - *m).mul_add(c.rest1, *m);
                    c.finish(value, gradient, *m, v);
                }
            },
        );
    }
}

/// What is the same for all elements of a tensor in one step.
pub(super) struct Coefficients {
    pub beta1: f32,
    beta2: f32,
    pub rest1: f32,
    rest2: f32,
    epsilon: f32,
    keep: f32,
    step_size: f32,
    root_correction: f32,
    pub scale: f32,
}

impl Coefficients {
    pub(super) fn new(step: &Step<'_>, decays: bool) -> Self {
        let Step { number, rate, scale, settings } = *step;
        let exponent = i32::try_from(number).unwrap_or(i32::MAX);
        let decay = if decays { settings.weight_decay } else { 0.0 };
        Self {
            beta1: settings.beta1 as f32,
            beta2: settings.beta2 as f32,
            rest1: (1.0 - settings.beta1) as f32,
            rest2: (1.0 - settings.beta2) as f32,
            epsilon: settings.epsilon as f32,
            keep: (1.0 - rate * decay) as f32,
            step_size: (-rate / (1.0 - settings.beta1.powi(exponent))) as f32,
            root_correction: (1.0 - settings.beta2.powi(exponent)).sqrt() as f32,
            scale,
        }
    }

    /// The new second moment and the new value of one element, whose first moment is already the new one.
    #[inline(always)]
    pub(super) fn finish(&self, value: &mut f32, gradient: f32, m: f32, v: &mut f32) {
        *v = (self.rest2 * gradient).mul_add(gradient, *v * self.beta2);
        let denominator = v.sqrt() / self.root_correction + self.epsilon;
        *value = *value * self.keep + (self.step_size * m) / denominator;
    }
}

#[cfg(test)]
mod tests {
    use crate::optimizer::{OptimizerKind, testing::assert_state_equals_golden};

    #[test]
    fn a_hundred_steps_end_where_torch_ends() {
        assert_state_equals_golden(OptimizerKind::Adamw, "adamw", |_| true);
    }
}
