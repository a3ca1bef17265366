//! A mean to PyTorch's last bit.

/// The mean of `values` with PyTorch's order of summation (eight lanes, four rows, four cascaded levels).
///
/// It is PyTorch's on one thread; with several it splits long sums by the number of threads and the last bit
/// of the mean depends on the machine.
pub(super) fn torch_mean(values: &[f32]) -> f32 {
    const LANES: usize = 8;
    const ROWS: usize = 4;
    let add = |sum: &mut [f32], more: &[f32]| sum.iter_mut().zip(more).for_each(|(s, m)| *s += m);
    let vectors = values.len() / LANES;
    let groups = vectors / ROWS;
    let level_power = (ceil_log2(groups) / 4).max(4);
    let level_step = 1usize << level_power;
    let mut levels = [[0.0f32; LANES * ROWS]; 4];
    let mut group = 0;
    while group + level_step <= groups {
        for _ in 0..level_step {
            add(&mut levels[0], &values[group * LANES * ROWS..][..LANES * ROWS]);
            group += 1;
        }
        for level in 1..4 {
            let below = std::mem::replace(&mut levels[level - 1], [0.0; LANES * ROWS]);
            add(&mut levels[level], &below);
            if group & ((level_step - 1) << (level as u32 * level_power)) != 0 {
                break;
            }
        }
    }
    for group in group..groups {
        add(&mut levels[0], &values[group * LANES * ROWS..][..LANES * ROWS]);
    }
    let [mut total, upper @ ..] = levels;
    upper.iter().for_each(|level| add(&mut total, level));
    let (lanes, rows) = total.split_at_mut(LANES);
    for vector in groups * ROWS..vectors {
        add(lanes, &values[vector * LANES..][..LANES]);
    }
    rows.chunks_exact(LANES).for_each(|row| add(lanes, row));
    let rest = values[vectors * LANES..].iter().fold(0.0, |sum, v| sum + v);
    lanes.iter().fold(rest, |sum, lane| sum + lane) / values.len() as f32
}

/// The smallest power of two that is at least `n`, as an exponent.
fn ceil_log2(n: usize) -> u32 {
    n.max(1).next_power_of_two().trailing_zeros()
}
