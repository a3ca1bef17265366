//! Cuts images into the patches of Qwen2-VL's image processor.
//!
//! Takes encoded images and the limits of a model folder's `preprocessor_config.json`; gives a [`Grid`] and
//! its patches, either compact (one byte a sample, the still frame once) or as HF's normalised f32
//! `pixel_values`. Given equal decoded pixels, both equal HF's default (torchvision) processor bit for bit.

mod config;
mod patches;
mod resize;
mod size;

pub use config::{PixelLimits, ProcessorConfig, ProcessorError, files_for_transformers_4};
pub use size::Grid;

use crate::{
    error::BadRow,
    held::ImageInput,
    image::{self, DecodeLimits, Extent, Facing, ImageError, RowSink},
};
use resize::Resizer;
use std::path::Path;

/// Turns images into patches as one checkpoint wants them; shared by all workers.
#[derive(Debug, Clone)]
pub struct Processor {
    config: ProcessorConfig,
    limits: DecodeLimits,
}

/// An image as its header describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageHeader {
    /// Width and height of the upright image.
    pub size: (u32, u32),
    /// The patches that it is cut into.
    pub grid: Grid,
    /// Tokens that stand for it.
    pub tokens: usize,
    /// Bytes of the encoded image.
    pub encoded_bytes: u64,
    /// Bytes of samples that decoding it takes, see [`Extent::decoding_bytes`].
    pub decoding_bytes: u64,
}

/// The buffers one worker reuses from image to image.
#[derive(Default)]
pub struct ImageWorkspace {
    decoder: image::ImageDecoder,
    resizer: Resizer,
}

impl ImageWorkspace {
    /// The bytes that the buffers hold: as many as the largest image so far needed.
    pub fn buffer_bytes(&self) -> usize {
        self.decoder.buffer_bytes() + self.resizer.buffer_bytes()
    }
}

impl Processor {
    /// A processor for a configuration that was checked.
    pub fn new(config: ProcessorConfig, limits: DecodeLimits) -> Self {
        Self { config, limits }
    }

    /// Reads `preprocessor_config.json` in a checkpoint's folder, then applies the user's own limits.
    pub fn from_dir(
        folder: &Path,
        pixels: PixelLimits,
        limits: DecodeLimits,
    ) -> Result<Self, ProcessorError> {
        Ok(Self::new(ProcessorConfig::from_dir(folder)?.with_limits(pixels)?, limits))
    }

    /// What the processor goes by.
    pub fn config(&self) -> &ProcessorConfig {
        &self.config
    }

    /// What an image may ask for when it is decoded.
    pub(crate) fn limits(&self) -> DecodeLimits {
        self.limits
    }

    /// What the header of an encoded image tells: its size, and the patches and tokens it will become.
    pub fn header(&self, encoded: &[u8]) -> Result<ImageHeader, ImageError> {
        self.header_of(ImageInput::Encoded(encoded, Facing::Upright))
    }

    /// The same of an image in any form.
    pub fn header_of(&self, image: ImageInput<'_>) -> Result<ImageHeader, ImageError> {
        let (Extent { width, height, decoding_bytes }, encoded_bytes) = match image {
            ImageInput::Encoded(bytes, facing) => {
                (image::extent_facing(bytes, facing, self.limits)?, bytes.len() as u64)
            }
            ImageInput::Pixels(pixels) => (pixels.extent(self.limits)?, 0),
        };
        let grid = self.config.grid(width, height)?;
        let tokens = grid.tokens(self.config.merge_size);
        Ok(ImageHeader { size: (width, height), grid, tokens, encoded_bytes, decoding_bytes })
    }

    /// The headers of the images of one row; the error names the image that it is about.
    pub fn headers<B: AsRef<[u8]>>(&self, images: &[B]) -> Result<Vec<ImageHeader>, BadRow> {
        let header = |(index, image): (usize, &B)| {
            self.header(image.as_ref()).map_err(|error| BadRow::image(index, error))
        };
        images.iter().enumerate().map(header).collect()
    }

