//! The samples of each component, before upsampling.
//!
//! Takes transformed blocks and gives rows of samples. A plane is padded to whole coding units; what lies
//! beyond the component's real width and height is never read. If rows are consumed while the image is
//! decoded, only the latest two rows of units are kept, so that they stay in the cache.

use super::{
    header::{Component, Frame},
    idct::Block,
};

/// One plane for each component.
#[derive(Default)]
pub(super) struct Planes {
    planes: Vec<Plane>,
}

#[derive(Default)]
pub(super) struct Plane {
    samples: Vec<u8>,
    stride: usize,
    /// The bits of a block row's number that give its place in `samples`: all bits, or the low ones if only
    /// the latest rows are kept.
    kept_mask: usize,
}

impl Planes {
    /// Makes room for an image, or for its latest two rows of units. Samples of an earlier image may remain,
    /// but they are overwritten before they are read: an image that lacks a component is refused.
    pub fn prepare(&mut self, frame: &Frame, latest_only: bool) {
        self.planes.resize_with(self.planes.len().max(frame.components.len()), Plane::default);
        for (plane, component) in self.planes.iter_mut().zip(&frame.components) {
            plane.stride = component.block_columns * 8;
            let latest = (2 * component.v).next_power_of_two();
            let rows = if latest_only { latest } else { component.block_rows };
            plane.kept_mask = if latest_only { latest - 1 } else { usize::MAX };
            plane.samples.resize(plane.stride * rows * 8, 0);
        }
    }

    /// The bytes that a whole image needs.
    pub fn bytes(frame: &Frame) -> u64 {
        let plane = |component: &Component| 64 * (component.block_columns * component.block_rows) as u64;
        frame.components.iter().map(plane).sum()
    }

    pub fn buffer_bytes(&self) -> usize {
        self.planes.iter().map(|plane| plane.samples.capacity()).sum()
    }

    #[inline(always)]
    pub fn plane(&self, component: usize) -> &Plane {
        &self.planes[component]
    }

    #[inline(always)]
    pub fn plane_mut(&mut self, component: usize) -> &mut Plane {
        &mut self.planes[component]
    }
}

impl Plane {
    /// A row of samples, padding included.
    #[inline(always)]
    pub fn row(&self, y: usize) -> &[u8] {
        let y = ((y / 8) & self.kept_mask) * 8 + y % 8;
        &self.samples[y * self.stride..][..self.stride]
    }

    /// Writes a block at its place.
    #[inline(always)]
    pub fn put(&mut self, column: usize, row: usize, block: &Block) {
        let corner = (row & self.kept_mask) * 8 * self.stride + column * 8;
        let target = &mut self.samples[corner..corner + 7 * self.stride + 8];
        for (y, samples) in block.iter().enumerate() {
            target[y * self.stride..][..8].copy_from_slice(samples);
        }
    }
}
