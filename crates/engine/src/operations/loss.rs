//! The head and its cross-entropy, on the rows that have a label and a slice of the vocabulary at a time.
//!
//! Takes hidden rows, one label each, and the head's weight in any stored type. Gives the summed loss, how
//! many labels were the likeliest token, and the gradients of the rows (and of the head, when it is trained).
//! Only the logits of a slice exist, in the caller's scratch. What they are normalised with is known after
//! the last slice, so sums are kept below the highest logit so far, and scaled down when a higher one comes.

use super::embedding::{self, OutOfVocabulary};
use super::math::{exp, exponentials, largest, reference};
use crate::products::{self, Matrix, Output, Right, Start, Term, multiply};
use crate::simd::vectorised;
use crate::weight::Weight;
use rayon::prelude::*;

/// Most rows that go through the head together: the head is read and packed once for all of them.
const CHUNK: usize = 512;
/// Tokens of the vocabulary in a slice. Logits of 254 rows take 4 MB; the rows are packed once a slice, which
/// is 6 % of what is packed of the head meanwhile.
const SLICE: usize = 4096;

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

/// Values of scratch that [`run`] needs for up to `rows` labelled rows of `width` values.
pub fn scratch_len(rows: usize, width: usize, vocabulary: usize) -> usize {
    // Not the chunk of `rows`: of 600 rows that is 300, but of 500 it is 500.
    let rows = rows.min(CHUNK);
    let slice = vocabulary.min(SLICE);
    let packed = [
        products::scratch_len(rows, width),
        products::scratch_len(rows, slice),
        products::scratch_len(slice, rows),
    ];
    (rows * slice).saturating_add(packed.into_iter().max().unwrap_or(0))
}

/// Rows of a chunk: equal shares rather than a small last one.
fn chunk_rows(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(CHUNK).max(1))
}

/// The loss of `hidden` (one row a label) under `head` (`vocabulary x width`), and its gradients where asked
/// for.
pub fn run(
    head: &Weight,
    hidden: &[f32],
    labels: &[u32],
    mut gradients: Option<Gradients<'_>>,
    scratch: &mut [f32],
) -> Result<Totals, OutOfVocabulary> {
    let (vocabulary, width) = (head.rows(), head.cols());
    assert!(width > 0 && labels.len().checked_mul(width) == Some(hidden.len()), "one hidden row a label");
    embedding::check(labels, vocabulary)?;
    let chunk = chunk_rows(labels.len()).max(1);
    let mut totals = Totals::default();
    for (index, labels) in labels.chunks(chunk).enumerate() {
        let place = index * chunk * width..(index * chunk + labels.len()) * width;
        let (logits, packed) = scratch.split_at_mut(labels.len() * vocabulary.min(SLICE));
        let hidden = Matrix::new(&hidden[place.clone()], labels.len(), width);
        let mut chunk = Chunk { head, hidden, labels, rows: [Row::NOTHING; CHUNK], logits, packed };
        match &mut gradients {
            None => chunk.forward(None),
            Some(Gradients { scale, hidden, head: None }) => {
                let hidden = &mut hidden[place];
                chunk.forward(Some(hidden));
                chunk.finish_hidden(hidden, *scale);
            }
            Some(Gradients { scale, hidden, head: Some(grad_head) }) => {
                chunk.forward(None);
                chunk.backward(*scale, &mut hidden[place], grad_head);
            }
        }
        for (row, &label) in chunk.rows.iter().zip(labels) {
            totals.loss += row.sum.ln() - (f64::from(row.of_label) - f64::from(row.highest));
            totals.correct += usize::from(row.likeliest == label as usize);
        }
    }
    Ok(totals)
}

/// What is known of a row after some slices of the vocabulary.
#[derive(Clone, Copy)]
struct Row {
    highest: f32,
    /// The first token with that logit.
    likeliest: usize,
    of_label: f32,
    /// Of the exponentials below `highest`.
    sum: f64,
}

impl Row {
    const NOTHING: Self = Self { highest: f32::NEG_INFINITY, likeliest: usize::MAX, of_label: 0.0, sum: 0.0 };

    /// Takes in the logits of the tokens from `first` on and turns them into exponentials below the highest
    /// so far; gives what earlier exponentials are to be multiplied with.
    #[inline(always)]
    fn take(&mut self, logits: &mut [f32], first: usize, label: usize) -> f32 {
        if let Some(of_label) = label.checked_sub(first).and_then(|at| logits.get(at)) {
            self.of_label = *of_label;
        }
        let found = largest(logits);
        let before = self.highest;
        if found > before {
            self.highest = found;
            self.likeliest = first + logits.iter().position(|&logit| logit == found).unwrap_or(0);
        }
        let below = reference(self.highest);
        let keep = exp(before - below);
        self.sum = self.sum * f64::from(keep) + f64::from(exponentials(logits, below));
        keep
    }
}

