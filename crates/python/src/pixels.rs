//! Arrays for the pixel values of batches, filled again when nobody holds them any more.
//!
//! Gives an array of a wanted shape. Below it lies one of the last few arrays, if only this shelf holds that still, or else
//! a new one. A new array of a large batch costs more than the values in it: the kernel hands it out page by page.

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::{ffi, prelude::*, types::PySlice};

/// Batches that a training holds at once: the one under way, the next, and one that is made meanwhile.
const KEPT: usize = 3;
/// More is not kept, of all arrays together: what is idle here is missing elsewhere. Eight photos of a million pixels have
/// 190 MB of values.
const MAX_KEPT_BYTES: usize = 256 << 20;
/// An array may be so many times as long as what lies on it, which may be kept for as long as its user likes.
const MAX_SLACK: usize = 2;

/// The arrays of one collator. Used with the interpreter's lock held only.
#[derive(Default)]
pub(crate) struct Shelf(Vec<Py<PyArray1<f32>>>);

impl Shelf {
    /// An array of `rows` x `columns` with any values. Nobody else has it.
    pub fn take<'py>(
        &mut self,
        py: Python<'py>,
        rows: usize,
        columns: usize,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let length = rows * columns;
        let array = match self.0.iter().position(|array| fits(array.bind(py), length)) {
            Some(index) => self.0.remove(index).into_bound(py),
            None => PyArray1::zeros(py, [length], false),
        };
        let bytes = bytes_of(&array);
        // An idle array that did not fit makes room first, then the one that was used longest ago.
        while !self.0.is_empty() && (self.0.len() >= KEPT || self.bytes(py) + bytes > MAX_KEPT_BYTES) {
            let idle = self.0.iter().position(|array| is_idle(array.bind(py)));
            self.0.remove(idle.unwrap_or_default());
        }
        let values = array.get_item(PySlice::new(py, 0, length as isize, 1))?;
        if bytes <= MAX_KEPT_BYTES {
            self.0.push(array.unbind());
        }
        values.cast_into::<PyArray1<f32>>()?.reshape([rows, columns])
    }

    fn bytes(&self, py: Python<'_>) -> usize {
        self.0.iter().map(|array| bytes_of(array.bind(py))).sum()
    }
}

fn bytes_of(array: &Bound<'_, PyArray1<f32>>) -> usize {
    size_of::<f32>() * array.len()
}

fn fits(array: &Bound<'_, PyArray1<f32>>, length: usize) -> bool {
    (length..=MAX_SLACK * length).contains(&array.len()) && is_idle(array)
}

/// Whether only the shelf holds an array: neither Python nor an array that lies on it, such as the batch's or a tensor's.
fn is_idle(array: &Bound<'_, PyArray1<f32>>) -> bool {
    // SAFETY: the array is a living object, and the interpreter's lock is held.
    #[expect(unsafe_code, reason = "PyO3 has no safe way to ask")]
    let references = unsafe { ffi::Py_REFCNT(array.as_ptr()) };
    references == 1
}
