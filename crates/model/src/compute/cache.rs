//! Keeps the keys and values of the tokens that were read, layer by layer, so that a further token costs one
//! row.
//!
//! Takes the rotated keys and the values of new tokens, and gives what their queries attend to. The room for
//! every page is taken at the start, so that nothing grows while answers do.

use super::block::BlockShape;
use garden_engine::ops::Rows;
use garden_engine::ops::attention::{self, Heads, PAGE, Pages, Reading};

/// What one layer keeps of the tokens so far.
#[derive(Debug)]
struct LayerCache {
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// What all layers keep.
#[derive(Debug)]
pub(super) struct Cache {
    layers: Vec<LayerCache>,
    /// Values of a token's keys.
    width: usize,
}

impl Cache {
    pub(super) fn new(shape: &BlockShape, layers: usize, pages: usize) -> Self {
        let width = shape.kv_heads * shape.head_dim;
        let room = || vec![0.0; width * pages * PAGE];
        let layer = || LayerCache { keys: room(), values: room() };
        Self { layers: (0..layers).map(|_| layer()).collect(), width }
    }

    /// Bytes of a cache.
    pub(super) fn bytes(shape: &BlockShape, layers: usize, pages: usize) -> usize {
        2 * layers * pages * PAGE * shape.kv_heads * shape.head_dim * size_of::<f32>()
    }

    /// What layer `index` attends with.
    pub(super) fn layer<'a>(&'a mut self, index: usize, readings: &'a [Reading<'a>]) -> Past<'a> {
        Past { layer: &mut self.layers[index], width: self.width, readings }
    }
}

/// One layer's past, on the way through it.
pub(super) struct Past<'a> {
    layer: &'a mut LayerCache,
    width: usize,
    readings: &'a [Reading<'a>],
}

impl Past<'_> {
    /// Keeps the keys and values of the new tokens, then attends each to all before it and to itself.
    pub(super) fn attend(
        self,
        shape: &attention::Shape<'_>,
        [q, k, v]: [Rows<'_>; 3],
        out: &mut [f32],
        log_sum_exp: &mut [f32],
    ) {
        let (width, LayerCache { keys, values }) = (self.width, self.layer);
        for reading in self.readings {
            for new in 0..reading.count {
                let (row, token) = (reading.row + new, reading.before + new);
                let to = (reading.pages[token / PAGE] as usize * PAGE + token % PAGE) * width;
                keys[to..][..width].copy_from_slice(&k.data[row * k.stride..][..width]);
                values[to..][..width].copy_from_slice(&v.data[row * v.stride..][..width]);
            }
        }
        let heads = Heads { heads: shape.heads, kv_heads: shape.kv_heads, head_dim: shape.head_dim };
        attention::paged(heads, q, Pages { keys, values }, self.readings, out, log_sum_exp);
    }
}
