//! Reads the markers of a JPEG: sizes, tables, scans.
//!
//! Takes the file's bytes and gives the [`Frame`], the tables in force at each scan, and each scan's
//! entropy-coded data with its byte stuffing removed. Lengths and numbers are checked here, so that the
//! decoding loops need not.

use super::{
    super::{ImageError, ImageFormat, Orientation},
    huffman::HuffmanTable,
};
use memchr::memchr;

const FORMAT: ImageFormat = ImageFormat::Jpeg;
/// The most scans of an image; no encoder writes as many. Each scan is a walk over the whole image, so
/// without a limit a small file could take hours.
const MAX_SCANS: usize = 200;

/// The image as its frame header describes it.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub width: u32,
    pub height: u32,
    pub progressive: bool,
    pub components: Vec<Component>,
    /// Coding units (MCUs) across and down.
    pub mcu_columns: usize,
    pub mcu_rows: usize,
}

/// One colour of the image.
#[derive(Debug, Clone)]
pub(super) struct Component {
    id: u8,
    /// Sampling factors across and down.
    pub h: usize,
    pub v: usize,
    /// Which quantisation table it uses.
    pub quantisation: usize,
    /// Samples across and down, without the padding to whole blocks.
    pub width: usize,
    pub height: usize,
    /// Blocks across and down, padded to whole units.
    pub block_columns: usize,
    pub block_rows: usize,
}

impl Frame {
    /// The largest sampling factors.
    pub fn max_sampling(&self) -> (usize, usize) {
        let widest = self.components.iter().map(|component| component.h).max().unwrap_or(1);
        let tallest = self.components.iter().map(|component| component.v).max().unwrap_or(1);
        (widest, tallest)
    }
}

/// What a scan holds.
#[derive(Debug)]
pub(super) struct Scan {
    pub components: Vec<ScanComponent>,
    /// First and last coefficient in zigzag order.
    pub spectrum: (usize, usize),
    /// Successive approximation: the bit position of the previous pass and of this one.
    pub approximation: (u8, u8),
}

/// A component's part in a scan.
#[derive(Debug)]
pub(super) struct ScanComponent {
    /// Which of the frame's components.
    pub index: usize,
    pub dc_table: usize,
    pub ac_table: usize,
}

/// What follows the markers that were read.
pub(super) enum Next {
    Scan(Scan),
    End,
}

/// The tables in force.
#[derive(Default)]
pub(super) struct Tables {
    /// In zigzag order.
    pub quantisation: [Option<[u16; 64]>; 4],
    pub dc: [Option<HuffmanTable>; 4],
    pub ac: [Option<HuffmanTable>; 4],
    /// Units between restart markers; 0 means none.
    pub restart_interval: usize,
}

/// The data of one scan, split at its restart markers.
pub(super) struct EntropyCoded<'a> {
    pub bytes: &'a [u8],
    /// Where each segment ends.
    pub ends: Vec<usize>,
    /// Bytes of the file, for the message.
    pub file_length: usize,
}

/// What the components stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colours {
    Grey,
    YCbCr,
    Rgb,
    /// Inks, inverted as Adobe writes them. Pillow always takes them so.
    Cmyk,
    /// Inks whose first three are coded as luminance and chrominance.
    Ycck,
}

/// Reads markers in order.
pub(super) struct Headers<'a> {
    bytes: &'a [u8],
    at: usize,
    frame: Option<Frame>,
    tables: Tables,
    jfif: bool,
    adobe_transform: Option<u8>,
    exif: Option<Orientation>,
    xmp: Option<Orientation>,
}

pub(super) fn broken(reason: impl Into<String>) -> ImageError {
    ImageError::Broken { format: FORMAT, reason: reason.into() }
}

pub(super) fn truncated(length: usize) -> ImageError {
    ImageError::Truncated { format: FORMAT, length }
}

fn unsupported(reason: impl Into<String>) -> ImageError {
    ImageError::Unsupported { format: FORMAT, reason: reason.into() }
}

