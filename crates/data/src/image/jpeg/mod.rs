//! A JPEG decoder that gives Pillow's pixels, bit for bit.
//!
//! Takes the bytes of a baseline or progressive JPEG and gives RGB pixels in stored order and the EXIF
//! orientation. Every step is integer arithmetic with the rounding of libjpeg (slow integer IDCT,
//! triangle-filter upsampling). No pixel is ever made up: data that ends early or makes no sense is an error.

mod coefficients;
mod colour;
mod header;
mod huffman;
mod idct;
mod planes;
mod scan;
mod upsample;

use super::{DecodeLimits, Header, ImageError, ImageFormat, RowSink};
use coefficients::Coefficients;
use colour::RowConverter;
use header::{Frame, Headers, Next};
use planes::Planes;

/// An image whose headers are read, up to its first scan.
pub(super) struct Image<'a> {
    headers: Headers<'a>,
    frame: Frame,
    first_scan: Next,
}

impl<'a> Image<'a> {
    /// Reads the headers and checks the size against the limits.
    pub fn open(bytes: &'a [u8], limits: DecodeLimits) -> Result<Self, ImageError> {
        let mut headers = Headers::new(bytes)?;
        let first_scan = headers.next_scan()?;
        let frame = headers.frame()?.clone();
        limits.check(ImageFormat::Jpeg, frame.width, frame.height)?;
        Ok(Self { headers, frame, first_scan })
    }

    pub fn header(&self) -> Header {
        let samples = match (self.is_streamed(), self.frame.progressive) {
            (true, _) => 0,
            (false, false) => Planes::bytes(&self.frame),
            (false, true) => Planes::bytes(&self.frame) + Coefficients::bytes(&self.frame),
        };
        let (width, height) = (self.frame.width, self.frame.height);
        Header { width, height, orientation: self.headers.orientation(), samples }
    }

    /// Whether the first scan holds the whole image, so that rows can be given out while it is decoded.
    fn is_streamed(&self) -> bool {
        let together = |scan: &header::Scan| scan.components.len() == self.frame.components.len();
        !self.frame.progressive && matches!(&self.first_scan, Next::Scan(scan) if together(scan))
    }
}

/// Decodes one image after another and reuses its buffers.
#[derive(Default)]
pub(super) struct Decoder {
    planes: Planes,
    coefficients: Coefficients,
    converter: RowConverter,
    /// Entropy-coded data without its stuffing.
    unstuffed: Vec<u8>,
}

impl Decoder {
    /// Decodes into `sink`.
    pub fn decode(&mut self, image: Image, sink: &mut impl RowSink) -> Result<(), ImageError> {
        let streamed = image.is_streamed();
        let Image { mut headers, frame, first_scan } = image;
        self.converter.prepare(&frame, headers.colours(&frame)?);
        sink.begin(frame.width, frame.height)?;
        self.planes.prepare(&frame, streamed);
        if frame.progressive {
            self.progressive(&mut headers, &frame, first_scan)?;
        } else {
            self.sequential(&mut headers, &frame, first_scan, sink)?;
        }
        self.converter.convert(&self.planes, frame.mcu_rows, sink);
        Ok(())
    }

    /// The bytes that the buffers hold.
    pub fn buffer_bytes(&self) -> usize {
        self.planes.buffer_bytes() + self.coefficients.buffer_bytes() + self.unstuffed.capacity()
    }

    /// Transforms blocks as they are read. If a scan holds all components, finished rows go to `sink` on the
    /// way.
    fn sequential(
        &mut self,
        headers: &mut Headers,
        frame: &Frame,
        first: Next,
        sink: &mut impl RowSink,
    ) -> Result<(), ImageError> {
        let mut next = first;
        // Which components had a scan. Counting scans would not do: if one component came twice and another
        // never, the plane of the missing one would show an earlier image.
        let mut came = vec![false; frame.components.len()];
        let mut scans = 0;
        while let Next::Scan(scan) = next {
            scans += 1;
            header::check_scan_count(scans)?;
            let together = scan.components.len() == frame.components.len();
            scan.components.iter().for_each(|part| came[part.index] = true);
            let data = headers.entropy_coded(&mut self.unstuffed)?;
            let (planes, converter) = (&mut self.planes, &mut self.converter);
            scan::sequential(frame, &scan, headers.tables(), data, planes, |planes, rows| {
                if together {
                    converter.convert(planes, rows, sink);
                }
            })?;
            if came.iter().all(|&came| came) {
                return Ok(());
            }
            next = headers.next_scan()?;
        }
        Err(header::truncated(headers.length()))
    }

    /// Collects the coefficients of all scans, then transforms them.
    fn progressive(&mut self, headers: &mut Headers, frame: &Frame, first: Next) -> Result<(), ImageError> {
        self.coefficients.prepare(frame);
        let mut next = first;
        let mut scans = 0;
        while let Next::Scan(scan) = next {
            scans += 1;
            header::check_scan_count(scans)?;
            let data = headers.entropy_coded(&mut self.unstuffed)?;
            scan::progressive(frame, &scan, headers.tables(), data, &mut self.coefficients)?;
            next = headers.next_scan()?;
        }
        if !self.coefficients.is_complete() {
            return Err(header::truncated(headers.length()));
        }
        self.coefficients.transform(frame, headers.tables(), &mut self.planes)
    }
}
