//! Decodes images to upright RGB pixels, as HF's `load_image` does.
//!
//! Takes the bytes of a JPEG, PNG, WebP, GIF (first frame), BMP or TIFF and gives 8-bit RGB rows with the
//! EXIF orientation applied and any alpha dropped, which is what Pillow's `convert("RGB")` does. The size is
//! checked against [`DecodeLimits`] from the header, before anything is allocated for pixels, and no input
//! panics.

mod colour;
mod gif;
mod jpeg;
mod orientation;
mod raster;
mod rows;
mod tiff;

pub(crate) use rows::{RowSink, pour};

use orientation::Orientation;
use std::fmt;

/// Why an image cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ImageError {
    /// There are no bytes.
    #[error("the image is empty (0 bytes)")]
    Empty,
    /// The first bytes belong to no format we read.
    #[error("not an image: the data starts with {start}, which is not JPEG, PNG, WebP, GIF, BMP or TIFF")]
    UnknownFormat {
        /// The first bytes, printable.
        start: String,
    },
    /// The data ends too early.
    #[error("truncated {format}: the data ends before the image does ({length} bytes)")]
    Truncated {
        /// Which format.
        format: ImageFormat,
        /// How many bytes there are.
        length: usize,
    },
    /// The decoder gave up.
    #[error("broken {format}: {reason}")]
    Broken {
        /// Which format.
        format: ImageFormat,
        /// What the decoder said.
        reason: String,
    },
    /// A kind of image that is valid but not read here.
    #[error("unsupported {format}: {reason}")]
    Unsupported {
        /// Which format.
        format: ImageFormat,
        /// What is not supported.
        reason: String,
    },
    /// More pixels than allowed.
    #[error(
        "{width}x{height} has more than the {limit} pixels that are decoded at most; shrink the image first"
    )]
    TooLarge {
        /// Width by the header.
        width: u32,
        /// Height by the header.
        height: u32,
        /// The limit it breaks.
        limit: u64,
    },
    /// A side too long for the other one.
    #[error("{width}x{height}: one side is more than {limit} times the other; crop the image")]
    AspectRatio {
        /// Width of the upright image.
        width: u32,
        /// Height of the upright image.
        height: u32,
        /// The limit it breaks.
        limit: u32,
    },
    /// Nothing would be left of a side.
    #[error("{width}x{height} would be resized to nothing; raise the minimum number of pixels")]
    VanishingSide {
        /// Width of the upright image.
        width: u32,
        /// Height of the upright image.
        height: u32,
    },
}

/// The image formats read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFormat {
    /// JPEG, baseline or progressive.
    Jpeg,
    /// PNG.
    Png,
    /// WebP, lossy or lossless.
    WebP,
    /// GIF, the first frame.
    Gif,
    /// Windows bitmap.
    Bmp,
    /// TIFF, the first page.
    Tiff,
}

impl ImageFormat {
    /// Recognises a format by its first bytes; names and content types are not trusted.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0xFF, 0xD8, 0xFF, ..] => Some(Self::Jpeg),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Some(Self::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            [b'B', b'M', ..] => Some(Self::Bmp),
            [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => Some(Self::Tiff),
            _ => None,
        }
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
            Self::Bmp => "BMP",
            Self::Tiff => "TIFF",
        })
    }
}

/// The largest image that is decoded, checked by its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// The most pixels an image may have.
    pub max_pixels: u64,
}

impl Default for DecodeLimits {
    /// The number of pixels from which on Pillow warns of a decompression bomb: 256 MiB as RGB.
    fn default() -> Self {
        Self { max_pixels: 89_478_485 }
    }
}

impl DecodeLimits {
    fn check(self, format: ImageFormat, width: u32, height: u32) -> Result<(), ImageError> {
        if width == 0 || height == 0 {
            let reason = format!("it says it is {width}x{height}");
            return Err(ImageError::Broken { format, reason });
        }
        if u64::from(width) * u64::from(height) > self.max_pixels {
            return Err(ImageError::TooLarge { width, height, limit: self.max_pixels });
        }
        Ok(())
    }
}

