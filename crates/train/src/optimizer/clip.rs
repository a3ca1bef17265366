//! Clips gradients by their global norm.
//!
//! Takes the summed gradients of every trained tensor and gives their norm and the factor that brings it to
//! at most the limit. The sum is taken in f64 over pieces of fixed length, added in order, so that threads
//! cannot change it.

use rayon::prelude::*;

/// Elements summed by one task.
const PIECE: usize = 1 << 14;
/// Keeps the factor finite; PyTorch's `clip_grad_norm_` adds the same.
const NORM_EPSILON: f64 = 1e-6;

/// The square of a norm that is still being summed.
#[derive(Debug, Clone, Default)]
pub struct SquaredNorm {
    sum: f64,
    pieces: Vec<f64>,
}

impl SquaredNorm {
    /// Starts a new sum, keeping the work space.
    pub fn clear(&mut self) {
        self.sum = 0.0;
    }

    /// Adds one tensor's gradient.
    pub fn add(&mut self, gradient: &[f32]) {
        let squares = |piece: &[f32]| piece.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
        gradient.par_chunks(PIECE).map(squares).collect_into_vec(&mut self.pieces);
        self.sum += self.pieces.iter().sum::<f64>();
    }

    /// The norm of everything added, if every gradient is multiplied by `scale`.
    pub fn norm(&self, scale: f64) -> f64 {
        self.sum.sqrt() * scale
    }

    /// The factor that brings gradients with this norm to at most `limit`; a limit of zero does not clip.
    pub fn factor(norm: f64, limit: f64) -> f64 {
        if limit <= 0.0 { 1.0 } else { (limit / (norm + NORM_EPSILON)).min(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::uniform;

    #[test]
    fn the_norm_is_that_of_all_tensors_together() {
        let mut norm = SquaredNorm::default();
        norm.add(&[3.0; 1]);
        norm.add(&[0.0, -4.0]);
        assert_eq!(norm.norm(1.0), 5.0);
        assert_eq!(norm.norm(0.5), 2.5);
        assert!((SquaredNorm::factor(5.0, 1.0) - 0.2).abs() < 1e-6);
        assert_eq!(SquaredNorm::factor(0.5, 1.0), 1.0);
        assert_eq!(SquaredNorm::factor(5.0, 0.0), 1.0, "zero means no clipping");
    }

    #[test]
    fn threads_do_not_change_the_sum() {
        let gradient = uniform(100_000, 3);
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut norm = SquaredNorm::default();
                norm.add(&gradient);
                norm.norm(1.0).to_bits()
            })
        };
        assert_eq!(run(1), run(4));
    }
}
