//! The bandwidth of a network as people write and read it: parses `10Gb`, prints `10 Gb/s`.
//!
//! Networks are rated in bits a second and in powers of 1000. Bytes are refused, because `10GB` is more often a slip
//! than a network of 80 Gb/s.

use std::{fmt, str::FromStr};

/// Prefixes of a unit, the largest first.
const SCALES: [(&str, f64); 4] = [("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)];
/// Ways to write bits a second, after the prefix; nothing at all means the same.
const UNITS: [&str; 8] = ["", "b", "bit", "bits", "b/s", "bit/s", "bits/s", "bps"];
/// Faster than any network, and slow enough for all sums with it.
const FASTEST: f64 = 1e15;

/// Bits a second, more than none.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Bandwidth(f64);

/// A bandwidth that could not be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BadBandwidth {
    /// It is no number with a unit.
    #[error("'{0}' is not a bandwidth: write bits a second, such as 1Gb, 10Gb or 100Gb/s")]
    Unreadable(String),
    /// It is in bytes.
    #[error("'{text}' is in bytes, and networks are rated in bits: write {} for it", bits.short())]
    Bytes {
        /// What was written.
        text: String,
        /// The same in bits.
        bits: Bandwidth,
    },
    /// There is no such network.
    #[error("'{0}' is out of range: more than nothing and at most 1000 Tb/s")]
    Range(String),
}

impl Bandwidth {
    /// Bits a second.
    pub fn bits_per_second(self) -> f64 {
        self.0
    }

    /// As it is written on a command line: without a blank.
    fn short(self) -> String {
        self.to_string().replace(' ', "").replace("/s", "")
    }
}

impl FromStr for Bandwidth {
    type Err = BadBandwidth;

    fn from_str(text: &str) -> Result<Self, BadBandwidth> {
        let bad = || BadBandwidth::Unreadable(text.to_owned());
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let number: f64 = number.parse().map_err(|_| bad())?;
        let unit = unit.trim();
        let scaled = SCALES.iter().find_map(|(prefix, scale)| {
            let begins = unit.get(..1).is_some_and(|first| first.eq_ignore_ascii_case(prefix));
            begins.then(|| (&unit[1..], *scale))
        });
        // A number without a prefix is more often one of Gb/s than of b/s, so it says nothing.
        let (rest, scale) = scaled.ok_or_else(bad)?;
        let bits = number * scale;
        let in_range = |bits: f64| bits > 0.0 && bits <= FASTEST;
        match rest {
            _ if is_bytes(rest) && in_range(8.0 * bits) => {
                Err(BadBandwidth::Bytes { text: text.to_owned(), bits: Self(8.0 * bits) })
            }
            _ if !UNITS.contains(&rest.to_ascii_lowercase().as_str()) => Err(bad()),
            _ if !in_range(bits) => Err(BadBandwidth::Range(text.to_owned())),
            _ => Ok(Self(bits)),
        }
    }
}

/// Whether a unit means bytes: a capital B tells them from bits.
fn is_bytes(unit: &str) -> bool {
    matches!(unit, "B" | "B/s" | "Bps") || unit.to_ascii_lowercase().starts_with("byte")
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scale = SCALES.into_iter().find(|(_, scale)| self.0 >= *scale);
        let (prefix, scale) = scale.unwrap_or(("", 1.0));
        // Three digits behind the point, and none that say nothing.
        let number = (self.0 / scale * 1e3).round() / 1e3;
        write!(f, "{number} {prefix}b/s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_read_as_people_write_them() {
        let cases = [
            ("1Gb", 1e9, "1 Gb/s"),
            ("10Gb", 10e9, "10 Gb/s"),
            ("25Gb/s", 25e9, "25 Gb/s"),
            ("100 gbps", 100e9, "100 Gb/s"),
            ("200Gbit", 200e9, "200 Gb/s"),
            ("2.5Gbit/s", 2.5e9, "2.5 Gb/s"),
            ("40G", 40e9, "40 Gb/s"),
            ("100mb", 1e8, "100 Mb/s"),
            ("1.6Tb", 1.6e12, "1.6 Tb/s"),
            ("64kb/s", 64e3, "64 kb/s"),
        ];
        for (text, bits, printed) in cases {
            let read: Bandwidth = text.parse().unwrap();
            assert!((read.0 - bits).abs() < 1.0, "{text}");
            assert_eq!(read.to_string(), printed);
        }
    }

    #[test]
    fn what_is_no_bandwidth_is_refused_with_the_way_to_write_it() {
        let refused = |text: &str| text.parse::<Bandwidth>().unwrap_err().to_string();
        for text in ["", "Gb", "10", "fast", "-1Gb", "10 Gib", "1..2Gb", "10Gb/h", "10é"] {
            assert!(refused(text).contains("write bits a second, such as 1Gb"), "{text}: {}", refused(text));
        }
        for text in ["10GB", "10GB/s", "10 GBps", "10Gbyte/s"] {
            assert!(refused(text).ends_with("rated in bits: write 80Gb for it"), "{}", refused(text));
        }
        for text in ["0Gb", "1001Tb"] {
            assert!(refused(text).contains("out of range"), "{text}: {}", refused(text));
        }
    }
}
