//! Tiles: small matrices that stay in the cache, and their copies out of wider rows.
//!
//! A tile is a slice of a thread's scratch with rows padded to [`PAD`]. Heads are copied into it straight or
//! transposed. Padding is always zero, so whole registers can be read and written everywhere.

use super::Rows;
pub(super) use crate::products::direct::{Left, PAD, Size, product};
use crate::simd::Lanes;
use std::cell::RefCell;
use std::marker::PhantomData;

/// Keys of a tile: exactly a vision window, so that windows waste nothing; two columns of registers of a
/// tile's transposed keys (16 KiB at a head size of 128) stay in the L1.
pub(super) const KEYS: usize = 64;

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
pub(super) fn load<L: Lanes>(
    lanes: L,
    from: Part<'_>,
    count: usize,
    scale: f32,
    to: &mut [f32],
    width: usize,
) {
    lanes.enter(
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
pub(super) fn transpose<L: Lanes>(
    lanes: L,
    from: &[f32],
    rows: usize,
    cols: usize,
    to: &mut [f32],
    to_width: usize,
) {
    assert!(rows.is_multiple_of(PAD) && cols.is_multiple_of(PAD) && rows <= to_width);
    assert!(from.len() >= rows * cols && to.len() >= cols * to_width);
    lanes.enter(
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
