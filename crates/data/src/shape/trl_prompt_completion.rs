//! `prompt` and `completion`, beside `images`. Only the completion is learned.

use super::{
    Definition, alpaca,
    common::{Field, RowFields},
    question_answer,
};
use crate::error::BadRow;

pub(super) const SHAPE: Definition = Definition {
    id: "trl-prompt-completion",
    name: "TRL prompt and completion",
    looks: "prompt and completion",
    fields: &[Field::question("prompt"), Field::answer("completion")],
    refuses: &[],
    recognises,
    read: question_answer::read,
};

fn recognises(row: &mut RowFields<'_, '_>) -> Result<bool, BadRow> {
    let another = row.list()?.is_some() || alpaca::recognises(row)?;
    Ok(!another && question_answer::fields(row)? == (Some("prompt"), Some("completion")))
}
