//! The families, one function each.

use super::{Accepted, Made, Random, Setting, Shape, split};
use Verdict::{Fill as F, Leak as L, Steady as S, Undecided as U, WarmUp as W};
use garden_memory::{Sample, Verdict};

/// Every family.
pub fn all() -> Vec<Shape> {
    vec![
        steady,
        noisy,
        small_drift,
        wandering,
        sawtooth,
        evaluation_spikes,
        evaluation_humps,
        fork_storms,
        worker_dips,
        file_growth,
        falling,
        falls_in_steps,
        one_jump,
        swapped_out,
        fill,
        fill_uneven,
        fill_spiky,
        fill_after_warm_up,
        fill_twice,
        fill_with_replacement,
        fill_cut,
        fill_just_over,
        warm_up,
        warm_up_hyperbolic,
        warm_up_rising,
        doubling,
        growing_gaps,
        growing_teeth,
        leak,
        leak_under_noise,
        leak_after_warm_up,
        leak_after_fill,
        leak_under_sawtooth,
        leak_per_evaluation,
        leak_in_workers,
        leak_in_swap,
        leak_in_shared,
        leak_late,
        leak_accelerating,
        leak_with_spikes,
        restarted_fill,
        restarted_leak,
        counter_reset_steady,
        counter_reset_leak,
        clock_jumps_steady,
        clock_jumps_leak,
        timed_steady,
        timed_leak,
        timed_sawtooth,
        timed_warm_up,
        timed_jump,
        short,
        warm_up_spiky,
        fill_under_sawtooth,
        leak_small,
        ends_in_a_peak,
    ]
}

/// The verdicts that are right with the epoch known, and without.
fn by_knowledge(setting: &Setting, known: Accepted, unknown: Accepted) -> Accepted {
    if setting.epoch_is_known() { known } else { unknown }
}

/// Growth below this, in bytes, is right to be called none: an allocator's pools move by as much.
const POOLS: f64 = 4e6;

/// Growth over the run, from noticeable to many times the level.
fn growth(setting: &mut Setting) -> f64 {
    setting.level * setting.random.scale(0.1, 6.0)
}

fn steady(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (0.4, 3.0));
    let level = setting.level;
    let samples = setting.run(|_, _| level);
    setting.made("steady", samples, &[S])
}

fn noisy(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (0.6, 3.0));
    setting.noise = setting.random.between(0.01, 0.03);
    let level = setting.level;
    let samples = setting.run(|_, _| level);
    setting.made("noisy", samples, &[S])
}

fn small_drift(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.5, 3.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let drift = setting.random.between(0.001, 0.0045);
    let samples = setting.run(|step, _| level * (1.0 + drift * step / steps));
    setting.made("small drift", samples, &[S])
}

/// Memory that wanders and comes back: noise with a memory of its own.
fn wandering(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.0, 3.0));
    let level = setting.level;
    let (size, keep) = (setting.random.between(0.002, 0.01), setting.random.between(0.5, 0.9));
    let mut off = 0.0;
    let samples = setting.run(|_, random| {
        off = keep * off + (1.0 - keep * keep).sqrt() * size * level * random.normal();
        level + off
    });
    setting.made("wandering", samples, &[S])
}

fn tooth(step: f64, period: f64) -> f64 {
    (step % period) / period
}

fn sawtooth(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (0.5, 3.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let size = level * setting.random.between(0.02, 0.4);
    let period = (steps / setting.random.between(6.0, 40.0)).max(3.0 * setting.stride as f64);
    let samples = setting.run(|step, _| level + size * tooth(step, period));
    setting.made("sawtooth", samples, &[S])
}

fn evaluation_spikes(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (0.5, 3.0));
    let (level, stride) = (setting.level, setting.stride);
    let size = level * setting.random.between(0.05, 0.6);
    let every = setting.random.pick(&[4, 7, 15]) * stride;
    let samples = setting.run(|step, _| level + if (step as u64).is_multiple_of(every) { size } else { 0.0 });
    setting.made("evaluation spikes", samples, &[S])
}

