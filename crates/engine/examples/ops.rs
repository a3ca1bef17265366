//! Speed of every operation on the shapes of a 0.43-billion-parameter model with two images of 336 x 336 and
//! 274 tokens each. Prints GB/s of memory touched or GFLOP/s; RAYON_NUM_THREADS sets the threads.
use garden_engine::ops::attention::{self, Heads, PAGE, Pages, Reading, Saved, Shape};
use garden_engine::ops::linear::{self, Linear, Lora};
use garden_engine::ops::{Rows, RowsMut, Write, embedding, gelu, loss, norm, rotary, swiglu};
use garden_engine::product::{Output, Start, multiply};
use garden_engine::{StoredAs, Weight};
use std::time::Instant;

const TOKENS: usize = 548;
const HIDDEN: usize = 1024;
const FEED_FORWARD: usize = 5504;
const VISION_TOKENS: usize = 1152;
const VISION_HIDDEN: usize = 640;

const VOCABULARY: usize = 151_936;
const LABELLED: usize = 254;
const RANK: usize = 16;

fn main() {
    for stored in [StoredAs::F32, StoredAs::Bf16, StoredAs::Int8, StoredAs::Nf4] {
        for rank in [0, RANK] {
            linear(stored, rank);
        }
    }
    embedding();
    elementwise();
    positions();
    let texts = [0, 274, 548];
    attention(
        "text, 2 x 274",
        Shape { heads: 8, kv_heads: 2, head_dim: 128, segments: &texts, causal: true },
    );
    let long = [0, 2048];
    attention("text, 2048", Shape { heads: 8, kv_heads: 2, head_dim: 128, segments: &long, causal: true });
    let images = [0, 576, 1152];
    attention(
        "images, 2 x 576",
        Shape { heads: 8, kv_heads: 8, head_dim: 80, segments: &images, causal: false },
    );
    let windows: Vec<usize> = (0..=VISION_TOKENS).step_by(64).collect();
    attention(
        "windows of 64",
        Shape { heads: 8, kv_heads: 8, head_dim: 80, segments: &windows, causal: false },
    );
    decode(2048);
    head();
}

/// Numbers that repeat only after a while.
fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 0.618).sin()).collect()
}

/// The best of some runs, in seconds.
fn best(mut run: impl FnMut()) -> f64 {
    (0..9)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::MAX, f64::min)
}

fn print(what: &str, seconds: f64, amount: f64, unit: &str) {
    println!("{what:<36} {:>9.3} ms {:>8.1} {unit}", seconds * 1e3, amount / seconds / 1e9);
}

fn bytes(floats: usize) -> f64 {
    4.0 * floats as f64
}

/// The widening matrix of the MLP, alone or with its pair: forward, and all that the backward of a frozen
/// weight does.
fn linear(stored: StoredAs, rank: usize) {
    let (outputs, inputs) = (FEED_FORWARD, HIDDEN);
    let weight = Weight::quantise(outputs, inputs, &values(outputs * inputs), stored).expect("finite values");
    let (a, b) = (values(rank * inputs), values(outputs * rank));
    let lora = (rank > 0).then_some(Lora { a: &a, b: &b, rank, scale: 0.5 });
    let layer = Linear::new(&weight, None, lora);
    let (x, grad) = (values(TOKENS * inputs), values(TOKENS * outputs));
    let mut scratch = vec![0.0; linear::scratch_len(TOKENS, outputs, inputs, rank, false)];
    let (mut narrow, mut out) = (vec![0.0; TOKENS * rank], vec![0.0; TOKENS * outputs]);
    let what = format!("{stored:?}{}", if rank > 0 { ", LoRA" } else { "" });
    let flops = (2 * TOKENS * (outputs * inputs + rank * (outputs + inputs))) as f64;
    let seconds = best(|| {
        layer.project(&x, TOKENS, &mut narrow, &mut scratch);
        let input = linear::Input { x: &x, narrow: &narrow, rows: TOKENS };
        layer.forward(input, RowsMut { data: &mut out, stride: outputs }, None, &mut scratch);
    });
    print(&format!("linear forward, {what}"), seconds, flops, "GFLOP/s");
    let (mut grad_x, mut grad_narrow) = (vec![0.0; x.len()], vec![0.0; TOKENS * rank]);
    let (mut grad_a, mut grad_b) = (vec![0.0; a.len()], vec![0.0; b.len()]);
    let grad = Rows { data: &grad, stride: outputs };
    let seconds = best(|| {
        layer.backward_narrow(grad, TOKENS, &mut grad_narrow, &mut scratch);
        if rank > 0 {
            layer.backward_b(grad, &narrow, TOKENS, &mut grad_b, &mut scratch);
            layer.backward_a(&grad_narrow, &x, TOKENS, &mut grad_a, &mut scratch);
        }
        let mut terms = vec![layer.weight_input_term(grad, TOKENS)];
        terms.extend(layer.pair_input_term(&grad_narrow, TOKENS));
        multiply(Output::new(&mut grad_x, TOKENS, inputs), Start::ZERO, &terms, &mut scratch);
    });
    let pair = (2 * TOKENS * rank * (outputs + inputs)) as f64;
    print(&format!("linear backward, {what}"), seconds, flops + pair, "GFLOP/s");
}