/// Some rows on their way through the head.
struct Chunk<'a> {
    head: &'a Weight,
    hidden: Matrix<'a>,
    labels: &'a [u32],
    rows: [Row; CHUNK],
    /// Of one slice.
    logits: &'a mut [f32],
    packed: &'a mut [f32],
}

impl Chunk<'_> {
    /// Goes over the vocabulary once. `mean` becomes the sum of the head's rows, each times the exponential
    /// of its logit.
    fn forward(&mut self, mut mean: Option<&mut [f32]>) {
        let (width, count) = (self.head.cols(), self.labels.len());
        for slice in slices(self.head.rows()) {
            self.logits_of(slice);
            let logits = self.logits[..count * slice.1].par_chunks_exact_mut(slice.1);
            let rows = self.rows.par_iter_mut().zip(self.labels).zip(logits);
            let take = |row: &mut Row, label: u32, logits: &mut [f32]| {
                vectorised(
                    #[inline(always)]
                    || row.take(logits, slice.0, label as usize),
                )
            };
            let Some(mean) = mean.as_deref_mut() else {
                rows.for_each(|((row, &label), logits)| {
                    take(row, label, logits);
                });
                continue;
            };
            rows.zip(mean.par_chunks_exact_mut(width)).for_each(|(((row, &label), logits), mean)| {
                let keep = take(row, label, logits);
                if slice.0 > 0 && keep != 1.0 {
                    mean.iter_mut().for_each(|value| *value *= keep);
                }
            });
            self.add_head_rows(slice, mean);
        }
    }

    /// The logits of a slice.
    fn logits_of(&mut self, (first, count): (usize, usize)) {
        let right = Right::WeightRowsT { weight: self.head, first, count };
        let out = Output::new(self.logits, self.labels.len(), count);
        multiply(out, Start::ZERO, &[Term { left: self.hidden, right }], self.packed);
    }

    /// `out += logits x head`; the first slice begins it.
    fn add_head_rows(&mut self, (first, count): (usize, usize), out: &mut [f32]) {
        let left = Matrix::new(self.logits, self.labels.len(), count);
        let right = Right::WeightRows { weight: self.head, first, count };
        let start = if first == 0 { Start::ZERO } else { Start::ACCUMULATE };
        multiply(
            Output::new(out, self.labels.len(), self.head.cols()),
            start,
            &[Term { left, right }],
            self.packed,
        );
    }

    /// From the sum that `forward` made to the gradient of the rows: the mean of the head's rows by their
    /// probabilities, less the label's.
    fn finish_hidden(&mut self, hidden: &mut [f32], scale: f32) {
        let width = self.head.cols();
        let rows = hidden.par_chunks_exact_mut(width).zip(self.packed.par_chunks_mut(width));
        rows.zip(&self.rows[..self.labels.len()]).zip(self.labels).for_each(
            |(((hidden, of_label), row), &label)| {
                self.head.read(label as usize, 0, of_label);
                let factor = scale / row.sum as f32;
                for (value, of_label) in hidden.iter_mut().zip(of_label) {
                    *value = *value * factor - scale * *of_label;
                }
            },
        );
    }

    /// A trained head needs the logits' own gradients, `(probability - label) * scale`: they are computed
    /// again, now that the sums are known.
    fn backward(&mut self, scale: f32, hidden: &mut [f32], grad_head: &mut [f32]) {
        let (width, count) = (self.head.cols(), self.labels.len());
        for slice in slices(self.head.rows()) {
            self.logits_of(slice);
            let logits = &mut self.logits[..count * slice.1];
            let rows = logits.par_chunks_exact_mut(slice.1).zip(&self.rows[..count]).zip(self.labels);
            rows.for_each(|((logits, row), &label)| {
                vectorised(
                    #[inline(always)]
                    || {
                        let factor = scale / row.sum as f32;
                        for logit in logits.iter_mut() {
                            *logit = exp(*logit - row.highest) * factor;
                        }
                    },
                );
                let at = (label as usize).checked_sub(slice.0);
                if let Some(logit) = at.and_then(|at| logits.get_mut(at)) {
                    *logit -= scale;
                }
            });
            self.add_head_rows(slice, hidden);
            let term =
                Term { left: Matrix::new(self.logits, count, slice.1).t(), right: Right::Dense(self.hidden) };
            let out = Output::new(&mut grad_head[slice.0 * width..][..slice.1 * width], slice.1, width);
            multiply(out, Start::ACCUMULATE, &[term], self.packed);
        }
    }
}

