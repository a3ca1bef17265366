//! `messages` beside `images`. Placeholder parts say where the images belong; without any, the first user
//! turn begins with them.

use super::{
    Definition,
    common::{Arrangement, Field, RowFields, at_placeholders},
};
use crate::{error::BadRow, row::Turn};

pub(super) const SHAPE: Definition = Definition {
    id: "trl-messages",
    name: "TRL messages with images",
    looks: "messages",
    fields: &[Field::conversation("messages")],
    refuses: &[],
    recognises,
    read,
};

fn recognises(row: &mut RowFields<'_, '_>) -> Result<bool, BadRow> {
    Ok(Arrangement::of(row)? == Some(Arrangement::Beside))
}

fn read(row: &mut RowFields<'_, '_>) -> Result<Vec<Turn>, BadRow> {
    at_placeholders(row.take_messages()?, row.take_images()?)
}
