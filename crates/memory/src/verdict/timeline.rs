//! Where a sample belongs: before the first step, in the run, or in a run that was restarted.
//!
//! Turns the raw clock, step and epoch of each sample into steps that only rise and seconds without jumps. A
//! step counter that falls together with the memory is a restart; one that falls alone was only reset.

use crate::Sample;

/// Steps by which a counter may fall back without meaning anything: two sources that overtake each other.
const STEP_JITTER: u64 = 2;
/// A restarted process begins below this part of the memory that it had.
const RESTART_LEVEL: f64 = 0.8;
/// Or it has lost most of its growth, if growth was more than this part of the memory.
const RESTART_GROWTH: f64 = 0.03;
/// An interval longer than this many usual ones is a clock that was set, or a machine that slept ...
const JUMP_FACTOR: f64 = 100.0;
/// ... if it is also longer than this, in seconds: a short pause is only a slow sample.
const JUMP_SECONDS: f64 = 600.0;

/// Where a sample belongs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Place {
    /// Imports, model load: no step yet.
    StartUp,
    /// At this many steps.
    Run(f64),
    /// At this many steps of a new run.
    NewRun(f64),
    /// Between two runs, or after the last step of a run that ended.
    Between,
}

/// Follows clock, steps and epochs.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    last_t: Option<f64>,
    /// Seconds since the first sample, jumps taken out.
    pub seconds: f64,
    usual_interval: f64,
    intervals: u32,
    /// How often the clock jumped.
    pub clock_jumps: u32,
    last_step: Option<u64>,
    offset: f64,
    last_owned: f64,
    first_owned: f64,
    /// Whether memory fell sharply while no step was reported.
    between: bool,
    /// How often the run began again.
    pub restarts: u32,
    /// How often the step counter alone began again.
    pub counter_resets: u32,
    epochs: Epochs,
}

impl Timeline {
    /// Takes one sample in and says where it belongs.
    pub fn place(&mut self, sample: &Sample) -> Place {
        self.advance_clock(sample.t);
        let owned = sample.owned() as f64;
        let place = match (sample.step, self.last_step) {
            (None, None) => return Place::StartUp,
            (None, Some(_)) if owned < RESTART_LEVEL * self.last_owned => {
                self.between = true;
                return Place::Between;
            }
            (None, Some(last)) => Place::Run(last as f64 + self.offset),
            (Some(step), Some(_)) if self.between => self.restart(step),
            (Some(step), Some(last)) if step < last => self.fall_back(step, last, owned),
            (Some(step), last) => {
                if last.is_none() {
                    self.first_owned = owned;
                }
                self.last_step = Some(step);
                Place::Run(step as f64 + self.offset)
            }
        };
        if matches!(place, Place::NewRun(_)) {
            self.first_owned = owned;
        }
        self.last_owned = owned;
        if let (Place::Run(x) | Place::NewRun(x), Some(epoch)) = (place, sample.epoch) {
            self.epochs.see(x, epoch);
        }
        place
    }

    /// Steps in an epoch, as the samples' epochs tell it.
    pub fn epoch_steps(&self) -> Option<f64> {
        self.epochs.length()
    }

    fn fall_back(&mut self, step: u64, last: u64, owned: f64) -> Place {
        if last - step <= STEP_JITTER {
            return Place::Run(last as f64 + self.offset);
        }
        let grown = self.last_owned - self.first_owned;
        let growth_is_gone =
            grown > RESTART_GROWTH * self.last_owned && self.last_owned - owned > grown / 2.0;
        if owned < RESTART_LEVEL * self.last_owned || growth_is_gone {
            self.restart(step)
        } else {
            self.counter_resets += 1;
            self.last_step = Some(step);
            // The counter starts from its own beginning again: count on from where it stood.
            self.offset += (last - step) as f64 + step.min(1) as f64;
            Place::Run(step as f64 + self.offset)
        }
    }

    fn restart(&mut self, step: u64) -> Place {
        self.restarts += 1;
        self.between = false;
        self.offset = 0.0;
        self.epochs = Epochs::default();
        self.last_step = Some(step);
        Place::NewRun(step as f64)
    }

    fn advance_clock(&mut self, t: f64) {
        let interval = t - self.last_t.replace(t).unwrap_or(t);
        const SETTLED: u32 = 8;
        let longest = (JUMP_FACTOR * self.usual_interval).max(JUMP_SECONDS);
        if interval < 0.0 || (self.intervals >= SETTLED && interval > longest) {
            self.clock_jumps += 1;
            self.seconds += self.usual_interval;
            return;
        }
        self.seconds += interval;
        self.intervals = self.intervals.saturating_add(1);
        // A running median: moves towards each interval by a fixed share, so that one long pause moves it
        // little.
        if self.usual_interval == 0.0 {
            self.usual_interval = interval;
        } else {
            self.usual_interval *= if interval > self.usual_interval { 1.05 } else { 1.0 / 1.05 };
        }
    }
}

