//! The head and its cross-entropy, on the rows that have a label and a chunk of them at a time.
//!
//! In come hidden rows, one label each, and the head's weight in any stored type; out come the summed loss, how many
//! labels were the likeliest token, and the gradients of the rows (and of the head, when it is trained). The logits of
//! a chunk live in the caller's scratch, where they turn into their own gradients; those of all rows never exist.

use super::embedding::{self, OutOfVocabulary};
use super::math::{exponentials, largest};
use crate::product::{self, Matrix, Output, Right, Start, Term, multiply};
use crate::simd::vectorised;
use crate::weight::Weight;
use rayon::prelude::*;

/// Most rows of a chunk. The head is read and packed once for a chunk in either direction, so more rows are faster, but
/// 128 rows of 151,936 logits already take 78 MB.
pub const CHUNK: usize = 128;
/// Tokens of the vocabulary that one product of the backward spans: it bounds what is packed to a few megabytes.
const SLICE: usize = 8192;
/// Exponentials that are summed in f32 before they join the sum in f64.
const STRETCH: usize = 4096;

/// What the rows of a batch amount to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Totals {
    /// Sum of the rows' losses, in nats.
    pub loss: f64,
    /// Rows whose label is the token with the highest logit.
    pub correct: usize,
}

/// Where gradients go, and what they are multiplied with.
#[derive(Debug)]
pub struct Gradients<'a> {
    /// Multiplies every gradient: one over the labels of the whole step.
    pub scale: f32,
    /// That of the hidden rows; overwritten.
    pub hidden: &'a mut [f32],
    /// That of the head, when it is trained; added to.
    pub head: Option<&'a mut [f32]>,
}

/// Values of scratch that [`run`] needs for `rows` labelled rows of `width` values.
pub fn scratch_len(rows: usize, width: usize, vocabulary: usize) -> usize {
    let rows = chunk_rows(rows);
    let slice = vocabulary.min(SLICE);
    let packed = [
        product::scratch_len(rows, width),
        product::scratch_len(rows, slice),
        product::scratch_len(slice, rows),
    ];
    rows * vocabulary + packed.into_iter().max().unwrap_or(0)
}

/// Rows of a chunk: equal shares rather than a small last one.
fn chunk_rows(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(CHUNK).max(1))
}

/// The loss of `hidden` (one row a label) under `head` (`vocabulary x width`), and its gradients where asked for.
pub fn run(
    head: &Weight,
    hidden: &[f32],
    labels: &[u32],
    mut gradients: Option<Gradients<'_>>,
    scratch: &mut [f32],
) -> Result<Totals, OutOfVocabulary> {
    let (vocabulary, width) = (head.rows(), head.cols());
    assert!(hidden.len() == labels.len() * width, "one hidden row a label");
    embedding::check(labels, vocabulary)?;
    let chunk = chunk_rows(labels.len()).max(1);
    let (logits, packed) = scratch.split_at_mut(chunk.min(labels.len()) * vocabulary);
    let mut totals = Totals::default();
    for (index, labels) in labels.chunks(chunk).enumerate() {
        let rows = index * chunk * width..(index * chunk + labels.len()) * width;
        let hidden = Matrix::new(&hidden[rows.clone()], labels.len(), width);
        let logits = &mut logits[..labels.len() * vocabulary];
        let term = Term { left: hidden, right: Right::WeightT(head) };
        multiply(Output::new(logits, labels.len(), vocabulary), Start::ZERO, &[term], packed);
        let chunk = cross_entropy(logits, labels, gradients.as_ref().map(|gradients| gradients.scale));
        totals.loss += chunk.loss;
        totals.correct += chunk.correct;
        if let Some(gradients) = &mut gradients {
            backward_hidden(head, logits, labels.len(), &mut gradients.hidden[rows], packed);
            if let Some(grad_head) = &mut gradients.head {
                backward_head(hidden, (labels.len(), width), logits, grad_head, packed);
            }
        }
    }
    Ok(totals)
}

/// The loss of every row; with a `scale`, logits become their gradients: `(probability - label) * scale`.
fn cross_entropy(logits: &mut [f32], labels: &[u32], scale: Option<f32>) -> Totals {
    let vocabulary = logits.len() / labels.len();
    let rows = logits.par_chunks_exact_mut(vocabulary).zip(labels);
    // Rows are summed in their order, not in that in which threads finish.
    let mut each = [Totals::default(); CHUNK];
    each.par_iter_mut().zip(rows).for_each(|(totals, (logits, &label))| {
        vectorised(
            #[inline(always)]
            || *totals = cross_entropy_row(logits, label as usize, scale),
        );
    });
    each.iter().fold(Totals::default(), |sum, row| Totals {
        loss: sum.loss + row.loss,
        correct: sum.correct + row.correct,
    })
}

