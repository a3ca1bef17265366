//! How much each input sample counts for each output sample.
//!
//! Takes the length of a side before and after and gives integer weights, as torch's antialiased bicubic
//! filter on bytes has them: the same f64 operations in the same order, then as many fractional bits as fit
//! into 16.

/// The weights of one side.
#[derive(Default)]
pub(super) struct Weights {
    /// The lengths they are made for.
    pub from: usize,
    pub to: usize,
    /// For each output: the inputs that count.
    pub windows: Vec<Window>,
    /// How many weights each output has: an even number, padded with zeros.
    pub taps: usize,
    pub values: Vec<i16>,
    /// Fractional bits of the weights.
    pub precision: u32,
}

/// A stretch of inputs.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub start: usize,
    pub end: usize,
}

/// Half the width of the filter, in output samples or input samples, whichever are larger.
const RADIUS: f64 = 2.0;
/// What torch stops at, however small the weights are.
const MAX_PRECISION: u32 = 22;

impl Weights {
    /// Makes the weights, unless they are those of the image before.
    pub fn prepare(&mut self, from: usize, to: usize) -> bool {
        let changed = (self.from, self.to) != (from, to);
        if changed {
            *self = Self::new(from, to);
        }
        changed
    }

    fn new(from: usize, to: usize) -> Self {
        let scale = from as f64 / to as f64;
        let radius = RADIUS * scale.max(1.0);
        let sharpness = 1.0 / scale.max(1.0);
        let mut windows = Vec::with_capacity(to);
        let mut exact = Vec::new();
        for output in 0..to {
            let centre = scale * (output as f64 + 0.5);
            // The cast of a negative number gives 0, as it should.
            let start = (centre - radius + 0.5) as usize;
            let end = ((centre + radius + 0.5) as usize).min(from);
            let first = exact.len();
            exact.extend((start..end).map(|at| bicubic((at as f64 - centre + 0.5) * sharpness)));
            let total: f64 = exact[first..].iter().sum();
            if total != 0.0 {
                exact[first..].iter_mut().for_each(|weight| *weight /= total);
            }
            windows.push(Window { start, end });
        }
        let largest = exact.iter().copied().fold(0.0, f64::max);
        let precision = precision_of(largest);
        let taps = windows.iter().map(|window| window.end - window.start).max().unwrap_or(0);
        let taps = taps.next_multiple_of(2);
        let mut values = vec![0; taps * to];
        let mut rest = &exact[..];
        for (window, values) in windows.iter().zip(values.chunks_exact_mut(taps.max(1))) {
            let (own, after) = rest.split_at(window.end - window.start);
            let scaled = |weight: f64| (weight * f64::from(1 << precision)).round() as i16;
            values.iter_mut().zip(own).for_each(|(value, &weight)| *value = scaled(weight));
            rest = after;
        }
        Self { from, to, windows, taps, values, precision }
    }

    /// The weights of one output.
    pub fn of(&self, output: usize) -> &[i16] {
        &self.values[output * self.taps..][..self.taps]
    }

    pub fn buffer_bytes(&self) -> usize {
        self.windows.capacity() * size_of::<Window>() + self.values.capacity() * size_of::<i16>()
    }
}

/// As many fractional bits as leave the largest weight below 2^15.
fn precision_of(largest: f64) -> u32 {
    let fits = |bits: u32| (largest * f64::from(1 << (bits + 1)) + 0.5) < f64::from(1 << 15);
    (0..MAX_PRECISION).find(|&bits| !fits(bits)).unwrap_or(MAX_PRECISION)
}

/// Catmull and Rom's cubic.
fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}
