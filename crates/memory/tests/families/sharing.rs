//! Caches in loader workers: each worker keeps the rows that it was dealt, and the deal changes every epoch.

use super::{Made, Setting, Shape};
use garden_memory::Verdict::{Fill as F, Undecided as U, WarmUp as W};

/// Every family of this file.
pub fn all() -> Vec<Shape> {
    vec![dealt_anew, dealt_anew_unseen, dealt_anew_to_the_end, dealt_into_the_third_epoch]
}

/// Rows kept by all workers together at a step, in parts of the dataset. In each epoch a row is new to the
/// worker that it is dealt to if that one has not had it in any epoch before.
fn kept(step: f64, epoch: f64, workers: f64) -> f64 {
    let missed = 1.0 - 1.0 / workers;
    let (whole, part) = ((step / epoch).floor(), (step / epoch).fract());
    workers * (1.0 - missed.powf(whole)) + part * missed.powf(whole)
}

fn dealt(mut setting: Setting, family: &'static str, workers: f64, split: bool) -> Made {
    let (level, epoch) = (setting.level, setting.epoch);
    let height = level * setting.random.scale(0.15, 3.0).max(40.0 * setting.noise);
    let mut samples = setting.run(|step, _| level + height * kept(step, epoch, workers));
    if split {
        for sample in &mut samples {
            sample.main_rss = Some(sample.file + (level / 2.0).min(sample.anon as f64) as u64);
            sample.procs = Some(1 + workers as u32);
        }
    }
    setting.made(family, samples, &[W, F, U])
}

fn dealt_anew(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.5, 6.0));
    let workers = setting.random.pick(&[2.0, 3.0, 4.0, 6.0, 8.0]);
    let split = setting.random.chance(0.7);
    dealt(setting, "cache in workers, dealt anew", workers, split)
}

/// The same from logs that tell nothing of the workers.
fn dealt_anew_unseen(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.2, 4.0));
    let workers = setting.random.pick(&[2.0, 4.0, 8.0]);
    dealt(setting, "cache in workers, from a log", workers, false)
}

/// Long enough for every worker to have had every row.
fn dealt_anew_to_the_end(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (10.0, 16.0));
    let workers = setting.random.pick(&[2.0, 3.0]);
    let split = setting.random.chance(0.7);
    dealt(setting, "cache in workers, complete", workers, split)
}

/// Into the third epoch, which slows down as the second did; sizes of rows differ.
fn dealt_into_the_third_epoch(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (2.1, 2.9));
    setting.dataset_size = setting.dataset_size.max(1000);
    setting.epoch = setting.dataset_size as f64 / setting.samples_per_step as f64;
    setting.steps = (setting.epoch * setting.random.between(2.1, 2.9)) as u64;
    let workers = setting.random.pick(&[2.0, 3.0, 4.0, 6.0]);
    let (level, epoch) = (setting.level, setting.epoch);
    let height = level * setting.random.scale(0.3, 3.0);
    let (mut before, mut held) = (0.0, 0.0);
    let rows = setting.samples_per_step as f64;
    let samples = setting.run(|step, random| {
        let now = kept(step, epoch, workers);
        let count = ((now - before) * epoch * rows).max(1.0);
        held += height * (now - before) * (1.0 + 0.3 / count.sqrt() * random.normal()).max(0.0);
        before = now;
        level + held
    });
    setting.made("cache in workers, third epoch", samples, &[W, F, U])
}
