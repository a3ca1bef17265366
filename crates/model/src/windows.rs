//! Attention windows of the vision tower.
//!
//! Takes the patch grids of a batch's images, and gives the order in which merged tokens are laid so that
//! each window is one run, and where the runs and the images end. A window is a square of the grid, cut off
//! at its edges: every token is in exactly one window, and no window spans two images or two frames.

use crate::positions::Grid;

/// How the patches of a batch are laid out for windowed and for full attention.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WindowLayout {
    /// For each place in window order, the merged token that stands there.
    pub order: Vec<u32>,
    /// Where each window begins, in patches, and at the end the number of all patches.
    pub window_bounds: Vec<u32>,
    /// Where each frame of each image begins, in patches, and at the end the number of all patches.
    pub frame_bounds: Vec<u32>,
}

/// Lays out `grids`; `window` is the side of a window in merged tokens, `merge` that of a merged token in
/// patches.
pub fn window_layout(grids: &[Grid], window: usize, merge: usize) -> WindowLayout {
    let unit = (merge * merge) as u32;
    let mut layout = WindowLayout { order: Vec::new(), window_bounds: vec![0], frame_bounds: vec![0] };
    let mut first = 0u32;
    for &[frames, rows, columns] in grids {
        let (rows, columns) = (rows / merge, columns / merge);
        for _ in 0..frames {
            layout.push_frame(first, rows, columns, window, unit);
            first += (rows * columns) as u32;
            layout.frame_bounds.push(first * unit);
        }
    }
    layout
}

impl WindowLayout {
    fn push_frame(&mut self, first: u32, rows: usize, columns: usize, window: usize, unit: u32) {
        for top in (0..rows).step_by(window) {
            for left in (0..columns).step_by(window) {
                for row in top..rows.min(top + window) {
                    let begin = first + (row * columns) as u32;
                    let right = columns.min(left + window);
                    self.order.extend((left..right).map(|column| begin + column as u32));
                }
                self.window_bounds.push(self.order.len() as u32 * unit);
            }
        }
    }
}
