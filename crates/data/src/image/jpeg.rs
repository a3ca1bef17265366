//! JPEG by `zune-jpeg`.
use super::{DecodeLimits, Format, ImageError, Orientation, Pixels, colour};
use zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions};
use zune_jpeg::JpegDecoder;

/// Decoder without state.
#[derive(Default)]
pub(super) struct Decoder;

const MAX_SIDE: usize = 65_535;

impl Decoder {
    pub fn buffer_bytes(&self) -> usize {
        0
    }
    pub fn decode(
        &mut self,
        bytes: &[u8],
        limits: DecodeLimits,
        out: &mut Pixels,
    ) -> Result<Orientation, ImageError> {
        let (width, height, orientation) = header(bytes)?;
        limits.check(Format::Jpeg, width, height)?;
        super::guarded(Format::Jpeg, || {
            let mut decoder = open(bytes, ColorSpace::RGB)?;
            let length = decoder.output_buffer_size().unwrap_or(0);
            super::resize_buffer(&mut out.rgb, length);
            decoder.decode_into(&mut out.rgb).map_err(|e| broken(&e))?;
            Ok(())
        })?;
        (out.width, out.height) = (width, height);
        let _ = colour::cmyk;
        Ok(orientation)
    }
}

fn open(bytes: &[u8], colour: ColorSpace) -> Result<JpegDecoder<ZCursor<&[u8]>>, ImageError> {
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(colour)
        .set_strict_mode(true)
        .set_max_width(MAX_SIDE)
        .set_max_height(MAX_SIDE);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|e| broken(&e))?;
    Ok(decoder)
}

fn broken(reason: &dyn std::fmt::Debug) -> ImageError {
    ImageError::Broken { format: Format::Jpeg, reason: format!("{reason:?}") }
}

/// Size and orientation
pub(super) fn header(bytes: &[u8]) -> Result<(u32, u32, Orientation), ImageError> {
    super::guarded(Format::Jpeg, || {
        let decoder = open(bytes, ColorSpace::RGB)?;
        let (width, height) = decoder.dimensions().unwrap_or((0, 0));
        let orientation = decoder.exif().map(|exif| Orientation::from_exif(exif)).unwrap_or_default();
        Ok((width as u32, height as u32, orientation))
    })
}
