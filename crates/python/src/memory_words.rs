//! The memory library's errors and settings in the words of Python.
//!
//! Takes errors of `garden-memory` and gives exceptions that name the parameter that helps. Names the
//! settings that an assessment speaks of as parameters, as the command line names them as flags.

use crate::errors::Exception;
use garden_memory::{Assessment, Setting, TraceError, probe::ProbeError};
use pyo3::{
    PyErr,
    exceptions::{PyOSError, PyPermissionError, PyProcessLookupError},
};
use std::io::{self, ErrorKind};

/// Names the parameters for the settings that an assessment speaks of.
pub(crate) fn name_parameters(assessment: &mut Assessment) {
    assessment.name_settings(|setting| match setting {
        Setting::Process => "process= chooses another",
        Setting::SizeUnit => "unit= says another",
        Setting::TimeUnit => "time_unit= says another",
        Setting::EpochLength => "dataset_size=, samples_per_step=",
        Setting::RestartAtLimit => "stop_before= of a MemoryMonitor stops in time",
        Setting::Recording => "a MemoryMonitor with trace= records one",
    });
}

/// An error about a trace; a file that cannot be opened is what `open` would raise.
pub(crate) fn trace_error(error: &TraceError) -> PyErr {
    if let TraceError::Io { source, .. } = error
        && source.kind() != ErrorKind::InvalidData
    {
        return io::Error::new(source.kind(), error.to_string()).into();
    }
    match about_trace(error) {
        Some(advice) => Exception::Trace.saying(format!("{error}; {advice}")),
        None => Exception::Trace.saying(error),
    }
}

fn about_trace(error: &TraceError) -> Option<&'static str> {
    match error {
        TraceError::NoFigures { .. } => Some("memory_pattern= finds other forms, column= another key"),
        TraceError::NoColumn { .. } => Some("column= says which one holds memory"),
        TraceError::NoUnit { .. } => {
            Some("say which with unit=: 'B', 'kB', 'MB', 'GB', 'KiB', 'MiB' or 'GiB'")
        }
        TraceError::NoOwner { .. } => Some(
            "if it is the process's, say its unit with unit=: 'B', 'kB', 'MB', 'GB', 'KiB', 'MiB' or 'GiB'",
        ),
        _ => None,
    }
}

/// A process that cannot be watched.
pub(crate) fn probe_error(error: &ProbeError) -> PyErr {
    let text = error.to_string();
    match error {
        ProbeError::NoSuchProcess { .. } | ProbeError::NoMemory { .. } => PyProcessLookupError::new_err(text),
        ProbeError::NotOurs { .. } => PyPermissionError::new_err(text),
        _ => PyOSError::new_err(text),
    }
}