/// Whether an image is turned as its EXIF orientation says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Facing {
    /// Turned, so that it stands as the camera saw it.
    #[default]
    Upright,
    /// Left as the file has its rows.
    AsStored,
}

impl Facing {
    /// The turn that is asked for, of one that a file asks for.
    fn of(self, orientation: Orientation) -> Orientation {
        match self {
            Self::Upright => orientation,
            Self::AsStored => Orientation::default(),
        }
    }
}

/// Decoded pixels: `height` rows of `width` RGB triples, without padding.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Pixels {
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// `height * width * 3` bytes.
    pub rgb: Vec<u8>,
}

impl Pixels {
    /// Pixels of this size, refused if there are more or fewer bytes than that takes.
    pub fn new(width: u32, height: u32, rgb: Vec<u8>) -> Option<Self> {
        let pixels = Self { width, height, rgb };
        (pixels.rgb.len() as u64 == pixels.bytes()).then_some(pixels)
    }

    fn bytes(&self) -> u64 {
        3 * u64::from(self.width) * u64::from(self.height)
    }

    /// Their size; they are decoded already. An error if there is none, or one beyond the limits.
    pub(crate) fn extent(&self, limits: DecodeLimits) -> Result<Extent, ImageError> {
        let Self { width, height, .. } = *self;
        if self.rgb.is_empty() || self.rgb.len() as u64 != self.bytes() {
            return Err(ImageError::Empty);
        }
        if u64::from(width) * u64::from(height) > limits.max_pixels {
            return Err(ImageError::TooLarge { width, height, limit: limits.max_pixels });
        }
        Ok(Extent { width, height, decoding_bytes: 0 })
    }
}

impl fmt::Debug for Pixels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pixels({}x{})", self.width, self.height)
    }
}

/// Buffers that are reused from image to image: a worker keeps one decoder, so only larger images allocate.
#[derive(Default)]
pub struct ImageDecoder {
    jpeg: jpeg::Decoder,
    pixels: Pixels,
    /// A row on its way to `pixels`.
    row: Vec<u8>,
    /// Where turned pixels are written before they are swapped with `pixels`.
    turned: Vec<u8>,
}

impl ImageDecoder {
    /// Decodes an image into pixels that live until the next call.
    pub fn decode(&mut self, bytes: &[u8], limits: DecodeLimits) -> Result<&Pixels, ImageError> {
        self.decode_facing(bytes, Facing::Upright, limits)
    }

    /// Decodes an image that faces as it should.
    pub(crate) fn decode_facing(
        &mut self,
        bytes: &[u8],
        facing: Facing,
        limits: DecodeLimits,
    ) -> Result<&Pixels, ImageError> {
        let format = recognise(bytes)?;
        let pixels = &mut self.pixels;
        let orientation = match format {
            // Our own decoder is fuzzed. The others are third-party code: a panic in one must not end a run.
            ImageFormat::Jpeg => {
                let image = jpeg::Image::open(bytes, limits)?;
                let orientation = image.header().orientation;
                self.jpeg.decode(image, &mut rows::Whole { pixels, row: &mut self.row, done: 0 })?;
                orientation
            }
            _ => guarded(format, || decode_other(format, bytes, limits, pixels))?,
        };
        facing.of(orientation).apply(&mut self.pixels, &mut self.turned);
        Ok(&self.pixels)
    }

    /// Decodes an image row by row. An upright JPEG, which is what most images are, never exists as a whole.
    pub(crate) fn decode_rows(
        &mut self,
        bytes: &[u8],
        facing: Facing,
        limits: DecodeLimits,
        sink: &mut impl RowSink,
    ) -> Result<(), ImageError> {
        if recognise(bytes)? == ImageFormat::Jpeg {
            let image = jpeg::Image::open(bytes, limits)?;
            if facing.of(image.header().orientation) == Orientation::default() {
                return self.jpeg.decode(image, sink);
            }
        }
        rows::pour(self.decode_facing(bytes, facing, limits)?, sink)
    }

