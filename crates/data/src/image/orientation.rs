//! The EXIF orientation: how stored rows must be turned to stand upright.
//!
//! Takes the tag of an EXIF block (or of a TIFF) and turns pixels exactly as Pillow's `exif_transpose` does.
//! A missing or meaningless tag means upright.

use super::Pixels;

/// One of the eight ways in which a camera may have stored an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Orientation {
    /// Rows and columns are exchanged, first of all.
    transpose: bool,
    /// Then the columns run from right to left.
    mirror: bool,
    /// Then the rows run from bottom to top.
    upend: bool,
}

/// Side of the square that is transposed at once: its rows and columns both stay in the first-level cache.
const TILE: usize = 32;

impl Orientation {
    /// By the value of the EXIF tag 0x0112.
    pub fn from_tag(value: u16) -> Self {
        let (transpose, mirror, upend) = match value {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Self { transpose, mirror, upend }
    }

    /// Reads an EXIF block: a TIFF header and its first directory. `None` if it says nothing.
    pub fn from_exif(exif: &[u8]) -> Option<Self> {
        orientation_tag(exif).map(Self::from_tag)
    }

    /// Reads an XMP packet, which Pillow asks where EXIF says nothing.
    pub fn from_xmp(packet: &[u8]) -> Option<Self> {
        let key = b"tiff:Orientation";
        let at = memchr::memmem::find(packet, key)? + key.len();
        match packet.get(at..)? {
            [b'=', b'"', digit @ b'0'..=b'9', ..] | [b'>', digit @ b'0'..=b'9', ..] => {
                Some(Self::from_tag(u16::from(digit - b'0')))
            }
            _ => None,
        }
    }

    /// Whether width and height change places.
    pub fn swaps_sides(self) -> bool {
        self.transpose
    }

    /// Turns `pixels`, using `spare` as the second buffer.
    pub fn apply(self, pixels: &mut Pixels, spare: &mut Vec<u8>) {
        if self == Self::default() {
            return;
        }
        let (width, height) = (pixels.width as usize, pixels.height as usize);
        super::resize_buffer(spare, pixels.rgb.len());
        if self.transpose {
            self.transposed(&pixels.rgb, width, height, spare);
            (pixels.width, pixels.height) = (pixels.height, pixels.width);
        } else {
            self.flipped(&pixels.rgb, width, height, spare);
        }
        std::mem::swap(&mut pixels.rgb, spare);
    }

    fn flipped(self, from: &[u8], width: usize, height: usize, to: &mut [u8]) {
        for (y, row) in from.chunks_exact(width * 3).enumerate() {
            let y = if self.upend { height - 1 - y } else { y };
            let out = &mut to[y * width * 3..][..width * 3];
            if self.mirror {
                for (to, from) in out.chunks_exact_mut(3).zip(row.chunks_exact(3).rev()) {
                    to.copy_from_slice(from);
                }
            } else {
                out.copy_from_slice(row);
            }
        }
    }

    fn transposed(self, from: &[u8], width: usize, height: usize, to: &mut [u8]) {
        for top in (0..height).step_by(TILE) {
            for left in (0..width).step_by(TILE) {
                for x in left..width.min(left + TILE) {
                    let row = if self.upend { width - 1 - x } else { x };
                    for y in top..height.min(top + TILE) {
                        let column = if self.mirror { height - 1 - y } else { y };
                        let (source, target) = ((y * width + x) * 3, (row * height + column) * 3);
                        to[target..target + 3].copy_from_slice(&from[source..source + 3]);
                    }
                }
            }
        }
    }
}

/// Finds the tag in the first directory; `None` for anything malformed, because a broken EXIF block does not
/// make an image broken.
fn orientation_tag(exif: &[u8]) -> Option<u16> {
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let big_endian = match exif.get(..4)? {
        b"II*\0" => false,
        b"MM\0*" => true,
        _ => return None,
    };
    let short = |at: usize| -> Option<u16> {
        let bytes: [u8; 2] = exif.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    };
    let long = |at: usize| -> Option<usize> {
        let (first, second) = (usize::from(short(at)?), usize::from(short(at.checked_add(2)?)?));
        Some(if big_endian { first << 16 | second } else { second << 16 | first })
    };
    let directory = long(4)?;
    let entries = usize::from(short(directory)?);
    let entry = |index: usize| directory.checked_add(2 + 12 * index);
    let found = (0..entries).map_while(entry).find(|&at| short(at) == Some(0x0112))?;
    // Most writers use a SHORT, a few a LONG.
    match short(found + 2)? {
        3 => short(found + 8),
        4 => u16::try_from(long(found + 8)?).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two columns, three rows, each pixel its own number.
    fn numbered() -> Pixels {
        Pixels { width: 2, height: 3, rgb: (0..6).flat_map(|n| [n, n, n]).collect() }
    }

    fn turned(tag: u16) -> (u32, u32, Vec<u8>) {
        let mut pixels = numbered();
        Orientation::from_tag(tag).apply(&mut pixels, &mut Vec::new());
        (pixels.width, pixels.height, pixels.rgb.chunks(3).map(|p| p[0]).collect())
    }

    #[test]
    fn each_tag_turns_the_pixels_upright() {
        assert_eq!(turned(1), (2, 3, vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(turned(2), (2, 3, vec![1, 0, 3, 2, 5, 4]), "mirrored");
        assert_eq!(turned(3), (2, 3, vec![5, 4, 3, 2, 1, 0]), "half a turn");
        assert_eq!(turned(4), (2, 3, vec![4, 5, 2, 3, 0, 1]), "upside down");
        assert_eq!(turned(5), (3, 2, vec![0, 2, 4, 1, 3, 5]), "transposed");
        assert_eq!(turned(6), (3, 2, vec![4, 2, 0, 5, 3, 1]), "a quarter clockwise");
        assert_eq!(turned(7), (3, 2, vec![5, 3, 1, 4, 2, 0]), "transposed the other way");
        assert_eq!(turned(8), (3, 2, vec![1, 3, 5, 0, 2, 4]), "a quarter counter-clockwise");
        assert_eq!(turned(99), turned(1), "senseless tags mean upright");
    }

    #[test]
    fn xmp_is_read_in_both_spellings() {
        for packet in [r#"<x tiff:Orientation="6" />"#, "<tiff:Orientation>6</tiff:Orientation>"] {
            assert_eq!(Orientation::from_xmp(packet.as_bytes()), Some(Orientation::from_tag(6)));
        }
        assert_eq!(Orientation::from_xmp(b"tiff:Orientation"), None);
    }

    #[test]
    fn broken_exif_means_upright() {
        let exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0";
        assert_eq!(Orientation::from_exif(exif), Some(Orientation::from_tag(6)));
        for cut in 0..exif.len() - 2 {
            assert_eq!(Orientation::from_exif(&exif[..cut]), None, "cut at {cut}");
        }
    }
}
