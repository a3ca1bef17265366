//! What each character of a JSON text is: layout, a quote, a key, `null`, or a value.
//!
//! Takes a text and gives one [`Kind`] for each byte, or nothing if the text is not a JSON object or array.
//! Only texts that serde_json accepts are classified, so the scan itself has nothing left to refuse.

use serde::de::IgnoredAny;
use std::ops::Range;

/// What a byte of a JSON text belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Braces, brackets, commas, colons and white space outside strings.
    Layout,
    /// The quotation marks around a key or a string.
    Quote,
    /// The literal `null`.
    Null,
    /// A key, without its quotes.
    Key,
    /// Strings without their quotes, numbers, `true` and `false`.
    Value,
}

/// A JSON text with the kind of each byte and the place of each key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Characters {
    /// One kind for each byte.
    pub kinds: Vec<Kind>,
    /// Where the keys are, without their quotes.
    pub keys: Vec<Range<usize>>,
}

/// Classifies a text whose outermost value is an object or an array.
///
/// A bare number, string or `null` is an answer, not structure, and is not taken for JSON.
pub fn classify(text: &[u8]) -> Option<Characters> {
    let first = text.iter().find(|byte| !is_space(**byte))?;
    let is_json = |text: &str| serde_json::from_str::<IgnoredAny>(text).is_ok();
    if !matches!(first, b'{' | b'[') || !std::str::from_utf8(text).is_ok_and(is_json) {
        return None;
    }
    let mut characters = Characters { kinds: vec![Kind::Layout; text.len()], keys: Vec::new() };
    let mut at = 0;
    while at < text.len() {
        at = match text[at] {
            b'"' => characters.string(text, at),
            byte if is_space(byte) || b"{}[],:".contains(&byte) => at + 1,
            _ => characters.literal(text, at),
        };
    }
    Some(characters)
}

impl Characters {
    /// Marks the string that opens at `open` and gives the place after it.
    fn string(&mut self, text: &[u8], open: usize) -> usize {
        let mut close = open + 1;
        while text[close] != b'"' {
            close += if text[close] == b'\\' { 2 } else { 1 };
        }
        // A string is a key exactly if a colon follows it.
        let is_key = text[close + 1..].iter().find(|byte| !is_space(**byte)) == Some(&b':');
        self.kinds[open + 1..close].fill(if is_key { Kind::Key } else { Kind::Value });
        self.kinds[open] = Kind::Quote;
        self.kinds[close] = Kind::Quote;
        if is_key {
            self.keys.push(open + 1..close);
        }
        close + 1
    }

    /// Marks the number or word that begins at `start` and gives the place after it.
    fn literal(&mut self, text: &[u8], start: usize) -> usize {
        let ends = |byte: &u8| is_space(*byte) || b",]}".contains(byte);
        let end = text[start..].iter().position(ends).map_or(text.len(), |len| start + len);
        self.kinds[start..end].fill(if &text[start..end] == b"null" { Kind::Null } else { Kind::Value });
        end
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One letter a byte: l(ayout), q(uote), n(ull), k(ey), v(alue).
    fn letters(text: &str) -> Option<String> {
        let letter = |kind: &Kind| match kind {
            Kind::Layout => 'l',
            Kind::Quote => 'q',
            Kind::Null => 'n',
            Kind::Key => 'k',
            Kind::Value => 'v',
        };
        classify(text.as_bytes()).map(|characters| characters.kinds.iter().map(letter).collect())
    }

    #[test]
    fn every_byte_has_a_kind() {
        let cases = [
            (r#"{"ab": 12}"#, "lqkkqllvvl"),
            (r#"["x", null, true]"#, "lqvqllnnnnllvvvvl"),
            (" {\n \"k\" : {\"k2\":[]} } ", "llllqkqllllqkkqlllllll"),
            (r#"{"a\"b":"c\\"}"#, "lqkkkkqlqvvvql"),
            (r#"{"k":"a:b, {null}"}"#, "lqkqlqvvvvvvvvvvvql"),
            (r#"["a" , "b"]"#, "lqvqlllqvql"),
            (r#"[-1.5e3,false]"#, "lvvvvvvlvvvvvl"),
            (r#"{"ä":"ö"}"#, "lqkkqlqvvql"),
        ];
        for (text, expected) in cases {
            assert_eq!(letters(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_an_object_or_array_is_left_alone() {
        for text in
            ["", "  ", "red", "42", "null", "\"red\"", "{", "{'a': 1}", "[1,]", "{\"a\":1} and more", "[NaN]"]
        {
            assert_eq!(letters(text), None, "{text}");
        }
        assert!(classify(b"[\"\xff\"]").is_none(), "not UTF-8");
    }

    #[test]
    fn keys_are_found_at_every_depth() {
        let text = br#"{"a":[{"b":1},{"b":"a"}],"c":{}}"#;
        let characters = classify(text).unwrap();
        let keys: Vec<&[u8]> = characters.keys.iter().map(|range| &text[range.clone()]).collect();
        assert_eq!(keys, [b"a", b"b", b"b", b"c"]);
    }

    #[test]
    fn deep_nesting_is_no_danger() {
        let text = "[".repeat(100_000) + &"]".repeat(100_000);
        let kinds = classify(text.as_bytes()).map(|characters| characters.kinds.len());
        assert!(kinds.is_none() || kinds == Some(200_000));
    }
}