fn embedding() {
    let table = Weight::quantise(VOCABULARY, HIDDEN, &values(VOCABULARY * HIDDEN), StoredAs::Bf16)
        .expect("finite values");
    let ids: Vec<u32> = (0..TOKENS as u32).map(|i| i * 277).collect();
    let mut rows = vec![0.0; TOKENS * HIDDEN];
    let seconds = best(|| embedding::forward(&table, &ids, &mut rows).expect("ids of the vocabulary"));
    print("embedding forward, Bf16", seconds, 6.0 * rows.len() as f64, "GB/s");
    let mut grad = vec![0.0; VOCABULARY * HIDDEN];
    let seconds =
        best(|| embedding::backward(&ids, &rows, HIDDEN, &mut grad).expect("ids of the vocabulary"));
    print("embedding backward", seconds, bytes(3 * rows.len()), "GB/s");
}

fn elementwise() {
    let len = TOKENS * HIDDEN;
    let (x, weight, grad) = (values(len), values(HIDDEN), values(len));
    let (mut out, mut inverse) = (vec![0.0; len], vec![0.0; TOKENS]);
    let seconds = best(|| norm::forward(&x, &weight, 1e-6, &mut out, &mut inverse));
    print("norm forward", seconds, bytes(2 * len), "GB/s");
    let seconds = best(|| norm::backward(&x, &weight, &inverse, &grad, Write::Add, &mut out));
    print("norm backward, added", seconds, bytes(4 * len), "GB/s");

    let len = TOKENS * FEED_FORWARD;
    let (mut gate, mut up, grad) = (values(len), values(len), values(len));
    let mut out = vec![0.0; len];
    let seconds = best(|| swiglu::forward(&gate, &up, &mut out));
    print("swiglu forward", seconds, bytes(3 * len), "GB/s");
    let seconds = best(|| swiglu::backward_in_place(&mut gate, &mut up, &grad));
    print("swiglu backward in place", seconds, bytes(5 * len), "GB/s");

    let len = VISION_TOKENS * VISION_HIDDEN;
    let (x, mut out) = (values(len), vec![0.0; len]);
    let seconds = best(|| gelu::forward(&x, &mut out));
    print("gelu forward", seconds, bytes(2 * len), "GB/s");
    let seconds = best(|| gelu::backward_in_place(&x, &mut out));
    print("gelu backward", seconds, bytes(3 * len), "GB/s");
}

