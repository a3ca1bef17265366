//! Who computes what: the output cut into tasks, the depth of a sum cut into blocks.
//!
//! Takes the shape of a product and the number of threads, and gives tasks that no two threads share and
//! blocks that are multiplied one after another. How the sum of an element is cut depends on the depths of
//! the terms alone, never on the threads: that is what makes results equal to the bit.

use super::{Term, tile};

/// Deepest block. A tile reads and writes its part of the output once a block, which cost 5 to 8 % of a
/// product at 256; at 1024 most products are a single block. The 128 beyond it take an adapter's rank along.
pub(super) const DEPTH: usize = 1024 + 128;
/// Widest panel that one task packs: with `DEPTH` it takes 576 KiB, a quarter of an L2, beside the strips
/// that pass by.
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
    /// `depth` is not zero: a sum of no products has no blocks.
    pub(super) fn new(depth: usize) -> Self {
        let size = depth.div_ceil(depth.div_ceil(DEPTH)).next_multiple_of(GRAIN);
        Self { depth, size }
    }

    pub(super) fn count(self) -> usize {
        self.depth.div_ceil(self.size)
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

/// How an output is shared out: panels of columns that threads take one after another, and bands of rows
/// where there are fewer panels than threads. The last panels are narrow, so that no thread waits long for
/// another one's last: with panels of one width a processor stood still for 6 % of a small model's step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    rows: usize,
    cols: usize,
    /// What is left is divided by this to give the next panel its width.
    share: usize,
    /// Panels of full width at the beginning.
    wide: usize,
    /// Rows of a task.
    band: usize,
}

impl Grid {
    pub(super) fn new(rows: usize, cols: usize, threads: usize) -> Self {
        let share = if threads > 1 { 2 * threads } else { 1 };
        let wide = cols.saturating_sub(share * PANEL) / PANEL;
        let mut grid = Self { rows, cols, share, wide, band: rows };
        let bands = threads.div_ceil(wide + grid.narrowing().count());
        grid.band = rows.div_ceil(bands).next_multiple_of(tile().0);
        grid
    }

    /// The panels after those of full width.
    fn narrowing(self) -> impl Iterator<Item = Span> {
        let least = 2 * tile().1;
        let mut from = self.wide * PANEL;
        std::iter::from_fn(move || {
            let left = self.cols - from;
            let width = (left / self.share).next_multiple_of(least).clamp(least, PANEL).min(left);
            let panel = Span { from, to: from + width };
            from = panel.to;
            (width > 0).then_some(panel)
        })
    }

    /// Rows and columns of task `index`; none beyond the last one.
    pub(super) fn task(&self, index: usize) -> Option<(Span, Span)> {
        let bands = self.rows.div_ceil(self.band);
        let (panel, from) = (index / bands, index % bands * self.band);
        let rows = Span { from, to: (from + self.band).min(self.rows) };
        let cols = match panel.checked_sub(self.wide) {
            None => Span { from: panel * PANEL, to: (panel + 1) * PANEL },
            Some(rest) => self.narrowing().nth(rest)?,
        };
        Some((rows, cols))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(grid: Grid) -> impl Iterator<Item = (Span, Span)> {
        (0..).map_while(move |index| grid.task(index))
    }

    #[test]
    fn every_element_belongs_to_one_task() {
        for (rows, cols) in [(1, 1), (3, 700), (548, 5504), (100, 129), (15, 33)] {
            for threads in [1, 2, 3, 8] {
                let grid = Grid::new(rows, cols, threads);
                let mut seen = vec![0; rows * cols];
                for (rows, task_cols) in tasks(grid) {
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
    fn panels_become_narrow_towards_the_end() {
        let grid = Grid::new(548, 5504, 2);
        let widths = || tasks(grid).map(|(_, cols)| cols.len());
        assert_eq!(widths().next(), Some(PANEL));
        assert_eq!(widths().last(), Some(2 * tile().1));
        assert!(widths().is_sorted_by(|wide, narrow| wide >= narrow));
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
