//! Converts samples of any colour model to RGB, with Pillow's arithmetic.
//!
//! Takes rows of grey, grey with alpha, RGB, RGBA, palette indexes or CMYK samples and gives RGB triples.
//! Alpha is dropped, not blended, and CMYK is multiplied out in integers exactly as `Image.convert("RGB")`
//! does.

/// Appends one RGB triple for each group of `N` samples.
pub(super) fn extend<T: Copy, const N: usize>(
    rgb: &mut Vec<u8>,
    samples: &[T],
    to_rgb: impl Fn([T; N]) -> [u8; 3],
) {
    rgb.reserve(samples.len() / N * 3);
    rgb.extend(samples.as_chunks::<N>().0.iter().flat_map(|&sample| to_rgb(sample)));
}

/// A grey level as a colour.
pub(super) fn grey(level: u8) -> [u8; 3] {
    [level; 3]
}

/// A 16-bit grey level: Pillow clips it, it does not scale it.
pub(super) fn clipped(level: u16) -> u8 {
    level.min(255) as u8
}

/// The high byte of a 16-bit colour sample.
pub(super) fn high(sample: u16) -> u8 {
    (sample >> 8) as u8
}

/// Ink to light.
pub(super) fn cmyk([c, m, y, k]: [u8; 4]) -> [u8; 3] {
    let white = 255 - k;
    [c, m, y].map(|ink| white - product_over_255(ink, white))
}

/// `a * b / 255`, rounded to nearest, without a division.
fn product_over_255(a: u8, b: u8) -> u8 {
    let product = u32::from(a) * u32::from(b) + 128;
    ((product + (product >> 8)) >> 8) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_is_rounded_to_nearest() {
        for a in 0..=255 {
            for b in 0..=255 {
                let exact = f64::from(a) * f64::from(b) / 255.0;
                assert_eq!(f64::from(product_over_255(a, b)), exact.round(), "{a} * {b}");
            }
        }
    }
}
