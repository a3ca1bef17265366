//! Memory that comes in jumps and then stays: buffers that double, optimizer state, second models.

use super::{Made, Setting, Shape};
use garden_memory::Verdict::{Leak as L, Steady as S, Undecided as U, WarmUp as W};

/// Every family of this file.
pub fn all() -> Vec<Shape> {
    vec![
        doubling_buffer,
        doubling_slowly,
        doubling_at_any_time,
        optimizer_state,
        state_in_two_jumps,
        few_jumps,
        rising_jumps,
    ]
}

/// A run of its own length, a sample a step, whose epoch ends anywhere.
fn stepped(seed: u64, steps: u64) -> Setting {
    let mut setting = Setting::new(seed, (1.0, 1.0));
    (setting.steps, setting.stride) = (steps, 1);
    setting.epoch = steps as f64 * setting.random.between(0.15, 1.5);
    setting.samples_per_step = 4;
    setting.dataset_size = (setting.epoch * 4.0) as u64;
    setting
}

/// Steps and heights, summed up to a step.
fn jumped(jumps: &[(f64, f64)], step: f64) -> f64 {
    jumps.iter().filter(|(at, _)| step >= *at).map(|(_, height)| height).sum()
}

/// A buffer that doubles at steps 14, 32 and 75 of 80.
fn doubling_buffer(seed: u64) -> Made {
    let mut setting = stepped(seed, 80);
    let level = setting.level;
    let size = level * setting.random.scale(0.05, 1.0).max(10.0 * setting.noise);
    let jumps = [(14.0, size), (32.0, 2.0 * size), (75.0, 4.0 * size)];
    let samples = setting.run(|step, _| level + jumped(&jumps, step));
    setting.made("buffer doubles at 14, 32, 75 of 80", samples, &[W, S])
}

/// The same where copying into the new buffer takes a few steps.
fn doubling_slowly(seed: u64) -> Made {
    let mut setting = stepped(seed, 80);
    let level = setting.level;
    let size = level * setting.random.scale(0.05, 1.0).max(10.0 * setting.noise);
    let lasts = setting.random.between(1.0, 3.0);
    let jumps = [(14.0, size), (32.0, 2.0 * size), (75.0, 4.0 * size)];
    let samples = setting.run(|step, _| {
        let done = |at: f64| ((step - at + lasts) / lasts).clamp(0.0, 1.0);
        level + jumps.iter().map(|(at, height)| height * done(*at)).sum::<f64>()
    });
    setting.made("buffer doubles, slowly", samples, &[W, S])
}

/// The same at other places; the last jump was seen for at least a twentieth of the run.
fn doubling_at_any_time(seed: u64) -> Made {
    let steps = 60 + (seed % 7) * 30;
    let mut setting = stepped(seed, steps);
    let level = setting.level;
    let size = level * setting.random.scale(0.02, 0.6).max(10.0 * setting.noise);
    let (ratio, last) = (setting.random.between(1.9, 2.6), steps as f64 * setting.random.between(0.55, 0.94));
    let jumps: Vec<(f64, f64)> =
        (0..4).map(|i| ((last / ratio.powi(3 - i)).round(), size * 2_f64.powi(i))).collect();
    let samples = setting.run(|step, _| level + jumped(&jumps, step));
    setting.made("buffer doubles", samples, &[W, S])
}

/// Optimizer state at steps 8 and 100, then level for 140 steps.
fn optimizer_state(seed: u64) -> Made {
    let mut setting = stepped(seed, 240);
    setting.stride = setting.random.pick(&[1, 1, 2, 5]);
    let level = setting.level;
    let mut size = || level * setting.random.scale(0.05, 1.5).max(10.0 * setting.noise);
    let jumps = [(8.0, size()), (100.0, size())];
    let samples = setting.run(|step, _| level + jumped(&jumps, step));
    setting.made("optimizer state at 8 and 100 of 240", samples, &[W, S])
}

fn state_in_two_jumps(seed: u64) -> Made {
    let steps = 80 + (seed % 11) * 40;
    let mut setting = stepped(seed, steps);
    let (level, length) = (setting.level, steps as f64);
    let mut size = || level * setting.random.scale(0.03, 2.0).max(10.0 * setting.noise);
    let sizes = [size(), size()];
    let at = [length * setting.random.between(0.03, 0.2), length * setting.random.between(0.3, 0.6)];
    let jumps = [(at[0], sizes[0]), (at[1], sizes[1])];
    let samples = setting.run(|step, _| level + jumped(&jumps, step));
    setting.made("two jumps", samples, &[W, S])
}

/// Three to six jumps of any size at any time of the first half.
fn few_jumps(seed: u64) -> Made {
    let steps = 100 + (seed % 5) * 100;
    let mut setting = stepped(seed, steps);
    let level = setting.level;
    let count = setting.random.pick(&[3, 4, 5, 6]);
    let jumps: Vec<(f64, f64)> = (0..count)
        .map(|_| {
            let at = steps as f64 * setting.random.between(0.03, 0.55);
            (at, level * setting.random.scale(0.03, 0.5).max(10.0 * setting.noise))
        })
        .collect();
    let samples = setting.run(|step, _| level + jumped(&jumps, step));
    setting.made("a few jumps", samples, &[W, S])
}

/// Equal jumps at equal distances that go on past the first epoch: something is kept each time.
fn rising_jumps(seed: u64) -> Made {
    let steps = 150 + (seed % 5) * 60;
    let mut setting = stepped(seed, steps);
    setting.epoch = steps as f64 * setting.random.between(0.2, 0.5);
    setting.dataset_size = (setting.epoch * 4.0) as u64;
    let level = setting.level;
    let size = level * setting.random.scale(0.03, 0.5).max(10.0 * setting.noise);
    let period = steps as f64 / setting.random.between(6.0, 12.0);
    let samples = setting.run(|step, _| level + size * (step / period).floor());
    setting.made("equal jumps that go on", samples, &[L, U])
}
