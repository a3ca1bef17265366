//! When a tree is too near its limit: by the forecast, by the level, and by the speed of the last moments.
//!
//! In come the tree's own memory, look by look, and the assessment of each tick; out come the call to act and the time
//! until the next look. The looks come the more often the less room there is, so that even a runaway is met before
//! the limit. Only what is certain is acted upon: where memory may be counted twice, the call is to measure first.
//! Nothing here knows of processes.

use crate::{
    Assessment, ByteSize, Verdict,
    probe::{Level, Need},
    record::Reading,
};
use std::{collections::VecDeque, time::Duration};

/// From this part of the limit on the command is told, so that it has room left to write a checkpoint in.
pub const TELL_LEVEL: f64 = 0.95;
/// The same where the verdict is that growth ends below the limit: such a run may come close.
const TELL_LEVEL_IF_BOUNDED: f64 = 0.98;
/// A forecast is acted upon only if its verdict is this sure; below, the level decides.
const SURE: f64 = 0.8;
/// A model that is being loaded grows like a leak. Before the first step, or for this long where no steps are counted,
/// a forecast is not acted upon.
const START_UP: Duration = Duration::from_secs(600);
/// The fastest growth that looks are planned for, in bytes per second. One thread touching fresh pages reaches about
/// 2 GB/s on current machines; a few workers together reach twice that.
const RUNAWAY_RATE: f64 = 4e9;
/// How many looks a runaway meets within the room that is left.
const LOOKS_PER_ROOM: f64 = 2.0;
/// A look costs about half a millisecond, so this is a tenth of a core, and only at the very brink.
const SHORTEST_LOOK: Duration = Duration::from_millis(5);
/// From our decision until a killed process allocates no more: a scheduler's slice or two.
const KILL_TIME: Duration = Duration::from_millis(30);

/// Growth is measured over this long: one allocation between two looks is no speed.
const RATE_WINDOW: Duration = Duration::from_millis(100);

/// What to do now.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Nothing.
    Fine,
    /// Measure the tree and ask again with [`LimitWatch::decide`]: what is certain is fine, the rest may not be.
    Measure(Need),
    /// Tell the command, then wait for the grace.
    Tell(String),
    /// End the tree at once: the limit would be crossed before the next look.
    End(String),
}

/// Follows one tree towards its limit.
#[derive(Debug)]
pub struct LimitWatch {
    limit: u64,
    grace: Duration,
    /// The own memory at the last look, as far as it is known.
    owned: u64,
    /// The looks of the last [`RATE_WINDOW`], oldest first.
    looks: VecDeque<(Duration, u64)>,
    /// Bytes per second over those looks.
    rate: f64,
    bounded: bool,
    forecast: Option<String>,
}

impl LimitWatch {
    /// Watches over this many bytes; acting on a notice may take as long as `grace`.
    pub fn new(limit: u64, grace: Duration) -> Self {
        Self { limit, grace, owned: 0, looks: VecDeque::new(), rate: 0.0, bounded: false, forecast: None }
    }

    /// Goes on with another limit: what a machine can still give changes with everything that runs on it.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Takes in what a tick made of the run.
    pub fn judge(&mut self, reading: &Reading) {
        let Reading { assessment, snapshot, .. } = reading;
        self.weigh(assessment, snapshot.sample.step, snapshot.sample.t);
    }

    fn weigh(&mut self, assessment: &Assessment, step: Option<u64>, watched: f64) {
        let decided = assessment.verdict != Verdict::Undecided && assessment.confidence >= SURE;
        let started = step.is_some() || watched >= START_UP.as_secs_f64();
        self.bounded = decided && assessment.plateau.is_some_and(|plateau| plateau.high < self.limit);
        let near = |seconds: &f64| *seconds <= self.grace.as_secs_f64();
        let exhausted = assessment.exhaustion.and_then(|exhaustion| exhaustion.seconds).filter(near);
        self.forecast = exhausted.filter(|_| decided && started).map(|seconds| {
            let limit = ByteSize(self.limit);
            format!("at the present growth the limit of {limit} is reached in {seconds:.0} s, which a checkpoint may take")
        });
    }

    /// Takes in a look at `at`, the next one after `next`.
    pub fn look(&mut self, at: Duration, level: Level, next: Duration) -> Call {
        self.follow(at, level);
        match self.decide(level.certain, next) {
            Call::Fine if self.decide(level.owned, next) != Call::Fine => Call::Measure(Need::Pressing),
            Call::Fine if self.decide(level.most, next) != Call::Fine => Call::Measure(Need::Careful),
            call => call,
        }
    }