/// Evaluations that last a while.
fn evaluation_humps(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.5, 3.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let size = level * setting.random.between(0.05, 0.6);
    let period = steps / setting.random.between(3.2, 6.8);
    let wide = setting.random.between(0.2, 0.4);
    let samples = setting.run(|step, _| level + if tooth(step, period) > 1.0 - wide { size } else { 0.0 });
    setting.made("evaluation humps", samples, &[S])
}

/// Bursts of short-lived processes.
fn fork_storms(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.0, 3.0));
    let level = setting.level;
    let often = setting.random.between(0.01, 0.08);
    let samples =
        setting.run(|_, random| if random.chance(often) { level * random.between(1.1, 3.0) } else { level });
    setting.made("fork storms", samples, &[S])
}

/// Loader workers that are started anew with each epoch.
fn worker_dips(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (2.2, 4.0));
    let (level, epoch, stride) = (setting.level, setting.epoch, setting.stride as f64);
    let workers = level * setting.random.between(0.2, 0.5);
    let samples =
        setting.run(|step, _| if step % epoch < stride && step > epoch { level - workers } else { level });
    setting.made("worker dips", samples, &[S])
}

fn file_growth(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (0.8, 3.0));
    setting.noise = setting.random.between(0.0005, 0.01);
    let level = setting.level;
    let per_sample = setting.random.scale(1e6, 2e8);
    let mut samples = setting.run(|_, _| level);
    for (i, sample) in samples.iter_mut().enumerate() {
        sample.file += (per_sample * i as f64) as u64;
        sample.rss = sample.anon + sample.file;
    }
    setting.made("file growth", samples, &[S])
}

fn falling(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (0.4, 3.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let (size, tau) = (setting.random.between(0.05, 0.5), steps * setting.random.between(0.05, 0.5));
    let samples = setting.run(|step, _| level * (1.0 + size * (-step / tau).exp()));
    setting.made("falling", samples, &[S, W])
}

fn falls_in_steps(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.0, 3.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let falls: Vec<f64> = (0..3).map(|_| steps * setting.random.between(0.1, 0.9)).collect();
    let size = setting.random.between(0.05, 0.2);
    let samples = setting
        .run(|step, _| level * (1.0 - size * falls.iter().filter(|fall| step > **fall).count() as f64));
    setting.made("falls in steps", samples, &[S, W])
}

fn one_jump(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (0.5, 3.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let (at, size) = (steps * setting.random.between(0.1, 0.75), setting.random.between(0.05, 0.5));
    let samples = setting.run(|step, _| if step < at { level } else { level * (1.0 + size) });
    setting.made("one jump", samples, &[S, W])
}

/// Cold pages that move to swap: resident memory falls, swap rises, nothing grows.
fn swapped_out(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.0, 3.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let share = setting.random.between(0.1, 0.6);
    let mut samples = setting.run(|_, _| level);
    for sample in samples.iter_mut().filter(|sample| sample.step.is_some()) {
        let out = share * sample.step.unwrap_or(0) as f64 / steps;
        sample.swap = (out * sample.anon as f64) as u64;
        sample.anon -= sample.swap;
        sample.rss = sample.anon + sample.file;
    }
    setting.made("swapped out", samples, &[S])
}

fn fill_height(setting: &mut Setting) -> f64 {
    growth(setting).max(20.0 * setting.noise * setting.level)
}

fn fill(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.4, 3.0));
    let (level, epoch, height) = (setting.level, setting.epoch, fill_height(&mut setting));
    let samples = setting.run(|step, _| level + height * (step / epoch).min(1.0));
    let accepted = by_knowledge(&setting, &[F], &[W]);
    setting.made("fill", samples, accepted)
}

