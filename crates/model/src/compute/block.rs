//! One block of either tower: attention and a gated MLP, each behind a norm and beside the residual stream.
//!
//! In come the rows of the residual stream and the block's weights; out come the rows after the block, and on the way back
//! the gradient of its input and of what is trained in it. Backward reads what forward kept; a block that is
//! recomputed runs [`Pass::forward`] again without its last product, whose result the next block's input already held.

use super::model::{Block, Gradients, Projection};
use super::slots::{BackwardWork, Kept, Work};
use crate::config::ModelConfig;
use garden_engine::arena::{Arena, Slot};
use garden_engine::ops::attention::{self, Rows, Saved};
use garden_engine::ops::linear::{backward_bias, backward_matrix};
use garden_engine::ops::rotary::{self, Table};
use garden_engine::ops::{Write, norm, swiglu};
use garden_engine::product::{Output, Start, Term, multiply};

/// Sizes of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BlockShape {
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub inner: usize,
    pub causal: bool,
    pub epsilon: f32,
    /// Rank of its pairs; zero for none.
    pub rank: usize,
    /// Matrices that queries, keys and values come from: one or three.
    pub qkv_parts: usize,
}

impl BlockShape {
    pub(super) fn vision(config: &ModelConfig, rank: usize) -> Self {
        let vision = &config.vision;
        Self {
            width: vision.hidden_size,
            heads: vision.heads,
            kv_heads: vision.heads,
            head_dim: vision.head_size(),
            inner: vision.intermediate_size,
            causal: false,
            epsilon: vision.norm_epsilon,
            rank,
            qkv_parts: 1,
        }
    }

    pub(super) fn text(config: &ModelConfig, rank: usize) -> Self {
        let text = &config.text;
        Self {
            width: text.hidden_size,
            heads: text.heads,
            kv_heads: text.kv_heads,
            head_dim: text.head_size(),
            inner: text.intermediate_size,
            causal: true,
            epsilon: text.norm_epsilon,
            rank,
            qkv_parts: 3,
        }
    }

    pub(super) fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Linear layers of the block.
    pub(super) fn projections(&self) -> usize {
        self.qkv_parts + 4
    }

    fn attention<'a>(&self, segments: &'a [usize]) -> attention::Shape<'a> {
        attention::Shape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            segments,
            causal: self.causal,
        }
    }
}

/// A block on its way through one batch.
pub(super) struct Pass<'a> {
    pub shape: BlockShape,
    pub block: Block<'a>,
    pub rows: usize,
    pub segments: &'a [usize],
    pub cos: Slot,
    pub sin: Slot,
    pub scratch: Slot,
}

