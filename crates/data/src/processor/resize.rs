//! Bicubic resizing with antialias, bit for bit as torchvision does it on bytes.
//!
//! In come RGB pixels and the wanted size; out go resized RGB rows that live until the next call. torchvision runs
//! the horizontal pass first and rounds to bytes in between, so `fast_image_resize` is called once for each pass: in
//! one call it would go vertically first and differ by up to 23 levels.

use crate::image::Pixels;
use fast_image_resize as fir;
use fir::images::{TypedImage, TypedImageRef};
use fir::pixels::U8x3;

/// The buffers of one resize after another.
#[derive(Default)]
pub(super) struct Resizer {
    inner: fir::Resizer,
    /// After the horizontal pass.
    narrowed: Vec<u8>,
    /// After both.
    resized: Vec<u8>,
}

impl Resizer {
    /// Resizes to `width` times `height`.
    pub fn resize(&mut self, pixels: &Pixels, width: u32, height: u32) -> &[u8] {
        pass(
            &mut self.inner,
            &pixels.rgb,
            (pixels.width, pixels.height),
            &mut self.narrowed,
            (width, pixels.height),
        );
        pass(&mut self.inner, &self.narrowed, (width, pixels.height), &mut self.resized, (width, height));
        &self.resized
    }

    /// The bytes that the buffers hold.
    pub fn buffer_bytes(&self) -> usize {
        self.narrowed.capacity() + self.resized.capacity() + self.inner.size_of_internal_buffers()
    }
}

/// One pass; a size that stays is copied unchanged.
fn pass(inner: &mut fir::Resizer, from: &[u8], old: (u32, u32), to: &mut Vec<u8>, new: (u32, u32)) {
    to.resize(new.0 as usize * new.1 as usize * 3, 0);
    let bicubic =
        fir::ResizeOptions::new().resize_alg(fir::ResizeAlg::Convolution(fir::FilterType::CatmullRom));
    let from = TypedImageRef::<U8x3>::from_buffer(old.0, old.1, from).expect("a buffer of the image's size");
    let mut to = TypedImage::<U8x3>::from_buffer(new.0, new.1, to).expect("resized just above");
    inner.resize_typed(&from, &mut to, &bicubic).expect("the whole image is a valid crop of itself");
}
