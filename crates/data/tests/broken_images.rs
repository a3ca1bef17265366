//! Every golden image, cut and mangled: none panics, hangs, or decodes to an image that it is not.

use garden_data::{
    DecodeLimits, ImageDecoder, ImageError, ImageWorkspace, Processor, ProcessorConfig,
    parsers::{decode_image, image_extent},
};
use std::{fs, path::Path};

/// Small enough that a mangled header cannot make the test slow.
const LIMITS: DecodeLimits = DecodeLimits { max_pixels: 1 << 20 };

fn images() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/images");
    let entries = fs::read_dir(folder).expect("the goldens").map(|entry| entry.expect("readable").path());
    let mut files: Vec<_> = entries.collect();
    files.sort();
    let named = |path: &std::path::PathBuf| path.file_name().expect("named").to_string_lossy().into_owned();
    files.iter().map(|path| (named(path), fs::read(path).expect("readable"))).collect()
}

fn golden(name: &str) -> Vec<u8> {
    let file = images().into_iter().find(|(file, _)| file == name);
    file.unwrap_or_else(|| panic!("{name} is a golden")).1
}

/// Numbers that look random and are the same on every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

#[test]
fn a_jpeg_cut_anywhere_is_refused() {
    for (name, bytes) in images().into_iter().filter(|(name, _)| name.ends_with(".jpg")) {
        let whole = decode_image(&bytes, LIMITS).expect(&name);
        for part in 1..40 {
            let cut = bytes.len() * part / 40;
            match decode_image(&bytes[..cut], LIMITS) {
                Err(ImageError::Truncated { .. } | ImageError::Broken { .. }) => {}
                Err(ImageError::UnknownFormat { .. }) if cut < 3 => {}
                // The last bytes may be metadata or padding: then every pixel must still be there.
                Ok(pixels) => assert_eq!(pixels, whole, "{name} cut at {cut}"),
                Err(other) => panic!("{name} cut at {cut}: {other}"),
            }
        }
        let half = decode_image(&bytes[..bytes.len() / 2 + 200], LIMITS);
        if bytes.len() > 2000 {
            assert!(matches!(half, Err(ImageError::Truncated { .. })), "{name}: {half:?}");
        }
    }
}

#[test]
fn a_broken_image_leaves_no_patches() {
    // Rows are cut into patches as they are decoded, so the first patches are there when the data ends early.
    let processor = Processor::new(ProcessorConfig::default(), LIMITS);
    let mut patches = vec![7; 3];
    for (name, bytes) in
        images().into_iter().filter(|(name, bytes)| name.ends_with(".jpg") && bytes.len() > 2000)
    {
        let cut = &bytes[..bytes.len() / 2 + 200];
        let failure = processor.append_patches(cut, &mut ImageWorkspace::default(), &mut patches);
        assert!(matches!(failure, Err(ImageError::Truncated { .. })), "{name}: {failure:?}");
        assert_eq!(patches, [7; 3], "{name}");
    }
}

#[test]
fn an_end_marker_does_not_hide_missing_data() {
    let (_, bytes) = images().into_iter().find(|(name, _)| name == "photo.jpg").expect("photo.jpg");
    let cut = [&bytes[..bytes.len() * 2 / 3], &[0xFF, 0xD9]].concat();
    let message = decode_image(&cut, LIMITS).expect_err("a third of its rows are missing").to_string();
    assert!(message.starts_with("truncated JPEG"), "{message}");
}

#[test]
fn mangled_images_never_panic() {
    let mut numbers = Numbers(1);
    let processor = Processor::new(ProcessorConfig::default(), LIMITS);
    let (mut work, mut patches) = (ImageWorkspace::default(), Vec::new());
    for (name, bytes) in images() {
        for _ in 0..60 {
            let mut mangled = bytes.clone();
            for _ in 0..1 + numbers.below(6) {
                let at = numbers.below(mangled.len());
                mangled[at] = numbers.below(256) as u8;
            }
            mangled.truncate(1 + numbers.below(mangled.len() * 2).min(mangled.len() - 1));
            let size = image_extent(&mangled, LIMITS).map(|extent| (extent.width, extent.height));
            let pixels = decode_image(&mangled, LIMITS);
            patches.clear();
            let grid = processor.append_patches(&mangled, &mut work, &mut patches);
            let sound = pixels.as_ref().map_err(ImageError::clone);
            let expected = sound.and_then(|pixels| processor.config().grid(pixels.width, pixels.height));
            assert_eq!(grid.is_ok(), expected.is_ok(), "{name}: {grid:?}, {expected:?}");
            if let Ok(pixels) = pixels {
                assert_eq!(pixels.rgb.len(), pixels.width as usize * pixels.height as usize * 3, "{name}");
                assert_eq!(size, Ok((pixels.width, pixels.height)), "{name}: the header says the same");
            }
        }
    }
}

