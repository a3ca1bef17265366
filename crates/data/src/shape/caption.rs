//! An image and the text that belongs to it, as `text` or `caption`.

use super::{
    Definition,
    common::{Draft, Field, NO_CHOICES, RowFields, beside_question},
    question_answer,
};
use crate::{
    error::BadRow,
    row::{Role, Turn},
};

pub(super) const SHAPE: Definition = Definition {
    id: "caption",
    name: "image and caption",
    looks: "image and caption",
    fields: &[Field::question("text"), Field::fixed("caption")],
    refuses: NO_CHOICES,
    recognises,
    read,
};

/// Begins a turn in the templates of Qwen's models. TRL's rows may have a `text` like that, which is no caption.
const TURN: &str = "<|im_start|>";

fn recognises(row: &mut RowFields<'_, '_>) -> Result<bool, BadRow> {
    Ok(matches!(question_answer::fields(row)?, (Some("text"), None)) || row.has("caption"))
}

fn read(row: &mut RowFields<'_, '_>) -> Result<Vec<Turn>, BadRow> {
    let field = question_answer::fields(row)?.0.map_or("caption", |_| "text");
    let images = row.take_images()?;
    if images.is_empty() {
        return Err(BadRow::NoAnswer { field });
    }
    let caption = row.text(field)?;
    if caption.contains(TURN) {
        return Err(BadRow::Rendered { field, marker: TURN });
    }
    beside_question(vec![Draft::blank(Role::User), Draft::text(Role::Assistant, caption)], images)
}
