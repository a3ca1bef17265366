//! Which columns of a dataset mean what, where their names do not say it.
//!
//! Takes pairs such as `image=photo,prompt=question` and renames the fields of each row before its shape is
//! recognised.

use crate::{error::BadRow, shape, value::Value};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Names of fields, and the columns that are read for them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Columns(Vec<(&'static str, String)>);

/// Why a list of columns cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ColumnsError {
    /// Not two names with `=` between them.
    #[error("'{0}' is not MEANING=COLUMN, such as image=photo")]
    Form(String),
    /// A meaning that no shape has.
    #[error("'{0}' is no meaning of a column: there are {list}", list = shape::meanings().join(", "))]
    Meaning(String),
    /// A meaning or a column that is named twice.
    #[error("'{0}' is named twice")]
    Twice(String),
}

impl FromStr for Columns {
    type Err = ColumnsError;

    fn from_str(text: &str) -> Result<Self, ColumnsError> {
        let mut columns: Vec<(&'static str, String)> = Vec::new();
        for pair in text.split(',').map(str::trim) {
            let (meaning, column) = pair.split_once('=').ok_or_else(|| ColumnsError::Form(pair.into()))?;
            let (meaning, column) = (meaning.trim(), column.trim());
            if meaning.is_empty() || column.is_empty() {
                return Err(ColumnsError::Form(pair.into()));
            }
            let known = shape::meanings().into_iter().find(|known| *known == meaning);
            let meaning = known.ok_or_else(|| ColumnsError::Meaning(meaning.into()))?;
            if let Some((again, _)) = columns.iter().find(|(one, other)| *one == meaning || other == column) {
                let name = if *again == meaning { meaning } else { column };
                return Err(ColumnsError::Twice(name.into()));
            }
            columns.push((meaning, column.into()));
        }
        Ok(Self(columns))
    }
}

impl TryFrom<String> for Columns {
    type Error = ColumnsError;

    fn try_from(text: String) -> Result<Self, ColumnsError> {
        text.parse()
    }
}

impl From<Columns> for String {
    fn from(columns: Columns) -> Self {
        columns.to_string()
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<_> = self.0.iter().map(|(meaning, column)| format!("{meaning}={column}")).collect();
        f.write_str(&pairs.join(","))
    }
}

impl Columns {
    /// The columns that are read besides those that shapes know.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, column)| column.as_str())
    }

    /// Gives the fields of a row their meanings. Fields that would mean the same are left out, since the user
    /// said which one is meant; the names of those that say something are returned.
    pub(crate) fn rename(&self, row: &mut Value<'_>) -> Result<Vec<String>, BadRow> {
        let missing = self.0.iter().find(|(_, column)| match row {
            Value::Map(fields) => !fields.iter().any(|(key, _)| key == column),
            _ => true,
        });
        if let Some((_, column)) = missing {
            return Err(BadRow::NoColumn { column: column.clone(), keys: shape::keys(row) });
        }
        let Value::Map(fields) = row else { return Ok(Vec::new()) };
        let mut left_out = Vec::new();
        fields.retain(|(key, value)| {
            let stays = self.sources().any(|column| column == key) || !self.stands_for(key);
            if !stays && !value.is_blank() {
                left_out.push(key.to_string());
            }
            stays
        });
        for (key, _) in fields {
            if let Some((meaning, _)) = self.0.iter().find(|(_, column)| key == column) {
                *key = (*meaning).into();
            }
        }
        Ok(left_out)
    }

    /// Whether the user named another column for what a field of this name would mean.
    fn stands_for(&self, name: &str) -> bool {
        self.0.iter().any(|(meaning, _)| *meaning == name || shape::are_rivals(meaning, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(columns: &str, row: &'static str) -> Result<String, BadRow> {
        let mut row = Value::from_json(row.as_bytes()).unwrap();
        columns.parse::<Columns>().unwrap().rename(&mut row)?;
        Ok(shape::keys(&row))
    }

    #[test]
    fn columns_get_the_names_that_shapes_know() {
        let row = r#"{"photo": "a.png", "q": "What?", "a": "A cat", "id": 7}"#;
        assert_eq!(renamed("image=photo, prompt=q,response=a", row).unwrap(), "image, prompt, response, id");
        let taken = r#"{"image": "thumbnail.png", "photo": "a.png"}"#;
        assert_eq!(renamed("image=photo", taken).unwrap(), "image", "the other image is not meant");
        let rivals = r#"{"q": "What?", "text": "Q: What? A: A cat", "answer": "A cat", "messages": [1, 2], "answers": ["x"]}"#;
        assert_eq!(renamed("prompt=q,response=answer", rivals).unwrap(), "prompt, response");
        assert_eq!(renamed("prompt=q", r#"{"q": "What?", "answer": "A cat"}"#).unwrap(), "prompt, answer");
        let swapped = r#"{"prompt": "A cat", "response": "What?"}"#;
        assert_eq!(renamed("prompt=response,response=prompt", swapped).unwrap(), "response, prompt");
    }

    #[test]
    fn what_is_left_out_is_named_unless_it_is_blank() {
        let mut row =
            Value::from_json(br#"{"q": "What?", "text": "x", "question": "", "answer": "y"}"#).unwrap();
        let left_out = "prompt=q".parse::<Columns>().unwrap().rename(&mut row).unwrap();
        assert_eq!(left_out, ["text"]);
    }

    #[test]
    fn a_column_that_is_not_there_is_named_with_those_that_are() {
        let error = renamed("image=photo", r#"{"picture": "a.png", "text": "x"}"#).unwrap_err().to_string();
        assert_eq!(error, "no column 'photo': the row has picture, text");
    }

    #[test]
    fn a_list_that_cannot_be_followed_says_why() {
        for (columns, message) in [
            ("photo", "'photo' is not MEANING=COLUMN, such as image=photo"),
            ("image=", "'image=' is not MEANING=COLUMN"),
            ("picture=photo", "'picture' is no meaning of a column: there are prompt, response, image"),
            ("image=a,image=b", "'image' is named twice"),
            ("image=a,prompt=a", "'a' is named twice"),
        ] {
            let error = columns.parse::<Columns>().unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