impl Pass<'_> {
    /// The part of `narrow` that projection `index` fills.
    fn narrow<'b>(&self, index: usize, narrow: &'b mut [f32]) -> &'b mut [f32] {
        let len = self.rows * self.shape.rank;
        &mut narrow[index * len..][..len]
    }

    /// The rows after the block go to `output`; without one, only what backward reads is computed.
    pub(super) fn forward(
        &self,
        arena: &mut Arena,
        input: Slot,
        kept: &Kept,
        work: &Work,
        output: Option<Slot>,
    ) {
        self.forward_attention(arena, input, kept, work);
        let (shape, block, rows) = (&self.shape, &self.block, self.rows);
        let first = shape.qkv_parts + 1;
        let [middle, inverse, gate, up, narrow, normed, activated, scratch] = arena.get([
            kept.middle,
            kept.inverse2,
            kept.gate,
            kept.up,
            kept.narrow,
            work.normed,
            work.activated,
            self.scratch,
        ]);
        let middle = &middle[..rows * shape.width];
        let normed = &mut normed[..rows * shape.width];
        norm::forward(middle, block.norm2, shape.epsilon, normed, &mut inverse[..rows]);
        for (at, (projection, out)) in
            [(&block.gate, &mut *gate), (&block.up, &mut *up)].into_iter().enumerate()
        {
            let narrow = self.narrow(first + at, narrow);
            projection.linear.project(normed, rows, narrow, scratch);
            projection.linear.forward(normed, narrow, rows, (out, shape.inner), None, scratch);
        }
        let activated = &mut activated[..rows * shape.inner];
        swiglu::forward(&gate[..activated.len()], &up[..activated.len()], activated);
        let down = &block.down.linear;
        down.project(activated, rows, self.narrow(first + 2, narrow), scratch);
        if let Some(output) = output {
            let [middle, narrow, activated, scratch, output] =
                arena.get([kept.middle, kept.narrow, work.activated, self.scratch, output]);
            let narrow = self.narrow(first + 2, narrow);
            down.forward(activated, narrow, rows, (output, shape.width), Some(middle), scratch);
        }
    }

    fn forward_attention(&self, arena: &mut Arena, input: Slot, kept: &Kept, work: &Work) {
        let (shape, block, rows) = (&self.shape, &self.block, self.rows);
        let [x, inverse, qkv, attended, log_sum_exp, middle, narrow, normed, cos, sin, scratch] =
            arena.get([
                input,
                kept.inverse1,
                kept.qkv,
                kept.attended,
                kept.log_sum_exp,
                kept.middle,
                kept.narrow,
                work.normed,
                self.cos,
                self.sin,
                self.scratch,
            ]);
        let x = &x[..rows * shape.width];
        let normed = &mut normed[..rows * shape.width];
        norm::forward(x, block.norm1, shape.epsilon, normed, &mut inverse[..rows]);
        let stride = shape.qkv_width();
        let mut column = 0;
        for (index, projection) in block.qkv.iter().enumerate() {
            let narrow = self.narrow(index, narrow);
            projection.linear.project(normed, rows, narrow, scratch);
            projection.linear.forward(normed, narrow, rows, (&mut qkv[column..], stride), None, scratch);
            column += projection.linear.weight.rows();
        }
        let qkv = &mut qkv[..rows * stride];
        rotary::forward(qkv, stride, shape.heads + shape.kv_heads, self.table(cos, sin));
        let [q, k, v] = self.heads(qkv);
        let attended = &mut attended[..rows * shape.width];
        let log_sum_exp = &mut log_sum_exp[..rows * shape.heads];
        attention::forward(&shape.attention(self.segments), q, k, v, attended, log_sum_exp);
        let out = &block.out.linear;
        let narrow = self.narrow(shape.qkv_parts, narrow);
        out.project(attended, rows, narrow, scratch);
        out.forward(attended, narrow, rows, (middle, shape.width), Some(x), scratch);
    }

    fn table<'b>(&self, cos: &'b [f32], sin: &'b [f32]) -> Table<'b> {
        let half = self.shape.head_dim / 2;
        Table { cos: &cos[..self.rows * half], sin: &sin[..self.rows * half], half }
    }

    /// Queries, keys and values inside their common rows.
    fn heads<'b>(&self, qkv: &'b [f32]) -> [Rows<'b>; 3] {
        let (shape, stride) = (&self.shape, self.shape.qkv_width());
        let keys = shape.heads * shape.head_dim;
        let values = keys + shape.kv_heads * shape.head_dim;
        [0, keys, values].map(|start| Rows { data: &qkv[start..], stride })
    }

    /// Turns the gradient of the block's output in `grad` into that of its input; leaves it undone below the lowest trained
    /// layer (`to_input` false), where nobody reads it.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn backward(
        &self,
        arena: &mut Arena,
        input: Slot,
        kept: &Kept,
        work: &BackwardWork,
        grad: Slot,
        to_input: bool,
        gradients: &mut Gradients,
    ) {
        self.backward_mlp(arena, kept, work, grad, gradients);
        self.backward_attention(arena, input, kept, work, grad, to_input, gradients);
    }

    fn backward_mlp(
        &self,
        arena: &mut Arena,
        kept: &Kept,
        work: &BackwardWork,
        grad: Slot,
        gradients: &mut Gradients,
    ) {
        let (shape, block, rows) = (&self.shape, &self.block, self.rows);
        let first = shape.qkv_parts + 1;
        let [middle, inverse, gate, up, narrow, normed, activated, grad_normed, grad_narrow, grad, scratch] =
            arena.get([
                kept.middle,
                kept.inverse2,
                kept.gate,
                kept.up,
                kept.narrow,
                work.work.normed,
                work.work.activated,
                work.grad_normed,
                work.grad_narrow,
                grad,
                self.scratch,
            ]);
        let (wide, inner) = (rows * shape.width, rows * shape.inner);
        let (gate, up, activated) = (&mut gate[..inner], &mut up[..inner], &mut activated[..inner]);
        swiglu::forward(gate, up, activated);
        let down_narrow = self.narrow(first + 2, grad_narrow);
        let down = Trained {
            projection: &block.down,
            rows,
            grad: (&grad[..wide], shape.width),
            narrow: self.narrow(first + 2, narrow),
        };
        down.gradients(activated, down_narrow, gradients, scratch);
        // The activation has done its work: its place takes its own gradient.
        let terms: Vec<Term<'_>> = down.terms(down_narrow).collect();
        multiply(Output::new(activated, rows, shape.inner), Start::ZERO, &terms, scratch);
        swiglu::backward_in_place(gate, up, activated);

        let middle = &middle[..wide];
        let (normed, grad_normed) = (&mut normed[..wide], &mut grad_normed[..wide]);
        let inverse = &mut inverse[..rows];
        norm::forward(middle, block.norm2, shape.epsilon, normed, inverse);
        let len = rows * shape.rank;
        let (gate_narrow, up_narrow) = grad_narrow[first * len..(first + 2) * len].split_at_mut(len);
        let of_gate = Trained {
            projection: &block.gate,
            rows,
            grad: (gate, shape.inner),
            narrow: self.narrow(first, narrow),
        };
        of_gate.gradients(normed, gate_narrow, gradients, scratch);
        let of_up = Trained {
            projection: &block.up,
            rows,
            grad: (up, shape.inner),
            narrow: self.narrow(first + 1, narrow),
        };
        of_up.gradients(normed, up_narrow, gradients, scratch);
        let of_gate = block.gate.linear.input_terms((gate, shape.inner), gate_narrow, rows);
        let of_up = block.up.linear.input_terms((up, shape.inner), up_narrow, rows);
        let terms: Vec<Term<'_>> = of_gate.chain(of_up).collect();
        multiply(Output::new(grad_normed, rows, shape.width), Start::ZERO, &terms, scratch);
        if let Some(id) = block.norm_ids[1] {
            norm::backward_weight(middle, inverse, grad_normed, gradients.of(id));
        }
        norm::backward(middle, block.norm2, inverse, grad_normed, Write::Add, &mut grad[..wide]);
    }

    #[allow(clippy::too_many_arguments)]
    fn backward_attention(
        &self,
        arena: &mut Arena,
        input: Slot,
        kept: &Kept,
        work: &BackwardWork,
        grad: Slot,
        to_input: bool,
        gradients: &mut Gradients,
    ) {
        let (shape, block, rows) = (&self.shape, &self.block, self.rows);
        let wide = rows * shape.width;
        let [attended, narrow, grad_attended, grad_narrow, grad_of, scratch] =
            arena.get([kept.attended, kept.narrow, work.grad_attended, work.grad_narrow, grad, self.scratch]);
        let out_narrow = self.narrow(shape.qkv_parts, grad_narrow);
        let out = Trained {
            projection: &block.out,
            rows,
            grad: (&grad_of[..wide], shape.width),
            narrow: self.narrow(shape.qkv_parts, narrow),
        };
        out.gradients(&attended[..wide], out_narrow, gradients, scratch);
        let terms: Vec<Term<'_>> = out.terms(out_narrow).collect();
        multiply(Output::new(grad_attended, rows, shape.width), Start::ZERO, &terms, scratch);

        let [qkv, attended, log_sum_exp, grad_attended, grad_qkv, cos, sin] = arena.get([
            kept.qkv,
            kept.attended,
            kept.log_sum_exp,
            work.grad_attended,
            work.grad_qkv,
            self.cos,
            self.sin,
        ]);
        let [q, k, v] = self.heads(qkv);
        let log_sum_exp = &log_sum_exp[..rows * shape.heads];
        let saved = Saved { q, k, v, out: &attended[..wide], log_sum_exp };
        let stride = shape.qkv_width();
        let grad_qkv = &mut grad_qkv[..rows * stride];
        attention::backward(
            &shape.attention(self.segments),
            &saved,
            &grad_attended[..wide],
            grad_qkv,
            stride,
        );
        rotary::backward(grad_qkv, stride, shape.heads + shape.kv_heads, self.table(cos, sin));

        let [x, inverse, narrow, normed, grad_normed, grad_qkv, grad_narrow, grad, scratch] = arena.get([
            input,
            kept.inverse1,
            kept.narrow,
            work.work.normed,
            work.grad_normed,
            work.grad_qkv,
            work.grad_narrow,
            grad,
            self.scratch,
        ]);
        let x = &x[..wide];
        let (normed, grad_normed, inverse) =
            (&mut normed[..wide], &mut grad_normed[..wide], &mut inverse[..rows]);
        norm::forward(x, block.norm1, shape.epsilon, normed, inverse);
        let mut column = 0;
        for (index, projection) in block.qkv.iter().enumerate() {
            let grad = (&grad_qkv[column..], stride);
            let trained = Trained { projection, rows, grad, narrow: self.narrow(index, narrow) };
            trained.gradients(normed, self.narrow(index, grad_narrow), gradients, scratch);
            column += projection.linear.weight.rows();
        }
        if !to_input && block.norm_ids[0].is_none() {
            return;
        }
        let len = rows * shape.rank;
        let mut column = 0;
        let mut terms = Vec::with_capacity(2 * block.qkv.len());
        for (index, projection) in block.qkv.iter().enumerate() {
            let narrow = &grad_narrow[index * len..][..len];
            terms.extend(projection.linear.input_terms((&grad_qkv[column..], stride), narrow, rows));
            column += projection.linear.weight.rows();
        }
        multiply(Output::new(grad_normed, rows, shape.width), Start::ZERO, &terms, scratch);
        if let Some(id) = block.norm_ids[0] {
            norm::backward_weight(x, inverse, grad_normed, gradients.of(id));
        }
        norm::backward(x, block.norm1, inverse, grad_normed, Write::Add, &mut grad[..wide]);
    }
}

