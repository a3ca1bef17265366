//! How much the evidence speaks for each explanation.
//!
//! [`weigh`] gives each fit its probability. Probabilities follow from the Bayesian information criterion,
//! with two corrections that keep it honest on real curves: points whose residuals resemble their neighbours'
//! count for fewer, and no explanation is blamed for misfits that are small against the curve's own range.

use super::{
    curve::Curve,
    fit::{Fit, Shape},
};

/// Real curves follow no formula exactly: misfits up to this part of the range count as noise.
const MISFIT: f64 = 0.006;

/// Before anything was seen, a level is this many times as likely as any one shape of growth.
const LEVEL_ODDS: f64 = 4.0;

/// An explanation and how likely it is, given the others.
#[derive(Debug, Clone)]
pub struct Weighed {
    /// The explanation.
    pub fit: Fit,
    /// Its probability; those of all explanations sum to 1.
    pub probability: f64,
}

/// All explanations of a curve.
#[derive(Debug, Clone)]
pub struct Weighing {
    /// The explanations, the most likely first; never empty.
    pub explanations: Vec<Weighed>,
    /// How many independent points the curve is worth.
    pub effective: f64,
}

/// Weighs all explanations of a curve.
pub fn weigh(fits: Vec<Fit>, curve: &Curve) -> Weighing {
    let floor = (MISFIT * range(&curve.y)).powi(2) + (curve.noise * 0.1).powi(2);
    let trust: f64 = curve.weight.iter().sum();
    let points = curve.x.len() as f64;
    let criterion = |fit: &Fit, effective: f64| {
        let prior = if matches!(fit.shape, Shape::Level { .. }) { -2.0 * LEVEL_ODDS.ln() } else { 0.0 };
        effective * (fit.squares / trust + floor).ln() + fit.shape.freedom() * effective.ln() + prior
    };
    // The best explanation tells how much neighbours resemble each other, which decides how many points there
    // effectively are, which decides what is best: twice around is enough.
    let mut effective = points;
    for _ in 0..2 {
        let best = fits.iter().min_by(|a, b| criterion(a, effective).total_cmp(&criterion(b, effective)));
        if let Some(best) = best {
            effective = effective_points(best, curve, floor);
        }
    }
    let criteria: Vec<f64> = fits.iter().map(|fit| criterion(fit, effective)).collect();
    let least = criteria.iter().copied().fold(f64::INFINITY, f64::min);
    let total: f64 = criteria.iter().map(|criterion| (-(criterion - least) / 2.0).exp()).sum();
    let mut explanations: Vec<Weighed> = fits
        .into_iter()
        .zip(criteria)
        .map(|(fit, criterion)| Weighed { fit, probability: (-(criterion - least) / 2.0).exp() / total })
        .collect();
    explanations.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    Weighing { explanations, effective }
}

/// How many independent points the curve is worth, from the correlation of neighbouring residuals.
fn effective_points(fit: &Fit, curve: &Curve, floor: f64) -> f64 {
    let residuals: Vec<f64> = curve
        .x
        .iter()
        .zip(&curve.y)
        .zip(&curve.weight)
        .map(|((&x, &y), &weight)| weight * (y - fit.at(x)))
        .collect();
    let squares: f64 = residuals.iter().map(|residual| residual * residual).sum();
    let products: f64 = residuals.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let points = residuals.len() as f64;
    let correlation = products / (squares + floor * points).max(f64::MIN_POSITIVE);
    // Few points show less correlation than there is.
    let correlation = (correlation + (1.0 + 4.0 * correlation) / points).clamp(0.0, 0.95);
    (points * (1.0 - correlation) / (1.0 + correlation)).max(points.min(MIN_EFFECTIVE))
}

/// Whether a curve's range is so large that the tolerated misfit exceeds its noise.
pub fn forgives(curve: &Curve) -> bool {
    let (low, high) =
        curve.y.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), y| (low.min(*y), high.max(*y)));
    MISFIT * (high - low) > curve.noise
}

/// Standard deviation of the points around a fit.
pub fn scatter(fit: &Fit, curve: &Curve) -> f64 {
    (fit.squares / curve.weight.iter().sum::<f64>()).sqrt()
}

/// A curve is worth at least this many points, however alike neighbours are.
const MIN_EFFECTIVE: f64 = 8.0;

/// Range of the values without the outermost twentieth.
pub(super) fn range(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    super::curve::quantile(&mut values, 0.975) - super::curve::quantile(&mut values, 0.025)
}
