//! The native half of the Python package `model_garden`.
//!
//! Takes Python's arguments and calls the libraries; the package in `python/model_garden` gives them the form that
//! people import. Every error becomes a Python exception, and the interpreter's lock is released while a library works.

mod analysis;
mod collator;
mod dataset;
mod errors;
mod gate;
mod memory_words;
mod monitor;
mod pixels;
mod row;
mod training;
mod workers;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    /// The version of the package, which is that of the `model-garden` command in it.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    use crate::analysis::{Judged, analyze_arrays, analyze_file, format_size, parse_size};
    #[pymodule_export]
    use crate::collator::{Collator, cached_model_folder};
    #[pymodule_export]
    use crate::dataset::Rows;
    #[pymodule_export]
    use crate::gate::Readings;
    #[pymodule_export]
    use crate::monitor::Monitor;
    #[pymodule_export]
    use crate::training::{plan_run, train_run, train_settings};
}
