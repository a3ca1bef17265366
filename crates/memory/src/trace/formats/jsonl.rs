//! Our own format: a header line, then one JSON object a sample.

use super::{Beginning, LineParser, Opened, Parsed, TraceFormat};
use crate::{
    Sample,
    trace::{TRACE_VERSION, TraceError, TraceHeader, TraceOptions},
};

/// The format, and the parser of its lines.
pub(super) struct Jsonl;

impl TraceFormat for Jsonl {
    fn name(&self) -> &'static str {
        "a trace of Model Garden"
    }

    fn expected(&self) -> &'static str {
        r#"lines such as {"t": 1.0, "step": 1, "rss": 5552000000, ...}"#
    }

    fn recognises(&self, first: &[u8], _options: &TraceOptions) -> bool {
        Self::header(first).is_some()
    }

    fn open(&self, file: &Beginning<'_>) -> Result<Opened, TraceError> {
        let header = Self::header(file.first).transpose().map_err(|what| file.malformed(what))?;
        Ok(Opened::with_header(Self, header))
    }

    #[cfg(test)]
    fn first_lines(&self) -> &'static [&'static [u8]] {
        &[br#"{"trace":"model-garden/1","name":"run"}"#, br#"{"t":1.0,"step":1,"rss":5552000000}"#]
    }
}

impl Jsonl {
    /// Reads the first line as a header; `None` if the file is not such a trace.
    fn header(first: &[u8]) -> Option<Result<TraceHeader, String>> {
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
                Err(format!(
                    "the trace has version '{}', and only '{TRACE_VERSION}' can be read",
                    header.trace
                ))
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
