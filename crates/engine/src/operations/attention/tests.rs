use super::*;
use crate::operations::RowsMut;
use crate::operations::testing::{Numbers, assert_close, assert_gradient, to_f64, weighted};

/// Queries, keys and values in one row a token, as a fused projection leaves them, with a gap at the end.
struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    segments: Vec<usize>,
    causal: bool,
    gap: usize,
    qkv: Vec<f32>,
    grad_out: Vec<f32>,
}

impl Case {
    fn new(seed: u64, heads: (usize, usize, usize), lengths: &[usize], causal: bool) -> Self {
        let (heads, kv_heads, head_dim) = heads;
        let mut segments = vec![0];
        segments.extend(lengths.iter().scan(0, |end, len| {
            *end += len;
            Some(*end)
        }));
        let tokens: usize = lengths.iter().sum();
        let (gap, mut numbers) = (3, Numbers::new(seed));
        let qkv = numbers.values(tokens * ((heads + 2 * kv_heads) * head_dim + gap));
        let grad_out = numbers.values(tokens * heads * head_dim);
        Self { heads, kv_heads, head_dim, segments, causal, gap, qkv, grad_out }
    }

    fn shape(&self) -> Shape<'_> {
        let Self { heads, kv_heads, head_dim, ref segments, causal, .. } = *self;
        Shape { heads, kv_heads, head_dim, segments, causal }
    }

    fn stride(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim + self.gap
    }

    fn rows(&self) -> [Rows<'_>; 3] {
        [0, self.heads, self.heads + self.kv_heads].map(|heads_before| {
            let start = (heads_before * self.head_dim).min(self.qkv.len());
            Rows { data: &self.qkv[start..], stride: self.stride() }
        })
    }

    fn forward(&self) -> (Vec<f32>, Vec<f32>) {
        let rows = self.shape().tokens() * self.heads;
        let (mut out, mut log_sum_exp) = (vec![f32::NAN; rows * self.head_dim], vec![f32::NAN; rows]);
        let [q, k, v] = self.rows();
        forward(&self.shape(), q, k, v, &mut out, &mut log_sum_exp);
        (out, log_sum_exp)
    }

    fn backward(&self) -> Vec<f32> {
        let (out, log_sum_exp) = self.forward();
        let [q, k, v] = self.rows();
        let saved = Saved { q, k, v, out: &out, log_sum_exp: &log_sum_exp };
        // What lies between the rows is left alone; it was zero and has no gradient.
        let mut grads = vec![0.0; self.qkv.len()];
        let rows = RowsMut { data: &mut grads, stride: self.stride() };
        backward(&self.shape(), &saved, &self.grad_out, rows);
        grads
    }

    /// Row by row from the definition: all scores, softmax, weighted values.
    fn reference(&self, qkv: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (dim, group) = (self.head_dim, self.heads / self.kv_heads);
        let head = |token: usize, head: usize| &qkv[token * self.stride() + head * dim..][..dim];
        let (mut out, mut log_sum_exp) = (Vec::new(), Vec::new());
        for segment in self.segments.windows(2) {
            for token in segment[0]..segment[1] {
                let end = if self.causal { token + 1 } else { segment[1] };
                for h in 0..self.heads {
                    let q = head(token, h);
                    let score = |key: usize| -> f64 {
                        let k = head(key, self.heads + h / group);
                        q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() / (dim as f64).sqrt()
                    };
                    let weights: Vec<f64> = (segment[0]..end).map(|key| score(key).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    log_sum_exp.push(sum.ln());
                    for c in 0..dim {
                        let value = |key| head(key, self.heads + self.kv_heads + h / group)[c];
                        let weighted = weights.iter().enumerate().map(|(i, w)| w * value(segment[0] + i));
                        out.push(weighted.sum::<f64>() / sum);
                    }
                }
            }
        }
        (out, log_sum_exp)
    }
}

