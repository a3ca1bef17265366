//! Decodes one scan: Huffman codes to coefficients, in one pass over the image's blocks.
//!
//! Takes a scan's header, the tables and its data; gives transformed blocks (sequential) or refined
//! coefficients (progressive). Unknown codes and data that ends early are errors, where libjpeg would invent
//! pixels.

use super::{
    super::ImageError,
    coefficients::{Coefficients, ZIGZAG},
    header::{EntropyCoded, Frame, Scan, Tables, broken, truncated},
    huffman::{Bits, HuffmanTable, STEP_BITS},
    idct::{self, InverseDct, Work},
    planes::Planes,
};

/// The data of a scan, from one restart marker to the next.
struct Segments<'a> {
    data: EntropyCoded<'a>,
    next: usize,
    interval: usize,
    /// Units left until the next restart marker.
    left: usize,
}

impl<'a> Segments<'a> {
    /// Without a restart interval, all data is one segment, and restart markers in it are ignored.
    fn new(mut data: EntropyCoded<'a>, interval: usize) -> Self {
        if interval == 0 {
            data.ends = vec![data.bytes.len()];
        }
        Self { data, next: 0, interval, left: 0 }
    }

    /// Called before each unit. If a new segment begins there, puts its data into `bits` and returns true.
    #[inline(always)]
    fn advance(&mut self, bits: &mut Bits<'a>) -> Result<bool, ImageError> {
        if self.left > 0 {
            self.left -= 1;
            return Ok(false);
        }
        self.check(bits)?;
        let end = *self.data.ends.get(self.next).ok_or_else(|| truncated(self.data.file_length))?;
        let start = self.next.checked_sub(1).map_or(0, |previous| self.data.ends[previous]);
        *bits = Bits::new(&self.data.bytes[start..end]);
        self.next += 1;
        self.left = if self.interval == 0 { usize::MAX } else { self.interval - 1 };
        Ok(true)
    }

    fn check(&self, bits: &Bits) -> Result<(), ImageError> {
        if bits.overran() { Err(truncated(self.data.file_length)) } else { Ok(()) }
    }
}

/// Coefficients that are read after each refill of the bits: two are faster than one, and three do not always
/// fit.
const STEPS_PER_REFILL: usize = 2;

/// A component as a sequential scan codes it.
struct Coded<'a> {
    index: usize,
    h: usize,
    v: usize,
    dc: &'a HuffmanTable,
    ac: &'a HuffmanTable,
    quantisation: [i16; 64],
    /// The DC coefficient of the block before.
    previous: i32,
}

fn table(tables: &[Option<HuffmanTable>; 4], which: usize) -> Result<&HuffmanTable, ImageError> {
    tables[which].as_ref().ok_or_else(|| broken("a Huffman table is missing"))
}

fn bad_code() -> ImageError {
    broken("a code in the image data that its table does not have")
}

/// How many units a scan has across and down. A scan of one component has no padding blocks.
fn units(frame: &Frame, scan: &Scan) -> (usize, usize) {
    match &scan.components[..] {
        [only] => {
            let component = &frame.components[only.index];
            (component.width.div_ceil(8), component.height.div_ceil(8))
        }
        _ => (frame.mcu_columns, frame.mcu_rows),
    }
}

/// Decodes a scan of whole blocks; `row_done` is told how many of the frame's rows of units are complete.
pub(super) fn sequential(
    frame: &Frame,
    scan: &Scan,
    tables: &Tables,
    data: EntropyCoded,
    planes: &mut Planes,
    mut row_done: impl FnMut(&Planes, usize),
) -> Result<(), ImageError> {
    let alone = scan.components.len() == 1;
    let mut coded = Vec::with_capacity(scan.components.len());
    for part in &scan.components {
        let component = &frame.components[part.index];
        let quantisation = tables.quantisation[component.quantisation];
        let quantisation = quantisation.ok_or_else(|| broken("a quantisation table is missing"))?;
        let (h, v) = if alone { (1, 1) } else { (component.h, component.v) };
        let (dc, ac) = (table(&tables.dc, part.dc_table)?, table(&tables.ac, part.ac_table)?);
        let quantisation = quantisation.map(|step| step as i16);
        coded.push(Coded { index: part.index, h, v, dc, ac, quantisation, previous: 0 });
    }
    let rows_per_unit = if alone { frame.components[scan.components[0].index].v } else { 1 };
    let (columns, rows) = units(frame, scan);
    let mut segments = Segments::new(data, tables.restart_interval);
    let mut bits = Bits::new(&[]);
    for row in 0..rows {
        let (coded, segments, bits) = (&mut coded[..], &mut segments, &mut bits);
        idct::dispatch(SequentialRow { row, columns, coded, segments, bits, planes })?;
        segments.check(bits)?;
        row_done(planes, (row + 1) / rows_per_unit);
    }
    Ok(())
}

