//! The last sample of a process that is ending: the verdict stands, however much memory the process has
//! already given back.

use garden_memory::{
    Analyst, RunFacts, Sample, Verdict,
    report::{self, Run},
};

#[test]
fn a_leak_stays_a_leak_however_much_the_last_sample_has_given_back() {
    for given_back in [0.04, 0.08, 0.3, 0.9] {
        let facts = RunFacts { steps_per_epoch: Some(60.0), ..RunFacts::default() };
        let mut analyst = Analyst::new(facts);
        let sample = |step: u64, anon: f64| Sample {
            t: step as f64,
            step: Some(step),
            epoch: Some(step as f64 / 60.0),
            rss: anon as u64,
            anon: anon as u64,
            ..Sample::default()
        };
        let level = |step: u64| 40e6 + 450e3 * step as f64;
        (1..=180).for_each(|step| analyst.push(&sample(step, level(step))));
        analyst.push(&sample(180, level(180) * (1.0 - given_back)));
        let assessment = analyst.assessment();
        assert_eq!(assessment.verdict, Verdict::Leak, "{given_back}: {:?}", assessment.evidence);
    }
}

#[test]
fn an_end_that_takes_its_time_on_a_busy_machine_is_left_out() {
    let facts = RunFacts { steps_per_epoch: Some(60.0), ..RunFacts::default() };
    let mut analyst = Analyst::new(facts);
    let mut push = |step: u64, anon: u64| {
        analyst.push(&Sample {
            t: analyst.samples() as f64,
            step: Some(step),
            rss: anon,
            anon,
            ..Sample::default()
        });
    };
    (1..=180).for_each(|step| push(step, 7_000_000 + 400_000 * step));
    [59, 59, 38, 23, 7, 7].iter().for_each(|megabytes| push(180, megabytes * 1_000_000));
    let assessment = analyst.assessment();
    assert_eq!(assessment.verdict, Verdict::Leak, "{:?}", assessment.evidence);
    let rate = assessment.growth_per_step.unwrap();
    assert!((rate - 400e3).abs() < 10e3, "{rate}: {:?}", assessment.evidence);
}

#[test]
fn a_parent_that_tidies_up_while_its_workers_live_changes_no_rate() {
    let facts = RunFacts { steps_per_epoch: Some(60.0), ..RunFacts::default() };
    let mut analyst = Analyst::new(facts);
    let sample = |step: u64, anon: f64, main: f64| Sample {
        t: step as f64 / 80.0,
        step: Some(step),
        rss: anon as u64 + 13_000_000,
        anon: anon as u64,
        file: 13_000_000,
        main_rss: Some(main as u64),
        procs: Some(4),
        ..Sample::default()
    };
    let level = |step: u64| 40e6 + 450e3 * step as f64;
    (2..180).step_by(2).for_each(|step| analyst.push(&sample(step, level(step), 43e6)));
    // It copies pages that it had in common with them, before it gives its own back and after that.
    for (copied, main) in [(3e6, 43e6), (8e6, 43e6), (6e6, 13e6)] {
        let mut analyst = analyst.clone();
        analyst.push(&sample(180, level(180) + copied, main));
        let assessment = analyst.assessment();
        assert_eq!(assessment.verdict, Verdict::Leak, "{:?}", assessment.evidence);
        let rate = assessment.growth_per_step.unwrap();
        assert!((rate - 450e3).abs() < 10e3, "{rate}: {:?}", assessment.evidence);
    }
}

#[test]
fn a_report_tells_what_was_resident_before_the_end() {
    // A run of many samples, too: there the last sample does not fill its place on the axis.
    for samples in [60, 5001] {
        let mut analyst = Analyst::new(RunFacts::default());
        let sample = |t: u32, anon, file| Sample {
            t: f64::from(t),
            rss: anon + file,
            anon,
            file,
            ..Sample::default()
        };
        (0..samples).for_each(|t| analyst.push(&sample(t, 410_000_000, 90_000_000)));
        analyst.push(&sample(samples, 20_000_000, 9_000_000));
        let assessment = analyst.assessment();
        let before_end = assessment.before_end.map(|before| (before.owned, before.resident));
        assert_eq!(before_end, Some((410_000_000, 500_000_000)), "{samples} samples");
        let run = Run { name: "a run".to_owned(), analyst, assessment };
        let report = report::text(&run, report::Style { color: false, width: 80 });
        assert!(report.contains("; 500 MB resident, files it has mapped included"), "{report}");
    }
}