/// An epoch number, and where on the axis it was told.
#[derive(Debug, Clone, Copy, Default)]
struct EpochMark {
    x: f64,
    epoch: f64,
}

/// Changes of a whole epoch number: where the first and the latest were, and by how much it rose in all.
#[derive(Debug, Clone, Copy)]
struct EpochChanges {
    first: f64,
    latest: f64,
    rise: f64,
}

/// Finds the length of an epoch from epoch numbers, whole or fractional.
#[derive(Debug, Clone, Default)]
struct Epochs {
    first: Option<EpochMark>,
    last: EpochMark,
    fractional: bool,
    changes: Option<EpochChanges>,
}

impl Epochs {
    fn see(&mut self, x: f64, epoch: f64) {
        let Some(first) = self.first else {
            self.first = Some(EpochMark { x, epoch });
            self.last = EpochMark { x, epoch };
            self.fractional = epoch.fract() != 0.0;
            return;
        };
        self.fractional |= epoch.fract() != 0.0;
        if epoch > self.last.epoch && x > self.last.x {
            let start = self.changes.map_or(x, |changes| changes.first);
            self.changes = Some(EpochChanges { first: start, latest: x, rise: epoch - first.epoch });
        }
        if x > self.last.x || epoch > self.last.epoch {
            self.last = EpochMark { x, epoch };
        }
    }

    fn length(&self) -> Option<f64> {
        let first = self.first?;
        let length = if self.fractional {
            let (steps, epochs) = (self.last.x - first.x, self.last.epoch - first.epoch);
            // A tenth of an epoch tells its length to a few percent, numbers being rounded to two digits at
            // worst.
            (epochs >= 0.1).then(|| steps / epochs)?
        } else {
            let changes = self.changes?;
            // One change tells the length if the first epoch was seen from its start.
            if changes.rise > 1.0 {
                (changes.latest - changes.first) / (changes.rise - 1.0)
            } else {
                changes.first - first.x
            }
        };
        (length.is_finite() && length > 0.0).then_some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(t: f64, step: u64, epoch: Option<f64>, rss: u64) -> Sample {
        Sample { t, step: Some(step), epoch, rss, ..Sample::default() }
    }

    #[test]
    fn a_restart_is_told_from_a_counter_that_was_reset() {
        let mut timeline = Timeline::default();
        assert_eq!(timeline.place(&Sample { rss: 50, ..Sample::default() }), Place::StartUp);
        assert_eq!(timeline.place(&at(1.0, 100, None, 1000)), Place::Run(100.0));
        assert_eq!(
            timeline.place(&at(2.0, 99, None, 1000)),
            Place::Run(100.0),
            "sources may overtake each other"
        );
        assert_eq!(
            timeline.place(&at(3.0, 1, None, 1000)),
            Place::Run(101.0),
            "memory stayed: the counter was reset"
        );
        assert_eq!(timeline.place(&at(4.0, 60, None, 1000)), Place::Run(160.0));
        assert_eq!(timeline.place(&Sample { rss: 10, ..Sample::default() }), Place::Between);
        assert_eq!(
            timeline.place(&at(5.0, 40, None, 500)),
            Place::NewRun(40.0),
            "memory fell: a new process"
        );
        assert_eq!((timeline.restarts, timeline.counter_resets), (1, 1));
    }

    #[test]
    fn jumps_of_the_clock_are_taken_out() {
        let mut timeline = Timeline::default();
        for second in 0..20 {
            timeline.place(&at(f64::from(second), 1, None, 1));
        }
        timeline.place(&at(90_000.0, 1, None, 1));
        timeline.place(&at(5.0, 1, None, 1));
        assert_eq!(timeline.clock_jumps, 2);
        assert!((timeline.seconds - 21.0).abs() < 3.0, "{}", timeline.seconds);
    }

    #[test]
    fn the_length_of_an_epoch_is_read_from_whole_and_fractional_numbers() {
        let length = |epochs: &dyn Fn(u64) -> f64, steps: u64| {
            let mut timeline = Timeline::default();
            (1..=steps).for_each(|step| {
                timeline.place(&at(step as f64, step, Some(epochs(step)), 1));
            });
            timeline.epoch_steps()
        };
        let fractional = length(&|step| (step as f64 / 83.0 * 100.0).round() / 100.0, 60).expect("a length");
        assert!((fractional - 83.0).abs() < 1.5, "{fractional}");
        assert_eq!(length(&|step| (step / 83) as f64, 60), None, "no epoch ended yet");
        assert_eq!(length(&|step| (1 + step / 80) as f64, 100), Some(79.0));
        assert_eq!(length(&|step| (step / 80) as f64, 400), Some(80.0));
    }
}