#[inline(always)]
fn cross_entropy_row(logits: &mut [f32], label: usize, scale: Option<f32>) -> Totals {
    let highest = largest(logits);
    let correct = logits[label] == highest && logits[..label].iter().all(|&logit| logit != highest);
    let of_label = f64::from(logits[label]) - f64::from(highest);
    let mut sum = 0.0;
    for stretch in logits.chunks_mut(STRETCH) {
        sum += f64::from(exponentials(stretch, highest));
    }
    if let Some(scale) = scale {
        let factor = scale / sum as f32;
        for probability in logits.iter_mut() {
            *probability *= factor;
        }
        logits[label] -= scale;
    }
    Totals { loss: sum.ln() - of_label, correct: usize::from(correct) }
}

/// `grad_hidden = grad_logits x head`, a slice of the vocabulary at a time.
fn backward_hidden(
    head: &Weight,
    grad_logits: &[f32],
    rows: usize,
    grad_hidden: &mut [f32],
    packed: &mut [f32],
) {
    for (first, count) in slices(head.rows()) {
        let left = Matrix::with_stride(&grad_logits[first..], rows, count, head.rows());
        let term = Term { left, right: Right::WeightRows { weight: head, first, count } };
        let start = if first == 0 { Start::ZERO } else { Start::ACCUMULATE };
        multiply(Output::new(grad_hidden, rows, head.cols()), start, &[term], packed);
    }
}

/// `grad_head += grad_logits^T x hidden`, a slice of the vocabulary at a time.
fn backward_head(
    hidden: Matrix<'_>,
    (rows, width): (usize, usize),
    grad_logits: &[f32],
    grad_head: &mut [f32],
    packed: &mut [f32],
) {
    let vocabulary = grad_logits.len() / rows;
    for (first, count) in slices(vocabulary) {
        let left = Matrix::with_stride(&grad_logits[first..], rows, count, vocabulary).t();
        let term = Term { left, right: Right::Dense(hidden) };
        let out = Output::new(&mut grad_head[first * width..][..count * width], count, width);
        multiply(out, Start::ACCUMULATE, &[term], packed);
    }
}

/// First token and length of every slice of the vocabulary.
fn slices(vocabulary: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..vocabulary).step_by(SLICE).map(move |first| (first, SLICE.min(vocabulary - first)))
}

/// The first of the highest logits: the token that greedy generation takes. `None` where all are NaN.
pub fn argmax(logits: &[f32]) -> Option<usize> {
    let highest = vectorised(
        #[inline(always)]
        || largest(logits),
    );
    logits.iter().position(|&logit| logit == highest)
}