/// One row of units.
struct SequentialRow<'a, 'b, 'c> {
    row: usize,
    columns: usize,
    coded: &'a mut [Coded<'c>],
    segments: &'a mut Segments<'b>,
    bits: &'a mut Bits<'b>,
    planes: &'a mut Planes,
}

impl Work for SequentialRow<'_, '_, '_> {
    type Output = Result<(), ImageError>;

    #[inline(always)]
    fn run(self, idct: impl InverseDct) -> Self::Output {
        // A local copy, which stays in registers. After an error it is not written back: nothing reads on.
        let mut bits = self.bits.clone();
        for column in 0..self.columns {
            if self.segments.advance(&mut bits)? {
                self.coded.iter_mut().for_each(|component| component.previous = 0);
            }
            for component in self.coded.iter_mut() {
                let plane = self.planes.plane_mut(component.index);
                for y in 0..component.v {
                    for x in 0..component.h {
                        let mut block = [0; 64];
                        let last = component.read_block(&mut bits, &mut block)?;
                        let samples = idct.transform(&block, last);
                        plane.put(column * component.h + x, self.row * component.v + y, &samples);
                    }
                }
            }
        }
        *self.bits = bits;
        Ok(())
    }
}

impl Coded<'_> {
    /// Reads and dequantises a block in its natural order; returns the zigzag place of its last coefficient.
    #[inline(always)]
    fn read_block(&mut self, bits: &mut Bits, block: &mut [i16; 64]) -> Result<usize, ImageError> {
        bits.refill();
        let size = self.dc.symbol(bits).ok_or_else(bad_code)?;
        self.previous = self.previous.wrapping_add(bits.signed(u32::from(size)));
        block[0] = (self.previous as i16).wrapping_mul(self.quantisation[0]);
        let (mut k, mut last) = (1, 0);
        'block: while k < 64 {
            bits.refill();
            for _ in 0..STEPS_PER_REFILL {
                if bits.held() < STEP_BITS {
                    break;
                }
                let (step, value) = self.ac.step(bits).ok_or_else(bad_code)?;
                k += usize::from(step.run);
                let Some(place) = ZIGZAG.get(k) else {
                    // A run of zeros may pass the end of the block, a value may not.
                    if step.size == 0 {
                        break 'block;
                    }
                    return Err(broken("a block with more than 64 coefficients"));
                };
                block[usize::from(place & 63)] = value.wrapping_mul(self.quantisation[k & 63]);
                last = k;
                k += 1;
                if k == 64 {
                    break 'block;
                }
            }
        }
        Ok(last)
    }
}

/// Decodes one pass of a progressive image into its coefficients.
pub(super) fn progressive(
    frame: &Frame,
    scan: &Scan,
    tables: &Tables,
    data: EntropyCoded,
    coefficients: &mut Coefficients,
) -> Result<(), ImageError> {
    let (columns, rows) = units(frame, scan);
    let alone = scan.components.len() == 1;
    let mut pass = Pass::new(scan, tables)?;
    let mut segments = Segments::new(data, tables.restart_interval);
    let mut bits = Bits::new(&[]);
    for row in 0..rows {
        for column in 0..columns {
            if segments.advance(&mut bits)? {
                pass.restart();
            }
            for (part, coded) in scan.components.iter().enumerate() {
                let component = &frame.components[coded.index];
                let blocks = &mut coefficients.components[coded.index];
                let (h, v) = if alone { (1, 1) } else { (component.h, component.v) };
                for (y, x) in (0..v).flat_map(|y| (0..h).map(move |x| (y, x))) {
                    let at = (row * v + y) * component.block_columns + column * h + x;
                    pass.block(part, &mut bits, &mut blocks[at])?;
                }
            }
        }
        segments.check(&bits)?;
    }
    if scan.spectrum.0 == 0 {
        scan.components.iter().for_each(|part| coefficients.started[part.index] = true);
    }
    Ok(())
}

/// The state of a progressive pass.
struct Pass<'a> {
    /// For each component: the table, in a first pass over DC, and the DC coefficient of the block before.
    dc: Vec<(Option<&'a HuffmanTable>, i32)>,
    ac: Option<&'a HuffmanTable>,
    first: usize,
    last: usize,
    refines: bool,
    low: u8,
    /// How many of the next blocks hold nothing new.
    empty_blocks: u32,
}