/// Images of very different sizes.
fn fill_uneven(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.4, 3.0));
    let (level, height) = (setting.level, fill_height(&mut setting));
    let mut random = Random::new(seed + 1);
    let images: Vec<f64> = (0..setting.dataset_size).map(|_| (0.8 * random.normal()).exp()).collect();
    let total: f64 = images.iter().sum();
    let per_step = setting.samples_per_step as usize;
    let filled: Vec<f64> = images
        .chunks(per_step)
        .scan(0.0, |sum, chunk| {
            *sum += chunk.iter().sum::<f64>();
            Some(*sum / total)
        })
        .collect();
    let samples = setting.run(|step, _| level + height * filled[(step as usize - 1).min(filled.len() - 1)]);
    let accepted = by_knowledge(&setting, &[F], &[W]);
    setting.made("fill, uneven", samples, accepted)
}

fn fill_spiky(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.4, 3.0));
    setting.noise = setting.random.between(0.002, 0.01);
    let (level, epoch, height) = (setting.level, setting.epoch, fill_height(&mut setting));
    let (often, size) = (setting.random.between(0.01, 0.06), setting.random.between(0.1, 0.5));
    let samples = setting.run(|step, random| {
        let spike = if random.chance(often) { size * height } else { 0.0 };
        level + height * (step / epoch).min(1.0) + spike
    });
    let accepted = by_knowledge(&setting, &[F], &[W]);
    setting.made("fill, spiky", samples, accepted)
}

fn fill_after_warm_up(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.5, 3.0));
    let (level, epoch, height) = (setting.level, setting.epoch, fill_height(&mut setting));
    let (early, tau) = (0.25 * height, 0.04 * epoch);
    let samples =
        setting.run(|step, _| level + early * (1.0 - (-step / tau).exp()) + height * (step / epoch).min(1.0));
    let accepted = by_knowledge(&setting, &[F], &[W]);
    setting.made("fill after warm-up", samples, accepted)
}

/// The training rows in the first epoch, then the evaluation rows in the first evaluation.
fn fill_twice(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.7, 3.0));
    let (level, epoch, height) = (setting.level, setting.epoch, fill_height(&mut setting));
    let (second, length) = (setting.random.between(0.1, 0.3), setting.random.between(0.02, 0.1) * epoch);
    let samples = setting.run(|step, _| {
        level + height * ((step / epoch).min(1.0) + second * ((step - epoch) / length).clamp(0.0, 1.0))
    });
    setting.made("fill, train then evaluation", samples, &[F, W])
}

fn fill_with_replacement(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.6, 4.0));
    let (level, epoch, height) = (setting.level, setting.epoch, fill_height(&mut setting));
    let samples = setting.run(|step, _| level + height * (1.0 - (-step / epoch).exp()));
    setting.made("fill with replacement", samples, &[F, W, U])
}

fn fill_cut(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (0.35, 0.97));
    let (level, epoch, height) = (setting.level, setting.epoch, fill_height(&mut setting));
    let samples = setting.run(|step, _| level + height * step / epoch);
    let accepted = by_knowledge(&setting, &[U], &[U, L]);
    setting.made("fill, cut", samples, accepted)
}

fn fill_just_over(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.01, 1.06));
    let (level, epoch, height) = (setting.level, setting.epoch, fill_height(&mut setting));
    let samples = setting.run(|step, _| level + height * (step / epoch).min(1.0));
    let accepted = by_knowledge(&setting, &[U, F], &[U, F, W, L]);
    setting.made("fill, just over", samples, accepted)
}

fn warm_up(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (0.4, 3.0));
    let (level, steps, height) = (setting.level, setting.steps as f64, fill_height(&mut setting));
    let tau = steps * setting.random.between(0.04, 0.22);
    let samples = setting.run(|step, _| level + height * (1.0 - (-step / tau).exp()));
    setting.made("warm-up", samples, &[W])
}

fn warm_up_hyperbolic(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.2, 3.0));
    let (level, steps, height) = (setting.level, setting.steps as f64, fill_height(&mut setting));
    let tau = steps * setting.random.between(0.02, 0.12);
    let samples = setting.run(|step, _| level + height * step / (step + tau));
    setting.made("warm-up, hyperbolic", samples, &[W, U])
}

