//! Precision and recall over made traces of many families.
//!
//! `SEEDS=200 cargo test -p garden-memory --test families_verdicts -- --nocapture` measures over more of them.

mod families;

use families::Made;
use garden_memory::{Analyst, Assessment, Verdict};

const VERDICTS: [Verdict; 5] =
    [Verdict::Steady, Verdict::WarmUp, Verdict::Fill, Verdict::Leak, Verdict::Undecided];

fn judge(made: &Made) -> Assessment {
    let mut analyst = Analyst::new(made.facts.clone());
    made.samples.iter().for_each(|sample| analyst.push(sample));
    analyst.assessment()
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
fn families_get_accepted_verdicts_and_no_false_alarm() {
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(12);
    let mut scores = [Score::default(); VERDICTS.len()];
    let (mut traces, mut accepted) = (0, 0);
    for family in families::all() {
        let mut misses = Vec::new();
        let mut name = "";
        for seed in 0..seeds {
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
            if !right {
                misses.push(format!(
                    "seed {seed}: {} ({})",
                    assessment.verdict.name(),
                    assessment.evidence.join(" ")
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
    let leak = scores[3];
    assert_eq!(leak.given, leak.right, "a leak was called where there is none");
    assert!(leak.found as f64 >= 0.96 * leak.asked as f64, "{} of {} leaks found", leak.found, leak.asked);
    assert!(accepted as f64 >= 0.98 * traces as f64, "{accepted} of {traces} accepted");
}