/// Head sizes that fill registers and that do not, lengths around the tiles' edges, empty segments.
fn cases() -> impl Iterator<Item = Case> {
    let heads = [(1, 1, 4), (4, 2, 16), (2, 1, 20), (3, 3, 80), (4, 1, 64), (2, 1, 128)];
    let lengths: [&[usize]; 6] = [&[1], &[64, 64], &[63, 1, 0, 65], &[17], &[130, 5], &[]];
    (0..24).map(move |i| {
        let causal = i % 2 == 0;
        Case::new(i as u64, heads[i % heads.len()], lengths[(i / 2 + i / 12) % lengths.len()], causal)
    })
}

#[test]
fn every_shape_attends_as_by_the_definition() {
    for case in cases() {
        let (out, log_sum_exp) = case.forward();
        let (expected, expected_log_sum_exp) = case.reference(&to_f64(&case.qkv));
        let name = format!("{:?}", case.shape());
        assert_close(&name, &out, &expected, 2e-6);
        assert_close(&name, &log_sum_exp, &expected_log_sum_exp, 2e-6);
    }
}

#[test]
fn every_gradient_is_that_of_finite_differences() {
    for case in cases().filter(|case| case.shape().tokens() * case.heads * case.head_dim < 40_000) {
        let loss = |qkv: &[f64]| weighted(&case.reference(qkv).0, &case.grad_out);
        assert_gradient(&format!("{:?}", case.shape()), &case.backward(), &case.qkv, loss);
    }
}

#[test]
fn random_segments_attend_as_by_the_definition() {
    let mut numbers = Numbers::new(77);
    for seed in 0..12 {
        let kv_heads = numbers.between(1, 3);
        let heads = (kv_heads * numbers.between(1, 4), kv_heads, 4 * numbers.between(1, 33));
        let lengths: Vec<usize> = (0..numbers.between(1, 5)).map(|_| numbers.between(0, 150)).collect();
        let case = Case::new(seed, heads, &lengths, seed % 2 == 0);
        let (expected, _) = case.reference(&to_f64(&case.qkv));
        assert_close(&format!("{:?}", case.shape()), &case.forward().0, &expected, 2e-6);
    }
}

#[test]
fn the_same_inputs_give_the_same_bits_on_any_number_of_threads() {
    let case = Case::new(5, (8, 2, 64), &[200, 70, 131], true);
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| (case.forward(), case.backward()))
    };
    assert!(on(1) == on(5));
}

#[test]
fn large_scores_neither_overflow_nor_vanish() {
    let mut case = Case::new(6, (2, 1, 16), &[100], true);
    case.qkv.iter_mut().for_each(|value| *value *= 50.0);
    let (out, log_sum_exp) = case.forward();
    assert!(out.iter().chain(&log_sum_exp).chain(&case.backward()).all(|value| value.is_finite()));
}

#[test]
fn what_is_not_a_number_reaches_its_own_segment_only() {
    let mut case = Case::new(7, (1, 1, 16), &[10, 80], false);
    case.qkv[3] = f32::NAN;
    let (out, _) = case.forward();
    let (first, second) = out.split_at(10 * 16);
    assert!(first[..16].iter().all(|value| value.is_nan()));
    assert!(second.iter().all(|value| value.is_finite()));
}

/// Keys and values of a case's one segment in pages, which lie in no order.
struct Kept {
    keys: Vec<f32>,
    values: Vec<f32>,
    pages: Vec<u32>,
}

impl Kept {
    fn new(case: &Case, tokens: usize, width: usize) -> Self {
        let [_, k, v] = case.rows();
        let count = tokens.div_ceil(PAGE);
        let pages: Vec<u32> = (0..count as u32).rev().map(|page| 2 * page + 1).collect();
        let room = || vec![f32::NAN; (2 * count + 1) * PAGE * width];
        let mut kept = Self { keys: room(), values: room(), pages };
        for token in 0..tokens {
            let to = kept.pages[token / PAGE] as usize * PAGE + token % PAGE;
            kept.keys[to * width..][..width].copy_from_slice(&k.data[token * k.stride..][..width]);
            kept.values[to * width..][..width].copy_from_slice(&v.data[token * v.stride..][..width]);
        }
        kept
    }
}

