//! Explanations of a curve: shapes with few parameters, fitted by weighted least squares.
//!
//! [`explanations`] gives the best fit of every shape. Each shape is linear in its coefficients once its knee
//! or time constant is fixed, and those are searched on a grid, so every fit converges.

use super::{curve::Curve, stairs::Stairs};

/// How memory moves along the run, with what was fitted; `x` runs from 0 to 1, and rates are bytes per run.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// `level`
    Level {
        /// Bytes.
        level: f64,
    },
    /// `start + rate x`
    Line {
        /// Bytes at the start.
        start: f64,
        /// Growth.
        rate: f64,
    },
    /// `start + rise (1 - exp(-x / tau))`: ever slower towards a ceiling.
    Saturating {
        /// Bytes at the start.
        start: f64,
        /// Bytes from there to the ceiling.
        rise: f64,
        /// Time constant.
        tau: f64,
    },
    /// `start + rise (1 - exp(-x / tau)) + rate x`: a warm-up on top of growth that stays.
    SaturatingLine {
        /// Bytes at the start.
        start: f64,
        /// Bytes of the warm-up.
        rise: f64,
        /// Time constant of the warm-up.
        tau: f64,
        /// Growth that stays.
        rate: f64,
    },
    /// `start + rise x / (x + tau)`: ever slower towards a ceiling that is far away.
    Hyperbola {
        /// Bytes at the start.
        start: f64,
        /// Bytes from there to the ceiling.
        rise: f64,
        /// Place at which half the growth is done.
        tau: f64,
    },
    /// `start + scale ln(1 + x / tau)`: ever slower, without a ceiling.
    Logarithm {
        /// Bytes at the start.
        start: f64,
        /// Bytes each time that `1 + x / tau` grows e-fold.
        scale: f64,
        /// Place from which on it slows down.
        tau: f64,
    },
    /// `start + rate min(x, knee)`: a constant rate that stops.
    Hinge {
        /// Bytes at the start.
        start: f64,
        /// Growth up to the knee.
        rate: f64,
        /// Where it stops.
        knee: f64,
        /// Whether the knee was known beforehand: the end of the first epoch.
        at_epoch: bool,
    },
    /// `start + rate min(x, knee) + later_rate max(x - knee, 0)`: one rate, then another.
    TwoRates {
        /// Bytes at the start.
        start: f64,
        /// Growth up to the knee.
        rate: f64,
        /// Growth after the knee.
        later_rate: f64,
        /// Where the rate changes.
        knee: f64,
        /// Whether the knee was known beforehand: the end of the first epoch.
        at_epoch: bool,
    },
    /// `start + first rows(x)`: a constant rate in each epoch, less from one to the next by the same part. So
    /// grow the caches of loader workers that are dealt other rows in every epoch: ever fewer of them are new
    /// to the worker that gets them.
    Dealt {
        /// Bytes at the start.
        start: f64,
        /// Growth in the first epoch.
        first: f64,
        /// The first epoch.
        epoch: Epoch,
        /// A rate in parts of that of the epoch before.
        kept: f64,
    },
    /// `level + rate max(x - knee, 0)`: level, then growth.
    LateLine {
        /// Bytes up to the knee.
        level: f64,
        /// Growth after the knee.
        rate: f64,
        /// Where growth starts.
        knee: f64,
    },
    /// `level + height [x >= at]`: one jump.
    Jump {
        /// Bytes before it.
        level: f64,
        /// By how much it rises.
        height: f64,
        /// Where.
        at: f64,
    },
    /// Levels with jumps between them.
    Stairs(Stairs),
}

/// A coefficient that is still to be fitted.
const OPEN: f64 = 0.0;

/// One term of a shape: a coefficient times a function of the place.
#[derive(Debug, Clone, Copy)]
struct Term {
    coefficient: f64,
    function: f64,
}

const NO_TERM: Term = Term { coefficient: 0.0, function: 0.0 };

/// Where the first epoch begins and ends, as places.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Epoch {
    /// Where rows began to be seen.
    pub start: f64,
    /// Where every row was seen once.
    pub end: f64,
}

impl Epoch {
    /// Epochs that have passed at a place.
    pub fn passed(&self, place: f64) -> f64 {
        ((place - self.start) / (self.end - self.start)).max(0.0)
    }

