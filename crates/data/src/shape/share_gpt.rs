//! `conversations` with `<image>` markers, beside `images`.

use super::{
    Definition,
    common::{Field, RowFields, at_markers},
};
use crate::{error::BadRow, row::Turn};

pub(super) const SHAPE: Definition = Definition {
    id: "share-gpt",
    name: "ShareGPT conversations",
    looks: "conversations",
    fields: &[Field::conversation("conversations")],
    refuses: &[],
    recognises,
    read,
};

fn recognises(row: &mut RowFields<'_, '_>) -> Result<bool, BadRow> {
    Ok(row.list()? == Some("conversations") && !row.has("image"))
}

pub(super) fn read(row: &mut RowFields<'_, '_>) -> Result<Vec<Turn>, BadRow> {
    at_markers(row.take_messages()?, row.take_images()?)
}
