//! Library errors as Python exceptions.
//!
//! Takes what a library or a binding found wrong and gives one of the classes of `model_garden.exceptions`. Its text says what is
//! wrong and where; an error about a row carries the row and the reason as attributes.

use garden_data::DataError;
use pyo3::{PyErrArguments, prelude::*, sync::PyOnceLock, types::PyType};
use std::fmt::Display;

/// A class of `model_garden.exceptions`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Exception {
    Row,
    Config,
    Trace,
    Training,
}

impl Exception {
    /// An exception of this class with a text.
    pub(crate) fn saying(self, text: impl Display) -> PyErr {
        self.with((text.to_string(),))
    }

    fn with(self, arguments: impl PyErrArguments + 'static) -> PyErr {
        Python::attach(|py| match self.class(py) {
            Ok(class) => PyErr::from_type(class, arguments),
            Err(error) => error,
        })
    }

    fn class(self, py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
        const NAMES: [&str; 4] = ["RowError", "ConfigError", "TraceError", "TrainingError"];
        static CLASSES: [PyOnceLock<Py<PyType>>; 4] = [const { PyOnceLock::new() }; 4];
        let index = self as usize;
        CLASSES[index].import(py, "model_garden.exceptions", NAMES[index]).cloned()
    }
}

/// A row that cannot be used: which one, in words or by its number, and why.
pub(crate) fn row_error(row: impl Display, reason: impl Display) -> PyErr {
    let (row, reason) = (row.to_string(), reason.to_string());
    Exception::Row.with((format!("{row}: {reason}"), row, reason))
}

/// An error about a dataset: about a row where it names one, about the setting that chose the dataset otherwise.
pub(crate) fn data_error(error: &DataError) -> PyErr {
    match error {
        DataError::Row { row, reason } => row_error(row, reason),
        other => Exception::Config.saying(other),
    }
}
