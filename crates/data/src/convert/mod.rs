//! A dataset in another format and one shape: OpenAI `messages`, every image inside its row.
//!
//! In comes a dataset of any format and shape; out goes a JSON Lines, JSON or Parquet file that needs no other file.
//! Images keep their encoded bytes; those that are remote stay addresses.

use crate::{
    atomic,
    dataset::{Dataset, RowReader},
    error::{BadRow, DataError},
    image::{Format, ImageError},
    progress::{Progress, Unit},
    row::{Conversation, ImageSource, Part},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value as Json, json};
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

/// Writes a dataset to a new file and returns its rows.
pub fn convert(dataset: &Arc<Dataset>, to: &Path, progress: &dyn Progress) -> Result<u64, DataError> {
    let target = Target::of(to)?;
    if to.exists() {
        let reason = "the file exists: name another one".into();
        return Err(DataError::NoData { path: to.to_owned(), reason });
    }
    progress.begin("Converting rows", Unit::Rows, dataset.rows());
    let mut rows = Rows { reader: RowReader::new(dataset.clone()), next: 0, end: dataset.rows(), progress };
    let written = atomic::write(
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

/// The rows of a dataset, one after another, with every image in hand.
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
            if Format::of(&bytes).is_none() {
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
        put(&to_json(&row?).to_string())?;
    }
    put(after)?;
    writer.flush().map_err(DataError::io(path))
}

fn to_json(row: &Conversation) -> Json {
    let part = |part: &Part| match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Image(source) => json!({"type": "image_url", "image_url": {"url": url(source)}}),
    };
    let turns = row.turns.iter().map(|turn| {
        let content = match &turn.parts[..] {
            [Part::Text(text)] => json!(text),
            parts => parts.iter().map(part).collect(),
        };
        json!({"role": turn.role.name(), "content": content})
    });
    json!({"messages": turns.collect::<Vec<_>>()})
}

fn url(source: &ImageSource) -> String {
    match source {
        ImageSource::Url(url) => url.clone(),
        ImageSource::Path(path) => path.display().to_string(),
        ImageSource::Bytes(bytes) => {
            let kind =
                Format::of(bytes).map_or("octet-stream".into(), |format| format.to_string().to_lowercase());
            format!("data:image/{kind};base64,{}", STANDARD.encode(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::DatasetOptions;
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

    /// Rows of several shapes, with a picture beside them, one inside and one far away.
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
            r#"{"text": "Four, of <image>", "response": "4"}"#.to_owned(),
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
            assert_eq!(convert(&open(&from), &path(name), &()).unwrap(), 4);
            assert_eq!(rows(&path(name)), expected, "{name}");
            from = path(name);
        }
        assert_eq!(fs::read(path("a.jsonl")).unwrap(), fs::read(path("d.jsonl")).unwrap());
    }

    #[test]
    fn a_bad_row_leaves_no_file_behind() {
        let folder = source();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("a.png"), "no picture").unwrap();
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