    /// The sum of `kept` to the power of each epoch passed, the present one in part.
    fn summed(&self, place: f64, kept: f64) -> f64 {
        let (whole, part) = (self.passed(place).floor(), self.passed(place).fract());
        let rate = kept.powi(whole as i32);
        (1.0 - rate) / (1.0 - kept) + part * rate
    }
}

/// A shape that was fitted to a curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The shape, with its coefficients.
    pub shape: Shape,
    /// Weighted sum of squared residuals.
    pub squares: f64,
}

impl Shape {
    /// Its terms at a place; their sum is the memory there.
    fn terms(&self, x: f64) -> [Term; 3] {
        let term = |coefficient: f64, function: f64| Term { coefficient, function };
        let constant = |coefficient: f64| term(coefficient, 1.0);
        let slowing = |tau: f64| 1.0 - (-x / tau).exp();
        match *self {
            Self::Level { level } => [constant(level), NO_TERM, NO_TERM],
            Self::Line { start, rate } => [constant(start), term(rate, x), NO_TERM],
            Self::Saturating { start, rise, tau } => [constant(start), term(rise, slowing(tau)), NO_TERM],
            Self::SaturatingLine { start, rise, tau, rate } => {
                [constant(start), term(rise, slowing(tau)), term(rate, x)]
            }
            Self::Hyperbola { start, rise, tau } => [constant(start), term(rise, x / (x + tau)), NO_TERM],
            Self::Logarithm { start, scale, tau } => {
                [constant(start), term(scale, (x / tau).ln_1p()), NO_TERM]
            }
            Self::Hinge { start, rate, knee, .. } => [constant(start), term(rate, x.min(knee)), NO_TERM],
            Self::TwoRates { start, rate, later_rate, knee, .. } => {
                [constant(start), term(rate, x.min(knee)), term(later_rate, (x - knee).max(0.0))]
            }
            Self::Dealt { start, first, epoch, kept } => {
                [constant(start), term(first, epoch.summed(x, kept)), NO_TERM]
            }
            Self::LateLine { level, rate, knee } => {
                [constant(level), term(rate, (x - knee).max(0.0)), NO_TERM]
            }
            Self::Jump { level, height, at } => [constant(level), term(height, f64::from(x >= at)), NO_TERM],
            Self::Stairs(ref stairs) => [term(1.0, stairs.at(x)), NO_TERM, NO_TERM],
        }
    }

    /// The coefficients that are fitted, in the order of the terms; a staircase has its levels already.
    fn coefficients(&mut self) -> Vec<&mut f64> {
        match self {
            Self::Level { level } => vec![level],
            Self::Line { start, rate } | Self::Hinge { start, rate, .. } => vec![start, rate],
            Self::Saturating { start, rise, .. } | Self::Hyperbola { start, rise, .. } => vec![start, rise],
            Self::SaturatingLine { start, rise, rate, .. } => vec![start, rise, rate],
            Self::Logarithm { start, scale, .. } => vec![start, scale],
            Self::TwoRates { start, rate, later_rate, .. } => vec![start, rate, later_rate],
            Self::Dealt { start, first, .. } => vec![start, first],
            Self::LateLine { level, rate, .. } => vec![level, rate],
            Self::Jump { level, height, .. } => vec![level, height],
            Self::Stairs(_) => Vec::new(),
        }
    }

    /// Bytes at a place.
    fn at(&self, x: f64) -> f64 {
        let [a, b, c] = self.terms(x).map(|term| term.function * term.coefficient);
        a + b + c
    }

    /// How many numbers were chosen to make it fit: its coefficients, and what was searched for.
    pub fn freedom(&self) -> f64 {
        /// A place that was searched for fits chance better than a coefficient does: it counts for more.
        const SEARCHED: f64 = 2.0;
        let searched = match self {
            Self::Level { .. } | Self::Line { .. } => 0.0,
            Self::Hinge { at_epoch: true, .. } | Self::TwoRates { at_epoch: true, .. } => 0.0,
            Self::Saturating { .. }
            | Self::SaturatingLine { .. }
            | Self::Hyperbola { .. }
            | Self::Logarithm { .. }
            | Self::Dealt { .. } => 1.0,
            Self::Stairs(stairs) => (SEARCHED + 1.0) * stairs.jumps().count() as f64,
            _ => SEARCHED,
        };
        let coefficients = match self {
            Self::Level { .. } | Self::Stairs(_) => 1.0,
            Self::SaturatingLine { .. } | Self::TwoRates { .. } => 3.0,
            _ => 2.0,
        };
        coefficients + searched
    }
}

