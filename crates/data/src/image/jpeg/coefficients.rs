//! Keeps the coefficients of a progressive image until its last scan.
//!
//! The passes of [`super::scan`] write into it, and it gives transformed blocks at the end. Coefficients take
//! two bytes a sample, which is the price of progressive files.

use super::{
    super::ImageError,
    header::{Frame, Tables, broken},
    idct::{self, InverseDct, Work},
    planes::{Plane, Planes},
};

/// The place of each coefficient in its block, in the order in which they are coded.
pub(super) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39,
    46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// All blocks of all components, coefficients in zigzag order.
#[derive(Default)]
pub(super) struct Coefficients {
    pub components: Vec<Vec<[i16; 64]>>,
    /// Which components had a scan of their DC coefficients.
    pub started: Vec<bool>,
}

impl Coefficients {
    /// Makes room for an image, with every coefficient 0.
    pub fn prepare(&mut self, frame: &Frame) {
        self.components.resize_with(frame.components.len(), Vec::new);
        for (blocks, component) in self.components.iter_mut().zip(&frame.components) {
            blocks.clear();
            blocks.resize(component.block_columns * component.block_rows, [0; 64]);
        }
        self.started = vec![false; frame.components.len()];
    }

    pub fn is_complete(&self) -> bool {
        self.started.iter().all(|&started| started)
    }

    /// The bytes that an image needs.
    pub fn bytes(frame: &Frame) -> u64 {
        size_of::<i16>() as u64 * Planes::bytes(frame)
    }

    pub fn buffer_bytes(&self) -> usize {
        self.components.iter().map(|blocks| blocks.capacity() * size_of::<[i16; 64]>()).sum()
    }

    /// Dequantises and transforms every block.
    pub fn transform(&self, frame: &Frame, tables: &Tables, planes: &mut Planes) -> Result<(), ImageError> {
        for (index, component) in frame.components.iter().enumerate() {
            let table = tables.quantisation[component.quantisation];
            let table = table.ok_or_else(|| broken("a quantisation table is missing"))?;
            let (blocks, plane) = (&self.components[index], planes.plane_mut(index));
            let columns = component.block_columns;
            idct::dispatch(Transform { blocks, table: &table, columns, plane });
        }
        Ok(())
    }
}

/// The blocks of one component.
struct Transform<'a> {
    blocks: &'a [[i16; 64]],
    table: &'a [u16; 64],
    columns: usize,
    plane: &'a mut Plane,
}

impl Work for Transform<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, idct: impl InverseDct) {
        for (at, block) in self.blocks.iter().enumerate() {
            let last = block.iter().rposition(|&value| value != 0).unwrap_or(0);
            let mut dequantised = [0; 64];
            for (k, &value) in block[..=last].iter().enumerate() {
                dequantised[usize::from(ZIGZAG[k])] = value.wrapping_mul(self.table[k] as i16);
            }
            self.plane.put(at % self.columns, at / self.columns, &idct.transform(&dequantised, last));
        }
    }
}
