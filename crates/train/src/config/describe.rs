//! What each option of a run is, for programs that ask people for it: forms, completions, documents.
//!
//! Takes the table of options, and gives for each its key, its group, its help and the kind of its value. The
//! kind is what the option's own `Deserialize` asks for, so a new option or a new choice describes itself.

use serde::{
    Deserialize, Serialize,
    de::{self, Visitor},
    forward_to_deserialize_any,
};
use std::fmt;

/// The kind of an option's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum ValueKind {
    /// True or false.
    Switch,
    /// A whole number.
    Whole,
    /// Any number.
    Number,
    /// Bytes, as a number or as text such as `12GB`.
    Size,
    /// One of these words.
    Choice {
        /// The words.
        choices: &'static [&'static str],
    },
    /// Text.
    Text,
    /// Several values of one kind.
    List {
        /// The kind of each.
        of: Box<ValueKind>,
    },
}

/// An option of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OptionInfo {
    /// Its name in snake case.
    pub key: &'static str,
    /// The group it stands in.
    pub group: &'static str,
    /// What it does, in a sentence, with keys where the command line has flags.
    pub help: String,
    /// The value that it has when it is not given, as the help says it.
    pub default: Option<String>,
    /// What its value is.
    #[serde(flatten)]
    pub kind: ValueKind,
}

impl OptionInfo {
    /// Describes the option whose values have the type `T`.
    pub(super) fn of<'de, T: Deserialize<'de>>(
        key: &'static str,
        group: &'static str,
        lines: &[&str],
    ) -> Self {
        let text = lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
        let (help, default) = split_default(&text);
        Self { key, group, help: with_keys(help), default: default.map(with_keys), kind: kind_of::<T>() }
    }
}

/// A help ends with its default in brackets: `Passes over the data (3).`
fn split_default(text: &str) -> (&str, Option<&str>) {
    let found = text.strip_suffix(").").and_then(|rest| rest.rsplit_once(" ("));
    match found {
        // Brackets that explain what stands before them, such as `4 bits (NF4)`, hold no default.
        Some((help, default)) if !["NF4", "bf16"].contains(&default) => (help, Some(default)),
        _ => (text, None),
    }
}

/// Flags as keys: `--max-steps` is `max_steps` to who does not sit at a command line.
fn with_keys(text: &str) -> String {
    let mut keyed = String::with_capacity(text.len());
    for (at, piece) in text.split("--").enumerate() {
        let end = piece.find(|c: char| c != '-' && !c.is_ascii_alphanumeric()).unwrap_or(piece.len());
        let (flag, rest) = piece.split_at(if at == 0 { 0 } else { end });
        keyed.push_str(&flag.replace('-', "_"));
        keyed.push_str(rest);
    }
    keyed
}

fn kind_of<'de, T: Deserialize<'de>>() -> ValueKind {
    match T::deserialize(Ask) {
        Err(Answer(Some(kind))) => kind,
        _ => ValueKind::Text,
    }
}

/// A deserializer that has no value: it hears which one is asked for, and hands that back as its error.
struct Ask;

#[derive(Debug)]
struct Answer(Option<ValueKind>);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for Answer {}

impl de::Error for Answer {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(None)
    }
}

macro_rules! hear {
    ($($kind:ident: $($method:ident)+;)+) => {$($(
        fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Answer> {
            Err(Answer(Some(ValueKind::$kind)))
        }
    )+)+};
}

impl<'de> de::Deserializer<'de> for Ask {
    type Error = Answer;

    hear! {
        // Only a size is read from whatever is given.
        Size: deserialize_any;
        Switch: deserialize_bool;
        Whole: deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_i8 deserialize_i16
            deserialize_i32 deserialize_i64;
        Number: deserialize_f32 deserialize_f64;
        Text: deserialize_str deserialize_string;
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        choices: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Answer> {
        Err(Answer(Some(ValueKind::Choice { choices })))
    }

    /// The list has one element, which is asked for in turn.
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Answer> {
        let list = |kind| ValueKind::List { of: Box::new(kind) };
        match visitor.visit_seq(One) {
            Err(Answer(kind)) => Err(Answer(kind.map(list))),
            Ok(value) => Ok(value),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Answer> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf option unit unit_struct tuple tuple_struct map struct identifier ignored_any
    }
}

struct One;

impl<'de> de::SeqAccess<'de> for One {
    type Error = Answer;

    fn next_element_seed<T: de::DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Answer> {
        seed.deserialize(Ask).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrainOptions;

    fn option(key: &str) -> OptionInfo {
        TrainOptions::describe().into_iter().find(|option| option.key == key).unwrap()
    }

    #[test]
    fn every_option_describes_itself() {
        let options = TrainOptions::describe();
        assert_eq!(options.iter().map(|option| option.key).collect::<Vec<_>>(), TrainOptions::KEYS);
        for option in &options {
            assert!(!option.help.is_empty() && !option.help.contains("--"), "{option:?}");
        }
    }

    #[test]
    fn kinds_and_defaults_are_those_of_the_table() {
        let epochs = option("epochs");
        assert_eq!((epochs.kind, epochs.default.as_deref()), (ValueKind::Number, Some("3")));
        assert_eq!(epochs.help, "Passes over the data");
        assert_eq!(option("max_steps").kind, ValueKind::Whole);
        assert_eq!(option("max_steps").help, "End after this many optimizer steps, whatever epochs says.");
        assert_eq!(option("use_rslora").kind, ValueKind::Switch);
        assert_eq!(option("memory_limit").kind, ValueKind::Size);
        assert_eq!(option("method").kind, ValueKind::Choice { choices: &["lora", "full"] });
        assert_eq!(option("load_in_4bit").default, None);
        assert_eq!(option("image_root").kind, ValueKind::List { of: Box::new(ValueKind::Text) });
        assert_eq!(option("columns").kind, ValueKind::Text);
    }
}