    /// What to do about `owned` bytes that are there for certain.
    pub fn decide(&self, owned: u64, next: Duration) -> Call {
        let using = format!("using {} of {}", ByteSize(owned), ByteSize(self.limit));
        let ahead = owned as f64 + self.rate * (next + KILL_TIME).as_secs_f64();
        if self.rate > 0.0 && ahead >= self.limit as f64 {
            return Call::End(format!("{using}, growing by {}/s", ByteSize(self.rate as u64)));
        }
        if owned >= self.limit {
            return Call::End(using);
        }
        let level = if self.bounded { TELL_LEVEL_IF_BOUNDED } else { TELL_LEVEL };
        if owned as f64 >= level * self.limit as f64 {
            return Call::Tell(using);
        }
        self.forecast.clone().map_or(Call::Fine, Call::Tell)
    }

    /// When to look again at the latest, if ticks come every `interval`.
    pub fn next_look(&self, interval: Duration) -> Duration {
        let room = self.limit.saturating_sub(self.owned) as f64;
        let look = Duration::from_secs_f64(room / (LOOKS_PER_ROOM * RUNAWAY_RATE));
        look.max(SHORTEST_LOOK).min(interval)
    }

    fn follow(&mut self, at: Duration, level: Level) {
        self.owned = level.owned;
        // A measurement that finds more is no growth.
        self.looks.push_back((at, level.pace));
        while self.looks.get(1).is_some_and(|(second, _)| at.saturating_sub(*second) >= RATE_WINDOW) {
            self.looks.pop_front();
        }
        let (since, then) = self.looks[0];
        let seconds = at.saturating_sub(since).max(RATE_WINDOW).as_secs_f64();
        self.rate = level.pace.saturating_sub(then) as f64 / seconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Exhaustion, Plateau};

    const GB: u64 = 1_000_000_000;

    fn assessment(verdict: Verdict, seconds: Option<f64>, plateau: Option<u64>) -> Assessment {
        Assessment {
            verdict,
            meaning: verdict.meaning(),
            confidence: 0.95,
            will_stop: 0.05,
            will_go_on: 0.95,
            growth_per_step: None,
            growth_per_sample: None,
            growth_per_minute: None,
            plateau: plateau.map(|bytes| Plateau { bytes, low: bytes, high: bytes, step: None }),
            exhaustion: seconds.map(|s| Exhaustion { step: None, seconds: Some(s), low: None, high: None }),
            endings: Vec::new(),
            decidable_at_step: None,
            mechanism: None,
            evidence: Vec::new(),
            advice: Vec::new(),
        }
    }

    fn watch() -> LimitWatch {
        LimitWatch::new(10 * GB, Duration::from_secs(60))
    }

    fn judge(watch: &mut LimitWatch, assessment: &Assessment) {
        watch.weigh(assessment, Some(50), 50.0);
    }

    fn look(watch: &mut LimitWatch, seconds: f64, owned: u64) -> Call {
        let next = watch.next_look(Duration::from_secs(1));
        watch.look(Duration::from_secs_f64(seconds), Level::exact(owned), next)
    }

    #[test]
    fn what_is_not_certain_is_measured_before_it_is_acted_upon() {
        let mut watch = watch();
        let level = |certain, owned, most| Level {
            certain: certain * GB,
            owned: owned * GB,
            most: most * GB,
            pace: GB,
            unsure: 0,
        };
        let mut at = |level| watch.look(Duration::from_secs(1), level, Duration::from_secs(1));
        assert_eq!(at(level(1, 1, 9)), Call::Fine, "even the most is fine");
        assert_eq!(at(level(1, 1, 10)), Call::Measure(Need::Careful));
        assert_eq!(at(level(1, 10, 10)), Call::Measure(Need::Pressing));
        assert!(matches!(at(level(10, 10, 10)), Call::End(_)), "what is certain needs no measurement");
        let next = Duration::from_secs(1);
        assert_eq!(watch.decide(2 * GB, next), Call::Fine);
        assert_eq!(watch.decide(10 * GB, next), Call::End("using 10.0 GB of 10.0 GB".to_owned()));
    }

