//! A data URI, or raw bytes, to pixels: no panic, and the header and the pixels agree on the size.
#![no_main]

use garden_data::{
    embedded::decode_data_uri,
    image::{DecodeLimits, decode, dimensions},
};
use libfuzzer_sys::fuzz_target;

const LIMITS: DecodeLimits = DecodeLimits { max_pixels: 1 << 20 };

// A panic of a reader that we guard is no finding; one that gets out still is.
fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |bytes: &[u8]| {
    let decoded = std::str::from_utf8(bytes).ok().and_then(|text| decode_data_uri(text).ok());
    let bytes = decoded.as_deref().unwrap_or(bytes);
    let Ok(pixels) = decode(bytes, LIMITS) else { return };
    assert_eq!(pixels.rgb.len(), pixels.width as usize * pixels.height as usize * 3);
    assert_eq!(dimensions(bytes, LIMITS), Ok((pixels.width, pixels.height)));
});
