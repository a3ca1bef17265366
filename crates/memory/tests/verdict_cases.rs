//! Cases that people met, each with its right verdict and the words that must not be said.

#[allow(dead_code, reason = "of the families only their random numbers are used")]
mod families;

use families::Random;
use garden_memory::{Analyst, Assessment, RunFacts, Sample, Verdict};

/// Judges a run of `steps` steps, one sample each, with noise of `noise` bytes.
fn judge(facts: RunFacts, steps: u64, noise: f64, seed: u64, bytes: impl Fn(f64) -> f64) -> Assessment {
    let mut random = Random::new(seed);
    let mut analyst = Analyst::new(facts);
    for step in 1..=steps {
        let value = bytes(step as f64) + noise * random.normal();
        analyst.push(&families::split(step as f64, Some(step), None, value));
    }
    analyst.assessment()
}

fn epochs_of(steps: f64) -> RunFacts {
    RunFacts { steps_per_epoch: Some(steps), ..RunFacts::default() }
}

fn says(assessment: &Assessment, words: &str) -> bool {
    assessment.evidence.iter().chain(&assessment.advice).any(|sentence| sentence.as_str().contains(words))
}

/// Reaches `level` over 40 steps and adds `rate` bytes with every step since.
fn warmed_up(step: f64, level: f64, rate: f64) -> f64 {
    level - (level - 1e9) * (-step / 10.0).exp() + rate * (step - 40.0).max(0.0)
}

#[test]
fn a_leak_behind_a_warm_up_of_gigabytes_is_not_called_calm() {
    for (facts, seed) in [(RunFacts::default(), 1), (epochs_of(50.0), 2), (epochs_of(50.0), 3)] {
        let told = facts.steps_per_epoch.is_some();
        let found = judge(facts, 170, 5e6, seed, |step| warmed_up(step, 9e9, 0.7e6));
        let right: &[Verdict] = if told { &[Verdict::Leak] } else { &[Verdict::Leak, Verdict::Undecided] };
        assert!(right.contains(&found.verdict), "{found:#?}");
        assert!(!says(&found, "stayed level") && says(&found, "since then it grew by"), "{found:#?}");
        let rate = found.growth_per_step.expect("a rate");
        assert!((0.5e6..0.9e6).contains(&rate), "the rate is the leak's, not the warm-up's: {rate}");
    }
}

/// The first steps of a test fill what earlier ones left of the heap, so that a leak bends a little at first.
#[test]
fn a_leak_that_bends_a_little_at_first_is_a_leak() {
    for seed in 0..40 {
        let warm_up = (1.0 + (seed % 5) as f64) * 0.2e6;
        let bytes = |step: f64| 98e6 + 46_000.0 * step + warm_up * (1.0 - (-step / 150.0).exp());
        let found = judge(epochs_of(1.0), 600, 0.1e6, seed, bytes);
        assert_eq!(found.verdict, Verdict::Leak, "seed {seed}, {warm_up} bytes: {found:#?}");
    }
}

/// Small jumps would explain the slope after the large ones, and a rate that stops the square root before it.
#[test]
fn a_leak_behind_a_climb_of_any_shape_is_not_called_calm() {
    let jumps = |step: f64| (step / 6.0).floor().min(5.0) / 5.0;
    let root = |step: f64| (step / 40.0).sqrt().min(1.0);
    let line = |step: f64| (step / 40.0).min(1.0);
    for climb in [jumps, root, line] {
        for seed in 0..8 {
            let facts = if seed % 2 == 0 { RunFacts::default() } else { epochs_of(24.0 + seed as f64) };
            let bytes = |step: f64| 2e9 + 7e9 * climb(step) + 0.7e6 * (step - 40.0).max(0.0);
            let found = judge(facts, 170, 5e6, seed, bytes);
            assert!([Verdict::Leak, Verdict::Undecided].contains(&found.verdict), "seed {seed}: {found:#?}");
        }
    }
}

/// By the clock, growth in the first seconds is start-up, and not what the verdict is about.
#[test]
fn a_leak_behind_a_start_up_is_not_called_steady() {
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let mut analyst = Analyst::new(RunFacts::default());
        for second in 0..150 {
            let t = f64::from(second);
            let value = 5e9 + 1.3e9 * (t / 6.0).min(1.0) + 2.2e6 * t + 6e6 * random.normal();
            analyst.push(&families::split(t, None, None, value));
        }
        let found = analyst.assessment();
        assert!([Verdict::Leak, Verdict::Undecided].contains(&found.verdict), "seed {seed}: {found:#?}");
        assert!(!says(&found, "too little to be called growth"), "{found:#?}");
    }
}

#[test]
fn memory_that_fell_and_came_back_to_where_it_was_is_no_leak() {
    for seed in 0..8 {
        let bytes = |step: f64| 1e9 - 0.4e6 * if step < 50.0 { step } else { 100.0 - step };
        let found = judge(epochs_of(30.0), 100, 1e6, seed, bytes);
        assert!(found.verdict != Verdict::Leak, "seed {seed}: {found:#?}");
    }
}

