//! `messages` beside `images`, whose texts have as many `<image>` markers as there are images.

use super::{
    Definition,
    common::{Arrangement, Field, RowFields, at_markers},
};
use crate::{error::BadRow, row::Turn};

pub(super) const SHAPE: Definition = Definition {
    id: "marked-messages",
    name: "messages with <image> markers",
    looks: "messages",
    fields: &[Field::conversation("messages")],
    refuses: &[],
    recognises,
    read,
};

fn recognises(row: &mut RowFields<'_, '_>) -> Result<bool, BadRow> {
    Ok(Arrangement::of(row)? == Some(Arrangement::Marked))
}

fn read(row: &mut RowFields<'_, '_>) -> Result<Vec<Turn>, BadRow> {
    at_markers(row.take_messages()?, row.take_images()?)
}
