//! Round numbers for the labels of an axis, and how amounts are written on it.

use crate::ByteSize;

/// Values at which an axis from `low` to `high` has labels: about `count` of them, at 1, 2 or 5 times a power
/// of ten.
pub(crate) fn ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let span = high - low;
    if !(span.is_finite() && span > 0.0) || count == 0 {
        return vec![low];
    }
    let raw = span / count as f64;
    let power = 10_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|step| *step >= raw).unwrap_or(raw);
    let first = (low / step).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|i| i as f64 * step).collect()
}

/// Bytes with their unit.
pub(crate) fn bytes(value: f64) -> String {
    ByteSize(value.max(0.0).round() as u64).to_string()
}

/// Bytes as the label of an axis that goes to `top`.
pub(crate) fn bytes_label(value: f64, top: f64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let (scale, unit) = units.into_iter().find(|(scale, _)| top >= *scale).unwrap_or((1.0, "B"));
    format!("{} {unit}", number(value / scale))
}

/// A number in four significant digits or so, without what binary fractions add.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if !(1e-3..1e7).contains(&size) {
        let text = format!("{value:.2e}");
        let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{power}", without_zeros(digits));
    }
    let before_point = size.log10().floor() as i32 + 1;
    let behind_point = usize::try_from(4 - before_point).unwrap_or(0);
    without_zeros(&format!("{value:.behind_point$}")).to_owned()
}

/// A decimal without the zeros that end it.
fn without_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// Seconds as people say them.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5_400.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3_600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stand_at_round_numbers() {
        assert_eq!(ticks(0.0, 100.0, 5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(10.0, 240.0, 4), [100.0, 200.0]);
        assert_eq!(ticks(5.0, 5.0, 4), [5.0]);
    }

    #[test]
    fn labels_of_an_axis_share_their_unit() {
        let said = [0.0, 5e8, 1e9, 17.5e9].map(|value| bytes_label(value, 18e9));
        assert_eq!(said, ["0 GB", "0.5 GB", "1 GB", "17.5 GB"]);
    }

    #[test]
    fn numbers_are_short() {
        let said = [0.1 + 0.2, 12.0, 0.0, 2e-4, 1.5e-4, 5.78915, 3450.0, 123_456.0, -1.25].map(number);
        assert_eq!(said, ["0.3", "12", "0", "2e-4", "1.5e-4", "5.789", "3450", "123456", "-1.25"]);
    }

    #[test]
    fn durations_are_said_in_their_own_unit() {
        let said: Vec<String> = [45.0, 600.0, 7_200.0, 864_000.0].into_iter().map(duration).collect();
        assert_eq!(said, ["45 s", "10 min", "2.0 h", "10.0 days"]);
    }
}
