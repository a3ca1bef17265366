//! A small chart of braille dots: two columns and four rows of dots to a character.

/// Dots on a grid of characters.
pub struct Canvas {
    width: usize,
    height: usize,
    cells: Vec<u8>,
}

/// The bit of each dot in a braille character, by row and column.
const BITS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

impl Canvas {
    /// An empty canvas of so many characters.
    pub fn new(width: usize, height: usize) -> Self {
        Self { width, height, cells: vec![0; width * height] }
    }

    /// Dots from left to right.
    pub fn dots_wide(&self) -> usize {
        self.width * 2
    }

    /// Sets the dots of a column between two heights, which run from 0 (bottom) to 1 (top).
    pub fn column(&mut self, dot: usize, low: f64, high: f64) {
        let dots = self.height * 4;
        let row = |height: f64| ((1.0 - height.clamp(0.0, 1.0)) * (dots - 1) as f64).round() as usize;
        for row in row(high)..=row(low) {
            let cell = row / 4 * self.width + dot / 2;
            if let Some(cell) = self.cells.get_mut(cell) {
                *cell |= BITS[row % 4][dot % 2];
            }
        }
    }

    /// The character at a place; blank where no dot is set.
    pub fn character(&self, column: usize, row: usize) -> char {
        match self.cells[row * self.width + column] {
            0 => ' ',
            bits => char::from_u32(0x2800 + u32::from(bits)).unwrap_or(' '),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Canvas;

    #[test]
    fn dots_fall_where_they_should() {
        let mut canvas = Canvas::new(2, 1);
        (0..4).for_each(|dot| canvas.column(dot, dot as f64 / 3.0, dot as f64 / 3.0));
        assert_eq!([canvas.character(0, 0), canvas.character(1, 0)], ['⡠', '⠊']);
    }
}
