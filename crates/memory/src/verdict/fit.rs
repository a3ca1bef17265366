//! Explanations of a curve: shapes with few parameters, fitted by weighted least squares.
//!
//! A curve comes in, one best fit per shape goes out. Every shape is linear in its coefficients once its knee or
//! time constant is fixed, and those are searched on a grid, so nothing here can fail to converge.

use super::{curve::Curve, stairs::Stairs};

/// How memory moves along the run; `x` runs from 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// `a`
    Level,
    /// `a + b x`
    Line,
    /// `a + b (1 - exp(-x / tau))`: ever slower towards a ceiling.
    Saturating {
        /// Time constant.
        tau: f64,
    },
    /// `a + b (1 - exp(-x / tau)) + c x`: a warm-up on top of growth that stays.
    SaturatingLine {
        /// Time constant.
        tau: f64,
    },
    /// `a + b x / (x + tau)`: ever slower towards a ceiling that is far away.
    Hyperbola {
        /// Place at which half the growth is done.
        tau: f64,
    },
    /// `a + b ln(1 + x / tau)`: ever slower, without a ceiling.
    Logarithm {
        /// Place from which on it slows down.
        tau: f64,
    },
    /// `a + b min(x, knee)`: a constant rate that stops.
    Hinge {
        /// Where it stops.
        knee: f64,
        /// Whether the knee was known beforehand: the end of the first epoch.
        at_epoch: bool,
    },
    /// `a + b min(x, knee) + c max(x - knee, 0)`: one rate, then another.
    TwoRates {
        /// Where the rate changes.
        knee: f64,
        /// Whether the knee was known beforehand: the end of the first epoch.
        at_epoch: bool,
    },
    /// `a + b rows(x)`: a constant rate in each epoch, less from one to the next by the same part. So grow the caches of loader
    /// workers that are dealt other rows in every epoch: ever fewer of them are new to the worker that gets them.
    Dealt {
        /// The first epoch.
        epoch: Epoch,
        /// A rate in parts of that of the epoch before.
        kept: f64,
    },
    /// `a + b max(x - knee, 0)`: level, then growth.
    LateLine {
        /// Where growth starts.
        knee: f64,
    },
    /// `a + b [x >= at]`: one jump.
    Jump {
        /// Where.
        at: f64,
    },
    /// Levels with jumps between them.
    Stairs(Stairs),
}

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

/// A shape with its coefficients.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The shape.
    pub shape: Shape,
    /// Coefficients a, b, c of the shape.
    pub coefficients: [f64; 3],
    /// Weighted sum of squared residuals.
    pub squares: f64,
}

impl Shape {
    fn basis(&self, x: f64) -> [f64; 3] {
        let rise = |tau: f64| 1.0 - (-x / tau).exp();
        match *self {
            Self::Level => [1.0, 0.0, 0.0],
            Self::Line => [1.0, x, 0.0],
            Self::Saturating { tau } => [1.0, rise(tau), 0.0],
            Self::SaturatingLine { tau } => [1.0, rise(tau), x],
            Self::Hyperbola { tau } => [1.0, x / (x + tau), 0.0],
            Self::Logarithm { tau } => [1.0, (x / tau).ln_1p(), 0.0],
            Self::Hinge { knee, .. } => [1.0, x.min(knee), 0.0],
            Self::TwoRates { knee, .. } => [1.0, x.min(knee), (x - knee).max(0.0)],
            Self::Dealt { epoch, kept } => [1.0, epoch.summed(x, kept), 0.0],
            Self::LateLine { knee } => [1.0, (x - knee).max(0.0), 0.0],
            Self::Jump { at } => [1.0, f64::from(x >= at), 0.0],
            Self::Stairs(ref stairs) => [stairs.at(x), 0.0, 0.0],
        }
    }

    fn coefficients(&self) -> usize {
        match self {
            Self::Level | Self::Stairs(_) => 1,
            Self::SaturatingLine { .. } | Self::TwoRates { .. } => 3,
            _ => 2,
        }
    }

    /// How many numbers were chosen to make it fit: coefficients, and what was searched.
    pub fn freedom(&self) -> f64 {
        /// A place that was searched for fits chance better than a coefficient does: it counts for more.
        const SEARCHED: f64 = 2.0;
        let searched = match self {
            Self::Level | Self::Line => 0.0,
            Self::Hinge { at_epoch: true, .. } | Self::TwoRates { at_epoch: true, .. } => 0.0,
            Self::Saturating { .. }
            | Self::SaturatingLine { .. }
            | Self::Hyperbola { .. }
            | Self::Logarithm { .. }
            | Self::Dealt { .. } => 1.0,
            Self::Stairs(stairs) => (SEARCHED + 1.0) * stairs.jumps().count() as f64,
            _ => SEARCHED,
        };
        self.coefficients() as f64 + searched
    }
}

