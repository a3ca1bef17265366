//! `conversations` with `<image>` markers, beside `image`: ShareGPT's conversations with another name for the
//! images.

use super::{
    Definition,
    common::{Field, RowFields},
    share_gpt,
};
use crate::error::BadRow;

pub(super) const SHAPE: Definition = Definition {
    id: "llava",
    name: "LLaVA conversations",
    looks: "conversations",
    fields: &[Field::conversation("conversations")],
    refuses: &[],
    recognises,
    read: share_gpt::read,
};

fn recognises(row: &mut RowFields<'_, '_>) -> Result<bool, BadRow> {
    Ok(row.list()? == Some("conversations") && row.has("image"))
}