fn warm_up_rising(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.2, 3.0));
    let (level, steps, height) = (setting.level, setting.steps as f64, fill_height(&mut setting));
    let tau = steps * setting.random.between(0.3, 0.8);
    let samples = setting.run(|step, _| level + height * (1.0 - (-step / tau).exp()));
    setting.made("warm-up, still rising", samples, &[W, U])
}

/// A buffer that doubles a few times.
fn doubling(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (0.6, 3.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let size = level * setting.random.between(0.02, 0.1);
    let first = steps * setting.random.between(0.03, 0.12);
    let last = setting.random.pick(&[2, 3]);
    let samples = setting.run(|step, _| {
        level
            + (0..=last).filter(|i| step > first * 2_f64.powi(*i)).map(|i| size * 2_f64.powi(i)).sum::<f64>()
    });
    setting.made("doubling", samples, &[W, S])
}

/// Jumps of one size that come ever more seldom.
fn growing_gaps(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.5, 3.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let size = level * setting.random.between(0.03, 0.2);
    let (first, ratio) = (steps * 0.03, setting.random.between(1.8, 2.6));
    let samples =
        setting.run(|step, _| level + size * (0..4).filter(|i| step > first * ratio.powi(*i)).count() as f64);
    setting.made("stairs, growing gaps", samples, &[W, S, U])
}

/// Garbage that is collected a few times, until the allocator keeps its room.
fn growing_teeth(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.5, 3.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let size = level * setting.random.between(0.1, 0.5);
    let period = (steps * setting.random.between(0.06, 0.12)).max(4.0 * setting.stride as f64);
    let teeth = setting.random.pick(&[1.0, 2.0, 3.0]);
    let samples = setting.run(|step, _| {
        level
            + size
                * if step < teeth * period {
                    tooth(step, period)
                } else {
                    ((step - teeth * period) / period).min(1.0)
                }
    });
    setting.made("growing teeth", samples, &[S, W, F])
}

fn warm_up_spiky(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (0.6, 3.0));
    let (level, steps, height) = (setting.level, setting.steps as f64, fill_height(&mut setting));
    let tau = steps * setting.random.between(0.05, 0.2);
    let (often, size) = (setting.random.between(0.01, 0.06), setting.random.between(0.2, 1.0));
    let samples = setting.run(|step, random| {
        level + height * (1.0 - (-step / tau).exp()) + if random.chance(often) { size * height } else { 0.0 }
    });
    setting.made("warm-up, spiky", samples, &[W])
}

/// Rows that stay, and garbage that is collected.
fn fill_under_sawtooth(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.6, 3.0));
    let (level, steps, epoch) = (setting.level, setting.steps as f64, setting.epoch);
    let height = fill_height(&mut setting).max(0.3 * level);
    let size = height * setting.random.between(0.05, 0.3);
    let period = (steps / setting.random.between(12.0, 40.0)).max(3.0 * setting.stride as f64);
    let samples =
        setting.run(|step, _| level + height * (step / epoch).min(1.0) + size * tooth(step, period));
    let accepted = by_knowledge(&setting, &[F], &[W]);
    setting.made("fill under sawtooth", samples, accepted)
}

/// A few percent over the whole run, plain to see because there is little noise.
fn leak_small(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (2.0, 4.0));
    setting.noise = setting.random.scale(1e-4, 2e-3);
    let (level, steps) = (setting.level.max(3e8), setting.steps as f64);
    setting.level = level;
    let height = level * setting.random.between(0.02, 0.06);
    let samples = setting.run(|step, _| level + height * step / steps);
    let accepted = by_knowledge(&setting, &[L], &[L, U]);
    setting.made("leak, small", samples, accepted)
}

