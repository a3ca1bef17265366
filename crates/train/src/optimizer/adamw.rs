//! The arithmetic of one AdamW step on one tensor.
//!
//! In come a tensor, its gradient and its moments; all but the gradient are changed in place, pieces in parallel.
//! The order of roundings follows PyTorch's and bitsandbytes' CPU kernels; fused multiply-adds are asked for by name, so
//! that every machine gets the same bits.

use super::AdamSettings;
use garden_engine::dynamic_map::{DYNAMIC_BLOCK as BLOCK, DynamicMap};
use garden_engine::simd::vectorised;
use rayon::prelude::*;

/// Elements a task works on: large enough to hide the cost of a task, and a whole number of blocks.
const PIECE: usize = 64 * BLOCK;

/// What is the same for all elements of a step.
pub(super) struct Coefficients {
    beta1: f32,
    beta2: f32,
    rest1: f32,
    rest2: f32,
    epsilon: f32,
    keep: f32,
    step_size: f32,
    root_correction: f32,
    scale: f32,
}

impl Coefficients {
    pub(super) fn new(settings: &AdamSettings, step: u64, rate: f64, scale: f32, decay: bool) -> Self {
        let exponent = i32::try_from(step).unwrap_or(i32::MAX);
        let decay = if decay { settings.weight_decay } else { 0.0 };
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

    /// The first moment as `torch.optim.AdamW` moves it: a step from the old one towards the gradient.
    #[inline(always)]
    fn first_moment_towards(&self, m: f32, gradient: f32) -> f32 {
        (gradient - m).mul_add(self.rest1, m)
    }

    /// The first moment as bitsandbytes sums it; the last bit may differ from torch's.
    #[inline(always)]
    fn first_moment_sum(&self, m: f32, gradient: f32) -> f32 {
        gradient.mul_add(self.rest1, m * self.beta1)
    }

    /// The new second moment and the new value of one element.
    #[inline(always)]
    fn finish(&self, value: &mut f32, gradient: f32, m: f32, v: &mut f32) {
        *v = (self.rest2 * gradient).mul_add(gradient, *v * self.beta2);
        let denominator = v.sqrt() / self.root_correction + self.epsilon;
        *value = *value * self.keep + (self.step_size * m) / denominator;
    }
}

pub(super) fn update_full(
    c: &Coefficients,
    values: &mut [f32],
    gradient: &[f32],
    m: &mut [f32],
    v: &mut [f32],
) {
    let pieces = values.par_chunks_mut(PIECE).zip(gradient.par_chunks(PIECE));
    let moments = m.par_chunks_mut(PIECE).zip(v.par_chunks_mut(PIECE));
    pieces.zip(moments).for_each(|((values, gradient), (m, v))| {
        vectorised(
            #[inline(always)]
            || {
                for (((value, g), m), v) in values.iter_mut().zip(gradient).zip(m).zip(v) {
                    let gradient = g * c.scale;
                    *m = c.first_moment_towards(*m, gradient);
                    c.finish(value, gradient, *m, v);
                }
            },
        );
    });
}

pub(super) fn update_quantised(
    c: &Coefficients,
    values: &mut [f32],
    gradient: &[f32],
    m: &mut [u8],
    v: &mut [u8],
    m_scale: &mut [f32],
    v_scale: &mut [f32],
) {
    let pieces = values.par_chunks_mut(PIECE).zip(gradient.par_chunks(PIECE));
    let codes = m.par_chunks_mut(PIECE).zip(v.par_chunks_mut(PIECE));
    let scales = m_scale.par_chunks_mut(PIECE / BLOCK).zip(v_scale.par_chunks_mut(PIECE / BLOCK));
    pieces.zip(codes).zip(scales).for_each(|(((values, gradient), (m, v)), (m_scale, v_scale))| {
        vectorised(
            #[inline(always)]
            || {
                let tensors = values.chunks_mut(BLOCK).zip(gradient.chunks(BLOCK));
                let codes = m.chunks_mut(BLOCK).zip(v.chunks_mut(BLOCK));
                for (((values, gradient), (m, v)), (m_scale, v_scale)) in
                    tensors.zip(codes).zip(m_scale.iter_mut().zip(v_scale.iter_mut()))
                {
                    update_block(c, values, gradient, (m, m_scale), (v, v_scale));
                }
            },
        );
    });
}

#[inline(always)]
fn update_block(
    c: &Coefficients,
    values: &mut [f32],
    gradient: &[f32],
    (m_codes, m_scale): (&mut [u8], &mut f32),
    (v_codes, v_scale): (&mut [u8], &mut f32),
) {
    let (signed, unsigned) = (DynamicMap::signed(), DynamicMap::unsigned());
    let (mut m, mut v) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
    let (m, v) = (&mut m[..values.len()], &mut v[..values.len()]);
    for i in 0..values.len() {
        m[i] = signed.value(m_codes[i]) * *m_scale;
        v[i] = unsigned.value(v_codes[i]) * *v_scale;
    }
    for (((value, g), m), v) in values.iter_mut().zip(gradient).zip(m.iter_mut()).zip(v.iter_mut()) {
        let gradient = g * c.scale;
        *m = c.first_moment_sum(*m, gradient);
        c.finish(value, gradient, *m, v);
    }
    *m_scale = signed.quantise(m, m_codes);
    *v_scale = unsigned.quantise(v, v_codes);
}
