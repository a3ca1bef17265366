//! The bytes that each token stands for.
//!
//! Takes the vocabulary of a byte-level tokenizer and gives the exact text of any run of tokens, even where a
//! character is split between two of them. Special tokens have no bytes: they are not text.

use garden_data::{Encoder, token_bytes};

/// Bytes by token id.
#[derive(Debug, Clone, Default)]
pub struct TokenBytes {
    bytes: Vec<Option<Box<[u8]>>>,
}

impl TokenBytes {
    /// The table of a model's tokenizer.
    pub fn of(encoder: &Encoder) -> Self {
        let tokens: Vec<(u32, String)> = encoder.ordinary_tokens().collect();
        Self::from_vocabulary(tokens.iter().map(|(id, text)| (*id, text.as_str())))
    }

    /// A table from the written form of each ordinary token of a byte-level vocabulary (`Ġred`). The caller
    /// leaves special tokens out.
    pub fn from_vocabulary<'a>(vocabulary: impl IntoIterator<Item = (u32, &'a str)>) -> Self {
        let mut table = Self::default();
        for (id, token) in vocabulary {
            table.insert(id, token_bytes(token));
        }
        table
    }

    /// A table of tokens whose bytes are known.
    pub fn from_bytes<'a>(tokens: impl IntoIterator<Item = (u32, &'a [u8])>) -> Self {
        let mut table = Self::default();
        tokens.into_iter().for_each(|(id, bytes)| table.insert(id, bytes.to_vec()));
        table
    }

    fn insert(&mut self, id: u32, bytes: Vec<u8>) {
        let id = id as usize;
        if self.bytes.len() <= id {
            self.bytes.resize(id + 1, None);
        }
        self.bytes[id] = Some(bytes.into());
    }

    /// The bytes of a token; nothing for special and unknown ones.
    pub fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id as usize)?.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_give_their_text() {
        let table = TokenBytes::from_vocabulary([(0, "Ġred"), (2, "Ċ"), (3, "Ã¤"), (4, "日")]);
        assert_eq!(table.bytes(0), Some(b" red".as_slice()));
        assert_eq!(table.bytes(1), None);
        assert_eq!(table.bytes(2), Some(b"\n".as_slice()));
        assert_eq!(table.bytes(3), Some("ä".as_bytes()));
        assert_eq!(table.bytes(4), Some("日".as_bytes()));
        assert_eq!(table.bytes(9), None);
    }
}
