//! Learning rates over a run: warm-up first, then one of five shapes.
//!
//! Takes the peak rate, the number of steps and the warm-up. Gives the rate of each optimizer step, counted
//! from zero. The values are those of Hugging Face's `get_scheduler`, to the last bit where the platform's
//! cosine allows it.

use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// The rate at which the polynomial shape ends, as in Hugging Face's.
const POLYNOMIAL_END: f64 = 1e-7;

/// How the rate moves after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum), value(rename_all = "snake_case"))]
pub enum Shape {
    /// Down to zero in a straight line.
    #[default]
    Linear,
    /// Down to zero along half a cosine.
    Cosine,
    /// The peak rate from the first step; the warm-up is not used.
    Constant,
    /// The peak rate after the warm-up.
    ConstantWithWarmup,
    /// Down to 1e-7 in a straight line.
    Polynomial,
}

/// How long the warm-up lasts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Warmup {
    /// A number of optimizer steps.
    Steps(u64),
    /// A share of all optimizer steps, rounded up.
    Ratio(f64),
}

/// Why a schedule cannot be followed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// The polynomial shape would rise.
    #[error("the polynomial schedule ends at {POLYNOMIAL_END:e}: the learning rate, {0:e}, must be above it")]
    BelowEnd(f64),
    /// A ratio that is no share.
    #[error("a warm-up ratio of {0}: it must be at least 0 and below 1")]
    Ratio(f64),
    /// A rate that no step can use.
    #[error("a learning rate of {0}: it must be a finite number and not negative")]
    Rate(f64),
}

/// The learning rate of every step of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    shape: Shape,
    peak: f64,
    warmup: u64,
    steps: u64,
}

impl Schedule {
    /// A schedule over `steps` optimizer steps.
    pub fn new(shape: Shape, peak: f64, warmup: Warmup, steps: u64) -> Result<Self, ScheduleError> {
        if !peak.is_finite() || peak < 0.0 {
            return Err(ScheduleError::Rate(peak));
        }
        if shape == Shape::Polynomial && peak <= POLYNOMIAL_END {
            return Err(ScheduleError::BelowEnd(peak));
        }
        let warmup = match warmup {
            Warmup::Steps(steps) => steps,
            Warmup::Ratio(ratio) if (0.0..1.0).contains(&ratio) => (steps as f64 * ratio).ceil() as u64,
            Warmup::Ratio(ratio) => return Err(ScheduleError::Ratio(ratio)),
        };
        Ok(Self { shape, peak, warmup, steps })
    }

    /// Steps of the warm-up.
    pub fn warmup(&self) -> u64 {
        self.warmup
    }

    /// The rate of the step with this index, the first being 0.
    pub fn rate(&self, step: u64) -> f64 {
        self.peak * self.factor(step)
    }

    fn factor(&self, step: u64) -> f64 {
        if self.shape == Shape::Constant {
            return 1.0;
        }
        if step < self.warmup {
            return step as f64 / self.warmup.max(1) as f64;
        }
        let falling = self.steps.saturating_sub(self.warmup);
        let since = (step - self.warmup) as f64;
        match self.shape {
            Shape::Constant | Shape::ConstantWithWarmup => 1.0,
            Shape::Linear => self.steps.saturating_sub(step) as f64 / falling.max(1) as f64,
            Shape::Cosine => {
                (0.5 * (1.0 + (PI * 0.5 * 2.0 * (since / falling.max(1) as f64)).cos())).max(0.0)
            }
            Shape::Polynomial if step > self.steps || falling == 0 => POLYNOMIAL_END / self.peak,
            Shape::Polynomial => {
                let remaining = 1.0 - since / falling as f64;
                ((self.peak - POLYNOMIAL_END) * remaining + POLYNOMIAL_END) / self.peak
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Golden {
        shape: Shape,
        peak: f64,
        warmup: u64,
        steps: u64,
        rates: Vec<f64>,
    }

    #[test]
    fn every_shape_gives_the_rates_of_transformers() {
        let goldens: Vec<Golden> =
            serde_json::from_str(include_str!("../tests/goldens/schedules.json")).expect("goldens parse");
        assert!(goldens.len() >= 15);
        for golden in goldens {
            let schedule =
                Schedule::new(golden.shape, golden.peak, Warmup::Steps(golden.warmup), golden.steps).unwrap();
            for (step, expected) in golden.rates.iter().enumerate() {
                let rate = schedule.rate(step as u64);
                let tolerance = 1e-15 * golden.peak;
                assert!(
                    (rate - expected).abs() <= tolerance,
                    "{:?} step {step}: {rate} {expected}",
                    golden.shape
                );
            }
        }
    }

    #[test]
    fn a_ratio_is_rounded_up() {
        let schedule = Schedule::new(Shape::Linear, 1.0, Warmup::Ratio(0.03), 101).unwrap();
        assert_eq!(schedule.rate(3), 0.75, "ceil(3.03) = 4 steps of warm-up");
    }

    #[test]
    fn refuses_what_cannot_be_followed() {
        let build = |shape, peak, warmup| Schedule::new(shape, peak, warmup, 10);
        assert_eq!(build(Shape::Polynomial, 1e-8, Warmup::Steps(0)), Err(ScheduleError::BelowEnd(1e-8)));
        assert_eq!(build(Shape::Linear, 1e-3, Warmup::Ratio(1.0)), Err(ScheduleError::Ratio(1.0)));
        assert_eq!(build(Shape::Linear, -1.0, Warmup::Steps(0)), Err(ScheduleError::Rate(-1.0)));
    }
}
