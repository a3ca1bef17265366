//! Says in plain words what is wrong with a value of a configuration file.
//!
//! Takes what the deserialiser says (`invalid type: string "abc", expected u64`) and gives a sentence without
//! names of types. A message that it does not know stays as it is.

/// An error of a value as a person would say it.
pub(super) fn plain(error: &str) -> String {
    mismatch(error).or_else(|| unknown_word(error)).unwrap_or_else(|| error.to_owned())
}

/// A value of another kind than the option's.
fn mismatch(error: &str) -> Option<String> {
    let rest = error.strip_prefix("invalid type: ").or_else(|| error.strip_prefix("invalid value: "))?;
    let (found, expected) = rest.rsplit_once(", expected ")?;
    Some(format!("{} is needed, not {}", needed(expected), given(found)))
}

fn needed(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative",
        "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "path string" => "text",
        "a sequence" => "a list",
        other => other,
    }
}

fn given(found: &str) -> &str {
    match found {
        "map" => "a table of keys",
        "sequence" => "a list",
        "null" | "unit value" => "nothing",
        _ => {
            let kinds = ["string ", "integer ", "floating point ", "boolean "];
            let value = kinds.iter().find_map(|kind| found.strip_prefix(kind)).unwrap_or(found);
            value.trim_matches('`')
        }
    }
}

/// A word that the option does not know.
fn unknown_word(error: &str) -> Option<String> {
    let (word, known) = error.strip_prefix("unknown variant `")?.split_once("`, expected ")?;
    let known = known.strip_prefix("one of ").unwrap_or(known).replace('`', "");
    Some(format!("'{word}' is not known; it can be {}", known.replace(" or ", ", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_type_of_the_program_is_named() {
        for (said, meant) in [
            (
                "invalid type: string \"abc\", expected u64",
                "a whole number that is not negative is needed, not \"abc\"",
            ),
            (
                "invalid value: integer `-2`, expected u64",
                "a whole number that is not negative is needed, not -2",
            ),
            ("invalid type: floating point `2.5`, expected f64", "a number is needed, not 2.5"),
            ("invalid type: map, expected a boolean", "true or false is needed, not a table of keys"),
            (
                "unknown variant `sgd`, expected `adamw` or `adamw_8bit`",
                "'sgd' is not known; it can be adamw, adamw_8bit",
            ),
            ("unknown variant `x`, expected one of `a`, `b`, `c`", "'x' is not known; it can be a, b, c"),
            ("'much' is not a size", "'much' is not a size"),
        ] {
            assert_eq!(plain(said), meant);
        }
    }
}
