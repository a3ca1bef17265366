//! Precision and recall over made traces of many families.

mod families;

use families::Made;
use garden_memory::{Analyst, Assessment, Verdict};
use std::collections::BTreeMap;

fn judge(made: &Made) -> Assessment {
    let mut analyst = Analyst::new(made.facts.clone());
    made.samples.iter().for_each(|sample| analyst.push(sample));
    analyst.assessment()
}

#[test]
fn families_get_accepted_verdicts() {
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    let verbose = std::env::var("VERBOSE").ok();
    let mut wrong: BTreeMap<&str, Vec<(u64, Verdict)>> = BTreeMap::new();
    let (mut total, mut right, mut false_leaks, mut leaks, mut found, mut said) = (0, 0, 0, 0, 0, 0);
    for shape in families::all() {
        for seed in 0..seeds {
            let made = shape(seed);
            let assessment = judge(&made);
            total += 1;
            let ok = made.accepted.contains(&assessment.verdict);
            right += usize::from(ok);
            let must_leak = made.accepted == [Verdict::Leak];
            leaks += usize::from(must_leak);
            found += usize::from(must_leak && ok);
            let alarm = assessment.verdict == Verdict::Leak;
            said += usize::from(alarm);
            false_leaks += usize::from(alarm && !ok);
            if !ok {
                wrong.entry(made.family).or_default().push((seed, assessment.verdict));
                if verbose.as_deref().is_some_and(|v| made.family.contains(v)) {
                    println!(
                        "{} {seed} n={} {:?} {:?} E {} {:#?}",
                        made.family,
                        made.samples.len(),
                        assessment.verdict,
                        made.accepted,
                        made.facts.epoch_steps().unwrap_or(0.0),
                        assessment.evidence
                    );
                }
            }
        }
    }
    for (family, wrong) in &wrong {
        println!("{family}: {}/{seeds} wrong {:?}", wrong.len(), &wrong[..wrong.len().min(6)]);
    }
    println!(
        "accepted {right}/{total} = {:.4}; leak recall {found}/{leaks}; false leaks {false_leaks} of {said}",
        right as f64 / total as f64
    );
}
