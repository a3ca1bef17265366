//! Made-up traces of many families, each with its right verdicts.
//!
//! Takes a seed and gives one trace of every family. Size, noise, logging interval, start-up, exit sample and
//! what is known about the run vary with the seed. The shapes are those of real runs; no trace is kept as a
//! file.

mod creeping;
mod jumps;
mod levelling;
mod shapes;
mod sharing;

use garden_memory::{RunFacts, Sample, Verdict};
use std::f64::consts::PI;

/// Makes one trace of a family.
pub type Shape = fn(u64) -> Made;

/// Every family.
pub fn all() -> Vec<Shape> {
    [shapes::all(), creeping::all(), jumps::all(), sharing::all(), levelling::all()].concat()
}

/// Verdicts that are right.
pub type Accepted = &'static [Verdict];

/// A made trace.
pub struct Made {
    pub family: &'static str,
    pub facts: RunFacts,
    pub samples: Vec<Sample>,
    pub accepted: Accepted,
}

impl Made {
    /// Whether a verdict is worse than a missed one: a leak called calm, or a bounded curve called a leak.
    #[allow(dead_code, reason = "only the test that counts them asks")]
    pub fn is_hard_error(&self, verdict: Verdict) -> bool {
        let accepts = |verdict: &Verdict| self.accepted.contains(verdict);
        let calm = [Verdict::Steady, Verdict::WarmUp, Verdict::Fill];
        match verdict {
            Verdict::Leak => !accepts(&Verdict::Leak),
            Verdict::Undecided => false,
            _ => accepts(&Verdict::Leak) && !calm.iter().any(accepts),
        }
    }
}

/// A small generator of random numbers (splitmix64), the same on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Evenly between 0 and 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Evenly between the logarithms.
    pub fn scale(&mut self, low: f64, high: f64) -> f64 {
        self.between(low.ln(), high.ln()).exp()
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[(self.next() % of.len() as u64) as usize]
    }

    /// Normally distributed.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (2.0 * PI * self.unit()).cos()
    }
}

/// What all families have in common.
pub struct Setting {
    pub random: Random,
    /// Steps in an epoch.
    pub epoch: f64,
    pub samples_per_step: u64,
    pub dataset_size: u64,
    /// Steps between two samples.
    pub stride: u64,
    /// Steps in all.
    pub steps: u64,
    /// Bytes after the model was loaded.
    pub level: f64,
    /// Standard deviation of a sample, in parts of the level.
    pub noise: f64,
    /// Whether dataset and batch size are told.
    pub told: bool,
    /// Whether the samples carry epochs.
    pub epochs: bool,
    /// Whether there are steps at all.
    pub stepped: bool,
}

impl Setting {
    /// A run of `epochs` epochs.
    pub fn new(seed: u64, epochs: (f64, f64)) -> Self {
        let mut random = Random::new(seed);
        let samples_per_step = random.pick(&[1, 4, 8, 16]);
        let dataset_size = random.pick(&[300, 663, 1000, 2400, 4000]);
        let epoch = dataset_size as f64 / samples_per_step as f64;
        let steps = (epoch * random.between(epochs.0, epochs.1)).round() as u64;
        // As often as every step, as seldom as leaves some two dozen samples.
        let coarsest = (steps / 24).max(1);
        let stride = random.pick(&[1, 2, 5, 10]).min(coarsest);
        let level = random.scale(60e6, 12e9);
        let noise = random.scale(1e-4, 3e-3);
        let (told, epochs) = (random.chance(0.6), random.chance(0.5));
        Self {
            random,
            epoch,
            samples_per_step,
            dataset_size,
            stride,
            steps,
            level,
            noise,
            told,
            epochs,
            stepped: true,
        }
    }

    /// Whether the length of the epoch can be known from the trace.
    pub fn epoch_is_known(&self) -> bool {
        self.stepped && (self.told || self.epochs)
    }

    fn facts(&self) -> RunFacts {
        RunFacts {
            dataset_size: self.told.then_some(self.dataset_size),
            samples_per_step: self.told.then_some(self.samples_per_step),
            ..RunFacts::default()
        }
    }

    /// Samples of a run whose owned memory at each step is `bytes`, with start-up and exit where chance has
    /// them.
    pub fn run(&mut self, mut bytes: impl FnMut(f64, &mut Random) -> f64) -> Vec<Sample> {
        let mut samples = Vec::new();
        let mut t = 1.0;
        let seconds_per_step = self.random.scale(0.2, 8.0);
        if self.random.chance(0.6) {
            let length = 3 + (self.random.unit() * 12.0) as u64;
            for i in 0..length {
                let part = (i as f64 + self.random.unit()) / length as f64;
                samples.push(split(t, None, None, self.level * (0.04 + 0.9 * part * part)));
                t += self.random.between(0.5, 1.5);
            }
        }
        for step in (self.stride..=self.steps).step_by(self.stride as usize) {
            t += self.stride as f64 * seconds_per_step * self.random.between(0.9, 1.1);
            let noise = self.noise * self.level * self.random.normal();
            let value = bytes(step as f64, &mut self.random) + noise;
            let epoch = self.epochs.then(|| (step as f64 / self.epoch * 1e4).round() / 1e4);
            samples.push(split(t, Some(step), epoch, value));
        }
        if self.random.chance(0.35) {
            for _ in 0..self.random.pick(&[1, 1, 2]) {
                t += 1.0;
                let mut dying = samples.last().expect("a run has samples").clone();
                dying.t = milliseconds(t);
                dying.anon = (self.level * self.random.between(0.05, 0.25)) as u64;
                (dying.shmem, dying.rss) = (0, dying.anon + dying.file);
                samples.push(dying);
            }
        }
        if !self.stepped {
            samples.iter_mut().for_each(|sample| (sample.step, sample.epoch) = (None, None));
        }
        samples
    }

    pub fn made(&self, family: &'static str, samples: Vec<Sample>, accepted: Accepted) -> Made {
        Made { family, facts: self.facts(), samples, accepted }
    }
}

/// A sample whose owned memory is all anonymous.
pub fn split(t: f64, step: Option<u64>, epoch: Option<f64>, anon: f64) -> Sample {
    let (anon, file) = (anon.max(1e5) as u64, 209_715_200);
    Sample { t: milliseconds(t), step, epoch, rss: anon + file, anon, file, ..Sample::default() }
}

/// A time as probes write it: what is read back is the same number.
fn milliseconds(t: f64) -> f64 {
    (t * 1e3).round() / 1e3
}