impl Fit {
    /// Fits the coefficients of a shape to a curve.
    fn new(mut shape: Shape, curve: &Curve) -> Self {
        // Exponentials and logarithms cost more than all the rest: each is computed once.
        let functions: Vec<[f64; 3]> =
            curve.x.iter().map(|x| shape.terms(*x).map(|term| term.function)).collect();
        let points =
            || functions.iter().zip(&curve.y).zip(&curve.weight).map(|((at, y), weight)| (at, *y, *weight));
        let mut solution = [1.0, 0.0, 0.0];
        let mut open = shape.coefficients();
        if !open.is_empty() {
            let mut sums = Normal::default();
            for (functions, y, weight) in points() {
                sums.add(*functions, y - curve.level, weight);
            }
            solution = sums.solve(open.len());
            solution[0] += curve.level;
            open.iter_mut().zip(solution).for_each(|(coefficient, solved)| **coefficient = solved);
        }
        let fitted = |at: &[f64; 3]| at[0] * solution[0] + at[1] * solution[1] + at[2] * solution[2];
        let squares = points().map(|(at, y, weight)| weight * (y - fitted(at)).powi(2)).sum();
        Self { shape, squares }
    }

    /// Bytes at a place.
    pub fn at(&self, x: f64) -> f64 {
        self.shape.at(x)
    }

    /// Growth over the run.
    pub fn rise(&self) -> f64 {
        self.at(1.0) - self.at(0.0)
    }
}

/// Peaks below this part of the curve's range leave its steps as they are.
const SMALL_PEAK: f64 = 0.02;

/// The best fit of every shape; `epoch` is the first one, where it is known.
pub fn explanations(curve: &Curve, epoch: Option<Epoch>) -> Vec<Fit> {
    let (start, level, rate, later_rate, rise, scale) = (OPEN, OPEN, OPEN, OPEN, OPEN, OPEN);
    let mut fits =
        vec![Fit::new(Shape::Level { level }, curve), Fit::new(Shape::Line { start, rate }, curve)];
    // From a hundredth of the run (faster is a jump) to three runs (slower is a line).
    let taus = |from: f64, to: f64| (from.ln(), to.ln());
    let saturating = |tau: f64| Shape::Saturating { start, rise, tau: tau.exp() };
    fits.extend(search(curve, taus(0.01, 3.0), saturating));
    // With a line besides, slower than half the run cannot be told from the line.
    let with_line = |tau: f64| Shape::SaturatingLine { start, rise, tau: tau.exp(), rate };
    fits.extend(search(curve, taus(0.01, 0.5), with_line));
    fits.extend(search(curve, taus(0.005, 1.0), |tau| Shape::Hyperbola { start, rise, tau: tau.exp() }));
    fits.extend(search(curve, taus(0.005, 1.0), |tau| Shape::Logarithm { start, scale, tau: tau.exp() }));
    let knees = knee_range(curve);
    let hinge = |knee, at_epoch| Shape::Hinge { start, rate, knee, at_epoch };
    let two_rates = |knee, at_epoch| Shape::TwoRates { start, rate, later_rate, knee, at_epoch };
    fits.extend(search(curve, knees, |knee| hinge(knee, false)));
    fits.extend(search(curve, rates_range(curve), |knee| two_rates(knee, false)));
    fits.extend(search(curve, knees, |knee| Shape::LateLine { level, rate, knee }));
    fits.extend(search(curve, knees, |at| Shape::Jump { level, height: OPEN, at }));
    // Where peaks were taken away, the floor itself moves in steps as wide as they were: no sign of real
    // ones.
    let plain = curve.peak_height < SMALL_PEAK * super::weigh::range(&curve.y);
    let stairs = Stairs::of(curve).filter(|_| curve.returning.is_none() || plain);
    fits.extend(stairs.map(|stairs| Fit::new(Shape::Stairs(stairs), curve)));
    let knee = epoch.map(|epoch| epoch.end);
    if let Some(knee) = knee.filter(|knee| (knees.0..knees.1).contains(knee)) {
        fits.push(Fit::new(hinge(knee, true), curve));
        fits.push(Fit::new(two_rates(knee, true), curve));
    }
    fits.extend(epoch.and_then(|epoch| dealt(curve, epoch)));
    fits
}

