//! Upsamples components to full resolution, one row at a time.
//!
//! Takes a component's rows and gives one row of the image's width. Doubling uses libjpeg's triangle filter
//! (three quarters of the nearer sample and one quarter of the farther, rounded up and down in turn); other
//! ratios repeat samples.

use super::{
    header::{Component, Frame},
    planes::Plane,
};

/// How one component is brought to full resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    /// It has full resolution already.
    Copy,
    /// Twice as wide.
    Wider,
    /// Twice as high.
    Taller,
    /// Twice as wide and as high.
    Both,
    /// Any other whole ratio.
    Repeat { across: usize, down: usize },
}

/// Upsamples one component.
pub(super) struct Upsampler {
    method: Method,
    width: usize,
    height: usize,
    /// The row that is widened, or the sums of two rows, with the first and last value repeated at the ends.
    sums: Vec<u16>,
    row: Vec<u8>,
}

/// libjpeg does not filter rows of this many samples or fewer horizontally.
const SHORT_ROW: usize = 2;

impl Upsampler {
    pub fn new(frame: &Frame, component: &Component) -> Self {
        let (max_h, max_v) = frame.max_sampling();
        let (across, down) = (max_h / component.h, max_v / component.v);
        let long = component.width > SHORT_ROW;
        let method = match (across, down) {
            (1, 1) => Method::Copy,
            (2, 1) if long => Method::Wider,
            (1, 2) => Method::Taller,
            (2, 2) if long => Method::Both,
            _ => Method::Repeat { across, down },
        };
        Self {
            method,
            width: component.width,
            height: component.height,
            sums: vec![0; component.width + 2],
            row: vec![0; component.width * across],
        }
    }

    /// Whether a row of the image may need the component's next row as well.
    pub fn looks_ahead(&self) -> bool {
        matches!(self.method, Method::Taller | Method::Both)
    }

    /// Row `y` of the image, at least as wide as the image is.
    #[inline(always)]
    pub fn row<'a>(&'a mut self, plane: &'a Plane, y: usize) -> &'a [u8] {
        let (width, height) = (self.width, self.height);
        // The neighbour of an even row is above it, that of an odd row below. At the edges, a row is its own
        // neighbour.
        let own = y / 2;
        let neighbour = if y.is_multiple_of(2) { own.saturating_sub(1) } else { (own + 1).min(height - 1) };
        match self.method {
            Method::Copy => return &plane.row(y)[..width],
            Method::Wider => {
                let row = &plane.row(y)[..width];
                pad(&mut self.sums, row.iter().map(|&sample| u16::from(sample)));
                double::<2>(&self.sums, 1, 2, &mut self.row);
            }
            Method::Taller => {
                let (near, far) = (&plane.row(own)[..width], &plane.row(neighbour)[..width]);
                let bias = if y.is_multiple_of(2) { 1 } else { 2 };
                for ((to, &near), &far) in self.row.iter_mut().zip(near).zip(far) {
                    *to = ((3 * u16::from(near) + u16::from(far) + bias) >> 2) as u8;
                }
            }
            Method::Both => {
                let (near, far) = (&plane.row(own)[..width], &plane.row(neighbour)[..width]);
                pad(&mut self.sums, near.iter().zip(far).map(|(&n, &f)| 3 * u16::from(n) + u16::from(f)));
                double::<4>(&self.sums, 8, 7, &mut self.row);
            }
            Method::Repeat { across, down } => {
                let row = &plane.row(y / down)[..width];
                for (to, &sample) in self.row.chunks_exact_mut(across).zip(row) {
                    to.fill(sample);
                }
            }
        }
        &self.row
    }
}

/// Fills `padded` with `values`, and repeats the first and the last of them at the ends. With that, the
/// filter gives libjpeg's values at the edges.
#[inline(always)]
fn pad(padded: &mut [u16], values: impl Iterator<Item = u16>) {
    let length = padded.len();
    for (to, value) in padded[1..length - 1].iter_mut().zip(values) {
        *to = value;
    }
    padded[0] = padded[1];
    padded[length - 1] = padded[length - 2];
}

/// Doubles a row: each value is three quarters of its own sample and one quarter of the neighbour on its
/// side.
#[inline(always)]
fn double<const SHIFT: u32>(padded: &[u16], left_bias: u16, right_bias: u16, row: &mut [u8]) {
    let (before, own, after) = (padded, &padded[1..], &padded[2..]);
    for (((to, &before), &own), &after) in
        row.as_chunks_mut::<2>().0.iter_mut().zip(before).zip(own).zip(after)
    {
        to[0] = ((3 * own + before + left_bias) >> SHIFT) as u8;
        to[1] = ((3 * own + after + right_bias) >> SHIFT) as u8;
    }
}