    /// Decodes, resizes and cuts an encoded image; its compact patches are appended to `patches`, unless it
    /// fails.
    pub fn append_patches(
        &self,
        encoded: &[u8],
        work: &mut ImageWorkspace,
        patches: &mut Vec<u8>,
    ) -> Result<Grid, ImageError> {
        self.append_patches_of(ImageInput::Encoded(encoded, Facing::Upright), work, patches)
    }

    /// The same of an image in any form.
    pub fn append_patches_of(
        &self,
        image: ImageInput<'_>,
        work: &mut ImageWorkspace,
        patches: &mut Vec<u8>,
    ) -> Result<Grid, ImageError> {
        let start = patches.len();
        let ImageWorkspace { decoder, resizer } = work;
        let grid = Grid { rows: 0, columns: 0 };
        let mut cutter = Cutter { config: &self.config, resizer, grid, patches, start };
        let outcome = match image {
            ImageInput::Encoded(bytes, facing) => {
                decoder.decode_rows(bytes, facing, self.limits, &mut cutter)
            }
            ImageInput::Pixels(pixels) => {
                pixels.extent(self.limits).and_then(|_| image::pour(pixels, &mut cutter))
            }
        };
        let grid = cutter.grid;
        if outcome.is_err() {
            patches.truncate(start);
        }
        outcome.map(|()| grid)
    }

    /// Expands compact patches to HF's `pixel_values`, appended to `values`.
    pub fn append_pixel_values(&self, patches: &[u8], values: &mut Vec<f32>) {
        patches::append_normalised(patches, &self.config, values);
    }

    /// Expands compact patches to HF's `pixel_values`, where there is space for exactly as many values.
    pub fn put_pixel_values(&self, patches: &[u8], values: &mut [f32]) {
        patches::put_normalised(patches, &self.config, values);
    }
}

/// Resizes the rows of an image and cuts them into patches, as they are decoded.
struct Cutter<'a> {
    config: &'a ProcessorConfig,
    resizer: &'a mut Resizer,
    grid: Grid,
    patches: &'a mut Vec<u8>,
    /// Where the image's patches begin.
    start: usize,
}

