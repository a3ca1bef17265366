//! Reads a data URI or raw bytes as pixels and as patches: no panic, the header's size matches the decoded
//! image, and an image that decodes has patches.
#![no_main]

use garden_data::{
    DecodeLimits, ImageWorkspace, Processor, ProcessorConfig,
    parsers::{decode_data_uri, decode_image, image_extent},
};
use libfuzzer_sys::fuzz_target;

const LIMITS: DecodeLimits = DecodeLimits { max_pixels: 1 << 20 };

// A panic in a reader that we guard is not a finding; one that escapes the guard is.
fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |bytes: &[u8]| {
    let decoded = std::str::from_utf8(bytes).ok().and_then(|text| decode_data_uri(text).ok());
    let bytes = decoded.as_deref().unwrap_or(bytes);
    let mut patches = Vec::new();
    let processor = Processor::new(ProcessorConfig::default(), LIMITS);
    let grid = processor.append_patches(bytes, &mut ImageWorkspace::default(), &mut patches).ok();
    let pixels = decode_image(bytes, LIMITS).ok();
    let expected = pixels.as_ref().and_then(|pixels| processor.config().grid(pixels.width, pixels.height).ok());
    assert_eq!(grid, expected);
    assert_eq!(patches.len(), grid.map_or(0, |grid| grid.patches() * processor.config().patch_bytes()));
    let Some(pixels) = pixels else { return };
    assert_eq!(pixels.rgb.len(), pixels.width as usize * pixels.height as usize * 3);
    let size = image_extent(bytes, LIMITS).map(|extent| (extent.width, extent.height));
    assert_eq!(size, Ok((pixels.width, pixels.height)));
});
