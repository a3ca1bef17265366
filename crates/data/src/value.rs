//! A raw row before its shape is known: JSON, or a Parquet row in the same terms.
//!
//! Takes the text of a row and gives a tree that borrows from it, so a megabyte of base64 is not copied
//! before it is decoded. The size of the tree is bounded, whatever the text holds.

use crate::held::HeldImage;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::{borrow::Cow, cell::Cell, fmt, sync::Arc};

/// Values in one row, beyond which a row is refused: a conversation has hundreds, a hostile `[[],[],...` has
/// millions and would take twenty times its text in memory.
const MAX_VALUES: u32 = 1 << 18;

/// One value of a raw row.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// JSON `null`, or an absent Parquet value.
    Null,
    /// A truth value.
    Bool(bool),
    /// A whole number that was written as one; a larger one than `i64` holds is a [`Value::Number`].
    Integer(i64),
    /// Any other number.
    Number(f64),
    /// Text.
    Text(Cow<'a, str>),
    /// Bytes: a Parquet binary, or a JSON list of integers from 0 to 255.
    Bytes(Cow<'a, [u8]>),
    /// A list.
    List(Vec<Value<'a>>),
    /// Named fields, in the order in which they were written.
    Map(Vec<(Cow<'a, str>, Value<'a>)>),
    /// A Parquet column that no shape has: it is there, and was not decoded.
    Unread {
        /// Whether it holds images, judged by its type.
        image: bool,
    },
    /// An image that is an object of the program that built the row.
    Held(Arc<HeldImage>),
}

impl<'a> Value<'a> {
    /// Reads the JSON text of a row.
    pub fn from_json(text: &'a [u8]) -> Result<Self, serde_json::Error> {
        let budget = Cell::new(MAX_VALUES);
        let mut reader = serde_json::Deserializer::from_slice(text);
        let value = Seed { budget: &budget }.deserialize(&mut reader)?;
        reader.end()?;
        Ok(value)
    }

    /// Why a row's text is not JSON, in words for its writer. Where it stands in the file is said with the
    /// row's number.
    pub(crate) fn why_not_json(text: &[u8], error: &serde_json::Error) -> String {
        if let Err(error) = std::str::from_utf8(text) {
            return format!("byte {} is not UTF-8: save the file as UTF-8", error.valid_up_to() + 1);
        }
        let one_line = !text.contains(&b'\n');
        let column = error.column();
        let rest = text.get(column.saturating_sub(1)..).filter(|_| one_line).unwrap_or_default();
        if let Some(word) = ["NaN", "Infinity"].into_iter().find(|word| rest.starts_with(word.as_bytes())) {
            return format!("{word} at column {column} is no number of JSON: write null");
        }
        let said = error.to_string();
        match said.strip_suffix(&format!(" at line 1 column {column}")) {
            Some(what) if one_line && error.is_eof() => format!("the line ends too early ({what})"),
            Some(what) if one_line => format!("{what} at column {column}"),
            _ => format!("{said} of the row"),
        }
    }

    /// The field of that name, unless it is absent or null.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Map(fields) => fields
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value)
                .filter(|value| !value.is_null()),
            _ => None,
        }
    }

    /// Whether nothing is here.
    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// What this is, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "a truth value",
            Self::Integer(_) | Self::Number(_) => "a number",
            Self::Text(_) => "text",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
            Self::Unread { .. } => "a column of a type that is not read",
            Self::Held(_) => "an image",
        }
    }

    /// Whether this is empty: joined tables have such values in fields that a row does not use.
    pub(crate) fn is_blank(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Text(text) => text.trim().is_empty(),
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::List(list) => list.iter().all(Self::is_blank),
            Self::Map(fields) => fields.iter().all(|(_, value)| value.is_blank()),
            Self::Bool(_) | Self::Integer(_) | Self::Number(_) | Self::Unread { .. } | Self::Held(_) => false,
        }
    }
}

/// Reads one value and takes it from the budget of its row.
#[derive(Clone, Copy)]
struct Seed<'b> {
    budget: &'b Cell<u32>,
}

