//! Decodes the first page of a TIFF.
//!
//! Takes encoded bytes and gives RGB pixels in stored order and the orientation of tag 274. Reads 8- and
//! 16-bit grey, grey with alpha, RGB, RGBA and CMYK samples; other kinds are refused by name.

use super::{DecodeLimits, Header, ImageError, ImageFormat, Orientation, Pixels, colour};
use std::io::{Cursor, ErrorKind};
use tiff::{
    ColorType, TiffError,
    decoder::{Decoder, DecodingResult, Limits},
    tags::Tag,
};

const FORMAT: ImageFormat = ImageFormat::Tiff;
/// The widest pixel that is decoded: four 16-bit samples.
const MAX_PIXEL_BYTES: u64 = 8;

/// Reads the size as stored, and the orientation.
pub(super) fn header(bytes: &[u8]) -> Result<Header, ImageError> {
    let explain = |failure| explain(bytes, failure);
    let mut decoder = Decoder::new(Cursor::new(bytes)).map_err(explain)?;
    let (width, height) = decoder.dimensions().map_err(explain)?;
    let bits = decoder.colortype().map_or(8 * MAX_PIXEL_BYTES, |colour| {
        u64::from(colour.num_samples()) * u64::from(colour.bit_depth())
    });
    let samples = (u64::from(width) * u64::from(height)).saturating_mul(bits) / 8;
    Ok(Header { width, height, orientation: orientation(&mut decoder), samples })
}

/// Decodes into `out`.
pub(super) fn decode(
    bytes: &[u8],
    limits: DecodeLimits,
    out: &mut Pixels,
) -> Result<Orientation, ImageError> {
    let explain = |failure| explain(bytes, failure);
    let mut decoder = Decoder::new(Cursor::new(bytes)).map_err(explain)?;
    let (width, height) = decoder.dimensions().map_err(explain)?;
    limits.check(FORMAT, width, height)?;
    let mut memory = Limits::default();
    memory.decoding_buffer_size =
        usize::try_from(limits.max_pixels.saturating_mul(MAX_PIXEL_BYTES)).unwrap_or(usize::MAX);
    decoder = decoder.with_limits(memory);
    let orientation = orientation(&mut decoder);
    let colour = decoder.colortype().map_err(explain)?;
    let samples = decoder.read_image().map_err(explain)?;
    out.rgb.clear();
    to_rgb(colour, &samples, &mut out.rgb)?;
    (out.width, out.height) = (width, height);
    let expected = width as usize * height as usize * 3;
    if out.rgb.len() != expected {
        let reason = format!("{} bytes of pixels where {expected} were announced", out.rgb.len());
        return Err(ImageError::Broken { format: FORMAT, reason });
    }
    Ok(orientation)
}

fn orientation(decoder: &mut Decoder<Cursor<&[u8]>>) -> Orientation {
    match decoder.find_tag_unsigned::<u16>(Tag::Orientation) {
        Ok(Some(value)) => Orientation::from_tag(value),
        _ => Orientation::default(),
    }
}

fn to_rgb(colour: ColorType, samples: &DecodingResult, rgb: &mut Vec<u8>) -> Result<(), ImageError> {
    use colour::{clipped, extend, grey, high};
    match (colour, samples) {
        (ColorType::Gray(8), DecodingResult::U8(samples)) => extend(rgb, samples, |[level]| grey(level)),
        (ColorType::GrayA(8), DecodingResult::U8(samples)) => extend(rgb, samples, |[level, _]| grey(level)),
        (ColorType::RGB(8), DecodingResult::U8(samples)) => extend(rgb, samples, |rgb| rgb),
        (ColorType::RGBA(8), DecodingResult::U8(samples)) => extend(rgb, samples, |[r, g, b, _]| [r, g, b]),
        (ColorType::CMYK(8), DecodingResult::U8(samples)) => extend(rgb, samples, colour::cmyk),
        (ColorType::Gray(16), DecodingResult::U16(samples)) => {
            extend(rgb, samples, |[level]| grey(clipped(level)));
        }
        (ColorType::RGB(16), DecodingResult::U16(samples)) => {
            extend(rgb, samples, |rgb: [u16; 3]| rgb.map(high));
        }
        (ColorType::RGBA(16), DecodingResult::U16(samples)) => {
            extend(rgb, samples, |[r, g, b, _]| [r, g, b].map(high));
        }
        (other, _) => {
            let reason = format!("{} samples of {} bits a pixel", other.num_samples(), other.bit_depth());
            return Err(ImageError::Unsupported { format: FORMAT, reason });
        }
    }
    Ok(())
}

fn explain(bytes: &[u8], failure: TiffError) -> ImageError {
    match &failure {
        TiffError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            ImageError::Truncated { format: FORMAT, length: bytes.len() }
        }
        TiffError::UnsupportedError(what) => {
            ImageError::Unsupported { format: FORMAT, reason: what.to_string() }
        }
        _ => ImageError::Broken { format: FORMAT, reason: failure.to_string() },
    }
}