impl Fit {
    fn new(shape: Shape, curve: &Curve) -> Self {
        // Exponentials and logarithms cost more than all the rest: each is computed once.
        let bases: Vec<[f64; 3]> = curve.x.iter().map(|x| shape.basis(*x)).collect();
        let points =
            || bases.iter().zip(&curve.y).zip(&curve.weight).map(|((basis, y), weight)| (basis, *y, *weight));
        let coefficients = Self::solve(&shape, curve.level, points());
        let squares =
            points().map(|(basis, y, weight)| weight * (y - combined(basis, &coefficients)).powi(2)).sum();
        Self { shape, coefficients, squares }
    }

    fn solve<'a>(
        shape: &Shape,
        level: f64,
        points: impl Iterator<Item = (&'a [f64; 3], f64, f64)>,
    ) -> [f64; 3] {
        if let Shape::Stairs(_) = shape {
            // The levels are in the shape already.
            return [1.0, 0.0, 0.0];
        }
        let mut sums = Normal::default();
        for (basis, y, weight) in points {
            sums.add(*basis, y - level, weight);
        }
        let mut coefficients = sums.solve(shape.coefficients());
        coefficients[0] += level;
        coefficients
    }

    /// Bytes at a place.
    pub fn at(&self, x: f64) -> f64 {
        combined(&self.shape.basis(x), &self.coefficients)
    }

    /// Growth over the run.
    pub fn rise(&self) -> f64 {
        self.at(1.0) - self.at(0.0)
    }
}

fn combined(basis: &[f64; 3], coefficients: &[f64; 3]) -> f64 {
    basis[0] * coefficients[0] + basis[1] * coefficients[1] + basis[2] * coefficients[2]
}

/// Peaks below this part of the curve's range leave its steps as they are.
const SMALL_PEAK: f64 = 0.02;

/// The best fit of every shape; `epoch` is the first one, where it is known.
pub fn explanations(curve: &Curve, epoch: Option<Epoch>) -> Vec<Fit> {
    let mut fits = vec![Fit::new(Shape::Level, curve), Fit::new(Shape::Line, curve)];
    // From a hundredth of the run (faster is a jump) to three runs (slower is a line).
    fits.extend(search(curve, (0.01_f64.ln(), 3.0_f64.ln()), |tau| Shape::Saturating { tau: tau.exp() }));
    // With a line besides, slower than half the run cannot be told from the line.
    fits.extend(search(curve, (0.01_f64.ln(), 0.5_f64.ln()), |tau| Shape::SaturatingLine { tau: tau.exp() }));
    fits.extend(search(curve, (0.005_f64.ln(), 1.0_f64.ln()), |tau| Shape::Hyperbola { tau: tau.exp() }));
    fits.extend(search(curve, (0.005_f64.ln(), 1.0_f64.ln()), |tau| Shape::Logarithm { tau: tau.exp() }));
    let knees = knee_range(curve);
    fits.extend(search(curve, knees, |knee| Shape::Hinge { knee, at_epoch: false }));
    fits.extend(search(curve, rates_range(curve), |knee| Shape::TwoRates { knee, at_epoch: false }));
    fits.extend(search(curve, knees, |knee| Shape::LateLine { knee }));
    fits.extend(search(curve, knees, |at| Shape::Jump { at }));
    // Where peaks were taken away, the floor itself moves in steps as wide as they were: no sign of real ones.
    let plain = curve.peak_height < SMALL_PEAK * super::weigh::range(&curve.y);
    let stairs = Stairs::of(curve).filter(|_| curve.returning.is_none() || plain);
    fits.extend(stairs.map(|stairs| Fit::new(Shape::Stairs(stairs), curve)));
    let knee = epoch.map(|epoch| epoch.end);
    if let Some(knee) = knee.filter(|knee| (knees.0..knees.1).contains(knee)) {
        fits.push(Fit::new(Shape::Hinge { knee, at_epoch: true }, curve));
        fits.push(Fit::new(Shape::TwoRates { knee, at_epoch: true }, curve));
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
        .map(|workers| Shape::Dealt { epoch, kept: 1.0 - 1.0 / f64::from(workers) })
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