impl Seed<'_> {
    /// Takes values from the budget of the row.
    fn spend(self, values: usize) -> Result<(), String> {
        let left = u32::try_from(values).ok().and_then(|values| self.budget.get().checked_sub(values));
        self.budget.set(left.ok_or_else(|| format!("more than {MAX_VALUES} values in one row"))?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value<'de>, D::Error> {
        self.spend(1).map_err(D::Error::custom)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value<'de>, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value<'de>, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value<'de>, E> {
        Ok(i64::try_from(value).map_or(Value::Number(value as f64), Value::Integer))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value<'de>, E> {
        Ok(Value::Integer(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value<'de>, E> {
        Ok(Value::Number(value))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value<'de>, A::Error> {
        // Image bytes are sometimes written as a list of integers. Kept as bytes from the start and not
        // counted against the budget, a photo takes megabytes instead of a hundred of them.
        let mut bytes = Vec::new();
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(self)? {
            match value {
                Value::Integer(number @ 0..=255) if list.is_empty() => {
                    self.budget.set(self.budget.get() + 1);
                    bytes.push(number as u8);
                }
                other => {
                    self.spend(bytes.len()).map_err(A::Error::custom)?;
                    list.extend(bytes.drain(..).map(|byte| Value::Integer(i64::from(byte))));
                    list.push(other);
                }
            }
        }
        Ok(if bytes.is_empty() { Value::List(list) } else { Value::Bytes(Cow::Owned(bytes)) })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value<'de>, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = map.next_key_seed(self)? {
            let Value::Text(key) = key else { return Err(A::Error::custom("a field name that is no text")) };
            fields.push((key, map.next_value_seed(self)?));
        }
        // Readers differ on which of the two counts.
        match twice(&fields) {
            Some(name) => Err(A::Error::custom(format!("the field {name:?} is there twice"))),
            None => Ok(Value::Map(fields)),
        }
    }
}

/// A name that two fields have.
fn twice(fields: &[(Cow<'_, str>, Value<'_>)]) -> Option<String> {
    let mut names: Vec<&str> = fields.iter().map(|(name, _)| &**name).collect();
    names.sort_unstable();
    names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].chars().take(40).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_escapes_is_borrowed() {
        let value = Value::from_json(br#"{"image": "/9j/4AAQ", "text": "a\nb"}"#).unwrap();
        assert!(matches!(value.get("image"), Some(Value::Text(Cow::Borrowed("/9j/4AAQ")))));
        assert!(matches!(value.get("text"), Some(Value::Text(Cow::Owned(text))) if text == "a\nb"));
    }

    #[test]
    fn null_fields_count_as_absent() {
        let value = Value::from_json(br#"{"image": null}"#).unwrap();
        assert_eq!(value.get("image"), None);
        assert_eq!(value.get("other"), None);
    }

    #[test]
    fn a_list_of_small_integers_is_bytes_and_others_stay_lists() {
        let read = |text: &'static str| Value::from_json(text.as_bytes()).unwrap();
        assert_eq!(read("[255,216,0]"), Value::Bytes(Cow::Owned(vec![255, 216, 0])));
        let mixed = vec![Value::Integer(1), Value::Integer(256), Value::Integer(2)];
        assert_eq!(read("[1,256,2]"), Value::List(mixed));
        assert_eq!(read("[]"), Value::List(vec![]));
    }

    #[test]
    fn refuses_rows_that_would_take_more_memory_than_their_text() {
        let many = format!("[{}[]]", "[],".repeat(MAX_VALUES as usize));
        assert!(Value::from_json(many.as_bytes()).unwrap_err().to_string().contains("values in one row"));
        let numbers = format!("[{}-1]", "1,".repeat(MAX_VALUES as usize));
        assert!(Value::from_json(numbers.as_bytes()).unwrap_err().to_string().contains("values in one row"));
        let deep = "[".repeat(100_000);
        assert!(Value::from_json(deep.as_bytes()).unwrap_err().to_string().contains("recursion limit"));
        let photo = format!("[{}0]", "255,".repeat(MAX_VALUES as usize));
        assert!(matches!(Value::from_json(photo.as_bytes()), Ok(Value::Bytes(_))));
    }

    #[test]
    fn why_a_row_is_not_json_is_said_by_its_cause() {
        for (text, words) in [
            (&b"{\"a\": \"Gr\xf6\xdfe\"}"[..], "byte 10 is not UTF-8: save the file as UTF-8"),
            (b"{\"a\": NaN}", "NaN at column 7 is no number of JSON: write null"),
            (b"{\"a\": -Infinity}", "Infinity at column 8 is no number of JSON: write null"),
            (b"{\"a\": 1,}", "trailing comma at column 9"),
            (b"{\"a\": [1", "the line ends too early (EOF while parsing a list)"),
            (b"{\"a\": 1,\n\"b\": x}", "expected value at line 2 column 6 of the row"),
            (b"{\"a\": 1, \"a\": 2}", "the field \"a\" is there twice at column 16"),
        ] {
            let error = Value::from_json(text).unwrap_err();
            assert_eq!(Value::why_not_json(text, &error), words);
        }
    }

    #[test]
    fn a_field_that_is_there_twice_is_named() {
        for row in
            [r#"{"answer": "cat", "id": 1, "answer": "dog"}"#, r#"{"a": [{"answer": 1, "answer": 1}]}"#]
        {
            let error = Value::from_json(row.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(r#"the field "answer" is there twice"#), "{error}");
        }
    }

    #[test]
    fn refuses_what_follows_the_value() {
        assert!(Value::from_json(br#"{} {}"#).is_err());
        assert!(Value::from_json(b"").is_err());
    }
}
