//! Decodes the first frame of a GIF.
//!
//! Takes encoded bytes and gives RGB pixels of the whole canvas. Where the frame does not cover the canvas,
//! the rest has the colour of the transparent index, or of index 0: what Pillow shows once the alpha is
//! dropped.

use super::{DecodeLimits, Header, ImageError, ImageFormat, Orientation, Pixels};
use gif::{ColorOutput, DecodeOptions, Decoder, DecodingError, MemoryLimit};
use std::io::ErrorKind;

const FORMAT: ImageFormat = ImageFormat::Gif;

/// Reads the size of the canvas; a GIF has no orientation.
pub(super) fn header(bytes: &[u8]) -> Result<Header, ImageError> {
    let decoder = open(bytes, DecodeLimits::default())?;
    let (width, height) = (u32::from(decoder.width()), u32::from(decoder.height()));
    // The indexes of a frame, as they are read and as they are kept.
    let samples = 2 * u64::from(width) * u64::from(height);
    Ok(Header { width, height, orientation: Orientation::default(), samples })
}

/// Decodes into `out`.
pub(super) fn decode(
    bytes: &[u8],
    limits: DecodeLimits,
    out: &mut Pixels,
) -> Result<Orientation, ImageError> {
    let mut decoder = open(bytes, limits)?;
    let (width, height) = (u32::from(decoder.width()), u32::from(decoder.height()));
    limits.check(FORMAT, width, height)?;
    let explain = |failure| explain(bytes, failure);
    let frame = decoder.read_next_frame().map_err(explain)?;
    let frame = frame.ok_or_else(|| broken("it has no frame"))?.clone();
    let palette = decoder.palette().map_err(explain)?;
    let colour = |index: u8| -> [u8; 3] {
        let at = usize::from(index) * 3;
        palette.get(at..at + 3).map_or([0; 3], |rgb| [rgb[0], rgb[1], rgb[2]])
    };
    let (width_px, height_px) = (width as usize, height as usize);
    let background = colour(frame.transparent.unwrap_or(0));
    out.rgb.clear();
    out.rgb.extend(background.repeat(width_px * height_px));
    (out.width, out.height) = (width, height);
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let rows = frame.buffer.chunks_exact(usize::from(frame.width).max(1));
    for (indexes, canvas) in rows.zip(out.rgb.chunks_exact_mut(width_px * 3).skip(top)) {
        for (&index, pixel) in indexes.iter().zip(canvas.chunks_exact_mut(3).skip(left)) {
            pixel.copy_from_slice(&colour(index));
        }
    }
    Ok(Orientation::default())
}

fn open(bytes: &[u8], limits: DecodeLimits) -> Result<Decoder<&[u8]>, ImageError> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    let limit = std::num::NonZeroU64::new(limits.max_pixels).unwrap_or(std::num::NonZeroU64::MIN);
    options.set_memory_limit(MemoryLimit::Bytes(limit));
    options.read_info(bytes).map_err(|failure| explain(bytes, failure))
}

fn explain(bytes: &[u8], failure: DecodingError) -> ImageError {
    match &failure {
        DecodingError::Io(error) if error.kind() == ErrorKind::UnexpectedEof => {
            ImageError::Truncated { format: FORMAT, length: bytes.len() }
        }
        _ => broken(&failure.to_string()),
    }
}

fn broken(reason: &str) -> ImageError {
    ImageError::Broken { format: FORMAT, reason: reason.into() }
}