    #[test]
    fn a_measurement_that_finds_more_is_no_runaway() {
        let mut watch = watch();
        let level = |owned| Level { owned, certain: owned, most: owned, pace: GB, unsure: 0 };
        let look = |watch: &mut LimitWatch, milliseconds, owned| {
            watch.look(Duration::from_millis(milliseconds), level(owned), Duration::from_millis(10))
        };
        assert_eq!(look(&mut watch, 0, 6 * GB), Call::Fine);
        assert_eq!(look(&mut watch, 10, 9 * GB), Call::Fine, "3 GB in 10 ms, but none of it came just now");
    }

    #[test]
    fn a_level_well_below_is_fine_and_one_close_by_is_told() {
        let mut watch = watch();
        assert_eq!(look(&mut watch, 0.0, 9 * GB), Call::Fine);
        assert!(
            matches!(look(&mut watch, 60.0, 95 * GB / 10), Call::Tell(why) if why.contains("9.50 GB of 10.0 GB"))
        );
    }

    #[test]
    fn a_run_that_levels_off_below_the_limit_may_come_close() {
        let mut watch = watch();
        judge(&mut watch, &assessment(Verdict::Fill, None, Some(97 * GB / 10)));
        assert_eq!(look(&mut watch, 0.0, 96 * GB / 10), Call::Fine);
        assert!(matches!(look(&mut watch, 100.0, 985 * GB / 100), Call::Tell(_)));
    }

    #[test]
    fn a_sure_leak_is_told_as_long_before_as_the_grace() {
        let mut watch = watch();
        judge(&mut watch, &assessment(Verdict::Leak, Some(300.0), None));
        assert_eq!(look(&mut watch, 0.0, 5 * GB), Call::Fine);
        judge(&mut watch, &assessment(Verdict::Leak, Some(50.0), None));
        assert!(matches!(look(&mut watch, 1.0, 5 * GB), Call::Tell(why) if why.contains("reached in 50 s")));
        judge(&mut watch, &assessment(Verdict::Undecided, Some(50.0), None));
        assert_eq!(look(&mut watch, 2.0, 5 * GB), Call::Fine, "an undecided one is not stopped for it");
    }

    #[test]
    fn a_model_that_is_being_loaded_is_no_leak() {
        let mut watch = watch();
        let loading = assessment(Verdict::Leak, Some(10.0), None);
        watch.weigh(&loading, None, 30.0);
        assert_eq!(look(&mut watch, 0.0, 5 * GB), Call::Fine);
        watch.weigh(&loading, None, START_UP.as_secs_f64());
        assert!(
            matches!(look(&mut watch, 1.0, 5 * GB), Call::Tell(_)),
            "without steps it counts after a while"
        );
    }

    #[test]
    fn a_runaway_is_ended_before_the_limit_at_any_speed_up_to_the_planned_one() {
        for rate in [0.1e9, 0.5e9, 2e9, RUNAWAY_RATE] {
            let mut watch = watch();
            let mut time = 0.0;
            let owned = |time: f64| (4e9 + rate * time) as u64;
            loop {
                let call = look(&mut watch, time, owned(time));
                let level = owned(time) as f64 + rate * KILL_TIME.as_secs_f64();
                assert!(level < 10e9, "at {rate} B/s the limit was crossed: {level}");
                if matches!(call, Call::End(_)) {
                    break;
                }
                time += watch.next_look(Duration::from_secs(1)).as_secs_f64();
            }
        }
    }

    #[test]
    fn one_allocation_is_no_runaway() {
        let mut watch = LimitWatch::new(150_000_000, Duration::from_secs(60));
        for look_number in 0..200_u32 {
            // 2 MB each 50 ms, which is 400 MB/s for whoever looks at one of the 5 ms in between.
            let time = 0.005 * f64::from(look_number);
            let owned = 100_000_000 + 2_000_000 * u64::from(look_number / 10);
            assert_eq!(look(&mut watch, time, owned), Call::Fine, "{owned}");
        }
    }

    #[test]
    fn looks_come_more_often_the_less_room_there_is() {
        let mut watch = watch();
        let mut looks = Vec::new();
        for owned in [GB, 8 * GB, 99 * GB / 10, 10 * GB] {
            look(&mut watch, 0.0, owned);
            looks.push(watch.next_look(Duration::from_secs(1)));
        }
        assert_eq!(looks[0], Duration::from_secs(1));
        assert!(looks[1] < looks[0] && looks[2] < looks[1] && looks[3] == SHORTEST_LOOK, "{looks:?}");
    }
}
