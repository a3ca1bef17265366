//! Decoded rows on their way to whatever takes them.
//!
//! A decoder asks a [`RowSink`] where the next row goes, writes it channel by channel, and reports when it is
//! complete, from top to bottom. So an image need not exist as a whole, unless its sink keeps it.

use super::{ImageError, Pixels, resize_buffer};

/// Takes an image row by row.
pub(crate) trait RowSink {
    /// An image of this size begins; an error refuses it.
    fn begin(&mut self, width: u32, height: u32) -> Result<(), ImageError>;

    /// Where the next row goes: red, green and blue, each as wide as the image.
    fn space(&mut self) -> [&mut [u8]; 3];

    /// The row is written.
    fn advance(&mut self);
}

/// Pixels that are laid side by side at once, in vectors.
const STRETCH: usize = 64;

/// Keeps the whole image.
pub(super) struct Whole<'a> {
    pub pixels: &'a mut Pixels,
    /// The row that is being written, channel by channel.
    pub row: &'a mut Vec<u8>,
    /// Bytes that are done.
    pub done: usize,
}

impl RowSink for Whole<'_> {
    fn begin(&mut self, width: u32, height: u32) -> Result<(), ImageError> {
        (self.pixels.width, self.pixels.height) = (width, height);
        resize_buffer(&mut self.pixels.rgb, width as usize * height as usize * 3);
        resize_buffer(self.row, width as usize * 3);
        Ok(())
    }

    fn space(&mut self) -> [&mut [u8]; 3] {
        let (red, rest) = self.row.split_at_mut(self.pixels.width as usize);
        let (green, blue) = rest.split_at_mut(self.pixels.width as usize);
        [red, green, blue]
    }

    fn advance(&mut self) {
        let width = self.pixels.width as usize;
        let pixels = &mut self.pixels.rgb[self.done..][..self.row.len()];
        let row = &self.row[..];
        pulp::Arch::new().dispatch(|| interleave(row, width, pixels.as_chunks_mut().0));
        self.done += self.row.len();
    }
}

/// Lays three channels of a row side by side.
#[inline(always)]
fn interleave(row: &[u8], width: usize, pixels: &mut [[u8; 3]]) {
    let (red, rest) = row.split_at(width);
    let (green, blue) = rest.split_at(width);
    let (reds, greens, blues) =
        (red.as_chunks::<STRETCH>(), green.as_chunks::<STRETCH>(), blue.as_chunks::<STRETCH>());
    let (pixels, last_pixels) = pixels.as_chunks_mut::<STRETCH>();
    for (((pixels, red), green), blue) in pixels.iter_mut().zip(reds.0).zip(greens.0).zip(blues.0) {
        for x in 0..STRETCH {
            pixels[x] = [red[x], green[x], blue[x]];
        }
    }
    for (((pixel, red), green), blue) in last_pixels.iter_mut().zip(reds.1).zip(greens.1).zip(blues.1) {
        *pixel = [*red, *green, *blue];
    }
}

/// Gives a whole image to a sink.
pub(crate) fn pour(pixels: &Pixels, sink: &mut impl RowSink) -> Result<(), ImageError> {
    sink.begin(pixels.width, pixels.height)?;
    for row in pixels.rgb.chunks_exact(pixels.width as usize * 3) {
        let [red, green, blue] = sink.space();
        for (((pixel, red), green), blue) in row.as_chunks().0.iter().zip(red).zip(green).zip(blue) {
            [*red, *green, *blue] = *pixel;
        }
        sink.advance();
    }
    Ok(())
}
