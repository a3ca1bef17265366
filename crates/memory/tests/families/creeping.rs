//! Slow growth behind something larger: a leak after a warm-up, a leak in heavy noise, and the healthy curves
//! that look much like them.

use super::{Made, Setting, Shape};
use garden_memory::Verdict::{Leak as L, Steady as S, Undecided as U, WarmUp as W};

/// Every family of this file.
pub fn all() -> Vec<Shape> {
    vec![
        leak_behind_a_large_warm_up,
        leak_after_gigabytes,
        small_leak_on_a_large_level,
        small_leak_behind_a_warm_up,
        leak_in_heavy_noise,
        leak_behind_any_warm_up,
        leak_behind_jumps,
        fallen_and_come_back,
        warm_up_then_level,
        warm_up_then_wandering,
        warm_up_fast_and_slow,
        warm_up_logarithmic,
    ]
}

/// A run of many gigabytes, one sample a step or two, with noise of a few megabytes.
fn large(seed: u64, steps: (f64, f64)) -> Setting {
    let mut setting = Setting::new(seed, (1.0, 1.0));
    setting.steps = setting.random.between(steps.0, steps.1) as u64;
    setting.stride = setting.random.pick(&[1, 1, 2]);
    // An epoch that has ended well before the run does.
    setting.epoch = setting.steps as f64 * setting.random.between(0.2, 0.6);
    setting.samples_per_step = 8;
    setting.dataset_size = (setting.epoch * 8.0) as u64;
    setting.level = setting.random.between(3e8, 2e9);
    // Some are known by the clock alone.
    setting.stepped = setting.random.chance(0.85);
    setting.told &= setting.stepped;
    setting
}

/// Memory of a warm-up that is over by `reached`.
fn warmed(step: f64, height: f64, reached: f64) -> f64 {
    /// After four time constants 98 % are reached.
    const CONSTANTS: f64 = 4.0;
    height * (1.0 - (-CONSTANTS * step / reached).exp())
}

/// 9 GB reached over 40 steps, then 0.7 MB a step for 130 steps through noise of 5 MB.
fn leak_behind_a_large_warm_up(seed: u64) -> Made {
    let mut setting = large(seed, (170.0, 171.0));
    setting.stride = 1;
    let level = setting.level;
    setting.noise = 5e6 / level;
    let samples =
        setting.run(|step, _| level + warmed(step, 9e9 - level, 40.0) + 0.7e6 * (step - 40.0).max(0.0));
    setting.made("leak behind a large warm-up", samples, &[L, U])
}