/// The best fit of rows dealt anew to any likely number of workers, once a second epoch has begun.
fn dealt(curve: &Curve, epoch: Epoch) -> Option<Fit> {
    const MOST_WORKERS: u32 = 16;
    if epoch.end > 1.0 {
        return None;
    }
    (2..=MOST_WORKERS)
        .map(|workers| Shape::Dealt { start: OPEN, first: OPEN, epoch, kept: 1.0 - 1.0 / f64::from(workers) })
        .map(|shape| Fit::new(shape, curve))
        .min_by(|a, b| a.squares.total_cmp(&b.squares))
}

/// Knees lie between the second point and the last but one: a part of one point has no shape.
fn knee_range(curve: &Curve) -> (f64, f64) {
    let n = curve.x.len();
    (curve.x[1.min(n - 1)], curve.x[n.saturating_sub(2)])
}

/// A rate takes four points, where there are enough.
fn rates_range(curve: &Curve) -> (f64, f64) {
    let n = curve.x.len();
    let margin = (n / 4).clamp(1, 3);
    (curve.x[margin.min(n - 1)], curve.x[n.saturating_sub(1 + margin)])
}

/// The best of a family of shapes, on a coarse grid and then on a fine one around the best.
fn search(curve: &Curve, (low, high): (f64, f64), shape: impl Fn(f64) -> Shape) -> Option<Fit> {
    const COARSE: usize = 32;
    const FINE: usize = 9;
    let best_of = |low: f64, high: f64, steps: usize| {
        (0..steps)
            .map(|i| low + (high - low) * i as f64 / (steps - 1) as f64)
            .map(|parameter| (parameter, Fit::new(shape(parameter), curve)))
            .min_by(|(_, a), (_, b)| a.squares.total_cmp(&b.squares))
    };
    let (parameter, coarse) = best_of(low, high, COARSE)?;
    let step = (high - low) / (COARSE - 1) as f64;
    let (_, fine) = best_of((parameter - step).max(low), (parameter + step).min(high), FINE)?;
    Some(if fine.squares < coarse.squares { fine } else { coarse })
}

/// Normal equations of up to three coefficients.
#[derive(Default)]
struct Normal {
    matrix: [[f64; 3]; 3],
    right: [f64; 3],
}

impl Normal {
    fn add(&mut self, basis: [f64; 3], y: f64, weight: f64) {
        for row in 0..3 {
            for column in row..3 {
                self.matrix[row][column] += weight * basis[row] * basis[column];
            }
            self.right[row] += weight * basis[row] * y;
        }
    }

    /// Solves the leading `n` equations; a coefficient that the points do not determine is 0.
    fn solve(mut self, n: usize) -> [f64; 3] {
        for row in 1..3 {
            for column in 0..row {
                self.matrix[row][column] = self.matrix[column][row];
            }
        }
        const DETERMINED: f64 = 1e-9;
        for pivot in 0..n {
            let scale = self.matrix[pivot][pivot];
            if scale <= DETERMINED {
                continue;
            }
            for row in pivot + 1..n {
                let factor = self.matrix[row][pivot] / scale;
                for column in pivot..n {
                    self.matrix[row][column] -= factor * self.matrix[pivot][column];
                }
                self.right[row] -= factor * self.right[pivot];
            }
        }
        let mut solution = [0.0; 3];
        for row in (0..n).rev().filter(|row| self.matrix[*row][*row] > DETERMINED) {
            let known: f64 = (row + 1..n).map(|column| self.matrix[row][column] * solution[column]).sum();
            solution[row] = (self.right[row] - known) / self.matrix[row][row];
        }
        solution
    }
}
