//! Growth at a constant rate that stops, where nothing is known about epochs: it levelled off, and no more
//! can be said.

use super::{Made, Setting, Shape};
use garden_memory::Verdict::WarmUp as W;

/// Every family of this file.
pub fn all() -> Vec<Shape> {
    vec![levelled_off, levelled_off_in_time]
}

fn levelled(mut setting: Setting, family: &'static str) -> Made {
    (setting.told, setting.epochs) = (false, false);
    let (level, steps) = (setting.level, setting.steps as f64);
    let height = level * setting.random.scale(0.1, 6.0).max(20.0 * setting.noise);
    let end = steps * setting.random.between(0.3, 0.7);
    let samples = setting.run(|step, _| level + height * (step / end).min(1.0));
    setting.made(family, samples, &[W])
}

fn levelled_off(seed: u64) -> Made {
    levelled(Setting::new(seed, (1.0, 3.0)), "levelled off")
}

/// Any process, by the clock.
fn levelled_off_in_time(seed: u64) -> Made {
    let mut setting = Setting::new(seed, (1.0, 3.0));
    setting.stepped = false;
    setting.steps = setting.steps.max(80 * setting.stride);
    levelled(setting, "levelled off, timed")
}