/// Level, with a save or an evaluation going on when the trace ends.
fn ends_in_a_peak(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.2, 3.0));
    let (level, last) = (setting.level, (setting.steps - 2 * setting.stride) as f64);
    let size = level * setting.random.between(0.1, 0.6);
    let samples = setting.run(|step, _| level + if step > last { size } else { 0.0 });
    setting.made("ends in a peak", samples, &[S, W, U])
}

fn leak(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.5, 3.0));
    let (level, steps, height) = (setting.level, setting.steps as f64, fill_height(&mut setting));
    let samples = setting.run(|step, _| level + height * step / steps);
    let accepted = by_knowledge(&setting, &[L], &[L, U]);
    setting.made("leak", samples, accepted)
}

fn leak_under_noise(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (2.0, 4.0));
    setting.stride = 1;
    setting.steps = setting.steps.max(400);
    setting.noise = setting.random.between(0.01, 0.025);
    let (level, steps) = (setting.level, setting.steps as f64);
    let height = level * setting.noise * setting.random.between(2.0, 4.0);
    let samples = setting.run(|step, _| level + height * step / steps);
    let accepted: Accepted = if height < POOLS { &[S, L, U] } else { by_knowledge(&setting, &[L], &[L, U]) };
    setting.made("leak under noise", samples, accepted)
}

fn leak_after_warm_up(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (2.0, 3.0));
    let (level, steps, height) = (setting.level, setting.steps as f64, fill_height(&mut setting));
    let (early, tau) = (height * setting.random.between(0.4, 1.5), steps * setting.random.between(0.03, 0.1));
    let samples = setting.run(|step, _| level + early * (1.0 - (-step / tau).exp()) + height * step / steps);
    let accepted = by_knowledge(&setting, &[L], &[L, U]);
    setting.made("leak after warm-up", samples, accepted)
}

fn leak_after_fill(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (2.0, 3.0));
    let (level, steps, epoch) = (setting.level, setting.steps as f64, setting.epoch);
    let height = fill_height(&mut setting);
    let part = setting.random.between(0.4, 1.2);
    let samples =
        setting.run(|step, _| level + height * (step / epoch).min(1.0) + part * height * step / steps);
    let since = part * height * (1.0 - epoch / steps);
    let accepted: Accepted =
        if since < POOLS { &[F, W, L, U] } else { by_knowledge(&setting, &[L], &[L, U]) };
    setting.made("leak after fill", samples, accepted)
}

fn leak_under_sawtooth(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.6, 3.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let size = level * setting.random.between(0.05, 0.4);
    let height = size * setting.random.between(0.8, 4.0);
    let period = (steps / setting.random.between(10.0, 30.0)).max(3.0 * setting.stride as f64);
    let samples = setting.run(|step, _| level + size * tooth(step, period) + height * step / steps);
    let accepted = by_knowledge(&setting, &[L], &[L, U]);
    setting.made("leak under sawtooth", samples, accepted)
}

fn leak_per_evaluation(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.8, 3.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let size = level * setting.random.between(0.03, 0.3);
    let period = (steps / setting.random.between(5.5, 14.0)).max(2.0 * setting.stride as f64);
    let samples = setting.run(|step, _| level + size * (step / period).floor());
    let accepted = by_knowledge(&setting, &[L], &[L, U]);
    setting.made("leak per evaluation", samples, accepted)
}

/// The parent stays level while its workers grow.
fn leak_in_workers(seed: u64) -> Made {
    let mut made = leak(seed);
    made.family = "leak in workers";
    let first = made.samples.iter().find(|sample| sample.step.is_some()).map_or(0, |sample| sample.anon);
    for sample in made.samples.iter_mut() {
        sample.main_rss = Some(sample.file + first.min(sample.anon) / 2);
        sample.procs = Some(5);
    }
    made
}

/// Resident memory stays level while swap grows.
fn leak_in_swap(seed: u64) -> Made {
    let mut made = leak(seed);
    made.family = "leak in swap";
    move_growth(&mut made, |sample, grown| sample.swap = grown);
    made
}

