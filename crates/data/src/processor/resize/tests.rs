//! Against another implementation, `fast_image_resize`, called once for each pass: in one call it would go
//! vertically first.

use super::*;
use fast_image_resize as fir;
use fir::images::{TypedImage, TypedImageRef};
use fir::pixels::U8x3;

/// Width and height before and after: enlarged, reduced by little and by much (which takes the plain code),
/// unchanged, and smaller than the filter is wide.
const SIZES: [((u32, u32), (u32, u32)); 8] = [
    ((100, 75), (112, 84)),
    ((131, 97), (112, 84)),
    ((300, 211), (112, 84)),
    ((700, 500), (56, 28)),
    ((84, 56), (84, 56)),
    ((3, 2), (56, 28)),
    ((1, 1), (28, 28)),
    ((59, 1000), (56, 28)),
];
const BAND_ROWS: usize = 14;

/// Bytes that look random, with stretches of black and white that make the filter overshoot.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u8
    };
    (0..length).map(|at| if at / 50 % 2 == 0 { next() } else { 255 * (next() & 1) }).collect()
}

/// What the other implementation gives, pixel by pixel.
fn reference(rgb: &[u8], from: (u32, u32), to: (u32, u32)) -> Vec<u8> {
    let pass = |rgb: &[u8], old: (u32, u32), new: (u32, u32)| {
        let bicubic =
            fir::ResizeOptions::new().resize_alg(fir::ResizeAlg::Convolution(fir::FilterType::CatmullRom));
        let mut out = vec![0; (new.0 * new.1 * 3) as usize];
        let from = TypedImageRef::<U8x3>::from_buffer(old.0, old.1, rgb).expect("its size");
        let mut to = TypedImage::<U8x3>::from_buffer(new.0, new.1, &mut out).expect("its size");
        fir::Resizer::new().resize_typed(&from, &mut to, &bicubic).expect("a whole image");
        out
    };
    pass(&pass(rgb, from, (to.0, from.1)), (to.0, from.1), to)
}

#[test]
fn images_of_any_size_become_what_another_implementation_makes_of_them() {
    // One after another in the same buffers, as a worker does.
    let mut resizer = Resizer::default();
    for (from, to) in SIZES {
        let rgb = noise((from.0 * from.1 * 3) as usize);
        let mut out = vec![0; (to.0 * to.1 * 3) as usize];
        resizer.begin(from, to, BAND_ROWS);
        for row in rgb.chunks_exact(from.0 as usize * 3) {
            for (channel, samples) in resizer.space().into_iter().enumerate() {
                samples.iter_mut().zip(row[channel..].iter().step_by(3)).for_each(|(to, from)| *to = *from);
            }
            resizer.advance(|number, band| {
                for (y, x) in (0..BAND_ROWS).flat_map(|y| (0..to.0 as usize).map(move |x| (y, x))) {
                    let at = ((number * BAND_ROWS + y) * to.0 as usize + x) * 3;
                    (0..3).for_each(|channel| out[at + channel] = band.row(y, channel)[x]);
                }
            });
        }
        assert!(out == reference(&rgb, from, to), "{from:?} to {to:?}");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn vectors_give_what_plain_code_gives() {
    let mut vectorised = 0;
    for ((from, _), (to, _)) in SIZES {
        let mut weights = Weights::default();
        weights.prepare(from as usize, to as usize);
        let stride = weights.from + weights.taps + VECTOR;
        let incoming = noise(CHANNELS * stride);
        let plane = weights.to.next_multiple_of(VECTOR);
        let (mut plain, mut vectors) = (vec![0; CHANNELS * plane], vec![0; CHANNELS * plane]);
        plain::narrow(&weights, &incoming, stride, &mut plain, plane);
        let Some(groups) = vectors::Groups::new(&weights) else { continue };
        vectorised += 1;
        groups.narrow(&incoming, stride, &mut vectors, plane);
        for channel in 0..CHANNELS {
            let outputs = channel * plane..channel * plane + weights.to;
            assert_eq!(vectors[outputs.clone()], plain[outputs], "{from} to {to}, sideways");
        }
        let rows = noise(weights.taps * plane);
        let offsets: Vec<usize> = (0..weights.taps).map(|row| row * plane).collect();
        let inputs = plain::Inputs { rows: &rows, offsets: &offsets, weights: weights.of(weights.to / 2) };
        let (mut plain, mut vectors) = (vec![0; plane], vec![0; plane]);
        plain::combine(&inputs, weights.precision, &mut plain);
        assert!(vectors::combine(&inputs, weights.precision, &mut vectors), "like the groups above");
        assert_eq!(vectors, plain, "{from} to {to}, downwards");
    }
    assert!(vectorised == 0 || vectorised > SIZES.len() / 2, "most sizes take vectors: {vectorised}");
}