#[test]
fn tokens_read_in_any_pieces_get_the_bits_that_the_whole_sequence_gives_them() {
    const TOKENS: usize = 300;
    for (heads, kv_heads, head_dim) in [(4, 2, 16), (8, 1, 128), (3, 3, 20), (40, 1, 16)] {
        let case = Case::new(8, (heads, kv_heads, head_dim), &[TOKENS], true);
        let (expected, _) = case.forward();
        let [q, ..] = case.rows();
        let width = heads * head_dim;
        let kept = Kept::new(&case, TOKENS, kv_heads * head_dim);
        let past = Pages { keys: &kept.keys, values: &kept.values };
        // A piece of the middle beside single tokens, as rows of one call.
        for pieces in
            [vec![(0, TOKENS)], vec![(63, 1), (64, 1), (130, 100), (0, 1), (299, 1)], vec![(17, 283)]]
        {
            let rows: Vec<f32> = (pieces.iter())
                .flat_map(|&(from, count)| {
                    (from..from + count).map(|token| &q.data[token * q.stride..][..width])
                })
                .flatten()
                .copied()
                .collect();
            let starts = pieces.iter().scan(0, |row, (_, count)| Some(std::mem::replace(row, *row + count)));
            let readings: Vec<Reading<'_>> = (pieces.iter().zip(starts))
                .map(|(&(before, count), row)| Reading { row, count, before, pages: &kept.pages })
                .collect();
            let mut out = vec![f32::NAN; rows.len()];
            let mut log_sum_exp = vec![f32::NAN; rows.len() / head_dim];
            let heads = Heads { heads, kv_heads, head_dim };
            paged(heads, Rows { data: &rows, stride: width }, past, &readings, &mut out, &mut log_sum_exp);
            for (reading, (from, count)) in readings.iter().zip(&pieces) {
                let found = &out[reading.row * width..][..count * width];
                assert_eq!(found, &expected[from * width..][..count * width], "{heads:?}, {from} + {count}");
            }
        }
    }
}

#[test]
fn shapes_whose_sizes_wrap_are_refused() {
    let refuses = |work: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err();
    let shape =
        |heads, head_dim, segments| Shape { heads, kv_heads: heads, head_dim, segments, causal: true };
    let data = [0.0; 64];
    // A stride of 2^61 wraps to nothing at every eighth token.
    let rows = Rows { data: &data, stride: 1 << 61 };
    let run = |shape: Shape<'_>| forward(&shape, rows, rows, rows, &mut [0.0; 64], &mut [0.0; 64]);
    assert!(refuses(&|| run(shape(1, 4, &[0, 9]))));
    assert!(refuses(&|| run(shape(1 << 32, 1 << 32, &[0, 1]))));
    let rows = Rows { data: &data, stride: 4 };
    let saved = Saved { q: rows, k: rows, v: rows, out: &data[..36], log_sum_exp: &data[..9] };
    let shape = shape(1, 4, &[0, 9]);
    assert!(refuses(&|| {
        let grads = RowsMut { data: &mut [0.0; 64], stride: 1 << 61 };
        backward(&shape, &saved, &data[..36], grads);
    }));

    let paged = |heads: (usize, usize, usize), stride, page| {
        let (heads, kv_heads, head_dim) = heads;
        let (kept, pages) = ([0.0; 4 * PAGE], [page]);
        let past = Pages { keys: &kept, values: &kept };
        let reading = Reading { row: 0, count: 2, before: 9, pages: &pages };
        let heads = Heads { heads, kv_heads, head_dim };
        paged(heads, Rows { data: &data, stride }, past, &[reading], &mut [0.0; 8], &mut [0.0; 2]);
    };
    paged((1, 1, 4), 4, 0);
    assert!(refuses(&|| paged((1, 1, 4), 1 << 61, 0)));
    assert!(refuses(&|| paged((1, 1, 4), 3, 0)), "rows that overlap");
    assert!(refuses(&|| paged((1, 1, 4), 4, 1)), "no such page");
    // 2^32 heads of 2^32 + 4 values each wrap to four.
    assert!(refuses(&|| paged((1 << 32, 1 << 32, (1 << 32) + 4), 4, 0)));
}