#[test]
fn twenty_megabytes_in_a_hundred_steps_are_not_called_calm() {
    for seed in 0..6 {
        let level = judge(epochs_of(80.0), 300, 3e6, seed, |step| 7.7e9 + 0.2e6 * step);
        let behind = judge(epochs_of(80.0), 300, 3e6, seed, |step| warmed_up(step, 7.7e9, 0.2e6));
        for found in [level, behind] {
            assert!([Verdict::Leak, Verdict::Undecided].contains(&found.verdict), "{found:#?}");
        }
    }
}

#[test]
fn a_warm_up_that_is_followed_by_a_level_stays_a_warm_up() {
    for seed in 0..6 {
        let found = judge(epochs_of(50.0), 170, 5e6, seed, |step| warmed_up(step, 9e9, 0.0));
        assert_eq!(found.verdict, Verdict::WarmUp, "{found:#?}");
        assert!(!says(&found, "straight line ("), "explanation and verdict agree: {found:#?}");
    }
}

#[test]
fn a_slow_leak_in_heavy_noise_is_undecided_at_least() {
    for seed in 0..6 {
        let found = judge(epochs_of(100.0), 400, 30e6, seed, |step| 3e9 + 200e3 * step);
        assert!([Verdict::Leak, Verdict::Undecided].contains(&found.verdict), "{found:#?}");
    }
}

fn jumped(step: f64, jumps: &[(f64, f64)]) -> f64 {
    4e9 + jumps.iter().filter(|(at, _)| step >= *at).map(|(_, height)| height).sum::<f64>()
}

#[test]
fn a_buffer_that_doubles_has_grown_in_jumps_and_the_next_one_is_foretold() {
    let jumps = [(14.0, 0.5e9), (32.0, 1e9), (75.0, 2e9)];
    let found = judge(epochs_of(75.0), 80, 3e6, 1, |step| jumped(step, &jumps));
    assert_eq!(found.verdict, Verdict::WarmUp, "{found:#?}");
    assert_eq!(found.meaning, "grew in jumps, then levelled off");
    assert!(says(&found, "It grew in 3 jumps (at steps 14, 32 and 75)"), "{found:#?}");
    assert!(says(&found, "a further one would come near step 1"), "{found:#?}");
    assert!(found.confidence < 0.9, "five steps say little: {}", found.confidence);
}

#[test]
fn optimizer_state_that_comes_in_two_jumps_has_levelled_off() {
    for facts in [RunFacts::default(), epochs_of(100.0)] {
        let jumps = [(8.0, 0.8e9), (100.0, 0.8e9)];
        let found = judge(facts, 240, 4e6, 1, |step| jumped(step, &jumps));
        assert_eq!(found.verdict, Verdict::WarmUp, "{found:#?}");
        assert!(says(&found, "in 2 jumps (at steps 8 and 100)"), "{found:#?}");
        assert!(says(&found, "stayed level for the 14"), "{found:#?}");
        assert!(!says(&found, "row stays"), "{found:#?}");
    }
}

/// Rows that `workers` workers keep together after so many epochs, in parts of the dataset.
fn kept_by_workers(epochs: f64, workers: f64) -> f64 {
    let missed = 1.0 - 1.0 / workers;
    let (whole, part) = (epochs.floor(), epochs.fract());
    workers * (1.0 - missed.powf(whole)) + part * missed.powf(whole)
}

#[test]
fn caches_of_workers_that_are_dealt_other_rows_each_epoch_are_no_leak() {
    for workers in [2.0, 4.0, 8.0] {
        for epochs in 2..=6 {
            let found = judge(epochs_of(60.0), 60 * epochs, 4e6, epochs, |step| {
                2e9 + 1.5e9 * kept_by_workers(step / 60.0, workers)
            });
            assert_ne!(found.verdict, Verdict::Leak, "{workers} workers, {epochs} epochs: {found:#?}");
        }
    }
    let found = judge(epochs_of(60.0), 900, 4e6, 1, |step| 2e9 + 1.5e9 * kept_by_workers(step / 60.0, 2.0));
    assert_eq!(found.verdict, Verdict::WarmUp, "{found:#?}");
}

#[test]
fn without_epochs_growth_that_stopped_levelled_off_and_nothing_is_said_of_rows() {
    let mut timed = Analyst::new(RunFacts::default());
    for second in 0..200_u64 {
        let anon = 100_000_000 + 5_000_000 * second.min(90) + (second * 7_919) % 300_000;
        timed.push(&Sample { t: second as f64, rss: anon, anon, ..Sample::default() });
    }
    let stepped = judge(RunFacts::default(), 200, 1e6, 1, |step| 1e9 + 20e6 * step.min(90.0));
    for found in [timed.assessment(), stepped] {
        assert_eq!(found.verdict, Verdict::WarmUp, "{found:#?}");
        assert_eq!(found.meaning, "grew at a constant rate, then levelled off");
        assert!(!says(&found, "row stays") && !says(&found, "Every row"), "{found:#?}");
    }
}

