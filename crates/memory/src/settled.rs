//! The verdict that is shown while a run is watched: one that has held for a while.
//!
//! Takes the assessment of each reading and returns the one to show. In the first minutes every reading can
//! change the verdict, and a person who sees six answers in half a minute believes none of them. Only the
//! display waits: limits act on each assessment as it comes, and the summary gives the last one.

use crate::{Assessment, Verdict};

/// A verdict is shown after it was reached this often in a row ...
const READINGS: u32 = 5;
/// ... for at least this many seconds.
const SECONDS: f64 = 10.0;

/// The verdict that is shown.
#[derive(Debug, Default)]
pub struct Settled {
    shown: Option<Assessment>,
    /// The verdict that contradicts it now.
    rival: Option<Rival>,
    /// When the contradiction by any verdict began.
    doubted_since: Option<f64>,
}

/// A verdict that is not shown yet.
#[derive(Debug, Clone, Copy)]
struct Rival {
    verdict: Verdict,
    since: f64,
    readings: u32,
}

impl Settled {
    /// Takes the assessment of second `t` and returns the one to show.
    pub fn show(&mut self, t: f64, fresh: &Assessment) -> &Assessment {
        let shown = self.shown.take();
        let shown = self.next(t, fresh, shown);
        self.shown.insert(shown)
    }

    fn next(&mut self, t: f64, fresh: &Assessment, shown: Option<Assessment>) -> Assessment {
        let shown = shown.unwrap_or_else(|| waiting(fresh));
        if fresh.verdict == shown.verdict {
            (self.rival, self.doubted_since) = (None, None);
            return fresh.clone();
        }
        let doubted_since = *self.doubted_since.get_or_insert(t);
        let rival = match self.rival {
            Some(rival) if rival.verdict == fresh.verdict => Rival { readings: rival.readings + 1, ..rival },
            _ => Rival { verdict: fresh.verdict, since: t, readings: 1 },
        };
        self.rival = Some(rival);
        if rival.readings >= READINGS && t - rival.since >= SECONDS {
            (self.rival, self.doubted_since) = (None, None);
            fresh.clone()
        } else if shown.verdict == Verdict::Undecided || t - doubted_since >= SECONDS {
            // What was shown no longer holds, and no other verdict has held long enough.
            waiting(fresh)
        } else {
            shown
        }
    }
}

/// What is shown until a verdict has held.
fn waiting(fresh: &Assessment) -> Assessment {
    Assessment {
        verdict: Verdict::Undecided,
        confidence: 1.0 - fresh.confidence,
        plateau: None,
        exhaustion: None,
        endings: Vec::new(),
        decidable_at_step: None,
        evidence: vec![format!("A verdict is shown once it has held for {SECONDS:.0} seconds.").into()],
        advice: Vec::new(),
        ..fresh.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Leak, Steady, Undecided, WarmUp};

    fn assessment(verdict: Verdict) -> Assessment {
        Assessment {
            verdict,
            confidence: 0.9,
            ..crate::Analyst::new(crate::RunFacts::default()).assessment()
        }
    }

    /// The verdicts shown for those found, one reading a second.
    fn shown(found: impl IntoIterator<Item = Verdict>) -> Vec<Verdict> {
        let mut settled = Settled::default();
        let seconds = (0..).map(f64::from);
        found
            .into_iter()
            .zip(seconds)
            .map(|(verdict, t)| settled.show(t, &assessment(verdict)).verdict)
            .collect()
    }

    fn times(verdict: Verdict, count: usize) -> Vec<Verdict> {
        vec![verdict; count]
    }

    #[test]
    fn a_verdict_is_shown_once_it_has_held() {
        assert_eq!(shown(times(Leak, 12)), [times(Undecided, 10), times(Leak, 2)].concat());
    }

    #[test]
    fn answers_that_flicker_are_never_shown() {
        let flicker = [Leak, WarmUp, Steady, Leak, Undecided, WarmUp, Leak];
        let found: Vec<Verdict> = flicker.iter().flat_map(|verdict| times(*verdict, 5)).collect();
        assert_eq!(shown(found.clone()), times(Undecided, found.len()));
    }

    #[test]
    fn a_short_contradiction_does_not_show() {
        let found = [times(Steady, 11), times(Leak, 6), times(Steady, 6)].concat();
        assert_eq!(shown(found)[10..], times(Steady, 13));
    }

    #[test]
    fn a_verdict_that_is_contradicted_all_the_time_is_taken_back() {
        let found = [times(Steady, 11), [WarmUp, Leak].repeat(8)].concat();
        let shown = shown(found);
        assert_eq!(shown[20], Steady);
        assert_eq!(shown[21..], times(Undecided, 6), "ten seconds after the first contradiction");
    }

    #[test]
    fn many_readings_in_a_moment_and_few_over_minutes_are_not_enough() {
        let mut settled = Settled::default();
        let verdict = |settled: &mut Settled, t: f64| settled.show(t, &assessment(Leak)).verdict;
        for reading in 0..1000 {
            assert_eq!(verdict(&mut settled, f64::from(reading) / 1000.0), Undecided, "all within a second");
        }
        let mut settled = Settled::default();
        let shown: Vec<Verdict> =
            (0..6).map(|minute| verdict(&mut settled, 60.0 * f64::from(minute))).collect();
        assert_eq!(shown, [times(Undecided, 4), times(Leak, 2)].concat());
    }

    #[test]
    fn the_numbers_of_a_verdict_that_holds_are_the_newest() {
        let mut settled = Settled::default();
        (0..11).for_each(|t| drop(settled.show(f64::from(t), &assessment(Steady)).clone()));
        let newest = Assessment { confidence: 0.99, ..assessment(Steady) };
        assert_eq!(settled.show(11.0, &newest), &newest);
    }
}
