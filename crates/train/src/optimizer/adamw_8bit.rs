//! AdamW with 8-bit moments, quantised in blocks.
//!
//! The state and the order of roundings are those of bitsandbytes' CPU kernel. Moments exist in f32 only
//! block by block, while they are updated.

use super::{
    Algorithm, StatePart, StateValues, Step,
    adamw::{AdamW, Coefficients},
};
use garden_engine::vectorised;
use garden_engine::{DYNAMIC_BLOCK as BLOCK, DynamicMap};
use garden_model::{MatrixShape, TrainableTensor};
use rayon::prelude::*;

/// Tensors with fewer elements keep f32 moments: the saving is small and they are often the sensitive ones.
/// The figure is bitsandbytes'.
pub(super) const SMALLEST_8BIT: usize = 4096;
/// Elements a task works on: large enough to hide the cost of a task, and a whole number of blocks.
const PIECE: usize = 64 * BLOCK;

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
        let pieces = tensor.values.par_chunks_mut(PIECE).zip(tensor.gradient.par_chunks(PIECE));
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
                        let m = Block { codes: m, scale: m_scale };
                        let v = Block { codes: v, scale: v_scale };
                        update_block(&c, values, gradient, m, v);
                    }
                },
            );
        });
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
