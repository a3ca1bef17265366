//! Two commands against each other: which keeps more memory, and how sure that is.
//!
//! Takes the runs of both. Gives the difference with its interval, and the confidence that it is not chance,
//! by Welch's test on the scatter of the runs. A single run of each has no scatter and therefore no
//! confidence.

use super::measure::Measured;
use serde::Serialize;

/// The share of intervals that hold the true difference.
const LEVEL: f64 = 0.95;

/// One command's runs against another's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Difference {
    /// How much more the first keeps than the second, in bytes.
    pub bytes: f64,
    /// The interval that holds the true difference with 95 % probability.
    pub interval: Option<(f64, f64)>,
    /// One minus the probability of so large a difference by chance.
    pub confidence: Option<f64>,
}

/// Compares what the runs kept.
pub fn compare(a: &[Measured], b: &[Measured]) -> Difference {
    let kept = |runs: &[Measured]| runs.iter().map(|run| run.kept_bytes as f64).collect::<Vec<_>>();
    welch(&kept(a), &kept(b))
}

fn welch(a: &[f64], b: &[f64]) -> Difference {
    let (mean_a, error_a) = mean_and_squared_error(a);
    let (mean_b, error_b) = mean_and_squared_error(b);
    let bytes = mean_a - mean_b;
    let (Some(error_a), Some(error_b)) = (error_a, error_b) else {
        return Difference { bytes, interval: None, confidence: None };
    };
    // Runs that agree to the byte still have the scatter of the measurement: a page.
    let error = (error_a + error_b).max(4096.0 * 4096.0);
    let freedom = error * error
        / (error_a * error_a / (a.len() - 1) as f64 + error_b * error_b / (b.len() - 1) as f64)
            .max(f64::MIN_POSITIVE);
    let freedom = freedom.clamp(1.0, (a.len() + b.len() - 2) as f64);
    let t = bytes.abs() / error.sqrt();
    let reach = quantile(LEVEL, freedom) * error.sqrt();
    Difference { bytes, interval: Some((bytes - reach, bytes + reach)), confidence: Some(within(t, freedom)) }
}

/// Mean, and the squared standard error of the mean where there are two values or more.
fn mean_and_squared_error(values: &[f64]) -> (f64, Option<f64>) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count.max(1.0);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (values.len() > 1).then(|| squares / (count - 1.0) / count))
}

/// The probability that Student's t lies within ±t, by Simpson's rule on its density.
fn within(t: f64, freedom: f64) -> f64 {
    // The substitution t = sqrt(n) tan(x) makes the density cos(x)^(n-1) on a finite interval: even heavy
    // tails are exact.
    let density = |x: f64| x.cos().powf(freedom - 1.0);
    let integral = |end: f64| {
        const HALVES: usize = 1000;
        let step = end / (2 * HALVES) as f64;
        let inner: f64 =
            (1..2 * HALVES).map(|i| if i % 2 == 1 { 4.0 } else { 2.0 } * density(i as f64 * step)).sum();
        (density(0.0) + inner + density(end)) * step / 3.0
    };
    let whole = integral(std::f64::consts::FRAC_PI_2);
    (integral((t / freedom.sqrt()).atan()) / whole).clamp(0.0, 1.0)
}

/// The t within which Student's t lies with this probability.
fn quantile(probability: f64, freedom: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while within(high, freedom) < probability && high < 1e9 {
        high *= 2.0;
    }
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if within(middle, freedom) < probability { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn students_t_is_that_of_the_tables() {
        // Two-sided 95 % and 99 % points.
        for (freedom, t95, t99) in
            [(1.0, 12.706, 63.657), (2.0, 4.303, 9.925), (4.0, 2.776, 4.604), (30.0, 2.042, 2.750)]
        {
            assert!(
                (quantile(0.95, freedom) - t95).abs() < 2e-3 * t95,
                "{freedom}: {}",
                quantile(0.95, freedom)
            );
            assert!((within(t99, freedom) - 0.99).abs() < 1e-4, "{freedom}");
        }
    }

    #[test]
    fn a_clear_difference_is_sure_and_scatter_is_not() {
        let mb = 1e6;
        let clear = welch(&[100.0 * mb, 101.0 * mb, 102.0 * mb], &[1.0 * mb, 2.0 * mb, 0.5 * mb]);
        assert!(clear.confidence.unwrap() > 0.999 && clear.interval.unwrap().0 > 95.0 * mb, "{clear:?}");
        let scatter = welch(&[1.0 * mb, 9.0 * mb, 4.0 * mb], &[2.0 * mb, 8.0 * mb, 3.0 * mb]);
        assert!(scatter.confidence.unwrap() < 0.5, "{scatter:?}");
        let (low, high) = scatter.interval.unwrap();
        assert!(low < 0.0 && high > 0.0);
    }

    #[test]
    fn one_run_of_each_gives_a_difference_without_confidence() {
        let difference = welch(&[5.0], &[3.0]);
        assert_eq!(difference, Difference { bytes: 2.0, interval: None, confidence: None });
    }

    #[test]
    fn equal_runs_do_not_divide_by_zero() {
        let difference = welch(&[0.0; 3], &[0.0; 3]);
        assert_eq!(difference.bytes, 0.0);
        assert!(difference.confidence.unwrap() < 0.01);
    }
}