/// First token and length of every slice of the vocabulary.
fn slices(vocabulary: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..vocabulary).step_by(SLICE).map(move |first| (first, SLICE.min(vocabulary - first)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::testing::{Numbers, assert_close, assert_gradient, to_f64};
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
    fn definition(head: &[f64], hidden: &[f64], labels: &[u32], width: usize) -> (f64, usize) {
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
                let guess = |token: &u32| definition(&whole, &hidden, &[*token], width).1 == 1;
                *label = (0..vocabulary as u32).find(guess).unwrap();
            }
            let totals = run(&case.head, &case.hidden, &case.labels, None, &mut scratch(&case)).unwrap();
            let (loss, correct) = definition(&whole, &to_f64(&case.hidden), &case.labels, width);
            assert!((totals.loss - loss).abs() < 2e-6 * loss.abs() + 1e-5, "{} for {loss}", totals.loss);
            assert_eq!(totals.correct, correct, "{rows} rows");
            assert!(correct >= rows.div_ceil(2));
        }
    }

    #[test]
    fn the_gradients_are_those_of_finite_differences_across_chunks_and_slices() {
        for (rows, width, vocabulary, stored) in [
            (CHUNK + 3, 6, 40, StoredAs::F32),
            (2, 3, 2 * SLICE + 5, StoredAs::F32),
            (3, 64, SLICE + 7, StoredAs::Bf16),
        ] {
            let case = case(5, rows, width, vocabulary, stored);
            let whole = case.head.to_f32();
            let mut grad_head = vec![0.0; whole.len()];
            // A frozen head takes another way: its gradients are made while the highest logit is still being
            // sought.
            for trained in [false, true] {
                let mut grad_hidden = vec![f32::NAN; case.hidden.len()];
                let head = trained.then_some(&mut grad_head[..]);
                let gradients = Gradients { scale: 0.5, hidden: &mut grad_hidden, head };
                run(&case.head, &case.hidden, &case.labels, Some(gradients), &mut scratch(&case)).unwrap();
                let loss = |hidden: &[f64]| 0.5 * definition(&to_f64(&whole), hidden, &case.labels, width).0;
                assert_gradient("hidden", &grad_hidden, &case.hidden, loss);
            }
            let loss = |head: &[f64]| 0.5 * definition(head, &to_f64(&case.hidden), &case.labels, width).0;
            assert_gradient("head", &grad_head, &whole, loss);
        }
    }

    #[test]
    fn scratch_for_many_rows_is_enough_for_fewer() {
        let width = 8;
        let most = case(10, CHUNK + 90, width, 30, StoredAs::F32);
        let mut scratch = scratch(&most);
        for rows in [0, 1, CHUNK / 2 + 46, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 90] {
            let (hidden, labels) = (&most.hidden[..rows * width], &most.labels[..rows]);
            let mut grad_hidden = vec![f32::NAN; hidden.len()];
            let gradients = Gradients { scale: 1.0, hidden: &mut grad_hidden, head: None };
            let totals = run(&most.head, hidden, labels, Some(gradients), &mut scratch).unwrap();
            let (loss, _) = definition(&to_f64(&most.head.to_f32()), &to_f64(hidden), labels, width);
            assert!((totals.loss - loss).abs() < 2e-6 * loss.abs() + 1e-5, "{rows} rows");
            assert!(grad_hidden.iter().all(|value| value.is_finite()));
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
    fn scratch_that_no_memory_holds_is_counted_in_full() {
        assert_eq!(scratch_len(CHUNK, usize::MAX, SLICE), usize::MAX);
        assert_eq!(crate::operations::linear::scratch_len(1, usize::MAX, 1, 16, false), usize::MAX);
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
    fn a_slice_of_the_vocabulary_may_be_impossible_altogether() {
        // The first slice overflows to minus infinity for every row; the label and the likeliest token lie in
        // the second.
        let (vocabulary, width) = (SLICE + 3, 4);
        let mut weight = vec![-f32::MAX; SLICE * width];
        weight.extend([0.25, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.75, 0.0, 0.0, 0.0]);
        let head = Weight::from_f32(vocabulary, width, weight).unwrap();
        let (hidden, labels) = (vec![2.0; 2 * width], [SLICE as u32 + 2, SLICE as u32]);
        let mut scratch = vec![f32::NAN; scratch_len(labels.len(), width, vocabulary)];
        let logits = [0.5f64, 1.0, 1.5];
        let log_sum = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        let expected = 2.0 * log_sum - logits[2] - logits[0];
        let mut grad_hidden = vec![f32::NAN; hidden.len()];
        let mut grad_head = vec![0.0; vocabulary * width];
        for trained in [false, true] {
            let gradients = Gradients {
                scale: 1.0,
                hidden: &mut grad_hidden,
                head: trained.then_some(grad_head.as_mut_slice()),
            };
            let totals = run(&head, &hidden, &labels, Some(gradients), &mut scratch).unwrap();
            assert!((totals.loss - expected).abs() < 1e-5, "{} for {expected}", totals.loss);
            assert_eq!(totals.correct, 1);
            assert!(grad_hidden.iter().chain(&grad_head).all(|value| value.is_finite()), "{trained}");
        }
    }
}
