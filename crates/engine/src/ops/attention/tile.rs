//! Tiles: small matrices that stay in the cache, their copies out of wider rows, and their products.
//!
//! In come slices of a thread's scratch with rows padded to [`PAD`]; out come sums of products in registers. Padding is
//! always zero on the way in, so whole registers can be read and written everywhere.

use super::Rows;
use crate::simd::{Isa, Lanes, Portable};
use std::cell::RefCell;
use std::marker::PhantomData;

/// Tile rows are padded to the widest register.
pub(super) const PAD: usize = 16;
/// Keys of a tile: exactly a vision window, so that windows waste nothing; two columns of registers of a tile's transposed
/// keys (16 KiB at a head size of 128) stay in the L1.
pub(super) const KEYS: usize = 64;

/// A task that is compiled for every instruction set; it enters the instructions piece by piece, with [`enter`].
pub(super) trait Task {
    fn run<L: Lanes>(self);
}

/// Runs `task` with the widest registers of this machine.
pub(super) fn run(task: impl Task) {
    match Isa::best() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => task.run::<crate::simd::x86::Avx512>(),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => task.run::<crate::simd::x86::Avx2>(),
        _ => task.run::<Portable>(),
    }
}

/// Runs one loop or block of a task compiled for its instructions. Pieces are small, because only a small function keeps
/// its sums in registers; closures are marked to be inlined, because what is called is not compiled again.
#[inline(always)]
pub(super) fn enter<L: Lanes, R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: a task has its `L` from `run`, which asked the machine.
    unsafe { L::enter(work) }
}

/// Runs `work` with `len` values that this thread keeps for its next task.
pub(super) fn with_scratch(len: usize, work: impl FnOnce(&mut [f32])) {
    thread_local!(static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < len {
            scratch.resize(len, 0.0);
        }
        work(&mut scratch[..len]);
    });
}

/// Cuts `len` values off the front of `rest`.
pub(super) fn take<'a>(rest: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    rest.split_off_mut(..len).expect("the scratch was sized for all its tiles")
}

/// One head's values from one token on.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) rows: Rows<'a>,
    pub(super) token: usize,
    pub(super) column: usize,
    pub(super) dim: usize,
}

/// Copies `count` rows, times `scale`, into rows of `width`, padded with zeros.
pub(super) fn load<L: Lanes>(from: Part<'_>, count: usize, scale: f32, to: &mut [f32], width: usize) {
    enter::<L, _>(
        #[inline(always)]
        || {
            for (i, to) in to.chunks_exact_mut(width).take(count).enumerate() {
                let (values, padding) = to.split_at_mut(from.dim);
                for (to, from) in values.iter_mut().zip(from.row(i)) {
                    *to = from * scale;
                }
                padding.fill(0.0);
            }
        },
    );
}

impl<'a> Part<'a> {
    /// The values of the `i`-th token from here.
    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> &'a [f32] {
        &self.rows.data[(self.token + i) * self.rows.stride + self.column..][..self.dim]
    }
}

/// `to[c][r] = from[r][c]` for `rows x cols`, both multiples of [`PAD`].
pub(super) fn transpose<L: Lanes>(from: &[f32], rows: usize, cols: usize, to: &mut [f32], to_width: usize) {
    assert!(rows.is_multiple_of(PAD) && cols.is_multiple_of(PAD) && rows <= to_width);
    assert!(from.len() >= rows * cols && to.len() >= cols * to_width);
    enter::<L, _>(
        #[inline(always)]
        || {
            for r in (0..rows).step_by(L::WIDTH) {
                for c in (0..cols).step_by(L::WIDTH) {
                    // SAFETY: both squares lie inside their slices (asserted; `WIDTH` divides `PAD`), and the
                    // instructions were entered.
                    unsafe {
                        let to = to.as_mut_ptr().add(c * to_width + r);
                        L::transpose(from.as_ptr().add(r * cols + c), cols, to, to_width);
                    }
                }
            }
        },
    );
}

/// The left side of a product: element `(i, k)` is at `i * row + k * step`.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub(super) data: &'a [f32],
    pub(super) row: usize,
    pub(super) step: usize,
}

/// Rows, columns and depth of a product.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) m: usize,
    /// A multiple of [`PAD`].
    pub(super) n: usize,
    pub(super) k: usize,
}