pub(super) fn check_scan_count(scans: usize) -> Result<(), ImageError> {
    if scans > MAX_SCANS {
        return Err(broken(format!("it has more than {MAX_SCANS} scans")));
    }
    Ok(())
}

impl<'a> Headers<'a> {
    pub fn new(bytes: &'a [u8]) -> Result<Self, ImageError> {
        Ok(Self {
            bytes,
            at: 2,
            frame: None,
            tables: Tables::default(),
            jfif: false,
            adobe_transform: None,
            exif: None,
            xmp: None,
        })
    }

    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    pub fn frame(&self) -> Result<&Frame, ImageError> {
        self.frame.as_ref().ok_or_else(|| broken("there is no frame header"))
    }

    /// The orientation by EXIF, else by XMP, as in Pillow.
    pub fn orientation(&self) -> Orientation {
        self.exif.or(self.xmp).unwrap_or_default()
    }

    /// Guesses the colour model as libjpeg does.
    pub fn colours(&self, frame: &Frame) -> Result<Colours, ImageError> {
        let ids: Vec<u8> = frame.components.iter().map(|component| component.id).collect();
        match (frame.components.len(), self.adobe_transform) {
            (1, _) => Ok(Colours::Grey),
            (3, _) if self.jfif => Ok(Colours::YCbCr),
            (3, Some(0)) => Ok(Colours::Rgb),
            (3, None) if ids == *b"RGB" => Ok(Colours::Rgb),
            (3, _) => Ok(Colours::YCbCr),
            (4, Some(0) | None) => Ok(Colours::Cmyk),
            (4, Some(_)) => Ok(Colours::Ycck),
            (count, _) => Err(unsupported(format!("{count} components"))),
        }
    }

    /// Reads on to the next scan's header, or to the end of the image.
    pub fn next_scan(&mut self) -> Result<Next, ImageError> {
        loop {
            let marker = self.marker()?;
            match marker {
                0xD9 => return Ok(Next::End),
                // Markers without a segment; a stray restart marker is no harm between segments.
                0x01 | 0xD0..=0xD7 => continue,
                _ => {}
            }
            let segment = self.segment()?;
            match marker {
                0xC0..=0xC2 => self.read_frame(marker, segment)?,
                0xC4 => self.read_huffman(segment)?,
                0xDA => return self.read_scan(segment).map(Next::Scan),
                0xDB => self.read_quantisation(segment)?,
                0xDD => self.read_restart_interval(segment)?,
                0xE0 if segment.starts_with(b"JFIF\0") => self.jfif = true,
                0xE1 => self.read_application_1(segment),
                0xEE if segment.starts_with(b"Adobe") => self.adobe_transform = segment.get(11).copied(),
                0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => {
                    return Err(unsupported("lossless, hierarchical or arithmetic coding"));
                }
                0xDC => return Err(unsupported("a height given after the scan")),
                _ => {}
            }
        }
    }