fn leak_in_shared(seed: u64) -> Made {
    let mut made = leak(seed);
    made.family = "leak in shared memory";
    move_growth(&mut made, |sample, grown| sample.shmem = grown);
    made
}

fn move_growth(made: &mut Made, put: impl Fn(&mut Sample, u64)) {
    let first = made.samples.iter().find(|sample| sample.step.is_some()).map_or(0, |sample| sample.anon);
    for sample in made.samples.iter_mut().filter(|sample| sample.step.is_some()) {
        put(sample, sample.anon.saturating_sub(first));
        sample.anon = sample.anon.min(first);
        sample.rss = sample.anon + sample.file + sample.shmem;
    }
}

fn leak_late(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (2.0, 3.0));
    let (level, steps, height) = (setting.level, setting.steps as f64, fill_height(&mut setting));
    let start = setting.random.between(setting.epoch / steps + 0.05, 0.65);
    let samples = setting.run(|step, _| level + height * ((step / steps - start) / (1.0 - start)).max(0.0));
    let accepted = by_knowledge(&setting, &[L], &[L, U]);
    setting.made("leak, late", samples, accepted)
}

fn leak_accelerating(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.6, 3.0));
    let (level, steps, height) = (setting.level, setting.steps as f64, fill_height(&mut setting));
    let samples = setting.run(|step, _| level + height * (step / steps).powi(2));
    let accepted = by_knowledge(&setting, &[L], &[L, U]);
    setting.made("leak, accelerating", samples, accepted)
}

fn leak_with_spikes(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.6, 3.0));
    let (level, steps, height) = (setting.level, setting.steps as f64, fill_height(&mut setting));
    let (often, size) = (setting.random.between(0.01, 0.1), setting.random.between(0.2, 1.0));
    let samples = setting.run(|step, random| {
        level + height * step / steps + if random.chance(often) { size * level } else { 0.0 }
    });
    let accepted = by_knowledge(&setting, &[L], &[L, U]);
    setting.made("leak with spikes", samples, accepted)
}

/// The samples twice, the second time from a checkpoint on, as a new process.
fn restarted(made: &mut Made, back: f64) {
    let last = made.samples.iter().filter_map(|sample| sample.step).max().unwrap_or(0);
    let resumed = (last as f64 * back) as u64;
    let end = made.samples.last().map_or(0.0, |sample| sample.t);
    let lowest = made.samples.iter().map(|sample| sample.anon).min().unwrap_or(0);
    let mut again = vec![split(end + 5.0, None, None, lowest as f64 * 0.3)];
    again.extend(made.samples.iter().filter(|sample| sample.step.is_some()).cloned());
    for sample in &mut again[1..] {
        sample.t += end + 10.0;
        sample.step = sample.step.map(|step| step + resumed);
        sample.epoch = None;
    }
    made.samples.iter_mut().for_each(|sample| sample.epoch = None);
    made.samples.extend(again);
}

fn restarted_fill(seed: u64) -> Made {
    let mut made = fill(seed);
    restarted(&mut made, 0.5);
    made.family = "fill, restarted";
    made.accepted = if made.facts.dataset_size.is_some() { &[F] } else { &[W] };
    made
}

fn restarted_leak(seed: u64) -> Made {
    /// The part of the run before that is not repeated.
    const BACK: f64 = 0.4;
    let mut made = leak(seed);
    let steps = made.samples.iter().filter_map(|sample| sample.step).max().unwrap_or(0) as f64;
    restarted(&mut made, BACK);
    made.family = "leak, restarted";
    // Rows that the run before has seen may come until the first whole epoch ends, and a fill slows down before that.
    let is_told = made.facts.dataset_size.zip(made.facts.samples_per_step).is_some_and(|(rows, per_step)| {
        let epoch = rows as f64 / per_step as f64;
        (1.0 + BACK) * steps > ((BACK * steps / epoch).ceil() + 1.6) * epoch
    });
    made.accepted = if is_told { &[L] } else { &[L, U] };
    made
}

