//! Rows of components to rows of RGB.
//!
//! In come planes of which some rows are complete; out go finished rows of pixels, each exactly once. The conversion
//! is that of libjpeg in 16-bit arithmetic: products keep their high halves, twice the value is rounded back to one.

use super::{
    super::colour::cmyk,
    header::{Colours, Frame},
    planes::Planes,
    upsample::Upsampler,
};
use std::ops::Range;

/// Converts an image as its rows come in.
#[derive(Default)]
pub(super) struct RowConverter {
    upsamplers: Vec<Upsampler>,
    colours: Option<Colours>,
    width: usize,
    height: usize,
    rows_per_unit: usize,
    /// Rows already written.
    done: usize,
}

impl RowConverter {
    /// Begins an image.
    pub fn prepare(&mut self, frame: &Frame, colours: Colours) {
        let upsampler = |component| Upsampler::new(frame, component);
        *self = Self {
            upsamplers: frame.components.iter().map(upsampler).collect(),
            colours: Some(colours),
            width: frame.width as usize,
            height: frame.height as usize,
            rows_per_unit: frame.max_sampling().1 * 8,
            done: 0,
        };
    }

    /// Writes the rows that `units` complete rows of units allow, but for those written before.
    pub fn convert(&mut self, planes: &Planes, units: usize, rgb: &mut [u8]) {
        let complete = units * self.rows_per_unit;
        let context = usize::from(self.upsamplers.iter().any(Upsampler::looks_ahead));
        let ready = if complete >= self.height { self.height } else { complete.saturating_sub(context) };
        let Some(colours) = self.colours else { return };
        let upsamplers = &mut self.upsamplers[..];
        pulp::Arch::new().dispatch(Rows {
            colours,
            upsamplers,
            planes,
            width: self.width,
            ys: self.done..ready,
            rgb,
        });
        self.done = self.done.max(ready);
    }
}

/// Some rows, compiled once for each instruction set.
struct Rows<'a> {
    colours: Colours,
    upsamplers: &'a mut [Upsampler],
    planes: &'a Planes,
    width: usize,
    ys: Range<usize>,
    /// The whole image.
    rgb: &'a mut [u8],
}

impl pulp::WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        for y in self.ys {
            let row = &mut self.rgb[y * self.width * 3..][..self.width * 3];
            convert_row(self.colours, self.upsamplers, self.planes, y, row);
        }
    }
}

#[inline(always)]
fn convert_row(colours: Colours, upsamplers: &mut [Upsampler], planes: &Planes, y: usize, rgb: &mut [u8]) {
    let pixels = rgb.as_chunks_mut::<3>().0;
    match (colours, upsamplers) {
        (Colours::Grey, [grey, ..]) => {
            let row = grey.row(planes.plane(0), y);
            pixels.iter_mut().zip(row).for_each(|(pixel, &level)| *pixel = [level; 3]);
        }
        (Colours::Cmyk | Colours::Ycck, [first, second, third, black]) => {
            let first = first.row(planes.plane(0), y);
            let second = second.row(planes.plane(1), y);
            let third = third.row(planes.plane(2), y);
            let black = black.row(planes.plane(3), y);
            for (x, pixel) in pixels.iter_mut().enumerate() {
                let colours_of = |[c, m, y]: [u8; 3]| cmyk([255 - c, 255 - m, 255 - y, 255 - black[x]]);
                let stored = [first[x], second[x], third[x]];
                *pixel = match colours {
                    // Luminance and chrominance code the complement of the inks.
                    Colours::Ycck => {
                        colours_of(rgb_of(stored[0], stored[1], stored[2]).map(|light| 255 - light))
                    }
                    _ => colours_of(stored),
                };
            }
        }
        (Colours::Rgb, [red, green, blue, ..]) => {
            let (red, green) = (red.row(planes.plane(0), y), green.row(planes.plane(1), y));
            let blue = blue.row(planes.plane(2), y);
            for (((pixel, &red), &green), &blue) in pixels.iter_mut().zip(red).zip(green).zip(blue) {
                *pixel = [red, green, blue];
            }
        }
        (Colours::YCbCr, [luma, cb, cr, ..]) => {
            let (luma, cb) = (luma.row(planes.plane(0), y), cb.row(planes.plane(1), y));
            let cr = cr.row(planes.plane(2), y);
            for (((pixels, luma), cb), cr) in pixels
                .chunks_mut(STRETCH)
                .zip(luma.chunks(STRETCH))
                .zip(cb.chunks(STRETCH))
                .zip(cr.chunks(STRETCH))
            {
                convert_stretch(pixels, luma, cb, cr);
            }
        }
        _ => {}
    }
}

