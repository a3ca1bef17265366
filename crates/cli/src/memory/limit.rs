//! A limit as people write it: a size, a part of the machine's memory, or what must stay free.

use anyhow::{Result, bail};
use garden_memory::ByteSize;
use std::str::FromStr;

/// The value of `--limit`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// So many bytes.
    Bytes(u64),
    /// A part of what there is.
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

/// A limit that depends on how much memory there is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Relative {
    /// A part of it.
    Percent(f64),
    /// All but this many bytes.
    LessThan(u64),
}

impl Relative {
    /// The limit in bytes where there are `ceiling` bytes in all.
    pub fn of(self, ceiling: u64) -> Result<u64> {
        match self {
            Self::Percent(percent) => Ok((ceiling as f64 * percent / 100.0) as u64),
            Self::LessThan(free) if free < ceiling => Ok(ceiling - free),
            Self::LessThan(free) => {
                bail!(
                    "--leave-free {} leaves nothing: there are {} in all",
                    ByteSize(free),
                    ByteSize(ceiling)
                )
            }
        }
    }
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
    fn what_is_left_free_is_taken_off_the_whole() {
        assert_eq!(Relative::Percent(80.0).of(1000).unwrap(), 800);
        assert_eq!(Relative::LessThan(300).of(1000).unwrap(), 700);
        let refused = Relative::LessThan(2_000_000_000).of(1_000_000_000).unwrap_err().to_string();
        assert_eq!(refused, "--leave-free 2.00 GB leaves nothing: there are 1.00 GB in all");
    }
}
