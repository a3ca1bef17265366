//! A row while shapes look at it, and its turns while their images have no place yet.
//!
//! Recognising a row may take reading its messages and images. [`RowFields`] keeps what was read, so that the
//! shape that reads the row in the end does not read it again.

use super::{
    fields::{Fields, Ignored, Place, Refusal},
    images, messages,
};
use crate::{
    error::BadRow,
    row::{ImageSource, Role, Turn},
    value::Value,
};
use std::{borrow::Cow, ops::Deref};

/// The fields of a row, with its messages and the images beside them once they are read.
pub(in crate::shape) struct RowFields<'r, 'a> {
    fields: Fields<'r, 'a>,
    messages: Option<Vec<Draft<'r>>>,
    images: Option<Vec<ImageSource>>,
    ignored: Ignored,
}

impl<'r, 'a> Deref for RowFields<'r, 'a> {
    type Target = Fields<'r, 'a>;

    fn deref(&self) -> &Fields<'r, 'a> {
        &self.fields
    }
}

impl<'r, 'a> RowFields<'r, 'a> {
    pub fn new(row: &'r Value<'a>) -> Self {
        Self { fields: Fields::new(row), messages: None, images: None, ignored: Ignored::default() }
    }

    /// The field that holds the whole conversation as a list, if there is one.
    pub fn list(&self) -> Result<Option<&'static str>, BadRow> {
        self.fields.only(&["messages", "conversations"])
    }

    /// The messages of that list.
    pub fn messages(&mut self) -> Result<&[Draft<'r>], BadRow> {
        let read = self.take_messages()?;
        Ok(self.messages.insert(read))
    }

    /// The messages of that list, for the shape that reads the row.
    pub fn take_messages(&mut self) -> Result<Vec<Draft<'r>>, BadRow> {
        match (self.messages.take(), self.list()?) {
            (Some(read), _) => Ok(read),
            (None, field) => messages::read(&self.fields, field.unwrap_or("messages"), &mut self.ignored),
        }
    }

    /// The images beside the turns.
    pub fn images(&mut self) -> Result<&[ImageSource], BadRow> {
        let read = self.take_images()?;
        Ok(self.images.insert(read))
    }

    /// The images beside the turns, for the shape that reads the row.
    pub fn take_images(&mut self) -> Result<Vec<ImageSource>, BadRow> {
        match self.images.take() {
            Some(read) => Ok(read),
            None => images::beside(&self.fields),
        }
    }

    /// What a field says: a text of this role, or messages.
    pub fn speech(&mut self, field: &'static str, role: Role) -> Result<Vec<Draft<'r>>, BadRow> {
        match self.fields.get(field) {
            Some(Value::Text(text)) => Ok(vec![Draft::text(role, text.as_ref())]),
            Some(Value::List(_)) => messages::read(&self.fields, field, &mut self.ignored),
            _ => Err(self.fields.wrong(field, "text or a list of messages")),
        }
    }

    /// Ends reading: see [`Fields::finish`]. `refused` are refusals of the shape's own.
    pub fn finish(mut self, refused: &'static [Refusal]) -> Result<Ignored, BadRow> {
        self.fields.finish(Place::Row(refused), &mut self.ignored)?;
        Ok(self.ignored)
    }
}

/// A turn whose images may still be placeholders.
pub(in crate::shape) struct Draft<'a> {
    pub turn: Turn,
    pub parts: Vec<DraftPart<'a>>,
    /// Whether the content was one text: only there is `<image>` a marker by itself.
    pub plain: bool,
}

impl<'a> Draft<'a> {
    pub fn text(role: Role, text: impl Into<Cow<'a, str>>) -> Self {
        Self { parts: vec![DraftPart::Text(text.into())], ..Self::blank(role) }
    }

    /// A turn without words.
    pub fn blank(role: Role) -> Self {
        Self { turn: Turn::new(role, Vec::new()), parts: Vec::new(), plain: true }
    }
}

/// A piece of such a turn.
pub(in crate::shape) enum DraftPart<'a> {
    Text(Cow<'a, str>),
    Image(ImageSource),
    /// `{"type": "image"}` without an image: the next of the row's list goes here.
    Placeholder,
}