/// A linear layer with the gradient of its output at hand.
pub(super) struct Trained<'a, 'b> {
    pub projection: &'b Projection<'a>,
    pub rows: usize,
    /// Gradient of the output, and how far its rows are apart.
    pub grad: (&'b [f32], usize),
    /// The narrow product that forward kept.
    pub narrow: &'b [f32],
}

impl<'a: 'b, 'b> Trained<'a, 'b> {
    /// Fills `grad_narrow` and adds the gradients of whatever is trained in the layer, `x` being its input.
    pub(super) fn gradients(
        &self,
        x: &[f32],
        grad_narrow: &mut [f32],
        gradients: &mut Gradients,
        scratch: &mut [f32],
    ) {
        let Projection { linear, ids } = self.projection;
        let (rows, rank, inputs) = (self.rows, linear.rank(), linear.weight.cols());
        let wide = (self.grad.0, self.grad.1, linear.weight.rows());
        linear.backward_narrow(self.grad, rows, grad_narrow, scratch);
        if let Some(id) = ids.b {
            backward_matrix(wide, (self.narrow, rank), rows, gradients.of(id), scratch);
        }
        if let Some(id) = ids.a {
            backward_matrix((grad_narrow, rank, rank), (x, inputs), rows, gradients.of(id), scratch);
        }
        if let Some(id) = ids.weight {
            backward_matrix(wide, (x, inputs), rows, gradients.of(id), scratch);
        }
        if let Some(id) = ids.bias {
            backward_bias(self.grad, rows, gradients.of(id));
        }
    }

    /// The products of the input's gradient.
    pub(super) fn terms(&self, grad_narrow: &'b [f32]) -> impl Iterator<Item = Term<'b>> {
        self.projection.linear.input_terms(self.grad, grad_narrow, self.rows)
    }
}
