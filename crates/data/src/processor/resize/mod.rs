//! Bicubic resizing with antialias, bit for bit as torchvision does it on bytes, while the rows come in.
//!
//! Takes rows of an image, channel by channel, from top to bottom, and gives bands of the resized image, each
//! as soon as its inputs are there. Each row is resized horizontally when it comes and rounded to bytes,
//! which is torchvision's order. Only the few rows that the next output needs are kept, so all of it stays in
//! the cache.

mod plain;
#[cfg(target_arch = "x86_64")]
mod vectors;
mod weights;

use weights::Weights;

/// Channels of a pixel.
const CHANNELS: usize = 3;
/// Rows are padded to whole vectors of this many bytes.
const VECTOR: usize = 32;

/// Resizes one image after another.
#[derive(Default)]
pub(super) struct Resizer {
    across: Weights,
    down: Weights,
    /// `across`, laid out for vectors; `None` where vectors cannot be used.
    #[cfg(target_arch = "x86_64")]
    groups: Option<vectors::Groups>,
    /// The row that is coming in: each channel with slack behind it.
    incoming: Vec<u8>,
    incoming_stride: usize,
    /// Rows that were resized sideways, as many as an output may need; row `y` is at `y` modulo their number.
    narrowed: Vec<u8>,
    /// The rows of a band.
    finished: Vec<u8>,
    band_rows: usize,
    /// How many rows came in, and how many went out.
    taken: usize,
    given: usize,
    /// Where the rows of an output begin in `narrowed`.
    offsets: Vec<usize>,
}

/// Rows of the resized image.
pub(super) struct Band<'a> {
    samples: &'a [u8],
    /// Bytes of a channel of a row, padding included.
    plane: usize,
}

impl<'a> Band<'a> {
    /// A channel of a row of the band.
    #[inline(always)]
    pub fn row(&self, y: usize, channel: usize) -> &'a [u8] {
        &self.samples[(y * CHANNELS + channel) * self.plane..][..self.plane]
    }

    /// A band that a test made: the channels of each row.
    #[cfg(test)]
    pub fn of(samples: &'a [u8], plane: usize) -> Self {
        Self { samples, plane }
    }
}

impl Resizer {
    /// Begins an image. Sizes are width and height, none of them 0; `band_rows` divides the new height.
    pub fn begin(&mut self, from: (u32, u32), to: (u32, u32), band_rows: usize) {
        let _changed = self.across.prepare(from.0 as usize, to.0 as usize);
        self.down.prepare(from.1 as usize, to.1 as usize);
        #[cfg(target_arch = "x86_64")]
        if _changed {
            self.groups = vectors::Groups::new(&self.across);
        }
        // Samples beyond the image are read, with weight 0.
        self.incoming_stride = self.across.from + self.across.taps + VECTOR;
        self.incoming.resize(CHANNELS * self.incoming_stride, 0);
        self.narrowed.resize(self.down.taps * self.row_bytes(), 0);
        self.band_rows = band_rows;
        self.finished.resize(band_rows * self.row_bytes(), 0);
        (self.taken, self.given) = (0, 0);
    }

    /// Where the next row is to be written: its channels.
    pub fn space(&mut self) -> [&mut [u8]; CHANNELS] {
        let width = self.across.from;
        let (red, rest) = self.incoming.split_at_mut(self.incoming_stride);
        let (green, blue) = rest.split_at_mut(self.incoming_stride);
        [&mut red[..width], &mut green[..width], &mut blue[..width]]
    }

    /// Takes the row that was written; `give` gets each band that is complete now, and its number.
    pub fn advance(&mut self, mut give: impl FnMut(usize, Band)) {
        self.narrow();
        self.taken += 1;
        while let Some(window) = self.down.windows.get(self.given)
            && window.end <= self.taken
        {
            self.combine();
            self.given += 1;
            if self.given.is_multiple_of(self.band_rows) {
                let band = Band { samples: &self.finished, plane: self.plane_bytes() };
                give(self.given / self.band_rows - 1, band);
            }
        }
    }

    /// The bytes that the buffers hold.
    pub fn buffer_bytes(&self) -> usize {
        let rows = self.incoming.capacity() + self.narrowed.capacity() + self.finished.capacity();
        #[cfg(target_arch = "x86_64")]
        let rows = rows + self.groups.as_ref().map_or(0, vectors::Groups::buffer_bytes);
        rows + self.across.buffer_bytes() + self.down.buffer_bytes()
    }

    /// Bytes of a channel of a resized row, padding included.
    fn plane_bytes(&self) -> usize {
        self.across.to.next_multiple_of(VECTOR)
    }

    fn row_bytes(&self) -> usize {
        CHANNELS * self.plane_bytes()
    }

    /// Resizes the incoming row sideways.
    fn narrow(&mut self) {
        let (row, plane) = (self.row_bytes(), self.plane_bytes());
        let out = &mut self.narrowed[self.taken % self.down.taps * row..][..row];
        #[cfg(target_arch = "x86_64")]
        if let Some(groups) = &self.groups {
            return groups.narrow(&self.incoming, self.incoming_stride, out, plane);
        }
        plain::narrow(&self.across, &self.incoming, self.incoming_stride, out, plane);
    }

    /// Makes the next output row from rows that are there.
    fn combine(&mut self) {
        let (row, kept, last) = (self.row_bytes(), self.down.taps, self.down.from - 1);
        let start = self.down.windows[self.given].start;
        self.offsets.clear();
        // A row beyond the image has weight 0; the last row stands in for it.
        self.offsets.extend((start..start + kept).map(|y| y.min(last) % kept * row));
        let weights = self.down.of(self.given);
        let inputs = plain::Inputs { rows: &self.narrowed, offsets: &self.offsets, weights };
        let out = &mut self.finished[self.given % self.band_rows * row..][..row];
        #[cfg(target_arch = "x86_64")]
        if vectors::combine(&inputs, self.down.precision, out) {
            return;
        }
        plain::combine(&inputs, self.down.precision, out);
    }
}

#[cfg(test)]
mod tests;
