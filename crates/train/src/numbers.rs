//! Numbers as people read them.

/// A number with a comma between groups of three digits: `1,856,984`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The beginning of a sentence that no row can do something: `none of the 2 rows can`, `the only row cannot`.
pub fn none_can(rows: u64, which: &str) -> String {
    match rows {
        1 => format!("the only row {which} cannot"),
        _ => format!("none of the {rows} rows {which} can"),
    }
}

/// The form of a verb that goes with a count: `1 is`, `2 are`.
pub fn verb(count: u64, [one, several]: [&str; 2]) -> &str {
    if count == 1 { one } else { several }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_fit_one_row_and_many() {
        assert_eq!(none_can(1, "of rows.jsonl"), "the only row of rows.jsonl cannot");
        assert_eq!(none_can(663, "of rows.jsonl"), "none of the 663 rows of rows.jsonl can");
        assert_eq!([1, 2].map(|count| verb(count, ["is", "are"])), ["is", "are"]);
    }

    #[test]
    fn groups_have_three_digits() {
        assert_eq!([0, 999, 1000, 1_856_984].map(grouped), ["0", "999", "1,000", "1,856,984"]);
    }
}
