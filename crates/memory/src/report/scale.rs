//! Axes: round numbers to put labels at.

use crate::ByteSize;

/// Values at which an axis from `low` to `high` has labels: about `count` of them, at 1, 2 or 5 times a power of ten.
pub fn ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
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
pub fn bytes(value: f64) -> String {
    ByteSize(value.max(0.0).round() as u64).to_string()
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
    fn durations_are_said_in_their_own_unit() {
        let said: Vec<String> = [45.0, 600.0, 7_200.0, 864_000.0].into_iter().map(duration).collect();
        assert_eq!(said, ["45 s", "10 min", "2.0 h", "10.0 days"]);
    }
}
