//! Where the images beside a conversation belong: at its markers, at its placeholders, or before its first
//! question.

use super::row::{Draft, DraftPart, RowFields};
use crate::{
    error::BadRow,
    row::{ImageSource, Part, Role, Turn},
};
use std::borrow::Cow;

/// What stands for an image in shapes whose text has markers.
pub(crate) const MARKER: &str = "<image>";

/// Markers of other tools, by what they begin and end with, and what to do about them.
const OTHERS: [(&str, &str, &str); 3] = [
    (
        "<video>",
        "",
        "videos are not trained on; remove the row, or write the content as parts if this is text",
    ),
    ("<audio>", "", "sound is not trained on; remove the row, or write the content as parts if this is text"),
    ("<img>", "</img>", "write <image> there, and what is between <img> and </img> into 'images'"),
];

/// Whether turns of a role show images. A marker in an answer is text of the answer.
pub(in crate::shape) fn may_hold_images(role: Role) -> bool {
    matches!(role, Role::User | Role::Tool)
}

/// Where the images of `messages` are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shape) enum Arrangement {
    /// Inside the messages, or there are none.
    Inside,
    /// Beside the messages.
    Beside,
    /// Beside the messages, whose texts mark their places.
    Marked,
}

impl Arrangement {
    /// Where the images of a row's `messages` are, if it has any. Markers are plain text if a message shows
    /// an image itself, and in parts without an image beside them: parts say themselves what is an image.
    pub fn of(row: &mut RowFields<'_, '_>) -> Result<Option<Self>, BadRow> {
        if row.list()? != Some("messages") {
            return Ok(None);
        }
        let count = Count::of(row.messages()?);
        if count.images > 0 && !row.has("image") && !row.has("images") {
            // A file name beside images that are all inside only says where they came from.
            return Ok(Some(Self::Inside));
        }
        let beside = !row.images()?.is_empty();
        let has_markers = count.plain_markers > 0 || beside && count.markers > 0;
        Ok(Some(match beside {
            _ if count.images == 0 && count.placeholders == 0 && has_markers => Self::Marked,
            true => Self::Beside,
            false => Self::Inside,
        }))
    }
}

/// Joins a question with its images: at its markers, or before it where it has none.
pub(in crate::shape) fn beside_question(
    turns: Vec<Draft<'_>>,
    images: Vec<ImageSource>,
) -> Result<Vec<Turn>, BadRow> {
    let count = Count::of(&turns);
    if count.images == 0 && count.placeholders == 0 && count.plain_markers > 0 {
        return at_markers(turns, images);
    }
    at_placeholders(turns, images)
}

/// What turns hold.
struct Count {
    images: usize,
    placeholders: usize,
    /// Markers in texts of the user or a tool.
    markers: usize,
    /// Those in contents that are one text.
    plain_markers: usize,
}

impl Count {
    fn of(turns: &[Draft<'_>]) -> Self {
        let mut count = Self { images: 0, placeholders: 0, markers: 0, plain_markers: 0 };
        for turn in turns {
            for part in &turn.parts {
                match part {
                    DraftPart::Image(_) => count.images += 1,
                    DraftPart::Placeholder => count.placeholders += 1,
                    DraftPart::Text(text) if may_hold_images(turn.turn.role) => {
                        let markers = text.matches(MARKER).count();
                        count.markers += markers;
                        count.plain_markers += if turn.plain { markers } else { 0 };
                    }
                    DraftPart::Text(_) => {}
                }
            }
        }
        count
    }
}

/// Puts the images where the markers are.
pub(in crate::shape) fn at_markers(
    turns: Vec<Draft<'_>>,
    images: Vec<ImageSource>,
) -> Result<Vec<Turn>, BadRow> {
    let markers = Count::of(&turns).markers;
    if markers != images.len() {
        return Err(BadRow::Markers { what: "<image> marker", places: markers, images: images.len() });
    }
    let turns = turns.into_iter().map(split_at_markers).collect::<Result<_, _>>()?;
    at_placeholders(turns, images)
}

fn split_at_markers(draft: Draft<'_>) -> Result<Draft<'_>, BadRow> {
    if !may_hold_images(draft.turn.role) {
        return Ok(draft);
    }
    let mut parts = Vec::new();
    for part in draft.parts {
        let DraftPart::Text(text) = part else { return Err(BadRow::PartType("image".into())) };
        for (i, piece) in text.split(MARKER).enumerate() {
            if i > 0 {
                parts.push(DraftPart::Placeholder);
            }
            if !piece.is_empty() {
                parts.push(DraftPart::Text(Cow::Owned(piece.to_owned())));
            }
        }
    }
    Ok(Draft { parts, ..draft })
}

/// Refuses markers of media that are not shown: they would be learned as if they were words.
fn refuse_other_markers(draft: &Draft<'_>) -> Result<(), BadRow> {
    if !draft.plain || !may_hold_images(draft.turn.role) {
        return Ok(());
    }
    for part in &draft.parts {
        let DraftPart::Text(text) = part else { continue };
        let has = |(start, end, _): &&(&str, &str, &str)| {
            text.split_once(start).is_some_and(|(_, rest)| rest.contains(end))
        };
        if let Some((field, _, advice)) = OTHERS.iter().find(has) {
            return Err(BadRow::Refused { field, advice });
        }
    }
    Ok(())
}

/// Puts the images where the placeholders are; where there are none, before the first user turn.
pub(in crate::shape) fn at_placeholders(
    mut turns: Vec<Draft<'_>>,
    images: Vec<ImageSource>,
) -> Result<Vec<Turn>, BadRow> {
    turns.iter().try_for_each(refuse_other_markers)?;
    let Count { placeholders, images: inside, .. } = Count::of(&turns);
    if placeholders == 0 && !images.is_empty() {
        if inside > 0 {
            return Err(BadRow::ImagesTwice { inside, beside: images.len() });
        }
        let first = turns.iter_mut().find(|draft| draft.turn.role == Role::User);
        let parts = &mut first.ok_or(BadRow::NoTurnForImages)?.parts;
        parts.splice(0..0, images.iter().map(|_| DraftPart::Placeholder));
    } else if placeholders != images.len() {
        return Err(BadRow::Markers {
            what: "image placeholder",
            places: placeholders,
            images: images.len(),
        });
    }
    let mut images = images.into_iter();
    let mut place = |part| match part {
        DraftPart::Text(text) => Some(Part::Text(text.into_owned())),
        DraftPart::Image(source) => Some(Part::Image(source)),
        DraftPart::Placeholder => images.next().map(Part::Image),
    };
    let filled = turns.into_iter().map(|draft| {
        let parts = draft.parts.into_iter().filter_map(&mut place).collect();
        Turn { parts, ..draft.turn }
    });
    Ok(filled.collect())
}
