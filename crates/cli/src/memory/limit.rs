//! A limit as people write it: a size, or a part of the machine's memory; and what can be left free.

use anyhow::{Result, bail};
use garden_memory::ByteSize;
use std::str::FromStr;

/// The value of `--limit`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// Bytes.
    Bytes(u64),
    /// A percentage of the memory there is.
    Percent(f64),
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(number) = text.trim().strip_suffix('%') {
            let percent = number.trim().parse().ok().filter(|percent| *percent > 0.0 && *percent <= 100.0);
            return percent
                .map(Self::Percent)
                .ok_or_else(|| format!("'{text}' is not a part of the memory: write 1% to 100%"));
        }
        match text.parse() {
            Ok(ByteSize(0)) => Err("a limit of 0 leaves nothing to run in".to_owned()),
            Ok(ByteSize(bytes)) => Ok(Self::Bytes(bytes)),
            Err(_) => Err(format!(
                "'{text}' is not a limit: write a size, such as 32GB or 30GiB, or a part of the memory, such as 80%"
            )),
        }
    }
}

/// Refuses to leave more free than there is.
pub fn can_be_left(free: u64, ceiling: u64) -> Result<()> {
    if free >= ceiling {
        bail!("--leave-free {} leaves nothing: there are {} in all", ByteSize(free), ByteSize(ceiling));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_size_or_a_part() {
        assert_eq!("32GB".parse(), Ok(Limit::Bytes(32_000_000_000)));
        assert_eq!("80%".parse(), Ok(Limit::Percent(80.0)));
        assert_eq!("12.5 %".parse(), Ok(Limit::Percent(12.5)));
        for text in ["0", "0GB", "0.1", "0%", "101%", "-5%", "nan%", "%", "many"] {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
    }

    #[test]
    fn no_more_can_be_left_free_than_there_is() {
        assert!(can_be_left(999, 1000).is_ok());
        let refused = can_be_left(2_000_000_000, 1_000_000_000).unwrap_err().to_string();
        assert_eq!(refused, "--leave-free 2.00 GB leaves nothing: there are 1.00 GB in all");
    }
}
