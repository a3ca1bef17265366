//! Our own format: a header line, then one JSON object a sample.

use super::{
    TRACE_VERSION, TraceHeader,
    reader::{LineParser, Parsed},
};
use crate::Sample;

/// Parser of sample lines.
pub(super) struct Jsonl;

impl Jsonl {
    /// Reads the first line as a header, or says that the file is no such trace.
    pub(super) fn header(first: &[u8]) -> Option<Result<TraceHeader, String>> {
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(first).ok()?;
        if !object.contains_key("trace") {
            // A log of JSON objects is somebody else's; samples without a header are a trace that lost its
            // head.
            let headless = object.contains_key("rss") && object.contains_key("t");
            return headless
                .then(|| Err(format!(r#"expected the header {{"trace":"{TRACE_VERSION}",...}}"#)));
        }
        let header = serde_json::from_slice::<TraceHeader>(first);
        Some(header.map_err(|error| format!("bad header: {error}")).and_then(|header| {
            if header.trace == TRACE_VERSION {
                Ok(header)
            } else {
                Err(format!("the trace is of version '{}'; this reads '{TRACE_VERSION}'", header.trace))
            }
        }))
    }
}

impl LineParser for Jsonl {
    fn line(&mut self, line: &[u8]) -> Parsed {
        let sample: Sample = serde_json::from_slice(line).map_err(|error| {
            format!(r#"expected a sample such as {{"t": 1.0, "step": 1, "rss": 5552000000, ...}}: {error}"#)
        })?;
        Ok(Some(sample))
    }

    fn is_torn(&self, line: &[u8]) -> bool {
        serde_json::from_slice::<Sample>(line).is_err_and(|error| error.is_eof())
    }
}
