//! What can be wrong: with a row ([`BadRow`]), or with the whole dataset ([`DataError`]).
//!
//! A bad row is skipped or stops the run, as the user chose; anything else always stops it. Each message says
//! what is wrong and where. What to do about it belongs to the front end, which finds what it needs in the
//! fields; [`DataError::bad_row`] leads from an error about a dataset to the row at fault.

use crate::{image::ImageError, recipe::LeftOut, row::RowId, shape, text::TextError};
use std::{
    ffi::OsStr,
    fmt::{self, Write},
    io,
    path::{Path, PathBuf},
};

/// Text of a row is shown up to this many characters.
const LONGEST_SHOWN: usize = 200;

/// Text of a row inside a message: shortened, without control characters.
struct Shown<T>(T);

impl<T: AsRef<OsStr>> fmt::Display for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.as_ref().to_string_lossy();
        let clean = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        text.chars().take(LONGEST_SHOWN).try_for_each(|c| f.write_char(clean(c)))?;
        if text.chars().nth(LONGEST_SHOWN).is_some() { f.write_char('…') } else { Ok(()) }
    }
}

/// Why a row cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BadRow {
    /// The text of the row is not JSON.
    #[error("not JSON: {0}")]
    Json(String),
    /// The row is longer than any reasonable row.
    #[error("the row has {bytes} bytes; at most {limit} are read")]
    TooLarge {
        /// Its length.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// No shape has these fields.
    #[error("no known shape of row: it has {}; expected {}", Shown(keys), shape::expected())]
    Shape {
        /// The fields of the row.
        keys: String,
    },
    /// A field is missing or of another kind.
    #[error("'{field}' should be {expected}, found {found}")]
    Field {
        /// Its name.
        field: &'static str,
        /// What the shape has there.
        expected: &'static str,
        /// What the row has there.
        found: &'static str,
    },
    /// A role that no chat template knows.
    #[error("unknown role '{}': expected system, user, assistant or tool", Shown(.0))]
    Role(String),
    /// A part that is neither text nor image.
    #[error("a part of type '{}' where only text and images are understood", Shown(.0))]
    PartType(String),
    /// A field that other tools follow and that is not followed here.
    #[error("'{field}' is not followed: {advice}")]
    Refused {
        /// Its name.
        field: &'static str,
        /// What to do about it.
        advice: &'static str,
    },
    /// Two fields that mean the same and say different things.
    #[error("'{first}' and '{second}' are both given: keep one of them")]
    Twice {
        /// One of them.
        first: &'static str,
        /// The other one.
        second: &'static str,
    },
    /// An image that no shape reads, in a row that has no other.
    #[error("'{}' holds an image, and the row would be learned without it", Shown(field))]
    UnreadImage {
        /// The field that holds it.
        field: String,
    },
    /// Instructions in two places.
    #[error("'system' and a message of role system say different things: keep one of them")]
    TwoSystems,
    /// A question without an answer.
    #[error("'{field}' without an answer: there is nothing to learn; add 'completion' or 'response'")]
    NoAnswer {
        /// The question's field.
        field: &'static str,
    },
    /// A conversation that a chat template was applied to, in the place of a text.
    #[error(
        "'{field}' holds '{marker}', a conversation that a chat template was already applied to: give its 'messages'"
    )]
    Rendered {
        /// The text's field.
        field: &'static str,
        /// What tells it.
        marker: &'static str,
    },
    /// A column that the user gave a meaning is not in the row.
    #[error("no column '{}': the row has {}", Shown(column), Shown(keys))]
    NoColumn {
        /// The column that was named.
        column: String,
        /// The fields of the row.
        keys: String,
    },
    /// A weight that is neither 0 nor 1.
    #[error("'{field}' of a message is neither 0 (not learned) nor 1 (learned): no other weight is followed")]
    Weight {
        /// The field that has it.
        field: &'static str,
    },
    /// A turn of another role than the assistant's is to be learned.
    #[error(
        "'{field}' asks to learn a message of role '{role}': only the assistant's are learned; remove it"
    )]
    LearnedTurn {
        /// The field that asks.
        field: &'static str,
        /// The role of the message.
        role: &'static str,
    },
    /// A turn of another role than the assistant's calls tools.
    #[error("'tool_calls' in a message of role '{0}': only the assistant calls tools")]
    CallsInTurn(&'static str),
    /// Markers or placeholders do not match the images.
    #[error(
        "{}, but {}: write one {what} for each image, in their order",
        counted(*places as u64, what), counted(*images as u64, "image")
    )]
    Markers {
        /// What stands for an image in this row.
        what: &'static str,
        /// How many of them the turns have.
        places: usize,
        /// Images beside them.
        images: usize,
    },
    /// Images inside the messages and images beside them.
    #[error(
        "{} inside the messages and {beside} beside them: keep one of the two, \
         or mark places for the others with {{\"type\": \"image\"}} parts",
        counted(*inside as u64, "image")
    )]
    ImagesTwice {
        /// Those inside.
        inside: usize,
        /// Those beside.
        beside: usize,
    },
    /// Images beside the turns, and no user turn to show them.
    #[error("the row has images, but no user turn to show them in")]
    NoTurnForImages,
    /// An image where only text is allowed.
    #[error("an image in a turn of role '{0}': images belong to the user or a tool")]
    ImageInTurn(&'static str),
    /// A conversation without turns.
    #[error("the conversation has no turns")]
    Empty,
    /// A value in the place of an image that is not one.
    #[error("an image was expected, found {0}")]
    NoImage(&'static str),
    /// A data URI that cannot be read.
    #[error("broken data URI: {0}")]
    DataUri(&'static str),
    /// Base64 that cannot be read.
    #[error("broken base64: {0}")]
    Base64(String),
    /// An image file that is in none of the folders where it may be.
    #[error("image {}: no such file{}", Shown(path), searched(path, folders))]
    NoSuchImage {
        /// The path as the row writes it.
        path: PathBuf,
        /// The folders.
        folders: Vec<PathBuf>,
    },
    /// An image file that cannot be read.
    #[error("image {}: {reason}", Shown(path))]
    ImageFile {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// An image file outside the folders that rows may read.
    #[error(
        "image {} leads to {}, outside {}, where rows may not read",
        Shown(path),
        Shown(leads_to),
        listed(bounds)
    )]
    OutsideRoot {
        /// The path as the row writes it.
        path: PathBuf,
        /// The file that it leads to.
        leads_to: PathBuf,
        /// The folders.
        bounds: Vec<PathBuf>,
    },
    /// An image by its path, where rows may not name files.
    #[error("rows carry their images inside: no image is read by its path here")]
    ImageNotInside,
    /// An image that cannot be decoded.
    #[error("image {number}: {source}")]
    Image {
        /// Which image of the row, from 1.
        number: usize,
        /// What is wrong with it.
        source: ImageError,
    },
    /// An image whose header's size does not match the decoded image.
    #[error("image {number}: the header's size does not match the decoded image")]
    ImageHeader {
        /// Which image of the row, from 1.
        number: usize,
    },
    /// An image whose file is another one than the program opened.
    #[error(
        "image {number}: its file has changed since it was opened: it is {}x{} now and was {}x{}",
        now.0, now.1, then.0, then.1
    )]
    ImageChanged {
        /// Which image of the row, from 1.
        number: usize,
        /// Width and height of what the file holds.
        now: (u32, u32),
        /// Width and height when it was opened.
        then: (u32, u32),
    },
    /// The text cannot be encoded.
    #[error(transparent)]
    Text(TextError),
    /// A row that would be left out, where the user wants to stop instead.
    #[error("{0}")]
    LeftOut(LeftOut),
    /// A remote image, and the user did not allow them.
    #[error("image {} is remote, and remote images are not allowed", Shown(.0))]
    RemoteNotAllowed(String),
    /// A remote image that cannot be fetched.
    #[error("image {}: {reason}", Shown(url))]
    Remote {
        /// Its address.
        url: String,
        /// Why.
        reason: String,
    },
}

