//! Decodes PNG, WebP and BMP with the `image` crate.
//!
//! Takes encoded bytes and gives RGB pixels in stored order and the orientation that an EXIF chunk asks for.
//! [`super::colour`] converts the colour types to RGB, not the crate, because Pillow's rules differ from its
//! own.

use super::{DecodeLimits, Header, ImageError, ImageFormat, Orientation, Pixels, colour};
use image::{
    ColorType, ImageDecoder, ImageError as Failure, Limits,
    codecs::{bmp::BmpDecoder, png::PngDecoder, webp::WebPDecoder},
};
use std::io::Cursor;

/// What a PNG may take beside its pixels: a row, text, and a colour profile, which is compressed and can be a
/// bomb of its own. The decoder drops a larger profile, which changes nothing here: profiles are not applied.
const PNG_EXTRAS: u64 = 64 << 20;

/// Reads the size as stored, and the orientation.
pub(super) fn header(format: ImageFormat, bytes: &[u8]) -> Result<Header, ImageError> {
    let mut decoder = open(format, bytes)?;
    let (width, height) = decoder.dimensions();
    let samples = if decoder.color_type() == ColorType::Rgb8 { 0 } else { decoder.total_bytes() };
    Ok(Header { width, height, orientation: orientation(&mut *decoder), samples })
}

/// Decodes into `out`.
pub(super) fn decode(
    format: ImageFormat,
    bytes: &[u8],
    limits: DecodeLimits,
    out: &mut Pixels,
) -> Result<Orientation, ImageError> {
    let mut decoder = open(format, bytes)?;
    let (width, height) = decoder.dimensions();
    limits.check(format, width, height)?;
    let orientation = orientation(&mut *decoder);
    let colour = decoder.color_type();
    let length = usize::try_from(decoder.total_bytes()).unwrap_or(usize::MAX);
    (out.width, out.height) = (width, height);
    if colour == ColorType::Rgb8 {
        super::resize_buffer(&mut out.rgb, length);
        decoder.read_image_boxed(&mut out.rgb).map_err(|failure| explain(format, bytes, failure))?;
    } else {
        let mut samples = vec![0; length];
        decoder.read_image_boxed(&mut samples).map_err(|failure| explain(format, bytes, failure))?;
        out.rgb.clear();
        to_rgb(format, bytes, colour, &samples, &mut out.rgb)?;
    }
    Ok(orientation)
}

fn open(format: ImageFormat, bytes: &[u8]) -> Result<Box<dyn ImageDecoder + '_>, ImageError> {
    let source = Cursor::new(bytes);
    match format {
        ImageFormat::Png => {
            PngDecoder::with_limits(source, png_limits()).map(|decoder| Box::new(decoder) as _)
        }
        ImageFormat::WebP => WebPDecoder::new(source).map(|decoder| Box::new(decoder) as _),
        _ => BmpDecoder::new(source).map(|decoder| Box::new(decoder) as _),
    }
    .map_err(|failure| explain(format, bytes, failure))
}

/// Pixels do not count here: we allocate them ourselves, within the [`DecodeLimits`].
fn png_limits() -> Limits {
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(PNG_EXTRAS);
    limits
}

/// The orientation by EXIF, else by XMP, as in Pillow. A broken chunk of either does not make the image
/// broken.
fn orientation(decoder: &mut dyn ImageDecoder) -> Orientation {
    let exif = decoder.exif_metadata().ok().flatten().and_then(|exif| Orientation::from_exif(&exif));
    let xmp = || decoder.xmp_metadata().ok().flatten().and_then(|xmp| Orientation::from_xmp(&xmp));
    exif.or_else(xmp).unwrap_or_default()
}

fn to_rgb(
    format: ImageFormat,
    bytes: &[u8],
    colour: ColorType,
    samples: &[u8],
    rgb: &mut Vec<u8>,
) -> Result<(), ImageError> {
    // Byte `HIGH` of a native-endian 16-bit sample is its high byte.
    const HIGH: usize = if cfg!(target_endian = "little") { 1 } else { 0 };
    let clipped = |sample: [u8; 2]| colour::grey(colour::clipped(u16::from_ne_bytes(sample)));
    match colour {
        ColorType::L8 => colour::extend(rgb, samples, |[level]| colour::grey(level)),
        ColorType::La8 => colour::extend(rgb, samples, |[level, _]| colour::grey(level)),
        ColorType::Rgba8 => colour::extend(rgb, samples, |[r, g, b, _]| [r, g, b]),
        ColorType::L16 => colour::extend(rgb, samples, clipped),
        // Grey with a transparent level is grey to Pillow; real alpha makes it take the high byte.
        ColorType::La16 if has_transparent_grey(bytes) => {
            colour::extend(rgb, samples, |[a, b, _, _]| clipped([a, b]));
        }
        ColorType::La16 => colour::extend(rgb, samples, |sample: [u8; 4]| colour::grey(sample[HIGH])),
        ColorType::Rgb16 => {
            colour::extend(rgb, samples, |s: [u8; 6]| [s[HIGH], s[2 + HIGH], s[4 + HIGH]]);
        }
        ColorType::Rgba16 => {
            colour::extend(rgb, samples, |s: [u8; 8]| [s[HIGH], s[2 + HIGH], s[4 + HIGH]]);
        }
        other => {
            return Err(ImageError::Unsupported { format, reason: format!("samples of type {other:?}") });
        }
    }
    Ok(())
}

/// Whether a PNG's header says grey without alpha.
fn has_transparent_grey(bytes: &[u8]) -> bool {
    const COLOUR_TYPE: usize = 25;
    bytes.get(COLOUR_TYPE) == Some(&0)
}

fn explain(format: ImageFormat, bytes: &[u8], failure: Failure) -> ImageError {
    match failure {
        Failure::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            ImageError::Truncated { format, length: bytes.len() }
        }
        Failure::Limits(_) => {
            let reason = format!("a row of it, or its text, takes more than {} MiB", PNG_EXTRAS >> 20);
            ImageError::Broken { format, reason }
        }
        Failure::Unsupported(what) => ImageError::Unsupported { format, reason: what.to_string() },
        other => ImageError::Broken { format, reason: other.to_string() },
    }
}
