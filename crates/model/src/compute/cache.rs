//! Keeps the keys and values of the tokens that were read, layer by layer, so that the next token costs one
//! row.
//!
//! Takes the rotated keys and the values of new tokens, and gives what their queries attend to. The room for
//! every token is taken at the start, so that nothing grows while an answer does.

use super::block::BlockShape;
use garden_engine::ops::Rows;
use garden_engine::ops::attention::{self, Heads};

/// What one layer keeps of the tokens so far.
#[derive(Debug)]
pub(super) struct LayerCache {
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Values of a token's keys.
    width: usize,
    tokens: usize,
}

/// What all layers keep.
#[derive(Debug)]
pub(super) struct Cache {
    pub layers: Vec<LayerCache>,
    pub scores: Vec<f32>,
}

impl Cache {
    pub(super) fn new(shape: &BlockShape, layers: usize, tokens: usize) -> Self {
        let width = shape.kv_heads * shape.head_dim;
        let room = || vec![0.0; width * tokens];
        let layer = || LayerCache { keys: room(), values: room(), width, tokens: 0 };
        Self {
            layers: (0..layers).map(|_| layer()).collect(),
            scores: vec![0.0; attention::decode_scratch_len(shape.heads, tokens)],
        }
    }

    pub(super) fn clear(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.tokens = 0);
    }

    /// What layer `index` attends with.
    pub(super) fn layer(&mut self, index: usize) -> Past<'_> {
        Past { layer: &mut self.layers[index], scores: &mut self.scores }
    }
}

/// One layer's past, on the way through it.
pub(super) struct Past<'a> {
    layer: &'a mut LayerCache,
    scores: &'a mut [f32],
}

impl Past<'_> {
    /// Keeps the keys and values of `rows` new tokens, then attends: a prompt to itself, one further token to
    /// all before it.
    pub(super) fn attend(
        self,
        shape: &attention::Shape<'_>,
        rows: usize,
        [q, k, v]: [Rows<'_>; 3],
        out: &mut [f32],
        log_sum_exp: &mut [f32],
    ) {
        let LayerCache { keys, values, width, tokens } = self.layer;
        for row in 0..rows {
            let to = (*tokens + row) * *width..(*tokens + row + 1) * *width;
            keys[to.clone()].copy_from_slice(&k.data[row * k.stride..][..*width]);
            values[to].copy_from_slice(&v.data[row * v.stride..][..*width]);
        }
        let before = *tokens;
        *tokens += rows;
        if before == 0 {
            return attention::forward(shape, q, k, v, out, log_sum_exp);
        }
        assert_eq!(rows, 1, "after the prompt tokens come one by one");
        let heads = Heads { heads: shape.heads, kv_heads: shape.kv_heads, head_dim: shape.head_dim };
        let kept = |data| Rows { data, stride: *width };
        let q = &q.data[..shape.heads * shape.head_dim];
        let past = attention::Past { keys: kept(keys), values: kept(values), count: *tokens };
        attention::decode(heads, q, past, out, self.scores);
    }
}