/// Pixels that are converted channel by channel before they are laid side by side.
const STRETCH: usize = 64;

/// Up to a stretch of pixels; a whole one takes vector instructions.
#[inline(always)]
fn convert_stretch(pixels: &mut [[u8; 3]], luma: &[u8], cb: &[u8], cr: &[u8]) {
    let whole = (luma.first_chunk::<STRETCH>(), cb.first_chunk::<STRETCH>(), cr.first_chunk::<STRETCH>());
    let (Some(pixels), (Some(luma), Some(cb), Some(cr))) =
        (pixels.as_chunks_mut::<STRETCH>().0.first_mut(), whole)
    else {
        for (((pixel, &luma), &cb), &cr) in pixels.iter_mut().zip(luma).zip(cb).zip(cr) {
            *pixel = rgb_of(luma, cb, cr);
        }
        return;
    };
    let (mut red, mut green, mut blue) = ([0; STRETCH], [0; STRETCH], [0; STRETCH]);
    for x in 0..STRETCH {
        [red[x], green[x], blue[x]] = rgb_of(luma[x], cb[x], cr[x]);
    }
    for x in 0..STRETCH {
        pixels[x] = [red[x], green[x], blue[x]];
    }
}

/// Luminance and chrominance to light.
#[inline(always)]
fn rgb_of(luma: u8, cb: u8, cr: u8) -> [u8; 3] {
    /// 0.402, 0.228, 0.34414 and 0.71414 in 65536ths: 1.402 is one more, 1.772 is two less.
    const RED: i16 = 26345;
    const BLUE: i16 = 14942;
    const GREEN_CB: i32 = 22554;
    const GREEN_CR: i32 = 46802;
    let (luma, cb, cr) = (i16::from(luma), i16::from(cb) - 128, i16::from(cr) - 128);
    let high = |a: i16, b: i16| ((i32::from(a) * i32::from(b)) >> 16) as i16;
    let red = luma + cr + ((high(2 * cr, RED) + 1) >> 1);
    let blue = luma + 2 * cb + ((high(2 * cb, -BLUE) + 1) >> 1);
    let green = luma + ((32768 - GREEN_CB * i32::from(cb) - GREEN_CR * i32::from(cr)) >> 16) as i16;
    [red, green, blue].map(|light| light.clamp(0, 255) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// libjpeg's tables, written down from its documentation of the method.
    fn by_tables(luma: i32, cb: i32, cr: i32) -> [u8; 3] {
        let fix = |factor: f64| (factor * 65536.0 + 0.5) as i32;
        let (cb, cr) = (cb - 128, cr - 128);
        let red = luma + ((fix(1.402) * cr + 32768) >> 16);
        let green = luma + ((-fix(0.34414) * cb - fix(0.71414) * cr + 32768) >> 16);
        let blue = luma + ((fix(1.772) * cb + 32768) >> 16);
        [red, green, blue].map(|light| light.clamp(0, 255) as u8)
    }

    #[test]
    fn sixteen_bits_give_what_the_tables_give() {
        for cb in 0..=255u8 {
            for cr in 0..=255u8 {
                for luma in [0, 1, 77, 128, 200, 255u8] {
                    let expected = by_tables(luma.into(), cb.into(), cr.into());
                    assert_eq!(rgb_of(luma, cb, cr), expected, "{luma} {cb} {cr}");
                }
            }
        }
    }
}
