//! What is known of a file, beside its content.

use crate::store::FileRow;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Bytes of a file's name that are kept.
const NAME_BYTES: usize = 255;

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Purpose {
    /// Rows to train or to evaluate on.
    FineTune,
    /// What a job has made; only the server makes these.
    FineTuneResults,
    Vision,
    #[serde(rename = "user_data")]
    UserData,
    Assistants,
    Batch,
}

impl Purpose {
    /// Reads the name of a purpose.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        serde_json::from_value(text.into()).ok()
    }

    /// Whether a client may upload files for it.
    pub(crate) fn is_for_clients(self) -> bool {
        self != Self::FineTuneResults
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FineTune => "fine-tune",
            Self::FineTuneResults => "fine-tune-results",
            Self::Vision => "vision",
            Self::UserData => "user_data",
            Self::Assistants => "assistants",
            Self::Batch => "batch",
        }
    }
}

/// Whether a file can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileStatus {
    Processed,
    /// See `status_details`.
    Error,
}

/// What a file's bytes are taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Format {
    Jsonl,
    Json,
    Csv,
    Tsv,
    Parquet,
    Zip,
    Bin,
}

impl Format {
    /// The extension of the file in the data folder.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Self::Jsonl => "jsonl",
            Self::Json => "json",
            Self::Csv => "csv",
            Self::Tsv => "tsv",
            Self::Parquet => "parquet",
            Self::Zip => "zip",
            Self::Bin => "bin",
        }
    }

    /// What a name and the first bytes say. Where the name says nothing, as the SDK's name for bytes, the bytes do.
    pub(crate) fn of(name: &str, head: &[u8]) -> Self {
        let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
        let all = [Self::Jsonl, Self::Json, Self::Csv, Self::Tsv, Self::Parquet, Self::Zip];
        let named = all.into_iter().find(|format| extension.as_deref() == Some(format.extension()));
        named.unwrap_or_else(|| match head.trim_ascii_start() {
            _ if head.starts_with(b"PAR1") => Self::Parquet,
            _ if head.starts_with(b"PK\x03\x04") => Self::Zip,
            [b'{', ..] => Self::Jsonl,
            [b'[', ..] => Self::Json,
            _ => Self::Bin,
        })
    }
}

/// A file's record, as it lies in the data folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub id: String,
    pub filename: String,
    pub purpose: Purpose,
    pub bytes: u64,
    pub sha256: String,
    #[serde(rename = "ext")]
    pub format: Format,
    pub created_at: i64,
    pub expires_at: Option<i64>,
    pub status: FileStatus,
    pub status_details: Option<String>,
}

impl FileRecord {
    pub(super) fn to_row(&self) -> Result<FileRow, serde_json::Error> {
        Ok(FileRow {
            id: self.id.clone(),
            created_at: self.created_at,
            purpose: self.purpose.name().to_owned(),
            sha256: self.sha256.clone(),
            expires_at: self.expires_at,
            record: serde_json::to_string(self)?,
        })
    }
}

/// A name that a person may be shown: the last part of a path, without what would move a cursor. It is never made
/// part of a path.
pub(crate) fn display_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let kept: String = last.chars().filter(|c| !c.is_control() && !is_invisible(*c)).collect();
    let kept = kept.trim();
    let end = (0..=kept.len().min(NAME_BYTES)).rev().find(|end| kept.is_char_boundary(*end)).unwrap_or(0);
    match &kept[..end] {
        "" | "." | ".." => "upload".to_owned(),
        name => name.to_owned(),
    }
}

/// Marks that change the direction of text, so that `exe.jsonl` could pass for another name.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_folders_and_marks() {
        for (name, shown) in [
            ("rows.jsonl", "rows.jsonl"),
            ("../../etc/passwd", "passwd"),
            ("C:\\rows\\a.csv", "a.csv"),
            ("..", "upload"),
            ("", "upload"),
            ("a\0b\n\u{202e}c", "abc"),
            ("  Zeilen ä.jsonl ", "Zeilen ä.jsonl"),
        ] {
            assert_eq!(display_name(name), shown, "{name:?}");
        }
        assert_eq!(display_name(&"ä".repeat(200)).len(), 254);
    }

    #[test]
    fn the_name_tells_the_format_and_else_the_bytes() {
        assert_eq!(Format::of("a.CSV", b"{"), Format::Csv);
        assert_eq!(Format::of("upload", b" \n{\"messages\""), Format::Jsonl);
        assert_eq!(Format::of("upload", b"PAR1"), Format::Parquet);
        assert_eq!(Format::of("a.../../x", b"\xff"), Format::Bin);
    }

    #[test]
    fn every_purpose_has_its_name() {
        for name in ["fine-tune", "fine-tune-results", "vision", "user_data", "assistants", "batch"] {
            assert_eq!(Purpose::parse(name).unwrap().name(), name);
        }
        assert_eq!(Purpose::parse("fine_tune"), None);
    }
}