fn positions() {
    let frequencies = rotary::Frequencies::sections(&[16, 24, 24], 1e6);
    let half = frequencies.half();
    let positions: Vec<u32> = (0..TOKENS as u32).collect();
    let (mut cos, mut sin) = (vec![0.0; TOKENS * half], vec![0.0; TOKENS * half]);
    let seconds = best(|| frequencies.fill(&[positions.as_slice(); 3], &mut cos, &mut sin));
    print("rotary tables", seconds, bytes(2 * TOKENS * half), "GB/s");
    let stride = HIDDEN + 512;
    let mut rows = values(TOKENS * stride);
    let table = rotary::Table { cos: &cos, sin: &sin, half };
    let seconds = best(|| rotary::forward(RowsMut { data: &mut rows, stride }, 10, table));
    print("rotary of 8 + 2 heads", seconds, bytes(2 * TOKENS * 1280), "GB/s");
}

fn attention(what: &str, shape: Shape<'_>) {
    let Shape { heads, kv_heads, head_dim, segments, causal } = shape;
    let (tokens, stride) = (shape.tokens(), (heads + 2 * kv_heads) * head_dim);
    let qkv = values(tokens * stride);
    let rows = |heads_before: usize| Rows { data: &qkv[heads_before * head_dim..], stride };
    let (q, k, v) = (rows(0), rows(heads), rows(heads + kv_heads));
    let (mut out, mut log_sum_exp) = (vec![0.0; tokens * heads * head_dim], vec![0.0; tokens * heads]);
    // Multiplications and additions of the two products of the forward; what a causal mask hides is not
    // counted.
    let pairs: usize = segments.windows(2).map(|s| s[1] - s[0]).map(|len| len * len).sum();
    let flops = (4 * pairs * heads * head_dim) as f64 * if causal { 0.5 } else { 1.0 };
    let seconds = best(|| attention::forward(&shape, q, k, v, &mut out, &mut log_sum_exp));
    print(&format!("attention forward, {what}"), seconds, flops, "GFLOP/s");
    let saved = Saved { q, k, v, out: &out, log_sum_exp: &log_sum_exp };
    let grad_out = values(out.len());
    let mut grads = vec![0.0; qkv.len()];
    let seconds = best(|| {
        attention::backward(&shape, &saved, &grad_out, RowsMut { data: &mut grads, stride });
    });
    print(&format!("attention backward, {what}"), seconds, 2.5 * flops, "GFLOP/s");
}

fn decode(keys: usize) {
    let (heads, kv_heads, head_dim) = (8, 2, 128);
    let q = values(heads * head_dim);
    let pages: Vec<u32> = (0..keys.div_ceil(PAGE) as u32).collect();
    let room = || values(pages.len() * PAGE * kv_heads * head_dim);
    let (keys_kept, values_kept) = (room(), room());
    let past = Pages { keys: &keys_kept, values: &values_kept };
    let reading = Reading { row: 0, count: 1, before: keys - 1, pages: &pages };
    let (mut out, mut log_sum_exp) = (vec![0.0; q.len()], vec![0.0; heads]);
    let rows = Rows { data: &q, stride: q.len() };
    let heads = Heads { heads, kv_heads, head_dim };
    let seconds = best(|| attention::paged(heads, rows, past, &[reading], &mut out, &mut log_sum_exp));
    print("decode against 2048 keys", seconds, bytes(2 * keys_kept.len()), "GB/s");
}

fn head() {
    let hidden = values(LABELLED * HIDDEN);
    let labels: Vec<u32> = (0..LABELLED as u32).collect();
    let mut grad_hidden = vec![0.0; hidden.len()];
    let mut scratch = vec![0.0; loss::scratch_len(LABELLED, HIDDEN, VOCABULARY)];
    let weight = values(VOCABULARY * HIDDEN);
    for stored in [StoredAs::F32, StoredAs::Bf16] {
        let head = Weight::quantise(VOCABULARY, HIDDEN, &weight, stored).expect("a head of finite values");
        let seconds = best(|| {
            let gradients = loss::Gradients { scale: 1.0, hidden: &mut grad_hidden, head: None };
            loss::run(&head, &hidden, &labels, Some(gradients), &mut scratch)
                .expect("labels of the vocabulary");
        });
        let flops = (4 * LABELLED * HIDDEN * VOCABULARY) as f64;
        print(&format!("head and loss, {stored:?}"), seconds, flops, "GFLOP/s");
    }
}