/// The same in many sizes: a hundredth to a thirtieth of the level is added after the warm-up.
fn leak_after_gigabytes(seed: u64) -> Made {
    let mut setting = large(seed, (120.0, 500.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let height = level * setting.random.scale(2.0, 20.0);
    let reached = steps * setting.random.between(0.1, 0.35);
    let leaked = (level + height) * setting.random.between(0.01, 0.035);
    setting.noise = setting.random.between(0.02, 0.12) * leaked / level;
    let samples = setting.run(|step, _| {
        level + warmed(step, height, reached) + leaked * ((step - reached) / (steps - reached)).max(0.0)
    });
    setting.made("leak after gigabytes", samples, &[L, U])
}

/// 20 MB a hundred steps on 7.7 GB.
fn small_leak_on_a_large_level(seed: u64) -> Made {
    let mut setting = large(seed, (260.0, 900.0));
    setting.level = setting.random.between(7e9, 8e9);
    let level = setting.level;
    setting.noise = setting.random.between(1e6, 6e6) / level;
    let samples = setting.run(|step, _| level + 0.2e6 * step);
    setting.made("small leak on a large level", samples, &[L, U])
}

/// The same after a warm-up to 7.7 GB.
fn small_leak_behind_a_warm_up(seed: u64) -> Made {
    let mut setting = large(seed, (200.0, 700.0));
    let level = setting.level;
    let reached = setting.random.between(20.0, 60.0);
    setting.noise = setting.random.between(1e6, 4e6) / level;
    let samples = setting
        .run(|step, _| level + warmed(step, 7.7e9 - level, reached) + 0.2e6 * (step - reached).max(0.0));
    setting.made("small leak behind a warm-up", samples, &[L, U])
}

/// 200 kB a step in noise of 30 MB.
fn leak_in_heavy_noise(seed: u64) -> Made {
    let mut setting = large(seed, (240.0, 700.0));
    (setting.level, setting.stride) = (setting.random.between(1e9, 6e9), 1);
    let level = setting.level;
    setting.noise = 30e6 / level;
    let samples = setting.run(|step, _| level + 0.2e6 * step);
    setting.made("leak in heavy noise", samples, &[L, U])
}

/// Two to six hundredths of the level are added after a warm-up that is no exponential, in noise whose
/// neighbours may resemble each other.
fn leak_behind_any_warm_up(seed: u64) -> Made {
    let mut setting = large(seed, (120.0, 700.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let height = level * setting.random.scale(1.0, 10.0);
    let reached = steps * setting.random.between(0.08, 0.3);
    let leaked = (level + height) * setting.random.between(0.02, 0.06);
    let (noise, keep) = (leaked * setting.random.between(0.01, 0.08), setting.random.pick(&[0.0, 0.8]));
    let kind = setting.random.pick(&[0, 1, 2]);
    let mut off = 0.0;
    setting.noise = 0.0;
    let samples = setting.run(|step, random| {
        let done = (step / reached).min(1.0);
        let warmed = match kind {
            0 => done.sqrt(),
            1 => done,
            _ => 1.0 / (1.0 + (-10.0 * (step / reached - 0.5)).exp()),
        };
        off = keep * off + (1.0_f64 - keep * keep).sqrt() * noise * random.normal();
        level + height * warmed + leaked * ((step - reached) / (steps - reached)).max(0.0) + off
    });
    setting.made("leak behind any warm-up", samples, &[L, U])
}

/// The same after a climb in five jumps, which would explain the slope as many small ones.
fn leak_behind_jumps(seed: u64) -> Made {
    let mut setting = large(seed, (90.0, 700.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let height = level * setting.random.scale(1.0, 10.0);
    let reached = steps * setting.random.between(0.08, 0.25);
    let leaked = (level + height) * setting.random.between(0.02, 0.06);
    setting.noise = leaked * setting.random.between(0.01, 0.08) / level;
    let samples = setting.run(|step, _| {
        let climbed = (5.0 * step / reached).floor().min(5.0) / 5.0;
        level + height * climbed + leaked * ((step - reached) / (steps - reached)).max(0.0)
    });
    setting.made("leak behind jumps", samples, &[L, U])
}

/// Memory that was given back and is taken again is no more than there was.
fn fallen_and_come_back(seed: u64) -> Made {
    let mut setting = large(seed, (90.0, 400.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let depth = level * setting.random.between(0.01, 0.06).max(8.0 * setting.noise);
    let lowest = steps * setting.random.between(0.35, 0.6);
    let samples = setting.run(|step, _| {
        let part = if step < lowest { step / lowest } else { (steps - step) / (steps - lowest) };
        level - depth * part
    });
    setting.made("fallen and come back", samples, &[S, W, U])
}

fn warm_up_then_level(seed: u64) -> Made {
    let mut setting = large(seed, (120.0, 500.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let height = level * setting.random.scale(2.0, 20.0);
    let reached = steps * setting.random.between(0.1, 0.4);
    setting.noise = setting.random.scale(1e-4, 2e-3) * (level + height) / level;
    let samples = setting.run(|step, _| level + warmed(step, height, reached));
    setting.made("warm-up, then level", samples, &[W])
}

/// A level that wanders and comes back: noise with a memory of its own.
fn warm_up_then_wandering(seed: u64) -> Made {
    let mut setting = large(seed, (150.0, 500.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let height = level * setting.random.scale(2.0, 20.0);
    let reached = steps * setting.random.between(0.1, 0.35);
    let (size, keep) =
        ((level + height) * setting.random.between(0.0003, 0.003), setting.random.between(0.3, 0.9));
    let mut off = 0.0;
    let samples = setting.run(|step, random| {
        off = keep * off + (1.0_f64 - keep * keep).sqrt() * size * random.normal();
        level + warmed(step, height, reached) + off
    });
    setting.made("warm-up, then wandering", samples, &[W, U])
}

/// Two pools, one of which takes its time.
fn warm_up_fast_and_slow(seed: u64) -> Made {
    let mut setting = large(seed, (150.0, 600.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let height = level * setting.random.scale(1.0, 8.0);
    let (fast, slow) = (steps * setting.random.between(0.05, 0.2), steps * setting.random.between(0.5, 1.2));
    let second = height * setting.random.between(0.02, 0.2);
    let samples = setting.run(|step, _| level + warmed(step, height, fast) + warmed(step, second, slow));
    setting.made("warm-up, fast and slow", samples, &[W, U])
}

fn warm_up_logarithmic(seed: u64) -> Made {
    let mut setting = large(seed, (150.0, 600.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let height = level * setting.random.scale(0.3, 4.0);
    let tau = steps * setting.random.between(0.002, 0.02);
    let samples = setting.run(|step, _| level + height * (step / tau).ln_1p() / (steps / tau).ln_1p());
    setting.made("warm-up, logarithmic", samples, &[W, U])
}