/// Steps counted from 1 in every epoch.
fn counted_per_epoch(made: &mut Made, epoch: u64) {
    for sample in &mut made.samples {
        sample.step = sample.step.map(|step| (step - 1) % epoch + 1);
        sample.epoch = None;
    }
}

fn counter_reset_steady(seed: u64) -> Made {
    let mut made = steady(seed);
    counted_per_epoch(&mut made, 70);
    made.family = "steady, steps counted per epoch";
    made
}

fn counter_reset_leak(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.6, 3.0));
    let (level, steps, height) = (setting.level, setting.steps as f64, fill_height(&mut setting));
    (setting.stride, setting.epochs) = (1, false);
    let samples = setting.run(|step, _| level + height * step / steps);
    let accepted = by_knowledge(&setting, &[L], &[L, U]);
    let mut made = setting.made("leak, steps counted per epoch", samples, accepted);
    counted_per_epoch(&mut made, setting.epoch as u64);
    made
}

fn jump_clock(made: &mut Made) {
    let n = made.samples.len();
    made.samples[n / 3..].iter_mut().for_each(|sample| sample.t += 86_400.0);
    made.samples[2 * n / 3..].iter_mut().for_each(|sample| sample.t -= 90_000.0);
}

fn clock_jumps_steady(seed: u64) -> Made {
    let mut made = steady(seed);
    jump_clock(&mut made);
    made.family = "steady, clock jumps";
    made
}

fn clock_jumps_leak(seed: u64) -> Made {
    let mut made = leak(seed);
    jump_clock(&mut made);
    made.family = "leak, clock jumps";
    made
}

/// Takes the steps away.
fn timed(seed: u64, epochs: (f64, f64)) -> Setting {
    let mut setting = Setting::new(seed, epochs);
    (setting.stepped, setting.told) = (false, false);
    setting.steps = setting.steps.max(80 * setting.stride);
    setting
}

fn timed_steady(seed: u64) -> Made {
    let mut setting = timed(seed, (1.0, 3.0));
    let level = setting.level;
    let samples = setting.run(|_, _| level);
    setting.made("timed steady", samples, &[S, W])
}

fn timed_leak(seed: u64) -> Made {
    let mut setting = timed(seed, (1.0, 3.0));
    let (level, steps, height) = (setting.level, setting.steps as f64, fill_height(&mut setting));
    let samples = setting.run(|step, _| level + height * step / steps);
    setting.made("timed leak", samples, &[L, U])
}

fn timed_sawtooth(seed: u64) -> Made {
    let mut setting = timed(seed, (1.0, 3.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let (size, period) =
        (level * setting.random.between(0.05, 0.4), steps / setting.random.between(6.0, 20.0));
    let samples = setting.run(|step, _| level + size * tooth(step, period));
    setting.made("timed sawtooth", samples, &[S, W])
}

fn timed_warm_up(seed: u64) -> Made {
    let mut setting = timed(seed, (1.0, 3.0));
    let (level, steps, height) = (setting.level, setting.steps as f64, fill_height(&mut setting));
    let tau = steps * setting.random.between(0.08, 0.2);
    let samples = setting.run(|step, _| level + height * (1.0 - (-step / tau).exp()));
    setting.made("timed warm-up", samples, &[W])
}

fn timed_jump(seed: u64) -> Made {
    let mut setting = timed(seed, (1.0, 3.0));
    let (level, steps) = (setting.level, setting.steps as f64);
    let (at, size) = (steps * setting.random.between(0.2, 0.75), setting.random.between(0.05, 0.5));
    let samples = setting.run(|step, _| if step < at { level } else { level * (1.0 + size) });
    setting.made("timed jump", samples, &[S, W])
}

/// A handful of samples.
fn short(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.0, 3.0));
    setting.steps = setting.stride * setting.random.pick(&[3, 5, 7]);
    let (level, steps, height) = (setting.level, setting.steps as f64, fill_height(&mut setting));
    let samples = setting.run(|step, _| level + height * step / steps);
    setting.made("short", samples, &[U])
}
