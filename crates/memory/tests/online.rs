//! Online and offline: the same samples give the same answer, however often one asks in between.

mod families;

use garden_memory::{Analyst, RunFacts, Sample, TraceHeader, TraceOptions, TraceWriter, report::Run};

#[test]
fn asking_along_the_way_and_reading_the_file_afterwards_give_the_same_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    for (index, family) in families::all().into_iter().enumerate() {
        let made = family(3);
        let path = folder.path().join(format!("{index}.jsonl"));
        let mut writer =
            TraceWriter::create(&path, &TraceHeader::new(made.family, made.facts.clone())).expect("a trace");
        // Advice alone differs where there is something to wait for.
        let mut live = Analyst::of_recorded(made.facts.clone());
        for (index, sample) in made.samples.iter().enumerate() {
            live.push(sample);
            writer.append(sample).expect("a written sample");
            if index % 97 == 0 {
                live.assessment();
            }
        }
        let read = Run::read(&path, &RunFacts::default(), &TraceOptions::default()).expect("a run");
        assert_eq!(live.assessment(), read.assessment, "{}", made.family);
    }
}

#[test]
fn a_million_samples_are_judged_like_few() {
    // A fill of 40,000 steps in a run of 100,000, ten samples a step, with a spike every thousand samples.
    let facts = RunFacts { dataset_size: Some(160_000), samples_per_step: Some(4), ..RunFacts::default() };
    let mut analyst = Analyst::new(facts);
    for i in 0..1_000_000_u64 {
        let step = 1 + i / 10;
        let spike = if i % 1000 == 0 { 2_000_000_000 } else { 0 };
        let anon = 4_000_000_000 + 200_000 * step.min(40_000) + (i * 7_919) % 3_000_000 + spike;
        analyst.push(&Sample { t: i as f64, step: Some(step), rss: anon, anon, ..Sample::default() });
    }
    let assessment = analyst.assessment();
    assert_eq!(assessment.verdict.name(), "fill", "{:#?}", assessment.evidence);
    let per_sample = assessment.growth_per_sample.expect("a cost per sample");
    assert!((per_sample - 50_000.0).abs() < 1_000.0, "{per_sample}");
    assert!(assessment.plateau.and_then(|plateau| plateau.step).expect("a knee").abs_diff(40_000) < 100);
}

/// Forty level steps of ten samples each, then an evaluation of 200 samples that keeps `kept` bytes with
/// each.
fn evaluated(kept: u64) -> garden_memory::Assessment {
    let mut analyst = Analyst::new(RunFacts::default());
    for i in 0..600_u64 {
        let anon = 4_000_000_000 + (i * 7_919) % 3_000_000 + kept * i.saturating_sub(400);
        let step = Some(1 + (i / 10).min(39));
        analyst.push(&Sample { t: i as f64, step, rss: anon, anon, ..Sample::default() });
    }
    analyst.assessment()
}

#[test]
fn growth_while_the_step_stands_still_is_not_called_steady() {
    assert_eq!(evaluated(0).verdict.name(), "steady");
    let growing = evaluated(5_000_000);
    assert_eq!(growing.verdict.name(), "undecided", "{:#?}", growing.evidence);
    let told = |said: &str| said.starts_with("Memory grew by 9") && said.contains("stood at 40:");
    assert!(growing.evidence.iter().any(|sentence| told(sentence.as_str())), "{:#?}", growing.evidence);
    assert_eq!(growing.growth_per_step, None, "no step was made");
    assert!(growing.endings.iter().any(|ending| ending.verdict.name() == "leak"), "{:#?}", growing.endings);
}
