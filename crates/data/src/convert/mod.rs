//! Writes a dataset in another format and one shape: OpenAI `messages`, with every image inside its row.
//!
//! Takes a dataset of any format and shape and writes a JSON Lines, JSON or Parquet file that needs no other
//! file. Images keep their encoded bytes; remote images stay addresses.

use crate::{
    dataset::{Dataset, RowReader},
    error::{BadRow, DataError},
    image::{ImageError, ImageFormat},
    preview,
    progress::{Progress, ProgressUnit},
    row::{Conversation, ImageSource, Json, Part, Turn},
    shape::MARKER,
};
use serde::Serialize;
use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    sync::Arc,
};

mod columns;

/// The formats that are written, by the end of the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Lines,
    Array,
    Parquet,
}

impl Target {
    fn of(path: &Path) -> Result<Self, DataError> {
        let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
        match extension.to_str() {
            Some("jsonl" | "ndjson") => Ok(Self::Lines),
            Some("json") => Ok(Self::Array),
            Some("parquet") => Ok(Self::Parquet),
            _ => {
                let reason = "the name of the result must end in .jsonl, .json or .parquet".into();
                Err(DataError::NoData { path: path.to_owned(), reason })
            }
        }
    }
}

/// Writes a dataset to a new file and returns the number of rows.
pub fn convert(dataset: &Arc<Dataset>, to: &Path, progress: &dyn Progress) -> Result<u64, DataError> {
    let target = Target::of(to)?;
    if to.exists() {
        let reason = "the file exists: name another one".into();
        return Err(DataError::NoData { path: to.to_owned(), reason });
    }
    progress.begin("Converting rows", ProgressUnit::Rows, dataset.rows());
    let mut rows = Rows { reader: RowReader::new(dataset.clone()), next: 0, end: dataset.rows(), progress };
    let written = garden_files::write_with(
        to,
        |error| DataError::io(to)(error),
        |file| match target {
            Target::Lines => write_json(file, to, &mut rows, ["", "\n", "\n"]),
            Target::Array => write_json(file, to, &mut rows, ["[\n", ",\n", "\n]\n"]),
            Target::Parquet => columns::write(file, to, &mut rows),
        },
    );
    progress.end();
    written.map(|()| dataset.rows())
}

/// The rows of a dataset in order, each with the bytes of its images.
struct Rows<'a> {
    reader: RowReader,
    next: u64,
    end: u64,
    progress: &'a dyn Progress,
}

impl Iterator for Rows<'_> {
    type Item = Result<Conversation, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.end {
            return None;
        }
        let row = self.next;
        self.next += 1;
        self.progress.advance(1);
        Some(self.read(row))
    }
}

impl Rows<'_> {
    fn read(&mut self, number: u64) -> Result<Conversation, DataError> {
        let mut row = self.reader.read(number)?;
        let parts = row.conversation.turns.iter_mut().flat_map(|turn| &mut turn.parts);
        let images =
            parts.filter_map(|part| if let Part::Image(source) = part { Some(source) } else { None });
        for (image, source) in images.enumerate() {
            if let ImageSource::Url(_) = source {
                continue;
            }
            let bytes = self.reader.image_bytes(number, source)?;
            if ImageFormat::of(&bytes).is_none() {
                let start = bytes[..bytes.len().min(12)].escape_ascii().to_string();
                let reason = BadRow::image(image, ImageError::UnknownFormat { start });
                return Err(DataError::Row { row: row.id, reason });
            }
            if let std::borrow::Cow::Owned(bytes) = bytes {
                *source = ImageSource::Bytes(bytes);
            }
        }
        Ok(row.conversation)
    }
}

/// Writes rows as JSON with what comes before, between and after them.
fn write_json(file: &mut File, path: &Path, rows: &mut Rows<'_>, marks: [&str; 3]) -> Result<(), DataError> {
    let [before, between, after] = marks;
    let mut writer = BufWriter::new(file);
    let mut put = |text: &str| writer.write_all(text.as_bytes()).map_err(DataError::io(path));
    put(before)?;
    for (i, row) in rows.enumerate() {
        if i > 0 {
            put(between)?;
        }
        let text =
            serde_json::to_string(&written(&row?)).map_err(|error| DataError::io(path)(error.into()))?;
        put(&text)?;
    }
    put(after)?;
    writer.flush().map_err(DataError::io(path))
}

/// A row as it is written in JSON.
#[derive(Serialize)]
struct Written<'a> {
    messages: Vec<Message<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tools: &'a [Json],
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Content<'a>,
    /// 0 where the row excludes the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<i64>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tool_calls: &'a [Json],
    #[serde(skip_serializing_if = "Option::is_none")]
    name: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: &'a Option<String>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(&'a str),
    Parts(Vec<WrittenPart<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WrittenPart<'a> {
    Text { text: &'a str },
    ImageUrl { image_url: ImageUrl },
}

#[derive(Serialize)]
struct ImageUrl {
    url: String,
}

fn written(row: &Conversation) -> Written<'_> {
    Written { messages: row.turns.iter().map(message).collect(), tools: &row.tools }
}

