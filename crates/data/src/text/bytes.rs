//! The bytes behind the written form of a token.
//!
//! Byte-level vocabularies write every byte as a printable character (`Ġred` is a blank and "red"). Takes the
//! written form and gives the bytes, so that text can be followed even where a character is split between two
//! tokens.

/// The bytes of a token of a byte-level vocabulary. A token with a character outside the byte alphabet was
/// added by hand and is its own text.
pub fn token_bytes(written: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = written.chars().map(of_character).collect();
    bytes.unwrap_or_else(|| written.as_bytes().to_vec())
}

/// The byte that a character of the byte-level alphabet stands for: printable Latin-1 stands for itself, the
/// rest of the 256 bytes, in order, for the characters from U+0100 on.
fn of_character(character: char) -> Option<u8> {
    let code = u32::from(character);
    let stands_for_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u8::try_from(code) {
        Ok(byte) => stands_for_itself(byte).then_some(byte),
        Err(_) => (0..=255u8).filter(|byte| !stands_for_itself(*byte)).nth(code.checked_sub(0x100)? as usize),
    }
}

/// Bytes as text; what is no character, because its other bytes are elsewhere, is written `\xe2`.
pub(super) fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_covers_every_byte_once() {
        let mut bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(of_character).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn tokens_give_their_text() {
        let tokens = [("Ġred", " red"), ("Ċ", "\n"), ("Ã¤", "ä"), ("日", "日")];
        for (written, text) in tokens {
            assert_eq!(token_bytes(written), text.as_bytes());
        }
    }

    #[test]
    fn half_a_character_is_shown_as_its_bytes() {
        assert_eq!(shown("aä".as_bytes()), "aä");
        assert_eq!(shown(b"a\xe7\x8c"), r"a\xe7\x8c");
        assert_eq!(shown(b"\xab b"), r"\xab b");
    }
}