#[test]
fn the_probability_is_that_of_the_ending() {
    let leak = judge(epochs_of(50.0), 200, 3e6, 1, |step| 2e9 + 5e6 * step);
    let fill = judge(epochs_of(80.0), 200, 3e6, 1, |step| 2e9 + 5e6 * step.min(80.0));
    let steady = judge(epochs_of(80.0), 200, 3e6, 1, |_| 2e9);
    let line = judge(epochs_of(400.0), 200, 3e6, 1, |step| 2e9 + 5e6 * step);
    assert_eq!(leak.ending(), "will go on growing: 99 %");
    assert_eq!(fill.ending(), "has stopped growing: 99 %");
    assert!(steady.ending().starts_with("will stay level: 9"), "{}", steady.ending());
    assert_eq!(line.ending(), "will stop growing: 50 %, will go on growing: 50 %");
    for found in [leak, fill, steady, line] {
        assert!((found.will_stop + found.will_go_on - 1.0).abs() < 1e-9);
    }
}

/// Judges what a callback sees that reads every ten steps, and once more when the run ends.
fn read_every_ten_steps(last: u64, seed: u64, bytes: impl Fn(f64) -> f64) -> Assessment {
    let mut random = Random::new(seed);
    let mut analyst =
        Analyst::new(RunFacts { dataset_size: Some(663), samples_per_step: Some(8), ..RunFacts::default() });
    for step in (10..last).step_by(10).chain([last]) {
        let value = bytes(step as f64) + 1e5 * random.normal();
        analyst.push(&families::split(step as f64, Some(step), None, value));
    }
    analyst.assessment()
}

#[test]
fn a_fill_that_ended_one_reading_ago_is_not_called_a_leak() {
    for seed in 0..20 {
        for last in 84..=130 {
            let found = read_every_ten_steps(last, seed, |step| 6e8 + 4e6 * step.min(83.0));
            assert!(found.verdict != Verdict::Leak, "seed {seed}, step {last}: {found:#?}");
        }
        let found = read_every_ten_steps(130, seed, |step| 6e8 + 4e6 * step.min(83.0));
        assert_eq!(found.verdict, Verdict::Fill, "seed {seed}: {found:#?}");
        let found = read_every_ten_steps(110, seed, |step| 6e8 + 4e6 * step);
        assert_eq!(found.verdict, Verdict::Leak, "seed {seed}: {found:#?}");
    }
}

/// Bytes of a process that was resumed at a step and keeps every row: the rest of the epoch comes first, and what it missed
/// comes among the rows of the next.
fn resumed_fill(from: f64, epoch: f64, step: f64) -> f64 {
    let rest_ends = (from / epoch).ceil() * epoch;
    let missed = 1.0 - (rest_ends - from) / epoch;
    let rest = step.min(rest_ends) - from;
    6e8 + 4e6 * (rest + missed * (step - rest_ends).clamp(0.0, epoch))
}

/// Judges a resumed run that a callback reads every `every` steps.
fn resumed(from: u64, last: u64, every: u64, seed: u64, bytes: impl Fn(f64) -> f64) -> Assessment {
    let mut random = Random::new(seed);
    let mut analyst = Analyst::new(epochs_of(83.0));
    for step in (from + 1..=last).filter(|step| *step == from + 1 || step.is_multiple_of(every)) {
        let value = bytes(step as f64) + 1e5 * random.normal();
        analyst.push(&families::split(step as f64, Some(step), None, value));
    }
    analyst.assessment()
}

#[test]
fn a_fill_in_a_resumed_run_is_not_called_a_leak() {
    for from in [30, 60, 80, 90, 120, 150, 400] {
        for every in [1, 10] {
            let whole_epoch_ends = (from / 83 + 2) * 83;
            for last in (from + 20..whole_epoch_ends + 100).step_by(7) {
                let found = resumed(from, last, every, last, |step| resumed_fill(from as f64, 83.0, step));
                assert!(found.verdict != Verdict::Leak, "from {from} to {last} by {every}: {found:#?}");
            }
            let last = whole_epoch_ends + 200;
            let found = resumed(from, last, every, 1, |step| resumed_fill(from as f64, 83.0, step));
            assert!(
                [Verdict::Fill, Verdict::WarmUp].contains(&found.verdict),
                "from {from} by {every}: {found:#?}"
            );
            let found = resumed(from, last, every, 1, |step| 6e8 + 4e6 * (step - from as f64));
            assert_eq!(found.verdict, Verdict::Leak, "from {from} by {every}: {found:#?}");
        }
    }
}

#[test]
fn a_fill_of_rows_that_come_in_huge_pages_is_a_fill() {
    // 400 kB a step, which the kernel gives in pieces of 2 MB.
    let in_pieces = |step: f64| 4.4e7 + (4e5 * step.min(74.0) / 2.1e6).floor() * 2.1e6;
    let found = judge(epochs_of(80.0), 114, 5e4, 1, in_pieces);
    assert_eq!(found.verdict, Verdict::Fill, "{found:#?}");
}