    /// The bytes that the buffers hold.
    pub(crate) fn buffer_bytes(&self) -> usize {
        let rows = self.pixels.rgb.capacity() + self.row.capacity() + self.turned.capacity();
        self.jpeg.buffer_bytes() + rows
    }
}

/// Decodes one image; to decode many, keep an [`ImageDecoder`].
pub fn decode(bytes: &[u8], limits: DecodeLimits) -> Result<Pixels, ImageError> {
    let mut decoder = ImageDecoder::default();
    decoder.decode(bytes, limits)?;
    Ok(decoder.pixels)
}

/// An image as it is stored, by its header.
struct Header {
    width: u32,
    height: u32,
    orientation: Orientation,
    /// Bytes of samples that a decoder holds beside the RGB pixels.
    samples: u64,
}

/// How large an image is, and how much is needed to decode it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Width of the upright image.
    pub width: u32,
    /// Height of the upright image.
    pub height: u32,
    /// Bytes that an [`ImageDecoder`] holds for it on the way to patches, beside a copy of the encoded data
    /// and a few rows.
    pub decoding_bytes: u64,
}

/// The size of the upright image and what decoding it takes, read from the header alone.
pub fn extent(bytes: &[u8], limits: DecodeLimits) -> Result<Extent, ImageError> {
    extent_facing(bytes, Facing::Upright, limits)
}

/// The size of the image as it will face, and what decoding it takes.
pub(crate) fn extent_facing(
    bytes: &[u8],
    facing: Facing,
    limits: DecodeLimits,
) -> Result<Extent, ImageError> {
    let format = recognise(bytes)?;
    let Header { width, height, orientation, samples } = match format {
        ImageFormat::Jpeg => jpeg::Image::open(bytes, limits)?.header(),
        ImageFormat::Gif => guarded(format, || gif::header(bytes))?,
        ImageFormat::Tiff => guarded(format, || tiff::header(bytes))?,
        ImageFormat::Png | ImageFormat::WebP | ImageFormat::Bmp => {
            guarded(format, || raster::header(format, bytes))?
        }
    };
    limits.check(format, width, height)?;
    let orientation = facing.of(orientation);
    let rgb = 3 * u64::from(width) * u64::from(height);
    let copies = match (format, orientation == Orientation::default()) {
        // Its rows are given out as they are converted.
        (ImageFormat::Jpeg, true) => 0,
        (_, true) => 1,
        // Turning needs a second copy.
        (_, false) => 2,
    };
    let (width, height) = if orientation.swaps_sides() { (height, width) } else { (width, height) };
    Ok(Extent { width, height, decoding_bytes: copies * rgb + samples })
}

fn recognise(bytes: &[u8]) -> Result<ImageFormat, ImageError> {
    if bytes.is_empty() {
        return Err(ImageError::Empty);
    }
    let start = || bytes[..bytes.len().min(12)].escape_ascii().to_string();
    ImageFormat::of(bytes).ok_or_else(|| ImageError::UnknownFormat { start: format!("\"{}\"", start()) })
}

fn decode_other(
    format: ImageFormat,
    bytes: &[u8],
    limits: DecodeLimits,
    out: &mut Pixels,
) -> Result<Orientation, ImageError> {
    match format {
        ImageFormat::Gif => gif::decode(bytes, limits, out),
        ImageFormat::Tiff => tiff::decode(bytes, limits, out),
        _ => raster::decode(format, bytes, limits, out),
    }
}

/// Runs a third-party decoder; a panic in it becomes an error of this one image.
fn guarded<T>(format: ImageFormat, work: impl FnOnce() -> Result<T, ImageError>) -> Result<T, ImageError> {
    // The buffers that a panic may leave half written are overwritten by the next decode.
    crate::guarded::guarded(work)
        .unwrap_or_else(|| Err(ImageError::Broken { format, reason: "its decoder panicked".into() }))
}

/// Makes `buffer` exactly `length` bytes of unspecified content: what it held stays, so a reused buffer costs
/// nothing.
fn resize_buffer(buffer: &mut Vec<u8>, length: usize) {
    buffer.resize(length, 0);
}
