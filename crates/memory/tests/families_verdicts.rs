//! Precision and recall over a thousand made-up traces of many families.
//!
//! `SEEDS=200 cargo test -p garden-memory --test families_verdicts -- --nocapture` measures over 200 traces
//! of each family, `FIRST=1000` over other ones.

mod families;

use families::Made;
use garden_memory::{Analyst, Assessment, Verdict};

/// Traces that are judged at least.
const TRACES: usize = 1000;
/// The part of them that must get an accepted verdict.
const ACCEPTED: f64 = 0.99;

const VERDICTS: [Verdict; 5] =
    [Verdict::Steady, Verdict::WarmUp, Verdict::Fill, Verdict::Leak, Verdict::Undecided];

fn judge(made: &Made) -> Assessment {
    let mut analyst = Analyst::new(made.facts.clone());
    made.samples.iter().for_each(|sample| analyst.push(sample));
    analyst.assessment()
}

/// A number from the environment.
fn told(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

/// How often a verdict was given, was right to give, was the only right one, and was then given.
#[derive(Default, Clone, Copy)]
struct Score {
    given: usize,
    right: usize,
    asked: usize,
    found: usize,
}

#[test]
fn a_thousand_traces_without_a_hard_error_and_99_percent_right() {
    let families = families::all();
    let seeds = told("SEEDS").unwrap_or(TRACES.div_ceil(families.len()) as u64);
    let first = told("FIRST").unwrap_or(0);
    let mut hard_errors = Vec::new();
    let mut scores = [Score::default(); VERDICTS.len()];
    let (mut traces, mut accepted) = (0, 0);
    for family in families {
        let mut misses = Vec::new();
        let mut name = "";
        for seed in first..first + seeds {
            let made = family(seed);
            let assessment = judge(&made);
            let right = made.accepted.contains(&assessment.verdict);
            name = made.family;
            traces += 1;
            accepted += usize::from(right);
            for (score, verdict) in scores.iter_mut().zip(VERDICTS) {
                let (given, asked) = (assessment.verdict == verdict, made.accepted == [verdict]);
                score.given += usize::from(given);
                score.right += usize::from(given && right);
                score.asked += usize::from(asked);
                score.found += usize::from(asked && given);
            }
            if made.is_hard_error(assessment.verdict) {
                hard_errors.push(format!("{name}, seed {seed}: {}", assessment.verdict.name()));
            }
            if !right {
                misses.push(format!(
                    "seed {seed}: {} ({})",
                    assessment.verdict.name(),
                    assessment.evidence.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
                ));
            }
        }
        if !misses.is_empty() {
            println!("{name}: {} of {seeds} missed\n    {}", misses.len(), misses.join("\n    "));
        }
    }
    println!("accepted {accepted} of {traces} ({:.2} %)", 100.0 * accepted as f64 / traces as f64);
    for (score, verdict) in scores.iter().zip(VERDICTS) {
        let part = |count: usize, of: usize| 100.0 * count as f64 / of.max(1) as f64;
        let (precision, recall) = (part(score.right, score.given), part(score.found, score.asked));
        println!(
            "{:<10} precision {precision:6.2} %   recall {recall:6.2} %   ({} given)",
            verdict.name(),
            score.given
        );
    }
    assert!(hard_errors.is_empty(), "a leak called calm, or a bounded curve called a leak: {hard_errors:#?}");
    assert!(accepted as f64 >= ACCEPTED * traces as f64, "{accepted} of {traces} accepted");
}
