//! AdamW with 8-bit moments, quantised in blocks.
//!
//! The state and the order of roundings are those of bitsandbytes' CPU kernel. Moments exist in f32 only
//! block by block, while they are updated.

use super::{
    Algorithm, PIECE, StatePart, StateValues, Step,
    adamw::{AdamW, Coefficients},
    in_pieces,
};
use garden_engine::{DYNAMIC_BLOCK as BLOCK, DynamicMap};
use garden_model::{MatrixShape, TrainableTensor};
use rayon::prelude::*;

/// Tensors with fewer elements keep f32 moments: the saving is small and they are often the sensitive ones.
/// The figure is bitsandbytes'.
const SMALLEST_8BIT: usize = 4096;
const _: () = assert!(PIECE.is_multiple_of(BLOCK), "no block lies in two pieces");

/// `bitsandbytes.optim.AdamW8bit`.
pub(super) struct AdamW8bit;

impl Algorithm for AdamW8bit {
    fn state(&self, shape: MatrixShape) -> Vec<StatePart> {
        let elements = shape.elements();
        if elements < SMALLEST_8BIT {
            return AdamW.state(shape);
        }
        let blocks = elements.div_ceil(BLOCK);
        vec![
            StatePart::u8("m", elements),
            StatePart::u8("v", elements),
            StatePart::f32("m_scale", blocks),
            StatePart::f32("v_scale", blocks),
        ]
    }

    fn update(&self, step: &Step<'_>, tensor: TrainableTensor<'_>, state: &mut [StateValues]) {
        use StateValues::{F32, U8};
        let [U8(m), U8(v), F32(m_scale), F32(v_scale)] = state else {
            return AdamW.update(step, tensor, state);
        };
        let c = Coefficients::new(step, tensor.decays);
        let codes = m.par_chunks_mut(PIECE).zip(v.par_chunks_mut(PIECE));
        let scales = m_scale.par_chunks_mut(PIECE / BLOCK).zip(v_scale.par_chunks_mut(PIECE / BLOCK));
        in_pieces(
            tensor,
            codes.zip(scales),
            #[inline(always)]
            |values, gradient, ((m, v), (m_scale, v_scale))| {
                let tensors = values.chunks_mut(BLOCK).zip(gradient.chunks(BLOCK));
                let codes = m.chunks_mut(BLOCK).zip(v.chunks_mut(BLOCK));
                for (((values, gradient), (m, v)), (m_scale, v_scale)) in
                    tensors.zip(codes).zip(m_scale.iter_mut().zip(v_scale.iter_mut()))
                {
                    let m = Block { codes: m, scale: m_scale };
                    let v = Block { codes: v, scale: v_scale };
                    update_block(&c, values, gradient, m, v);
                }
            },
        );
    }
}

/// A quantised block of a moment.
struct Block<'a> {
    codes: &'a mut [u8],
    scale: &'a mut f32,
}

#[inline(always)]
fn update_block(
    c: &Coefficients,
    values: &mut [f32],
    gradient: &[f32],
    m_block: Block<'_>,
    v_block: Block<'_>,
) {
    let (signed, unsigned) = (DynamicMap::signed(), DynamicMap::unsigned());
    let (mut m, mut v) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
    let (m, v) = (&mut m[..values.len()], &mut v[..values.len()]);
    for i in 0..values.len() {
        m[i] = signed.value(m_block.codes[i]) * *m_block.scale;
        v[i] = unsigned.value(v_block.codes[i]) * *v_block.scale;
    }
    for (((value, g), m), v) in values.iter_mut().zip(gradient).zip(m.iter_mut()).zip(v.iter_mut()) {
        let gradient = g * c.scale;
        // As bitsandbytes sums it; the last bit may differ from torch's.
        *m = gradient.mul_add(c.rest1, *m * c.beta1);
        c.finish(value, gradient, *m, v);
    }
    *m_block.scale = signed.quantise(m, m_block.codes);
    *v_block.scale = unsigned.quantise(v, v_block.codes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        optimizer::{
            Optimizer, OptimizerKind,
            testing::{SETTINGS, assert_state_equals_golden, gradient, tensor, vector},
        },
        testing::{Goldens, uniform},
    };

    #[test]
    fn a_hundred_steps_leave_the_state_of_bitsandbytes() {
        // bitsandbytes updates small tensors by a formula of its own.
        assert_state_equals_golden(OptimizerKind::Adamw8bit, "adamw_8bit", |len| len >= SMALLEST_8BIT);
    }

    #[test]
    fn zero_gradients_do_not_explode() {
        // A block that once had gradients and then only zeros: the second moment fades faster than the codes
        // can tell from zero, and a division by its root must still be harmless.
        let mut values = vec![0.5f32; SMALLEST_8BIT];
        let mut optimizer = Optimizer::new(OptimizerKind::Adamw8bit, SETTINGS, [vector(values.len())]);
        let settle = gradient(60, values.len());
        for step in 0..3000 {
            let zero = vec![0.0; values.len()];
            optimizer.begin_step();
            let gradient = if step < 5 { &settle } else { &zero };
            optimizer.update(0, tensor(&mut values, gradient, false), 1e-3, 1.0);
            assert!(values.iter().all(|x| (x - 0.5).abs() < 0.1), "step {step}");
        }
    }

    /// As bitsandbytes does on a CPU; docs/training.md says so.
    #[test]
    fn a_parameter_without_a_gradient_moves_a_little_in_8_bits_and_not_at_all_in_f32() {
        let moved = |kind| {
            let mut values = vec![0.5f32; SMALLEST_8BIT];
            let mut optimizer = Optimizer::new(kind, SETTINGS, [vector(values.len())]);
            for step in 0..20 {
                let mut gradient = uniform(values.len(), step);
                gradient[7] = 0.0;
                optimizer.begin_step();
                optimizer.update(0, tensor(&mut values, &gradient, false), 1e-3, 1.0);
            }
            (values[7] - 0.5).abs()
        };
        assert_eq!(moved(OptimizerKind::Adamw), 0.0);
        let little = moved(OptimizerKind::Adamw8bit);
        assert!(little > 0.0 && little < 20.0 * 1e-3, "{little}");
    }

    #[test]
    fn code_books_are_those_of_bitsandbytes() {
        let goldens = Goldens::open("optimizers.safetensors");
        assert_eq!(goldens.f32("map.signed"), *DynamicMap::signed().values());
        assert_eq!(goldens.f32("map.unsigned"), *DynamicMap::unsigned().values());
    }

    #[test]
    fn codes_and_scales_are_those_of_bitsandbytes() {
        let goldens = Goldens::open("optimizers.safetensors");
        let cases = [("signed", 5, DynamicMap::signed()), ("unsigned", 6, DynamicMap::unsigned())];
        for (kind, seed, map) in cases {
            let values: Vec<f32> = uniform(4096, seed)
                .iter()
                .map(|x| x * x * x * x * x)
                .map(|x| if kind == "unsigned" { x.abs() } else { x })
                .collect();
            let mut codes = vec![0; 4096];
            let scales: Vec<f32> = values
                .chunks(BLOCK)
                .zip(codes.chunks_mut(BLOCK))
                .map(|(block, codes)| map.quantise(block, codes))
                .collect();
            assert_eq!(goldens.bytes(&format!("quantise.{kind}")), codes, "{kind}");
            assert_eq!(goldens.f32(&format!("quantise.{kind}.scale")), scales, "{kind}");
        }
    }
}