/// A number of things in words: `1 row`, `2 rows`.
pub(crate) fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Folders in a message.
pub(crate) fn listed(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(" and ")
}

/// Where a path was looked for: a whole one in no folder.
fn searched(path: &Path, folders: &[PathBuf]) -> String {
    if path.is_absolute() { String::new() } else { format!(" in {}", listed(folders)) }
}

impl BadRow {
    /// The kind of mistake, in words: rows with the same kind are counted together.
    pub(crate) fn kind(&self) -> String {
        let fixed = match self {
            Self::Refused { field, .. } => return format!("with a field that is not followed: '{field}'"),
            Self::Twice { first, second } => return format!("with both '{first}' and '{second}'"),
            Self::Field { field, .. } => return format!("whose '{field}' is missing or of another type"),
            Self::Json(_) => "that are not JSON",
            Self::TooLarge { .. } => "that are too large",
            Self::Shape { .. } => "of no known shape",
            Self::Role(_) => "with an unknown role",
            Self::PartType(_) => "with a part that is neither text nor image",
            Self::UnreadImage { field } => return format!("with an image that is not read: '{field}'"),
            Self::TwoSystems => "with two different system messages",
            Self::NoAnswer { .. } => "without an answer",
            Self::Rendered { .. } => "that a chat template was applied to",
            Self::NoColumn { .. } => "without a column that was given a meaning",
            Self::Weight { .. } | Self::LearnedTurn { .. } => "with a weight that is not followed",
            Self::CallsInTurn(_) => "with tool calls outside the assistant's turns",
            Self::Markers { .. }
            | Self::ImagesTwice { .. }
            | Self::NoTurnForImages
            | Self::ImageInTurn(_) => "whose images have no clear place",
            Self::Empty => "without turns",
            Self::NoImage(_) | Self::DataUri(_) | Self::Base64(_) => "with something else than an image",
            Self::NoSuchImage { .. } | Self::ImageFile { .. } => "with an image file that cannot be read",
            Self::ImageNotInside => "with an image by its path",
            Self::OutsideRoot { .. } => "with an image outside the image folder",
            Self::Image { .. } | Self::ImageHeader { .. } | Self::ImageChanged { .. } => {
                "with an image that cannot be decoded"
            }
            Self::Text(_) => "that the chat template or the tokenizer refuses",
            Self::LeftOut(_) => "that are left out",
            Self::RemoteNotAllowed(_) | Self::Remote { .. } => "with a remote image that cannot be fetched",
        };
        fixed.to_owned()
    }