    /// Finds the next marker. Bytes that belong to no marker are skipped, as other decoders do.
    fn marker(&mut self) -> Result<u8, ImageError> {
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            let start = memchr(0xFF, rest).ok_or_else(|| truncated(self.bytes.len()))?;
            let code = rest[start..].iter().position(|&byte| byte != 0xFF);
            let code = start + code.ok_or_else(|| truncated(self.bytes.len()))?;
            self.at += code + 1;
            if rest[code] != 0 {
                return Ok(rest[code]);
            }
        }
    }

    fn segment(&mut self) -> Result<&'a [u8], ImageError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let &[high, low, ref after @ ..] = rest else { return Err(truncated(self.bytes.len())) };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let length = length.checked_sub(2).ok_or_else(|| broken("a segment of length below 2"))?;
        let segment = after.get(..length).ok_or_else(|| truncated(self.bytes.len()))?;
        self.at += 2 + length;
        Ok(segment)
    }

    fn read_application_1(&mut self, segment: &[u8]) {
        if segment.starts_with(b"Exif\0\0") && self.exif.is_none() {
            self.exif = Orientation::from_exif(segment);
        } else if let Some(packet) = segment.strip_prefix(b"http://ns.adobe.com/xap/1.0/\0") {
            self.xmp = self.xmp.or(Orientation::from_xmp(packet));
        }
    }

    fn read_restart_interval(&mut self, segment: &[u8]) -> Result<(), ImageError> {
        let &[high, low] = segment else { return Err(broken("a restart interval of the wrong length")) };
        self.tables.restart_interval = usize::from(u16::from_be_bytes([high, low]));
        Ok(())
    }

    fn read_quantisation(&mut self, mut segment: &[u8]) -> Result<(), ImageError> {
        while let &[which, ref rest @ ..] = segment {
            let (wide, slot) = (which >> 4 != 0, usize::from(which & 15));
            let length = if wide { 128 } else { 64 };
            let values = rest.get(..length).ok_or_else(|| broken("a short quantisation table"))?;
            let table = std::array::from_fn(|k| match wide {
                true => u16::from_be_bytes([values[2 * k], values[2 * k + 1]]),
                false => u16::from(values[k]),
            });
            let slot = self.tables.quantisation.get_mut(slot);
            *slot.ok_or_else(|| broken("a quantisation table beyond the fourth"))? = Some(table);
            segment = &rest[length..];
        }
        Ok(())
    }

    fn read_huffman(&mut self, mut segment: &[u8]) -> Result<(), ImageError> {
        while let &[which, ref rest @ ..] = segment {
            let counts: &[u8; 16] = rest.first_chunk().ok_or_else(|| broken("a short Huffman table"))?;
            let symbols = counts.iter().map(|&count| usize::from(count)).sum::<usize>();
            let values = rest.get(16..16 + symbols).ok_or_else(|| broken("a short Huffman table"))?;
            let is_dc = which >> 4 == 0;
            let table = HuffmanTable::new(counts, values, is_dc).map_err(broken)?;
            let tables = if is_dc { &mut self.tables.dc } else { &mut self.tables.ac };
            let slot = tables.get_mut(usize::from(which & 15));
            *slot.ok_or_else(|| broken("a Huffman table beyond the fourth"))? = Some(table);
            segment = &rest[16 + symbols..];
        }
        Ok(())
    }

    fn read_frame(&mut self, marker: u8, segment: &[u8]) -> Result<(), ImageError> {
        if self.frame.is_some() {
            return Err(broken("it has two frame headers"));
        }
        let &[precision, h1, h0, w1, w0, count, ref rest @ ..] = segment else {
            return Err(broken("a short frame header"));
        };
        if precision != 8 {
            return Err(unsupported(format!("{precision} bits a sample")));
        }
        let (height, width) = (u16::from_be_bytes([h1, h0]), u16::from_be_bytes([w1, w0]));
        if width == 0 || height == 0 {
            return Err(broken(format!("it says it is {width}x{height}")));
        }
        let specifications = rest.as_chunks::<3>().0;
        if specifications.len() != usize::from(count) || !matches!(count, 1 | 3 | 4) {
            return Err(unsupported(format!("{count} components")));
        }
        let sampling = |spec: &[u8; 3]| (usize::from(spec[1] >> 4), usize::from(spec[1] & 15));
        if specifications.iter().map(sampling).any(|(h, v)| !(1..=4).contains(&h) || !(1..=4).contains(&v)) {
            return Err(broken("sampling factors out of range"));
        }
        let max_h = specifications.iter().map(|spec| sampling(spec).0).max().unwrap_or(1);
        let max_v = specifications.iter().map(|spec| sampling(spec).1).max().unwrap_or(1);
        let (width, height) = (usize::from(width), usize::from(height));
        let (mcu_columns, mcu_rows) = (width.div_ceil(8 * max_h), height.div_ceil(8 * max_v));
        let component = |spec: &[u8; 3]| {
            let (h, v) = sampling(spec);
            if !max_h.is_multiple_of(h) || !max_v.is_multiple_of(v) {
                return Err(unsupported("fractional sampling"));
            }
            Ok(Component {
                id: spec[0],
                h,
                v,
                quantisation: usize::from(spec[2] & 3),
                width: (width * h).div_ceil(max_h),
                height: (height * v).div_ceil(max_v),
                block_columns: mcu_columns * h,
                block_rows: mcu_rows * v,
            })
        };
        self.frame = Some(Frame {
            width: width as u32,
            height: height as u32,
            progressive: marker == 0xC2,
            components: specifications.iter().map(component).collect::<Result<_, _>>()?,
            mcu_columns,
            mcu_rows,
        });
        Ok(())
    }

    fn read_scan(&mut self, segment: &[u8]) -> Result<Scan, ImageError> {
        let frame = self.frame()?;
        let &[count, ref rest @ ..] = segment else { return Err(broken("a short scan header")) };
        let count = usize::from(count);
        let (selectors, after) =
            rest.split_at_checked(2 * count).ok_or_else(|| broken("a short scan header"))?;
        let &[start, end, approximation] = after else {
            return Err(broken("a scan header of the wrong length"));
        };
        let mut components: Vec<ScanComponent> = Vec::with_capacity(count);
        for &[id, tables] in selectors.as_chunks::<2>().0 {
            let index = frame.components.iter().position(|component| component.id == id);
            let index = index.ok_or_else(|| broken(format!("a scan of the unknown component {id}")))?;
            if components.iter().any(|other| other.index >= index) {
                return Err(broken("a scan with its components out of order"));
            }
            let (dc_table, ac_table) = (usize::from(tables >> 4 & 3), usize::from(tables & 3));
            components.push(ScanComponent { index, dc_table, ac_table });
        }
        if components.is_empty() {
            return Err(broken("a scan without components"));
        }
        let scan = Scan {
            components,
            spectrum: (usize::from(start), usize::from(end)),
            approximation: (approximation >> 4, approximation & 15),
        };
        check_spectrum(frame, &scan)?;
        Ok(scan)
    }

    /// Copies the data of the scan that begins here into `buffer`, without stuffing.
    pub fn entropy_coded<'b>(&mut self, buffer: &'b mut Vec<u8>) -> Result<EntropyCoded<'b>, ImageError> {
        buffer.clear();
        let mut ends = Vec::new();
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            let Some(length) = memchr(0xFF, rest) else {
                // No marker follows. If the data is too short, the decoder finds out.
                buffer.extend_from_slice(rest);
                self.at = self.bytes.len();
                break;
            };
            buffer.extend_from_slice(&rest[..length]);
            self.at += length;
            match rest.get(length + 1) {
                Some(0) => {
                    buffer.push(0xFF);
                    self.at += 2;
                }
                Some(0xFF) => self.at += 1,
                Some(0xD0..=0xD7) => {
                    ends.push(buffer.len());
                    self.at += 2;
                }
                Some(_) => break,
                None => {
                    self.at = self.bytes.len();
                    break;
                }
            }
        }
        ends.push(buffer.len());
        Ok(EntropyCoded { bytes: buffer, ends, file_length: self.bytes.len() })
    }
}

/// Checks the coefficients that a progressive scan holds: DC of any components, or a band of AC of one. Scans
/// of a sequential frame hold whole blocks.
fn check_spectrum(frame: &Frame, scan: &Scan) -> Result<(), ImageError> {
    if !frame.progressive {
        return Ok(());
    }
    let ((start, end), (high, low)) = (scan.spectrum, scan.approximation);
    let dc = start == 0 && end == 0;
    let ac = start >= 1 && start <= end && end <= 63 && scan.components.len() == 1;
    let refines = high == 0 || high == low + 1;
    if !(dc || ac) || !refines || low > 13 {
        return Err(broken(format!(
            "a progressive scan of coefficients {start} to {end}, bits {high} to {low}"
        )));
    }
    Ok(())
}
