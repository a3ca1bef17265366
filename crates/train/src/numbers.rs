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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_three_digits() {
        assert_eq!([0, 999, 1000, 1_856_984].map(grouped), ["0", "999", "1,000", "1,856,984"]);
    }
}
