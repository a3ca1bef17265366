//! A watch keeps no more memory after many readings than after a few. The test is alone in its process, so
//! that the figure is its own.

use garden_memory::{Recorder, RunFacts, StepBoard, probe::Probe};

#[test]
fn watching_for_long_keeps_no_more_than_watching_for_short() {
    let probe = Probe::attach(std::process::id().cast_signed()).unwrap();
    let mut recorder = Recorder::new(probe, StepBoard::default(), RunFacts::default(), None);
    let mut watch = |ticks: usize| {
        (0..ticks).for_each(|_| assert!(recorder.tick().unwrap().is_some()));
        recorder.tick().unwrap().unwrap().snapshot.sample.anon
    };
    let settled = watch(1_000);
    let later = watch(4_000);
    // A reading is about 2 kB: four thousand of them kept would be 8 MB.
    assert!(later < settled + 1_000_000, "{settled} -> {later}");
}
