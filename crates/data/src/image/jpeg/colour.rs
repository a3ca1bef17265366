//! Converts rows of components to rows of red, green and blue.
//!
//! Takes planes of which some rows are complete and gives finished rows, each exactly once. The results are
//! libjpeg's, computed in 16-bit arithmetic that vectors are fast at.

use super::{
    super::{RowSink, colour::cmyk},
    header::{Colours, Frame},
    planes::Planes,
    upsample::Upsampler,
};

/// Converts an image as its rows come in.
#[derive(Default)]
pub(super) struct RowConverter {
    upsamplers: Vec<Upsampler>,
    colours: Option<Colours>,
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
            height: frame.height as usize,
            rows_per_unit: frame.max_sampling().1 * 8,
            done: 0,
        };
    }

    /// Gives every row that `units` complete rows of units suffice for and that was not given before.
    pub fn convert(&mut self, planes: &Planes, units: usize, sink: &mut impl RowSink) {
        let complete = units * self.rows_per_unit;
        let context = usize::from(self.upsamplers.iter().any(Upsampler::looks_ahead));
        let ready = if complete >= self.height { self.height } else { complete.saturating_sub(context) };
        let Some(colours) = self.colours else { return };
        for y in self.done..ready {
            let (upsamplers, rgb) = (&mut self.upsamplers[..], sink.space());
            pulp::Arch::new().dispatch(Row { colours, upsamplers, planes, y, rgb });
            sink.advance();
        }
        self.done = self.done.max(ready);
    }
}

/// One row, compiled once for each instruction set.
struct Row<'a> {
    colours: Colours,
    upsamplers: &'a mut [Upsampler],
    planes: &'a Planes,
    y: usize,
    rgb: [&'a mut [u8]; 3],
}

impl pulp::WithSimd for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self { colours, upsamplers, planes, y, rgb } = self;
        match (colours, upsamplers) {
            (Colours::Grey, [grey, ..]) => {
                let row = grey.row(planes.plane(0), y);
                rgb.into_iter().for_each(|channel| copy(channel, row));
            }
            (Colours::Rgb, [red, green, blue, ..]) => {
                let [reds, greens, blues] = rgb;
                copy(reds, red.row(planes.plane(0), y));
                copy(greens, green.row(planes.plane(1), y));
                copy(blues, blue.row(planes.plane(2), y));
            }
            (Colours::YCbCr, [luma, cb, cr, ..]) => {
                let (luma, cb) = (luma.row(planes.plane(0), y), cb.row(planes.plane(1), y));
                convert_row(rgb, luma, cb, cr.row(planes.plane(2), y));
            }
            (Colours::Cmyk | Colours::Ycck, [first, second, third, black]) => {
                let inks = [
                    first.row(planes.plane(0), y),
                    second.row(planes.plane(1), y),
                    third.row(planes.plane(2), y),
                    black.row(planes.plane(3), y),
                ];
                convert_inks(rgb, inks, colours == Colours::Ycck);
            }
            _ => {}
        }
    }
}

#[inline(always)]
fn copy(channel: &mut [u8], row: &[u8]) {
    channel.copy_from_slice(&row[..channel.len()]);
}

#[inline(always)]
fn convert_inks([reds, greens, blues]: [&mut [u8]; 3], inks: [&[u8]; 4], coded_as_luminance: bool) {
    for (x, ((red, green), blue)) in reds.iter_mut().zip(greens).zip(blues).enumerate() {
        let [first, second, third, black] = inks.map(|ink| ink[x]);
        // Luminance and chrominance code the complement of the inks.
        let stored = if coded_as_luminance {
            rgb_of(first, second, third).map(|light| 255 - light)
        } else {
            [first, second, third]
        };
        let [c, m, y] = stored.map(|ink| 255 - ink);
        [*red, *green, *blue] = cmyk([c, m, y, 255 - black]);
    }
}

/// Pixels that are converted at once, in vectors.
const STRETCH: usize = 64;

#[inline(always)]
fn convert_row([reds, greens, blues]: [&mut [u8]; 3], luma: &[u8], cb: &[u8], cr: &[u8]) {
    let width = reds.len();
    let Some(last) = width.checked_sub(STRETCH) else {
        for x in 0..width {
            [reds[x], greens[x], blues[x]] = rgb_of(luma[x], cb[x], cr[x]);
        }
        return;
    };
    for start in (0..width).step_by(STRETCH) {
        // The last stretch overlaps the one before it, so that every stretch is whole.
        let range = start.min(last)..start.min(last) + STRETCH;
        let (luma, cb, cr) = (&luma[range.clone()], &cb[range.clone()], &cr[range.clone()]);
        let (mut red, mut green, mut blue) = ([0; STRETCH], [0; STRETCH], [0; STRETCH]);
        for x in 0..STRETCH {
            [red[x], green[x], blue[x]] = rgb_of(luma[x], cb[x], cr[x]);
        }
        reds[range.clone()].copy_from_slice(&red);
        greens[range.clone()].copy_from_slice(&green);
        blues[range].copy_from_slice(&blue);
    }
}

/// Converts luminance and chrominance to red, green and blue.
#[inline(always)]
fn rgb_of(luma: u8, cb: u8, cr: u8) -> [u8; 3] {
    /// 0.402, 0.228, 0.34414 and 0.28586 in 65536ths. They stand for libjpeg's factors, some of which do not
    /// fit into 16 bits: 1.402 = 1 + 0.402, 1.772 = 2 - 0.228, 0.71414 = 1 - 0.28586.
    const RED: i16 = 26345;
    const BLUE: i16 = 14942;
    const GREEN_CB: i16 = 22554;
    const GREEN_CR: i16 = 18734;
    let (luma, cb, cr) = (i16::from(luma), i16::from(cb) - 128, i16::from(cr) - 128);
    let product = |a: i16, b: i16| i32::from(a) * i32::from(b);
    let high = |a: i16, b: i16| (product(a, b) >> 16) as i16;
    let red = luma + cr + ((high(2 * cr, RED) + 1) >> 1);
    let blue = luma + 2 * cb + ((high(2 * cb, -BLUE) + 1) >> 1);
    let green = luma - cr + ((32768 - product(cb, GREEN_CB) + product(cr, GREEN_CR)) >> 16) as i16;
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
