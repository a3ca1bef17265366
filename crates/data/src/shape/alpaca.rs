//! `instruction`, perhaps with an `input` on a line of its own, `output`, and perhaps earlier exchanges as
//! `history`, beside `images`.

use super::{
    Definition,
    common::{Draft, Field, NO_CHOICES, RowFields, beside_question},
};
use crate::{
    error::BadRow,
    row::{Role, Turn},
    value::Value,
};

pub(super) const SHAPE: Definition = Definition {
    id: "alpaca",
    name: "Alpaca instructions",
    looks: "instruction and output",
    fields: &[
        Field::question("instruction"),
        Field::other("input"),
        Field::answer("output"),
        Field::other("history"),
    ],
    refuses: NO_CHOICES,
    recognises,
    read,
};

pub(super) fn recognises(row: &mut RowFields<'_, '_>) -> Result<bool, BadRow> {
    Ok(row.has("instruction") && row.peek("output").is_some())
}

fn read(row: &mut RowFields<'_, '_>) -> Result<Vec<Turn>, BadRow> {
    let (instruction, input) = (row.text("instruction")?, row.optional_text("input")?);
    let asked = match input.filter(|input| !input.trim().is_empty()) {
        Some(input) => format!("{instruction}\n{input}"),
        None => instruction.to_owned(),
    };
    let mut turns = history(row)?;
    turns.push(Draft::text(Role::User, asked));
    turns.push(Draft::text(Role::Assistant, row.text("output")?));
    beside_question(turns, row.take_images()?)
}

fn history<'r>(row: &RowFields<'r, '_>) -> Result<Vec<Draft<'r>>, BadRow> {
    let wrong = || row.wrong("history", "a list of pairs of texts");
    let Some(history) = row.get("history").filter(|history| !history.is_blank()) else {
        return Ok(Vec::new());
    };
    let Value::List(pairs) = history else { return Err(wrong()) };
    let mut turns = Vec::with_capacity(2 * pairs.len() + 2);
    for pair in pairs {
        let Value::List(pair) = pair else { return Err(wrong()) };
        let [Value::Text(asked), Value::Text(said)] = &pair[..] else { return Err(wrong()) };
        turns.push(Draft::text(Role::User, asked.as_ref()));
        turns.push(Draft::text(Role::Assistant, said.as_ref()));
    }
    Ok(turns)
}