#[test]
fn bombs_are_refused_by_their_header() {
    for (name, bytes) in images() {
        let limit = DecodeLimits { max_pixels: 40 };
        for failure in [decode_image(&bytes, limit).err(), image_extent(&bytes, limit).err()] {
            assert!(matches!(failure, Some(ImageError::TooLarge { limit: 40, .. })), "{name}: {failure:?}");
        }
    }
    // A frame header of 65535 x 65535 in 30 bytes.
    let jpeg = b"\xFF\xD8\xFF\xC0\0\x0B\x08\xFF\xFF\xFF\xFF\x01\x01\x11\0\xFF\xDA\0\x08\x01\x01\0\0\x3F\0\0";
    let failure = decode_image(jpeg, DecodeLimits::default()).expect_err("4.3 billion pixels");
    assert!(failure.to_string().starts_with("65535x65535 has more than the"), "{failure}");
    // One row of 6 GB.
    let mut png = golden("rgb.png");
    png[16..24].copy_from_slice(&[0xFF / 2, 0xFF, 0xFF, 0xFF, 0, 0, 0, 1]);
    seal(&mut png, 8);
    let failure = image_extent(&png, DecodeLimits::default()).expect_err("2.1 billion pixels");
    assert!(failure.to_string().contains("takes more than 64 MiB"), "{failure}");
}

/// The checksum of the chunk at `start` of a PNG.
fn seal(png: &mut [u8], start: usize) {
    let length = u32::from_be_bytes(png[start..start + 4].try_into().expect("four bytes")) as usize;
    let end = start + 8 + length;
    let sum = crc32fast::hash(&png[start + 4..end]);
    png[end..end + 4].copy_from_slice(&sum.to_be_bytes());
}

/// Compressed data that becomes `length` zeros: one literal, then matches of 258 bytes, 13 bits each.
fn deflated_zeros(length: usize) -> Vec<u8> {
    let begin = [1, 1, 0].into_iter().chain([0, 0, 1, 1, 0, 0, 0, 0]);
    let longest_match = [1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0];
    let bits: Vec<u8> = begin.chain(std::iter::repeat_n(longest_match, length / 258).flatten()).collect();
    let bytes = bits.chunks(8).map(|bits| bits.iter().rev().fold(0, |byte, bit| byte << 1 | bit));
    [0x78, 0x01].into_iter().chain(bytes).collect()
}

/// The most memory that this process ever had.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[test]
fn an_image_larger_than_the_room_for_its_extras_is_read() {
    const SIDE: u32 = 4800;
    let pixels = vec![7; SIDE as usize * SIDE as usize * 3];
    let mut png = Vec::new();
    let encoder = ::image::codecs::png::PngEncoder::new(&mut png);
    ::image::ImageEncoder::write_image(encoder, &pixels, SIDE, SIDE, ::image::ExtendedColorType::Rgb8)
        .expect("an encoded image");
    let decoded = decode_image(&png, DecodeLimits::default()).expect("69 MB of pixels are within the limits");
    assert!(decoded.rgb == pixels);
}

#[test]
fn a_colour_profile_is_no_bomb_either() {
    const INFLATED: usize = 1_000_000_000;
    let plain = golden("rgb.png");
    let profile = [b"bomb\0\0".as_slice(), &deflated_zeros(INFLATED)].concat();
    let chunk = [&(profile.len() as u32).to_be_bytes(), b"iCCP".as_slice(), &profile, &[0; 4]].concat();
    // After the header, which has 25 bytes.
    let mut png = [&plain[..33], &chunk, &plain[33..]].concat();
    seal(&mut png, 33);
    let before = peak();
    assert_eq!(image_extent(&png, LIMITS), image_extent(&plain, LIMITS));
    assert_eq!(decode_image(&png, LIMITS), decode_image(&plain, LIMITS), "profiles are not applied");
    let grown = peak() - before;
    assert!(grown < INFLATED as u64 / 2, "{grown} bytes for an image of {} bytes", png.len());
}

/// A colour JPEG made of a grey one: its only scan again and again, for these components in turn.
fn one_scan_each(components: &[u8]) -> Vec<u8> {
    let grey = golden("grey.jpg");
    let place = |marker: u8| grey.windows(2).position(|pair| pair == [0xFF, marker]).expect("the marker");
    let (frame, scan, end) = (place(0xC0), place(0xDA), grey.len() - 2);
    let size = &grey[frame + 5..frame + 9];
    let header = [b"\xFF\xC0\0\x11\x08", size, b"\x03\x01\x11\0\x02\x11\0\x03\x11\0"].concat();
    let mut jpeg = [&grey[..frame], &header, &grey[frame + 13..scan]].concat();
    for &component in components {
        jpeg.extend([&grey[scan..scan + 5], &[component], &grey[scan + 6..end]].concat());
    }
    jpeg.extend(&grey[end..]);
    jpeg
}

#[test]
fn no_plane_shows_an_earlier_image() {
    let mut decoder = ImageDecoder::default();
    decoder.decode(&golden("photo.jpg"), LIMITS).expect("a photo");
    decoder.decode(&one_scan_each(&[1, 2, 3]), LIMITS).expect("each component has its scan");
    decoder.decode(&one_scan_each(&[1, 1, 2, 3]), LIMITS).expect("the first one came twice, all came");
    for missing in [[1, 1, 1], [1, 2, 2], [3, 2, 3]] {
        let failure = decoder.decode(&one_scan_each(&missing), LIMITS).err();
        assert!(matches!(failure, Some(ImageError::Truncated { .. })), "{missing:?}: {failure:?}");
    }
}

#[test]
fn what_is_no_image_is_named() {
    let message = |bytes: &[u8]| decode_image(bytes, LIMITS).expect_err("no image").to_string();
    assert_eq!(message(b""), "the image is empty (0 bytes)");
    let html = message(b"<html><body>404 not found");
    assert!(html.starts_with("not an image: the data starts with \"<html><body>\""), "{html}");
    assert!(message(b"\xFF\xD8\xFF\xE0").starts_with("truncated JPEG"));
}
