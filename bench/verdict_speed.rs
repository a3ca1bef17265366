//! How fast the verdict is: the cost of taking a sample in, and of answering, along a run of a million samples.
//!
//! `cargo run --release -p garden-memory --example verdict_speed` prints what docs/memory-verdict.md says.

use garden_memory::{Analyst, RunFacts, Sample};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

const SAMPLES: u64 = 1_000_000;
/// Answers are asked for this often; once per sample would measure the same for an hour.
const ASK_EVERY: u64 = 500;

/// A fill with noise, teeth and spikes: every part of the engine has something to do.
fn sample(i: u64) -> Sample {
    let step = 1 + i / 10;
    let noise = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44;
    let spike = if i % 1000 < 3 { 800_000_000 } else { 0 };
    let anon = 4_000_000_000 + 150_000 * step.min(40_000) + noise + 40_000 * (i % 700) + spike;
    Sample {
        t: i as f64,
        step: Some(step),
        rss: anon + 200_000_000,
        anon,
        file: 200_000_000,
        ..Sample::default()
    }
}

fn main() {
    let facts = RunFacts { dataset_size: Some(160_000), samples_per_step: Some(4), ..RunFacts::default() };
    let mut analyst = Analyst::new(facts);
    let (mut pushing, mut answering, mut slowest) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let mut answers = 0_u32;
    for block in 0..SAMPLES / ASK_EVERY {
        let samples: Vec<Sample> = (block * ASK_EVERY..(block + 1) * ASK_EVERY).map(sample).collect();
        let start = Instant::now();
        samples.iter().for_each(|sample| analyst.push(sample));
        pushing += start.elapsed();
        let start = Instant::now();
        black_box(analyst.assessment());
        let took = start.elapsed();
        answering += took;
        slowest = slowest.max(took);
        answers += 1;
    }
    let microseconds = |time: Duration, count: u32| time.as_secs_f64() * 1e6 / f64::from(count);
    println!("samples                        {SAMPLES}");
    println!("taking one sample in           {:.3} µs", microseconds(pushing, SAMPLES as u32));
    println!("one answer, mean               {:.0} µs over {answers}", microseconds(answering, answers));
    println!("one answer, slowest            {:.0} µs", microseconds(slowest, 1));
    println!("verdict                        {}", analyst.assessment().verdict.name());
}
