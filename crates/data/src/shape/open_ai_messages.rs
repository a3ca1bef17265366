//! `messages` with images inside their parts, or without images.

use super::{
    Definition,
    common::{Arrangement, Field, RowFields, at_placeholders},
};
use crate::{error::BadRow, row::Turn};

pub(super) const SHAPE: Definition = Definition {
    id: "open-ai-messages",
    name: "OpenAI messages",
    looks: "messages",
    fields: &[Field::conversation("messages")],
    refuses: &[],
    recognises,
    read,
};

fn recognises(row: &mut RowFields<'_, '_>) -> Result<bool, BadRow> {
    Ok(Arrangement::of(row)? == Some(Arrangement::Inside))
}

fn read(row: &mut RowFields<'_, '_>) -> Result<Vec<Turn>, BadRow> {
    at_placeholders(row.take_messages()?, Vec::new())
}
