//! Who computes what: the output cut into tasks, the depth of a sum cut into blocks.
//!
//! In come the shape of a product and the number of threads; out come tasks that no two threads share, and blocks that
//! are multiplied one after another. How the sum of an element is cut depends on the depths of the terms alone, never on
//! the threads: that is what makes results equal to the bit.

use super::{Term, tile};

/// Deepest block. A tile reads and writes its part of the output once a block, which cost 5 to 8 % of a product at 256; at
/// 1024 most products are a single block. The 128 beyond it take an adapter's rank along.
pub(super) const DEPTH: usize = 1024 + 128;
/// Widest panel that one task packs: with `DEPTH` it takes 576 KiB, a quarter of an L2, beside the strips that pass by.
pub(super) const PANEL: usize = 128;
/// Blocks begin at a multiple of this: that of a 4-bit block, so that none is cut.
const GRAIN: usize = 64;

/// From `from` up to `to`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Span {
    pub(super) fn len(self) -> usize {
        self.to - self.from
    }

    /// The same span, counted from `start` on.
    pub(super) fn after(self, start: usize) -> Self {
        Self { from: start + self.from, to: start + self.to }
    }
}

/// The depths of all terms laid end to end and cut into blocks of even size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    depth: usize,
    size: usize,
}

/// The part of one term that lies in a block.
pub(super) struct Segment<'a> {
    pub(super) term: &'a Term<'a>,
    /// What of the term's depth.
    pub(super) depth: Span,
    /// Where that begins in the block.
    pub(super) at: usize,
}

impl Blocks {
    pub(super) fn new(depth: usize) -> Self {
        let size = depth.div_ceil(depth.div_ceil(DEPTH).max(1)).next_multiple_of(GRAIN);
        Self { depth, size }
    }

    pub(super) fn count(self) -> usize {
        self.depth.div_ceil(self.size.max(1))
    }

    /// The depth that block `index` covers.
    pub(super) fn span(self, index: usize) -> Span {
        Span { from: index * self.size, to: ((index + 1) * self.size).min(self.depth) }
    }

    /// What block `index` takes of each term, in order.
    pub(super) fn segments<'a>(
        self,
        terms: &'a [Term<'a>],
        index: usize,
    ) -> impl Iterator<Item = Segment<'a>> {
        let block = self.span(index);
        terms
            .iter()
            .scan(0, |before, term| {
                let whole = Span { from: *before, to: *before + term.left.cols };
                *before = whole.to;
                Some((term, whole))
            })
            .filter_map(move |(term, whole)| {
                let part = Span { from: block.from.max(whole.from), to: block.to.min(whole.to) };
                let depth = || Span { from: part.from - whole.from, to: part.to - whole.from };
                (part.from < part.to).then(|| Segment { term, depth: depth(), at: part.from - block.from })
            })
    }
}

/// How an output is shared out: panels of columns, and bands of rows where there are too few panels for all threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    rows: usize,
    cols: usize,
    panel: usize,
    /// Panels that are one task each, and the bands into which each of the others is cut.
    whole: usize,
    band: usize,
}

impl Grid {
    pub(super) fn new(rows: usize, cols: usize, threads: usize) -> Self {
        let (height, width) = tile();
        // As many panels as a multiple of the threads, so that none waits for the last one.
        let rounds = cols.div_ceil(PANEL * threads);
        let panel = cols.div_ceil(rounds * threads).next_multiple_of(2 * width).min(PANEL);
        let panels = cols.div_ceil(panel);
        // Panels are whole tiles wide, so a few may be left over: those are shared by rows.
        let whole = panels / threads * threads;
        let bands = if panels > whole { threads.div_ceil(panels - whole) } else { 1 };
        let band = rows.div_ceil(bands).next_multiple_of(height);
        Self { rows, cols, panel, whole, band }
    }

    fn bands(&self) -> usize {
        self.rows.div_ceil(self.band)
    }

    pub(super) fn tasks(&self) -> usize {
        self.whole + (self.cols.div_ceil(self.panel) - self.whole) * self.bands()
    }

    /// Rows and columns of task `index`.
    pub(super) fn task(&self, index: usize) -> (Span, Span) {
        let bands = self.bands();
        let (panel, band) = match index.checked_sub(self.whole) {
            None => (index, Span { from: 0, to: self.rows }),
            Some(rest) => {
                let from = rest % bands * self.band;
                (self.whole + rest / bands, Span { from, to: (from + self.band).min(self.rows) })
            }
        };
        let from = panel * self.panel;
        (band, Span { from, to: (from + self.panel).min(self.cols) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_belongs_to_one_task() {
        for (rows, cols) in [(1, 1), (3, 700), (548, 5504), (100, 129), (15, 33)] {
            for threads in [1, 2, 3, 8] {
                let grid = Grid::new(rows, cols, threads);
                let mut seen = vec![0; rows * cols];
                for (rows, task_cols) in (0..grid.tasks()).map(|index| grid.task(index)) {
                    assert!(task_cols.len() <= PANEL && rows.from.is_multiple_of(tile().0));
                    for row in rows.from..rows.to {
                        seen[row * cols..][task_cols.from..task_cols.to]
                            .iter_mut()
                            .for_each(|seen| *seen += 1);
                    }
                }
                assert!(seen.iter().all(|&times| times == 1), "{rows} x {cols} on {threads} threads");
            }
        }
    }

    #[test]
    fn leftover_panels_are_shared_by_rows() {
        // 43 panels of 128 columns on two threads: 42 whole ones, and two halves of the last.
        let grid = Grid::new(548, 5504, 2);
        assert_eq!(grid.tasks(), 44);
        assert_eq!(grid.task(42).0.to, grid.task(43).0.from);
    }

    #[test]
    fn blocks_are_even_and_none_is_deeper_than_a_panel() {
        for depth in [1, 64, 1024 + 16, 1153, 2303, 5504 + 16, 11008] {
            let blocks = Blocks::new(depth);
            let lengths: Vec<usize> = (0..blocks.count()).map(|block| blocks.span(block).len()).collect();
            assert_eq!(lengths.iter().sum::<usize>(), depth);
            assert!(lengths.iter().all(|&length| length <= DEPTH), "{lengths:?}");
            assert_eq!(blocks.count(), depth.div_ceil(DEPTH));
        }
    }
}
