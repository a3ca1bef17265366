//! Sizes as people write and read them: `32GB` in, `17.5 GB` out.
//!
//! Decimal units (kB, MB, GB, TB) are powers of 1000 and binary ones (KiB, MiB, GiB, TiB) powers of 1024, always;
//! what is printed is decimal. A bare number is bytes.

use serde::{Deserialize, Deserializer, Serialize, de::Error};
use std::{fmt, str::FromStr};

/// A number of bytes that reads and prints with its unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ByteSize(pub u64);

/// A size that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a size: write a number with a unit, such as 512MB, 32GB or 1.5GiB")]
pub struct BadSize(String);

impl FromStr for ByteSize {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let bad = || BadSize(text.to_owned());
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let number: f64 = number.parse().map_err(|_| bad())?;
        let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" => 1_000,
            "m" | "mb" => 1_000_000,
            "g" | "gb" => 1_000_000_000,
            "t" | "tb" => 1_000_000_000_000,
            "ki" | "kib" => 1 << 10,
            "mi" | "mib" => 1 << 20,
            "gi" | "gib" => 1 << 30,
            "ti" | "tib" => 1 << 40,
            _ => return Err(bad()),
        };
        let bytes = number * scale as f64;
        if bytes.is_finite() && bytes < u64::MAX as f64 { Ok(Self(bytes.round() as u64)) } else { Err(bad()) }
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    /// Reads `"32GB"` or a number of bytes.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a size such as \"32GB\", or a number of bytes")]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        // The thresholds leave room for rounding: 999_999 bytes print as 1.0 MB, not as 1000 kB.
        let text = match self.0 {
            0..1_000 => format!("{} B", self.0),
            1_000..999_500 => format!("{:.0} kB", bytes / 1e3),
            999_500..9_950_000 => format!("{:.1} MB", bytes / 1e6),
            9_950_000..999_500_000 => format!("{:.0} MB", bytes / 1e6),
            999_500_000..9_995_000_000 => format!("{:.2} GB", bytes / 1e9),
            9_995_000_000..999_500_000_000 => format!("{:.1} GB", bytes / 1e9),
            _ => format!("{:.2} TB", bytes / 1e12),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::ByteSize;

    #[test]
    fn reads_decimal_and_binary_units() {
        let cases =
            [("0", 0), ("512", 512), ("1kB", 1_000), ("32GB", 32_000_000_000), ("1.5 GiB", 1_610_612_736)];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        for text in ["", "GB", "-1GB", "12 apples", "1..2MB", "1e9", "99999999999TB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn prints_three_significant_digits_or_so() {
        let cases = [
            (999, "999 B"),
            (999_999, "1.0 MB"),
            (18_400_000, "18 MB"),
            (1_210_000_000, "1.21 GB"),
            (17_540_000_000, "17.5 GB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }
}