/// `out = left x right`, or added to `out`; rows of `out` and `right` are `width.0` and `width.1` apart.
pub(super) fn product<L: Lanes>(
    out: &mut [f32],
    left: Left<'_>,
    right: &[f32],
    width: (usize, usize),
    size: Size,
    add: bool,
) {
    let Size { m, n, k } = size;
    if m == 0 || n == 0 {
        return;
    }
    let reach = |rows: usize, width: usize| rows.saturating_sub(1) * width + n;
    assert!(n.is_multiple_of(PAD) && n <= width.0 && n <= width.1);
    assert!(reach(m, width.0) <= out.len());
    assert!(k == 0 || reach(k, width.1) <= right.len());
    assert!(k == 0 || (m - 1) * left.row + (k - 1) * left.step < left.data.len());
    let mut col = 0;
    while col < n {
        let double = col + 2 * L::WIDTH <= n;
        let mut row = 0;
        while row < m {
            // SAFETY: rows `row..row + H`, columns `col..` and depth `k` lie inside the slices (asserted above); the
            // instruction set was checked by `run`.
            row += unsafe {
                let out = out.as_mut_ptr().add(row * width.0 + col);
                let (left_at, right) = (left.data.as_ptr().add(row * left.row), right.as_ptr().add(col));
                let block = Block { out, left: left_at, right, width, steps: (left.row, left.step), k, add };
                match double {
                    true => block.rows::<L, 2>(m - row),
                    false => block.rows::<L, 1>(m - row),
                }
            };
        }
        col += if double { 2 * L::WIDTH } else { L::WIDTH };
    }
}

/// Some rows of one or two registers of columns.
struct Block {
    out: *mut f32,
    left: *const f32,
    right: *const f32,
    width: (usize, usize),
    steps: (usize, usize),
    k: usize,
    add: bool,
}

impl Block {
    /// Computes as many rows at once as the registers hold and `left` has; gives their number.
    ///
    /// # Safety
    /// At least one row is left, and all that are left lie inside the slices; the machine has the instructions of `L`.
    #[inline(always)]
    unsafe fn rows<L: Lanes, const C: usize>(&self, left: usize) -> usize {
        // SAFETY: as many rows are computed as the caller vouches for.
        unsafe {
            match left {
                14.. if L::ROWS >= 14 => self.entered::<L, 14, C>(),
                8.. if L::ROWS >= 8 => self.entered::<L, 8, C>(),
                6.. if L::ROWS == 6 => self.entered::<L, 6, C>(),
                4.. => self.entered::<L, 4, C>(),
                2.. => self.entered::<L, 2, C>(),
                _ => self.entered::<L, 1, C>(),
            }
        }
    }

    /// [`sums`](Self::sums) as a function of its own.
    ///
    /// # Safety
    /// As for `rows`.
    #[inline(always)]
    unsafe fn entered<L: Lanes, const H: usize, const C: usize>(&self) -> usize {
        enter::<L, _>(
            #[inline(always)]
            // SAFETY: as the caller vouches.
            || unsafe { self.sums::<L, H, C>() },
        )
    }

    /// `H` rows of `C` registers.
    ///
    /// # Safety
    /// As for `rows`.
    #[inline(always)]
    unsafe fn sums<L: Lanes, const H: usize, const C: usize>(&self) -> usize {
        // SAFETY: the caller vouches for `H` rows and `C` registers of columns.
        unsafe {
            let mut sums = [[L::zero(); C]; H];
            if self.add {
                for (h, sums) in sums.iter_mut().enumerate() {
                    for (c, sum) in sums.iter_mut().enumerate() {
                        *sum = L::load(self.out.add(h * self.width.0 + c * L::WIDTH));
                    }
                }
            }
            let (mut left, mut right) = (self.left, self.right);
            for _ in 0..self.k {
                let mut columns = [L::zero(); C];
                for (c, column) in columns.iter_mut().enumerate() {
                    *column = L::load(right.add(c * L::WIDTH));
                }
                for (h, sums) in sums.iter_mut().enumerate() {
                    let value = L::splat(left.add(h * self.steps.0));
                    for (sum, column) in sums.iter_mut().zip(columns) {
                        *sum = L::mul_add(value, column, *sum);
                    }
                }
                left = left.wrapping_add(self.steps.1);
                right = right.wrapping_add(self.width.1);
            }
            for (h, sums) in sums.iter().enumerate() {
                for (c, sum) in sums.iter().enumerate() {
                    L::store(self.out.add(h * self.width.0 + c * L::WIDTH), *sum);
                }
            }
        }
        H
    }
}

/// A slice of which tasks write different parts.
pub(super) struct Shared<'a> {
    data: *mut f32,
    len: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer is to an exclusive borrow that this holds; `part` makes its callers keep their parts apart.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    pub(super) fn new(data: &'a mut [f32]) -> Self {
        Self { data: data.as_mut_ptr(), len: data.len(), borrow: PhantomData }
    }

    /// `len` values from `at` on.
    ///
    /// # Safety
    /// While the part lives nobody else, on no thread, holds a part that overlaps it.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn part(&self, at: usize, len: usize) -> &mut [f32] {
        assert!(at <= self.len && len <= self.len - at, "part of a shared slice");
        // SAFETY: inside the slice (asserted) and, by the caller's promise, not held by anybody else.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(at), len) }
    }
}