fn message(turn: &Turn) -> Message<'_> {
    Message {
        role: turn.role.name(),
        content: match &turn.parts[..] {
            // In a content that is one text, a marker would stand for an image.
            [Part::Text(text)] if !text.contains(MARKER) => Content::Text(text),
            parts => Content::Parts(parts.iter().map(part).collect()),
        },
        weight: weight(turn),
        tool_calls: &turn.tool_calls,
        name: &turn.name,
        tool_call_id: &turn.tool_call_id,
    }
}

fn part(part: &Part) -> WrittenPart<'_> {
    match part {
        Part::Text(text) => WrittenPart::Text { text },
        Part::Image(source) => WrittenPart::ImageUrl { image_url: ImageUrl { url: url(source) } },
    }
}

/// The weight that is written for a turn, if any is needed.
fn weight(turn: &Turn) -> Option<i64> {
    (!turn.learned).then_some(0)
}

fn url(source: &ImageSource) -> String {
    match source {
        ImageSource::Url(url) => url.clone(),
        ImageSource::Path(path) => path.display().to_string(),
        ImageSource::Held(_) => "an object".into(),
        ImageSource::Bytes(bytes) => preview::stored(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::DatasetOptions;
    use base64::{Engine, engine::general_purpose::STANDARD};
    use std::fs;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n and more";

    fn open(path: &Path) -> Arc<Dataset> {
        Arc::new(Dataset::open(path.to_str().unwrap(), &DatasetOptions::default(), &()).unwrap())
    }

    fn rows(path: &Path) -> Vec<Conversation> {
        let dataset = open(path);
        let mut reader = RowReader::new(dataset.clone());
        (0..dataset.rows()).map(|row| reader.read(row).unwrap().conversation).collect()
    }

    /// Rows of several shapes, with an image beside them, one inside and one far away.
    fn source() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.png"), PNG).unwrap();
        let inside = STANDARD.encode(PNG);
        let rows = [
            r#"{"text": "One\n\"quoted\"", "image": "a.png", "response": "1", "system": "S"}"#.to_owned(),
            format!(r#"{{"conversations": [{{"from": "human", "value": "<image>Two"}}, {{"from": "gpt", "value": "2"}}],
                "image": "data:image/png;base64,{inside}"}}"#)
            .replace('\n', ""),
            r#"{"text": "Three", "image": "https://example.org/a.png", "response": "3"}"#.to_owned(),
            r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "Four, of <image>"}]},
                {"role": "assistant", "content": "4"}]}"#
            .replace('\n', ""),
            r#"{"prompt": [{"role": "user", "content": "5"}, {"role": "assistant", "content": "6"}],
                "completion": "7"}"#
            .replace('\n', ""),
            r#"{"tools": [{"type": "function", "function": {"name": "f", "parameters": {"z": 1.5, "a": [1, 2]}}}],
                "messages": [{"role": "assistant", "content": null, "weight": 0, "tool_calls":
                [{"id": "1", "function": {"name": "f", "arguments": {"z": "x", "a": null}}}]},
                {"role": "tool", "name": "f", "tool_call_id": "1", "content": "8"}]}"#
            .replace('\n', ""),
        ];
        fs::write(folder.path().join("in.jsonl"), rows.join("\n")).unwrap();
        folder
    }

    #[test]
    fn every_format_reads_back_as_the_same_conversations() {
        let folder = source();
        let path = |name: &str| folder.path().join(name);
        let mut expected = rows(&path("in.jsonl"));
        expected[0].turns[1].parts[0] = Part::Image(ImageSource::Bytes(PNG.to_vec()));
        let mut from = path("in.jsonl");
        for name in ["a.jsonl", "b.json", "c.parquet", "d.jsonl"] {
            assert_eq!(convert(&open(&from), &path(name), &()).unwrap(), 6);
            assert_eq!(rows(&path(name)), expected, "{name}");
            from = path(name);
        }
        assert_eq!(fs::read(path("a.jsonl")).unwrap(), fs::read(path("d.jsonl")).unwrap());
    }

    #[test]
    fn a_bad_row_leaves_no_file_behind() {
        let folder = source();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("a.png"), "no image").unwrap();
        for name in ["a.jsonl", "b.json", "c.parquet"] {
            let error = convert(&open(&path("in.jsonl")), &path(name), &()).unwrap_err().to_string();
            assert!(error.contains("in.jsonl, row 1: image 1: not an image"), "{error}");
            assert!(!path(name).exists());
        }
    }

    #[test]
    fn nothing_is_overwritten_and_the_name_decides_the_format() {
        let folder = source();
        let path = |name: &str| folder.path().join(name);
        assert!(
            convert(&open(&path("in.jsonl")), &path("a.png"), &())
                .unwrap_err()
                .to_string()
                .contains(".parquet")
        );
        let error = convert(&open(&path("in.jsonl")), &path("in.jsonl"), &()).unwrap_err().to_string();
        assert!(error.contains("exists"), "{error}");
    }
}
