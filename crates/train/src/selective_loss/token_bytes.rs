//! The bytes that each token stands for.
//!
//! In comes the vocabulary of a byte-level tokenizer; out comes the exact text of any run of tokens, even where a
//! character is split between two of them. Special tokens have no bytes: they are not text.

/// Bytes by token id.
#[derive(Debug, Clone, Default)]
pub struct TokenBytes {
    bytes: Vec<Option<Box<[u8]>>>,
}

impl TokenBytes {
    /// A table from the written form of each ordinary token of a byte-level vocabulary (`Ġred`). Special tokens are to be left
    /// out.
    pub fn from_vocabulary<'a>(vocabulary: impl IntoIterator<Item = (u32, &'a str)>) -> Self {
        let mut table = Self::default();
        for (id, token) in vocabulary {
            let bytes = token.chars().map(byte_of).collect::<Option<Vec<u8>>>();
            // A token with a character outside the byte alphabet was added by hand and is its own text.
            table.insert(id, bytes.unwrap_or_else(|| token.as_bytes().to_vec()));
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

/// The byte that a character of the byte-level alphabet stands for: printable Latin-1 stands for itself, the rest of the
/// 256 bytes, in order, for the characters from U+0100 on.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    let stands_for_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u8::try_from(code) {
        Ok(byte) => stands_for_itself(byte).then_some(byte),
        Err(_) => (0..=255u8).filter(|byte| !stands_for_itself(*byte)).nth(code.checked_sub(0x100)? as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_covers_every_byte_once() {
        let mut bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }

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
