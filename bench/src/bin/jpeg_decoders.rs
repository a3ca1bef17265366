//! Compares our JPEG decoder with zune-jpeg: milliseconds on one core, and how far zune-jpeg's pixels are
//! from ours. Ours equal Pillow's to the last bit, which the goldens and the peers suite check.
//!
//!     python bench/images.py --keep photos        # photos of the three sizes; times Pillow's decoder as well
//!     cargo run --release -p garden-bench --bin jpeg_decoders photos/*.jpg

use anyhow::{Context, Result, anyhow};
use garden_data::{DecodeLimits, ImageDecoder};
use std::time::Instant;
use zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions};
use zune_jpeg::JpegDecoder;

/// Times that each decoder decodes each file, in turn; the fastest counts, because noise only adds time.
const ROUNDS: usize = 15;

fn main() -> Result<()> {
    println!(
        "{:24} {:>9} {:>9}   zune-jpeg's distance: max, mean levels, share of samples",
        "file", "ours ms", "zune ms"
    );
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path).context(path.clone())?;
        let (mut decoder, mut theirs) = (ImageDecoder::default(), Vec::new());
        let (mut our_best, mut their_best) = (f64::MAX, f64::MAX);
        for _ in 0..ROUNDS {
            our_best = our_best
                .min(milliseconds(|| Ok(decoder.decode(&bytes, DecodeLimits::default()).map(|_| ())?))?);
            their_best = their_best.min(milliseconds(|| zune(&bytes, &mut theirs))?);
        }
        let ours = &decoder.decode(&bytes, DecodeLimits::default())?.rgb;
        let (max, mean, share) = distance(ours, &theirs);
        let name = path.rsplit('/').next().unwrap_or(&path);
        println!("{name:24} {our_best:9.2} {their_best:9.2}   {max}, {mean:.3}, {:.1}%", share * 100.0);
    }
    Ok(())
}

fn zune(bytes: &[u8], pixels: &mut Vec<u8>) -> Result<()> {
    let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|error| anyhow!("{error:?}"))?;
    pixels.resize(decoder.output_buffer_size().context("no size")?, 0);
    decoder.decode_into(pixels).map_err(|error| anyhow!("{error:?}"))
}

fn milliseconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

fn distance(a: &[u8], b: &[u8]) -> (u8, f64, f64) {
    let differences = || a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    let count = a.len().max(1) as f64;
    let mean = differences().map(f64::from).sum::<f64>() / count;
    let share = differences().filter(|&difference| difference > 0).count() as f64 / count;
    (differences().max().unwrap_or(0), mean, share)
}