impl<'a> Pass<'a> {
    fn new(scan: &Scan, tables: &'a Tables) -> Result<Self, ImageError> {
        let (first, last) = scan.spectrum;
        let (high, low) = scan.approximation;
        let needs_dc = first == 0 && high == 0;
        let mut dc = Vec::new();
        for part in &scan.components {
            dc.push((if needs_dc { Some(table(&tables.dc, part.dc_table)?) } else { None }, 0));
        }
        let ac = if first > 0 { Some(table(&tables.ac, scan.components[0].ac_table)?) } else { None };
        Ok(Self { dc, ac, first, last, refines: high > 0, low, empty_blocks: 0 })
    }

    fn restart(&mut self) {
        self.dc.iter_mut().for_each(|(_, previous)| *previous = 0);
        self.empty_blocks = 0;
    }

    fn block(&mut self, part: usize, bits: &mut Bits, block: &mut [i16; 64]) -> Result<(), ImageError> {
        match self.ac {
            None => self.dc_block(part, bits, block),
            Some(table) if self.refines => self.refine_ac(table, bits, block),
            Some(table) => self.first_ac(table, bits, block),
        }
    }

    fn dc_block(&mut self, part: usize, bits: &mut Bits, block: &mut [i16; 64]) -> Result<(), ImageError> {
        bits.refill();
        let (table, previous) = &mut self.dc[part];
        match table {
            Some(table) => {
                let size = table.symbol(bits).ok_or_else(bad_code)?;
                *previous = previous.wrapping_add(bits.signed(u32::from(size)));
                block[0] = (*previous as i16) << self.low;
            }
            None => block[0] |= (bits.take(1) as i16) << self.low,
        }
        Ok(())
    }

    fn first_ac(
        &mut self,
        table: &HuffmanTable,
        bits: &mut Bits,
        block: &mut [i16; 64],
    ) -> Result<(), ImageError> {
        if self.empty_blocks > 0 {
            self.empty_blocks -= 1;
            return Ok(());
        }
        let mut k = self.first;
        while k <= self.last {
            bits.refill();
            let symbol = table.symbol(bits).ok_or_else(bad_code)?;
            let (run, size) = (symbol >> 4, u32::from(symbol & 15));
            if size > 0 {
                k += usize::from(run);
                let value = bits.signed(size) as i16;
                *block.get_mut(k).ok_or_else(bad_code)? = value << self.low;
                k += 1;
            } else if run == 15 {
                k += 16;
            } else {
                self.empty_blocks = (1 << run) + bits.take(u32::from(run)) - 1;
                break;
            }
        }
        Ok(())
    }

    /// Reads one more bit of known coefficients, and new coefficients between them.
    fn refine_ac(
        &mut self,
        table: &HuffmanTable,
        bits: &mut Bits,
        block: &mut [i16; 64],
    ) -> Result<(), ImageError> {
        let bit = 1i16 << self.low;
        let mut k = self.first;
        while k <= self.last && self.empty_blocks == 0 {
            bits.refill();
            let symbol = table.symbol(bits).ok_or_else(bad_code)?;
            let (mut run, size) = (symbol >> 4, symbol & 15);
            let mut new = 0;
            match (run, size) {
                (15, 0) => {}
                (_, 0) => {
                    self.empty_blocks = (1 << run) + bits.take(u32::from(run));
                    break;
                }
                (_, 1) => new = if bits.take(1) == 1 { bit } else { -bit },
                _ => return Err(bad_code()),
            }
            // Walks over `run` zeros, refining what is not zero on the way.
            while k <= self.last {
                let value = &mut block[k];
                if *value != 0 {
                    refine(value, bit, bits);
                } else if run == 0 {
                    *value = new;
                    k += 1;
                    break;
                } else {
                    run -= 1;
                }
                k += 1;
            }
        }
        if self.empty_blocks > 0 {
            let known = block[k..=self.last].iter_mut().filter(|value| **value != 0);
            known.for_each(|value| refine(value, bit, bits));
            self.empty_blocks -= 1;
        }
        Ok(())
    }
}

/// Reads a correction bit: 1 moves the value away from 0 by `bit`, unless it was moved already.
fn refine(value: &mut i16, bit: i16, bits: &mut Bits) {
    bits.refill();
    if bits.take(1) == 1 && *value & bit == 0 {
        *value = value.wrapping_add(if *value > 0 { bit } else { -bit });
    }
}
