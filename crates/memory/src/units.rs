//! Sizes as people write and read them: parses `32GB`, prints `17.5 GB`.
//!
//! Decimal units (kB, MB, GB, TB) are powers of 1000 and binary ones (KiB, MiB, GiB, TiB) powers of 1024,
//! always. Printed sizes are decimal. A bare number is bytes.

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
        let unit = unit.trim();
        let scale = if unit.is_empty() { 1 } else { unit_bytes(unit).ok_or_else(bad)? };
        let bytes = number * scale as f64;
        if bytes.is_finite() && bytes < u64::MAX as f64 { Ok(Self(bytes.round() as u64)) } else { Err(bad()) }
    }
}

/// Bytes in one of a unit, whatever its case: `MB`, `MiB`, `g`, `bytes`, `megabytes`.
pub(crate) fn unit_bytes(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "b" | "byte" | "bytes" => 1,
        "k" | "kb" | "kbytes" | "kilobyte" | "kilobytes" => 1_000,
        "m" | "mb" | "mbytes" | "megabyte" | "megabytes" => 1_000_000,
        "g" | "gb" | "gbytes" | "gigabyte" | "gigabytes" => 1_000_000_000,
        "t" | "tb" | "terabyte" | "terabytes" => 1_000_000_000_000,
        "ki" | "kib" | "kibibyte" | "kibibytes" => 1 << 10,
        "mi" | "mib" | "mebibyte" | "mebibytes" => 1 << 20,
        "gi" | "gib" | "gibibyte" | "gibibytes" => 1 << 30,
        "ti" | "tib" | "tebibyte" | "tebibytes" => 1 << 40,
        _ => return None,
    })
}

/// A number as people write it: `5552`, `5,552`, `1_000_000`, `5.4`, `5.5e9`; also `5,4` where a unit says
/// that it is one amount.
pub(crate) fn number(text: &str, with_unit: bool) -> Option<f64> {
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let plain = match whole.split_once(',') {
        None => format!("{}.{fraction}", whole.replace('_', "")),
        Some((first, rest)) if first.len() <= 3 && rest.split(',').all(|group| group.len() == 3) => {
            format!("{}.{fraction}", whole.replace(',', ""))
        }
        Some((whole, part)) if with_unit && part.len() <= 2 && !mantissa.contains('.') => {
            format!("{whole}.{part}")
        }
        Some(_) => return None,
    };
    // What is still not a number (two dots, a comma in the fraction) is none.
    let digits = plain.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    format!("{plain}{exponent}").parse().ok().filter(|number: &f64| digits && number.is_finite())
}

/// The unit of numbers that say none, as a user names it: `B`, `kB`, `MB`, `GB`, `KiB`, `MiB`, `GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeUnit(pub(crate) u64);

impl FromStr for SizeUnit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        unit_bytes(text)
            .map(Self)
            .ok_or_else(|| format!("'{text}' is not a unit: write B, kB, MB, GB, KiB, MiB or GiB"))
    }
}

/// The unit of times that say none, in seconds, as a user names it: `s`, `ms`, `us`, `ns`, `min`, `h`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeUnit(pub(crate) f64);

impl FromStr for TimeUnit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        time_unit(text)
            .map(Self)
            .ok_or_else(|| format!("'{text}' is not a unit of time: write s, ms, us, ns, min or h"))
    }
}

/// Seconds in one of a unit of time.
pub(crate) fn time_unit(unit: &str) -> Option<f64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
        "ms" | "msec" | "millis" | "millisecond" | "milliseconds" => 1e-3,
        "us" | "usec" | "micros" | "microseconds" => 1e-6,
        "ns" | "nanos" | "nanoseconds" => 1e-9,
        "min" | "mins" | "minute" | "minutes" => 60.0,
        "h" | "hour" | "hours" => 3600.0,
        _ => return None,
    })
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

/// A number of things in words: `1 sample`, `2 samples`, `2 processes`.
pub fn counted(count: u64, thing: &str) -> String {
    let ending = match count {
        1 => "",
        _ if thing.ends_with('s') || thing.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{count} {thing}{ending}")
}

/// A part of a number of things: `1 of 1 row`, `1 of 8 rows`.
pub fn part(count: u64, of: u64, thing: &str) -> String {
    format!("{count} of {}", counted(of, thing))
}

#[cfg(test)]
mod tests {
    use super::{ByteSize, counted, number, part};

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
    fn numbers_are_read_as_people_write_them() {
        let cases = [
            ("5552", Some(5552.0)),
            ("5,552", Some(5552.0)),
            ("1,000,000.5", Some(1_000_000.5)),
            ("1_000", Some(1000.0)),
            ("5.5e9", Some(5.5e9)),
            ("5,4", Some(5.4)),
            ("1.2.3", None),
            ("5,55,2", None),
            ("1e999", None),
        ];
        for (text, expected) in cases {
            assert_eq!(number(text, true), expected, "{text}");
        }
        assert_eq!(number("5,4", false), None, "a list, where no unit makes it one amount");
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

    #[test]
    fn one_thing_is_singular() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "row")), ["0 rows", "1 row", "2 rows"]);
        assert_eq!((counted(2, "process"), counted(3, "patch")), ("2 processes".into(), "3 patches".into()));
        assert_eq!([part(1, 1, "row"), part(1, 8, "row")], ["1 of 1 row", "1 of 8 rows"]);
    }
}
