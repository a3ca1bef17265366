//! Reduces the points of a line without changing how it looks.

/// Points of a line at most: a wide screen shows no more, and a page stays small however long the run.
pub const MOST_POINTS: usize = 1000;

/// The finite points; of many, the lowest and the highest of each stretch, so that no spike is lost.
pub fn extremes(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let finite: Vec<(f64, f64)> =
        points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    if finite.len() <= MOST_POINTS {
        return finite;
    }
    // The ends always stay: people read them.
    let (first, last) = (finite[0], finite[finite.len() - 1]);
    let inner = &finite[1..finite.len() - 1];
    let mut kept = vec![first];
    for stretch in stretches(inner, MOST_POINTS / 2 - 1) {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let ends = stretch.iter().min_by(by_value).zip(stretch.iter().max_by(by_value));
        let Some((low, high)) = ends else { continue };
        let (before, after) = if low.0 <= high.0 { (low, high) } else { (high, low) };
        kept.push(*before);
        if after.0 > before.0 {
            kept.push(*after);
        }
    }
    kept.push(last);
    kept
}

/// At most `most` stretches of equal length.
pub fn stretches<T>(items: &[T], most: usize) -> impl Iterator<Item = &[T]> {
    items.chunks(items.len().div_ceil(most).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_among_a_million_points_stays() {
        let points: Vec<(f64, f64)> =
            (0..1_000_000).map(|i| (f64::from(i), if i == 777_777 { 9.0 } else { 1.0 })).collect();
        let kept = extremes(&points);
        assert!(kept.len() <= MOST_POINTS, "{}", kept.len());
        assert!(kept.contains(&(777_777.0, 9.0)));
        assert_eq!((kept[0].0, kept[kept.len() - 1].0), (0.0, 999_999.0));
        assert!(kept.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn what_is_no_number_is_left_out() {
        assert_eq!(extremes(&[(0.0, 1.0), (1.0, f64::NAN), (f64::INFINITY, 1.0)]), [(0.0, 1.0)]);
    }
}
