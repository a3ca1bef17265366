//! bitsandbytes' 8-bit dynamic map, and the arithmetic by which it rounds to it on a CPU.
//!
//! In comes a list of scales; out come the map, the table that finds the nearest code, and the mean as PyTorch sums
//! it. All of it must agree to the last bit with what bitsandbytes stores in a checkpoint.

/// Bins of the lookup table by which bitsandbytes finds the nearest code.
const TABLE: usize = 65536;

/// The 256 values of the signed 8-bit dynamic type, ascending: seven decades, each split ever finer.
pub fn dynamic_map() -> [f32; 256] {
    let mut values = Vec::with_capacity(256);
    for decade in 0..7 {
        let scale = 10f64.powi(decade - 6) as f32;
        let edges = linspace(0.1, 1.0, (1 << decade) + 1);
        for pair in edges.windows(2) {
            let mean = scale * ((pair[0] + pair[1]) / 2.0);
            values.extend([mean, -mean]);
        }
    }
    values.extend([0.0, 1.0]);
    values.sort_by(f32::total_cmp);
    std::array::from_fn(|i| values[i])
}

/// `torch.linspace` in f32: steps counted from the nearer end.
fn linspace(first: f32, last: f32, count: usize) -> Vec<f32> {
    let step = (last - first) / (count - 1) as f32;
    let value = |i: usize| match i < count / 2 {
        true => step.mul_add(i as f32, first),
        false => (-step).mul_add((count - 1 - i) as f32, last),
    };
    (0..count).map(value).collect()
}

/// For each of 65536 bins over [-1, 1], the nearest code.
pub(super) fn nearest_code_table(map: &[f32; 256]) -> Vec<u8> {
    let mut code = 0;
    let entry = |bin| {
        let value = -1.0 + 2.0 * bin as f32 / (TABLE - 1) as f32;
        while code < 255 && 0.5 * (map[code] + map[code + 1]) < value {
            code += 1;
        }
        code as u8
    };
    (0..TABLE).map(entry).collect()
}

/// The bin of a value in [-1, 1].
pub(super) fn table_index(value: f32) -> usize {
    ((value.clamp(-1.0, 1.0) + 1.0) * 0.5).mul_add((TABLE - 1) as f32, 0.5) as usize
}

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