    /// Names the image of a row, counted from 0, that an error is about.
    pub(crate) fn image(index: usize, source: ImageError) -> Self {
        Self::Image { number: index + 1, source }
    }
}

/// A row that cannot be used, and why.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{row}: {reason}")]
pub struct RowError {
    /// Where the row is.
    pub row: RowId,
    /// Why it cannot be used.
    pub reason: BadRow,
}

/// Why a dataset cannot be used, or why reading it stopped.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The system refused to read or write.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is nothing to read.
    #[error("{}: {reason}", path.display())]
    NoData {
        /// The path as the user gave it.
        path: PathBuf,
        /// What was found instead.
        reason: String,
    },
    /// A file is broken as a whole.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The hub could not be asked, or did not have it.
    #[error("{id} on the hub: {reason}")]
    Hub {
        /// The dataset.
        id: String,
        /// What happened.
        reason: String,
    },
    /// The names of the files do not tell which of them to read.
    #[error("{}: the names of its files do not tell {wanted}; it has {has}", path.display())]
    Split {
        /// The dataset.
        path: PathBuf,
        /// What was looked for.
        wanted: String,
        /// The splits there are.
        has: String,
    },
    /// Its README has several configurations, or not the one that is named.
    #[error("{}: its README has the configurations {has}: choose one of them", path.display())]
    Config {
        /// The dataset.
        path: PathBuf,
        /// Their names.
        has: String,
    },
    /// A folder to read images from does not exist or is not a folder.
    #[error("{}: not a folder, and images should be read from it", .0.display())]
    ImageRoot(PathBuf),
    /// The dataset is empty.
    #[error("the dataset has no rows")]
    NoRows,
    /// A row past the last one.
    #[error("there is no row {row} in a dataset of {}", counted(*rows, "row"))]
    NoSuchRow {
        /// The row, from 0.
        row: u64,
        /// Rows of the dataset.
        rows: u64,
    },
    /// No row can be used.
    #[error("no row of the dataset can be used: {tally}")]
    NoUsableRows {
        /// What became of them.
        tally: String,
    },
    /// More bad rows than the user accepts.
    #[error(
        "{bad} of {} {} bad, more than the {}% that may be skipped; the last: {last}",
        counted(*rows, "row"),
        if *bad == 1 { "is" } else { "are" },
        max_share * 100.0
    )]
    TooManyBadRows {
        /// Bad rows in this epoch.
        bad: u64,
        /// Rows of the dataset.
        rows: u64,
        /// The share that may be bad.
        max_share: f64,
        /// The last of them.
        last: Box<RowError>,
    },
    /// Parts of a survey that are not together the rows of this dataset.
    #[error("{} surveyed of a dataset of {}: not all processes read the same data",
        counted(*surveyed, "row"), counted(*rows, "row"))]
    OtherRows {
        /// Rows that the parts have.
        surveyed: u64,
        /// Rows of the dataset.
        rows: u64,
    },
    /// A saved place that this dataset does not have.
    #[error("cannot resume at row {row} of a dataset of {}: the data changed since", counted(*rows, "row"))]
    BadPosition {
        /// The place.
        row: u64,
        /// Rows of the dataset.
        rows: u64,
    },
    /// A thread died of a bug.
    #[error("a loader thread panicked; its message is above")]
    Worker,
    /// A row is bad and bad rows are not skipped.
    #[error("{row}: {reason}")]
    Row {
        /// Where.
        row: RowId,
        /// Why.
        reason: BadRow,
    },
}

impl DataError {
    /// The row at fault and what is wrong with it, where the error is about a row.
    pub fn bad_row(&self) -> Option<(&RowId, &BadRow)> {
        match self {
            Self::Row { row, reason } => Some((row, reason)),
            Self::TooManyBadRows { last, .. } => Some((&last.row, &last.reason)),
            _ => None,
        }
    }

    /// Names the file that an operation failed on.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_row_made_up_is_shown_short_and_tame() {
        let wild = format!("\u{1b}[2J{}", "a".repeat(5000));
        let reason = String::new;
        let messages = [
            BadRow::Shape { keys: wild.clone() },
            BadRow::Role(wild.clone()),
            BadRow::PartType(wild.clone()),
            BadRow::ImageFile { path: wild.clone().into(), reason: reason() },
            BadRow::OutsideRoot {
                path: wild.clone().into(),
                leads_to: "a".into(),
                bounds: vec!["data".into()],
            },
            BadRow::RemoteNotAllowed(wild.clone()),
            BadRow::Remote { url: wild, reason: reason() },
        ];
        for message in messages.map(|error| error.to_string()) {
            assert!(message.len() < 400 && message.contains("aaa…"), "{message}");
            assert!(!message.contains(char::is_control), "{message:?}");
        }
    }
}