impl RowSink for Cutter<'_> {
    fn begin(&mut self, width: u32, height: u32) -> Result<(), ImageError> {
        self.grid = self.config.grid(width, height)?;
        let side = self.config.patch_size;
        self.resizer.begin((width, height), self.grid.pixels(side), side as usize);
        self.patches.resize(self.start + self.grid.patches() * self.config.patch_bytes(), 0);
        Ok(())
    }

    fn space(&mut self) -> [&mut [u8]; 3] {
        self.resizer.space()
    }

    fn advance(&mut self) {
        let (grid, config, patches) = (self.grid, self.config, &mut self.patches[self.start..]);
        self.resizer.advance(|row, band| patches::put_row(row, &band, grid, config, patches));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ImageFormat;
    use ::image::{ExtendedColorType, ImageEncoder, codecs::jpeg::JpegEncoder};
    use std::fs;

    /// The fewest and most pixels with which the golden images were processed.
    const GOLDEN_LIMITS: [(u64, u64); 2] = [(3136, 12_845_056), (20_000, 60_000)];

    #[test]
    fn headers_say_what_decoding_takes() {
        let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/images");
        for file in fs::read_dir(images).expect("the goldens").map(|entry| entry.expect("readable").path()) {
            let name = file.display();
            let encoded = fs::read(&file).expect("readable");
            for (min_pixels, max_pixels) in GOLDEN_LIMITS {
                let config = ProcessorConfig { min_pixels, max_pixels, ..ProcessorConfig::default() };
                let processor = Processor::new(config, DecodeLimits::default());
                let ImageHeader { size: (width, height), decoding_bytes, .. } =
                    processor.header(&encoded).expect("a header");
                let mut work = ImageWorkspace::default();
                let grid = processor.append_patches(&encoded, &mut work, &mut Vec::new()).expect("patches");
                let (said, held) = (decoding_bytes as usize, work.buffer_bytes());
                // A JPEG's scan is copied into a buffer that grows by doubling. What other decoders allocate
                // is free again by now.
                let copied = 2 * encoded.len();
                // Rows of blocks, rows between the passes, a row of patches and the filter's weights.
                let rows = 300 * (width + height + 14 * (grid.columns + grid.rows)) as usize;
                assert!(held <= said + copied + rows, "{name}: {said} said, {held} held");
                let is_jpeg = ImageFormat::of(&encoded) == Some(ImageFormat::Jpeg);
                assert!(!is_jpeg || held >= said, "{name}: {said} said, {held} held");
            }
        }
    }

    #[test]
    fn an_image_in_any_form_gives_the_same_patches() {
        let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/images");
        let processor = Processor::new(ProcessorConfig::default(), DecodeLimits::default());
        let mut work = ImageWorkspace::default();
        for name in ["photo.jpg", "rgb.png", "palette.gif", "exif-6.jpg", "exif-8.webp"] {
            let encoded = fs::read(images.join(name)).expect("a golden");
            for facing in [Facing::Upright, Facing::AsStored] {
                let mut decoder = image::ImageDecoder::default();
                let pixels =
                    decoder.decode_facing(&encoded, facing, DecodeLimits::default()).expect("pixels");
                let mut patches = [const { Vec::new() }; 2];
                let inputs = [ImageInput::Encoded(&encoded, facing), ImageInput::Pixels(pixels)];
                for (input, patches) in inputs.into_iter().zip(&mut patches) {
                    let header = processor.header_of(input).expect("a header");
                    assert_eq!(header.size, (pixels.width, pixels.height), "{name}");
                    let grid = processor.append_patches_of(input, &mut work, patches).expect("patches");
                    assert_eq!(grid, header.grid, "{name}");
                }
                assert_eq!(patches[0], patches[1], "{name}");
                let (mut appended, mut put) = (Vec::new(), vec![0.0; 2 * patches[0].len()]);
                processor.append_pixel_values(&patches[0], &mut appended);
                processor.put_pixel_values(&patches[0], &mut put);
                assert_eq!(appended, put, "{name}");
            }
        }
    }

    #[test]
    fn only_an_upright_image_is_turned() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/images/exif-6.jpg");
        let encoded = fs::read(path).expect("a golden");
        let processor = Processor::new(ProcessorConfig::default(), DecodeLimits::default());
        let size =
            |facing| processor.header_of(ImageInput::Encoded(&encoded, facing)).expect("a header").size;
        let (width, height) = size(Facing::Upright);
        assert_eq!(size(Facing::AsStored), (height, width));
        assert_ne!(width, height, "or nothing is shown");
    }

    #[test]
    fn pixels_are_refused_unless_they_fill_their_size_within_the_limits() {
        let limits = DecodeLimits { max_pixels: 100 };
        let processor = Processor::new(ProcessorConfig::default(), limits);
        let header = |width, height, bytes| {
            processor.header_of(ImageInput::Pixels(&image::Pixels { width, height, rgb: vec![0; bytes] }))
        };
        assert!(header(10, 10, 300).is_ok());
        assert_eq!(header(10, 10, 299), Err(ImageError::Empty));
        assert_eq!(header(0, 10, 0), Err(ImageError::Empty));
        assert_eq!(header(10, 11, 330), Err(ImageError::TooLarge { width: 10, height: 11, limit: 100 }));
        assert_eq!(image::Pixels::new(2, 2, vec![0; 11]), None);
    }

    #[test]
    fn an_upright_photo_is_never_there_as_a_whole() {
        let (width, height) = (2000, 1000);
        let rgb: Vec<u8> = (0..width * height * 3).map(|at| (at / 7) as u8).collect();
        let mut encoded = Vec::new();
        let encoder = JpegEncoder::new_with_quality(&mut encoded, 50);
        encoder.write_image(&rgb, width, height, ExtendedColorType::Rgb8).expect("in memory");
        let processor = Processor::new(ProcessorConfig::default(), DecodeLimits::default());
        let (mut work, mut patches) = (ImageWorkspace::default(), Vec::new());
        processor.append_patches(&encoded, &mut work, &mut patches).expect("a photo");
        let copied = 2 * encoded.len();
        assert!(work.buffer_bytes() < copied + rgb.len() / 10, "{} bytes", work.buffer_bytes());
        assert_eq!(
            image::extent(&encoded, DecodeLimits::default()).map(|extent| extent.decoding_bytes),
            Ok(0)
        );
    }
}