/// Replaces logits by the probabilities they have at a `temperature` above 0.
pub fn softmax(logits: &mut [f32], temperature: f32) {
    vectorised(
        #[inline(always)]
        || {
            let inverse = 1.0 / temperature;
            for logit in logits.iter_mut() {
                *logit *= inverse;
            }
            super::math::softmax(logits);
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Numbers, assert_close, assert_gradient, to_f64};
    use crate::weight::StoredAs;

    struct Case {
        head: Weight,
        hidden: Vec<f32>,
        labels: Vec<u32>,
    }

    fn case(seed: u64, rows: usize, width: usize, vocabulary: usize, stored: StoredAs) -> Case {
        let mut numbers = Numbers::new(seed);
        let weight = numbers.values(vocabulary * width);
        let head = Weight::quantise(vocabulary, width, &weight, stored).unwrap();
        let labels = (0..rows).map(|_| numbers.below(vocabulary) as u32).collect();
        Case { head, hidden: numbers.values(rows * width), labels }
    }

    /// The summed loss and the right guesses, from the definition.
    fn reference(head: &[f64], hidden: &[f64], labels: &[u32], width: usize) -> (f64, usize) {
        let (mut loss, mut correct) = (0.0, 0);
        for (hidden, &label) in hidden.chunks_exact(width).zip(labels) {
            let dot = |row: &[f64]| row.iter().zip(hidden).map(|(w, x)| w * x).sum::<f64>();
            let logits: Vec<f64> = head.chunks_exact(width).map(dot).collect();
            let of_label = logits[label as usize];
            loss += logits.iter().map(|logit| logit.exp()).sum::<f64>().ln() - of_label;
            correct += usize::from(logits.iter().all(|&logit| logit <= of_label));
        }
        (loss, correct)
    }

    fn scratch(case: &Case) -> Vec<f32> {
        vec![f32::NAN; scratch_len(case.labels.len(), case.head.cols(), case.head.rows())]
    }

    #[test]
    fn the_loss_of_any_number_of_rows_is_that_of_the_definition() {
        for (seed, rows, width, vocabulary, stored) in [
            (1, 1, 8, 5, StoredAs::F32),
            (2, 3, 64, 1000, StoredAs::Bf16),
            (3, 2 * CHUNK + 1, 12, 77, StoredAs::Int8),
            (4, 130, 64, 600, StoredAs::Nf4),
        ] {
            let mut case = case(seed, rows, width, vocabulary, stored);
            let whole = to_f64(&case.head.to_f32());
            // Half of the labels are made the right guess, so that both kinds are counted.
            for (i, label) in case.labels.iter_mut().enumerate().filter(|(i, _)| i % 2 == 0) {
                let hidden = to_f64(&case.hidden[i * width..][..width]);
                let guess = |token: &u32| reference(&whole, &hidden, &[*token], width).1 == 1;
                *label = (0..vocabulary as u32).find(guess).unwrap();
            }
            let totals = run(&case.head, &case.hidden, &case.labels, None, &mut scratch(&case)).unwrap();
            let (loss, correct) = reference(&whole, &to_f64(&case.hidden), &case.labels, width);
            assert!((totals.loss - loss).abs() < 2e-6 * loss.abs() + 1e-5, "{} for {loss}", totals.loss);
            assert_eq!(totals.correct, correct, "{rows} rows");
            assert!(correct >= rows.div_ceil(2));
        }
    }

    #[test]
    fn the_gradients_are_those_of_finite_differences_across_chunks_and_slices() {
        for (rows, width, vocabulary) in [(CHUNK + 3, 6, 40), (2, 3, SLICE + 5)] {
            let case = case(5, rows, width, vocabulary, StoredAs::F32);
            let whole = case.head.to_f32();
            let mut grad_hidden = vec![f32::NAN; case.hidden.len()];
            let mut grad_head = vec![0.0; whole.len()];
            let gradients = Gradients { scale: 0.5, hidden: &mut grad_hidden, head: Some(&mut grad_head) };
            run(&case.head, &case.hidden, &case.labels, Some(gradients), &mut scratch(&case)).unwrap();
            let loss = |head: &[f64], hidden: &[f64]| 0.5 * reference(head, hidden, &case.labels, width).0;
            assert_gradient("hidden", &grad_hidden, &case.hidden, |hidden| loss(&to_f64(&whole), hidden));
            assert_gradient("head", &grad_head, &whole, |head| loss(head, &to_f64(&case.hidden)));
        }
    }

    #[test]
    fn gradients_of_the_head_add_up_and_those_of_the_rows_do_not() {
        let case = case(6, 4, 5, 9, StoredAs::F32);
        let (mut grad_hidden, mut grad_head) = ([7.0; 20], [1.0; 45]);
        let mut scratch = scratch(&case);
        let mut once = || {
            let gradients = Gradients { scale: 1.0, hidden: &mut grad_hidden, head: Some(&mut grad_head) };
            run(&case.head, &case.hidden, &case.labels, Some(gradients), &mut scratch).unwrap();
            (grad_hidden, grad_head)
        };
        let (hidden, head) = once();
        let (hidden_again, head_again) = once();
        assert_eq!(hidden, hidden_again);
        let doubled: Vec<f64> = head.iter().map(|&value| 2.0 * f64::from(value) - 1.0).collect();
        assert_close("head", &head_again, &doubled, 1e-6);
    }

    #[test]
    fn no_rows_are_no_loss() {
        let case = case(7, 0, 4, 10, StoredAs::F32);
        let gradients = Gradients { scale: 1.0, hidden: &mut [], head: None };
        let totals = run(&case.head, &[], &[], Some(gradients), &mut scratch(&case)).unwrap();
        assert_eq!(totals, Totals::default());
    }

    #[test]
    fn a_label_beyond_the_vocabulary_is_named() {
        let case = case(8, 2, 4, 10, StoredAs::F32);
        let error = run(&case.head, &case.hidden, &[3, 10], None, &mut scratch(&case)).unwrap_err();
        assert_eq!((error.position, error.id), (1, 10));
    }

    #[test]
    fn a_diverged_row_shows_in_the_loss() {
        let mut case = case(9, 2, 4, 10, StoredAs::F32);
        case.hidden[1] = f32::NAN;
        let totals = run(&case.head, &case.hidden, &case.labels, None, &mut scratch(&case)).unwrap();
        assert!(totals.loss.is_nan());
    }

    #[test]
    fn the_first_of_equal_logits_is_taken_and_probabilities_add_up() {
        assert_eq!(argmax(&[1.0, 3.0, f32::NAN, 3.0]), Some(1));
        assert_eq!(argmax(&[f32::NAN]), None);
        let mut logits = [0.0, 2.0f32.ln() * 2.0, f32::NEG_INFINITY];
        softmax(&mut logits, 2.0);
        assert_close("probabilities", &logits, &[1.0 / 3.0, 2.0 / 3.0, 0.0], 1e-6);
    }
}
