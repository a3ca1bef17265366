//! Decides when a tree is too near its limit: by the forecast, by the level, and by the speed of the last
//! moments.
//!
//! A [`LimitWatch`] is shown the tree's own memory at each look and the assessment of each reading. It says
//! whether to act, and when to look next: the less room there is, the sooner, so that even a runaway is
//! caught below the limit. It acts only on what is certain; where memory may have been counted twice, it asks
//! for a measurement first. Nothing here knows of processes.

use super::reserve::Reserve;
use crate::{
    Assessment, ByteSize, Verdict,
    record::Reading,
    sampling::{Level, Need},
};
use std::{collections::VecDeque, time::Duration};

/// At this part of the limit the command is told to stop, so that it has room left to write a checkpoint.
pub const TELL_LEVEL: f64 = 0.95;
/// The same where the verdict says that growth ends below the limit: such a run may come closer.
const TELL_LEVEL_IF_BOUNDED: f64 = 0.98;
/// A forecast is acted upon only if its verdict is this sure; below, the level decides.
const SURE: f64 = 0.8;
/// A model that is being loaded grows like a leak. Before the first step, or for this long where no steps are
/// counted, a forecast is not acted upon.
const START_UP: Duration = Duration::from_secs(600);
/// The fastest growth that looks are planned for, in bytes per second. One thread touching fresh pages
/// reaches about 2 GB/s on current machines; a few workers together reach twice that.
const RUNAWAY_RATE: f64 = 4e9;
/// How many looks a runaway meets within the room that is left.
const LOOKS_PER_ROOM: f64 = 2.0;
/// The shortest time between two looks. A look costs about half a millisecond, so this is a tenth of a core,
/// and only close to the limit.
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
    /// Measure the tree and ask again with [`LimitWatch::decide`]: the memory that is certain fits, the
    /// estimate may not.
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
    /// The tree's own memory at the last look, as far as it is known.
    owned: u64,
    /// The looks of the last [`RATE_WINDOW`], oldest first.
    looks: VecDeque<(Duration, u64)>,
    /// Bytes per second over those looks.
    rate: f64,
    bounded: bool,
    forecast: Option<String>,
    /// What must stay available, where that is what limits.
    reserve: Option<Reserve>,
}

impl LimitWatch {
    /// Watches a limit in bytes; a command has `grace` to act on a notice.
    pub fn new(limit: u64, grace: Duration) -> Self {
        Self {
            limit,
            grace,
            owned: 0,
            looks: VecDeque::new(),
            rate: 0.0,
            bounded: false,
            forecast: None,
            reserve: None,
        }
    }

    /// Watches that `free` bytes stay available; the limit follows from that, see [`LimitWatch::make_room`].
    pub(crate) fn leaving_free(free: u64, grace: Duration) -> Self {
        Self { reserve: Some(Reserve::new(free)), ..Self::new(u64::MAX, grace) }
    }

    /// The limit of this moment.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Moves the limit so that the reserve stays available to others, where there is one. Called before each
    /// look with what is available.
    ///
    /// Memory that others take lowers the limit, but always leaves the command a little room: it is told and
    /// has its grace. Only its own growth can end it at once.
    pub(crate) fn make_room(&mut self, at: Duration, level: Level, available: u64) {
        let told_from = level.owned as f64 * (1.0 / self.tell_level() - 1.0);
        let Some(reserve) = &mut self.reserve else { return };
        let was_short = reserve.is_short;
        let room = reserve.follow(at, level.pace, available, told_from as i128);
        let leaving = u64::try_from(i128::from(level.owned) + room).unwrap_or(0);
        self.limit = match (reserve.is_short, was_short) {
            (false, _) => leaving,
            (true, false) => leaving.max(self.limit.min(level.owned.saturating_add(told_from as u64))),
            (true, true) => leaving.max(self.limit),
        };
        self.owned = level.owned;
    }

    /// Sets another limit: what a machine can still give changes with everything that runs on it.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Takes in the assessment of a reading.
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
            let reached = match &self.reserve {
                None => format!("the limit of {} is reached", ByteSize(self.limit)),
                Some(reserve) => {
                    format!("no more than the {} to leave free are left", ByteSize(reserve.free))
                }
            };
            format!("at the present growth {reached} in {seconds:.0} s, which a checkpoint may take")
        });
    }

    /// Takes in a look at time `at`; the next one comes after `next`.
    pub fn look(&mut self, at: Duration, level: Level, next: Duration) -> Call {
        self.follow(at, level);
        if self.reserve.is_some() {
            // What is available decides, and that is measured: the tree's own memory is on both sides.
            return self.decide(level.owned, next);
        }
        match self.decide(level.certain, next) {
            Call::Fine if self.decide(level.owned, next) != Call::Fine => Call::Measure(Need::Pressing),
            Call::Fine if self.decide(level.most, next) != Call::Fine => Call::Measure(Need::Careful),
            call => call,
        }
    }

    /// What to do about `owned` bytes that certainly exist.
    pub fn decide(&self, owned: u64, next: Duration) -> Call {
        let using = match &self.reserve {
            None => format!("using {} of {}", ByteSize(owned), ByteSize(self.limit)),
            Some(reserve) => format!("{reserve}; the command uses {}", ByteSize(owned)),
        };
        let ahead = owned as f64 + self.rate * (next + KILL_TIME).as_secs_f64();
        if self.rate > 0.0 && ahead >= self.limit as f64 {
            return Call::End(format!("{using}, growing by {}/s", ByteSize(self.rate as u64)));
        }
        if owned >= self.limit {
            return Call::End(using);
        }
        let is_short = self.reserve.as_ref().is_some_and(|reserve| reserve.is_short);
        if is_short || owned as f64 >= self.tell_level() * self.limit as f64 {
            return Call::Tell(using);
        }
        self.forecast.clone().map_or(Call::Fine, Call::Tell)
    }

    fn tell_level(&self) -> f64 {
        if self.bounded { TELL_LEVEL_IF_BOUNDED } else { TELL_LEVEL }
    }

    /// The longest time until the next look, if readings come every `interval`.
    pub(crate) fn next_look(&self, interval: Duration) -> Duration {
        let room = self.limit.saturating_sub(self.owned) as f64;
        let look = Duration::from_secs_f64(room / (LOOKS_PER_ROOM * RUNAWAY_RATE));
        look.max(SHORTEST_LOOK).min(interval)
    }

    fn follow(&mut self, at: Duration, level: Level) {
        self.owned = level.owned;
        // A measurement that finds more memory is not growth.
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
            grows_now: true,
            growth_per_step: None,
            growth_per_sample: None,
            growth_per_minute: None,
            plateau: plateau.map(|bytes| Plateau { bytes, low: bytes, high: bytes, step: None }),
            exhaustion: seconds.map(|s| Exhaustion { step: None, seconds: Some(s), low: None, high: None }),
            endings: Vec::new(),
            decidable_at_step: None,
            before_end: None,
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

    /// A tree of `owned` bytes on a machine with so much available, a look each tenth of a second.
    struct Neighbours {
        watch: LimitWatch,
        time: Duration,
    }

    impl Neighbours {
        fn leaving(free: u64) -> Self {
            Self { watch: LimitWatch::leaving_free(free, Duration::from_secs(60)), time: Duration::ZERO }
        }

        fn look(&mut self, owned: u64, available: u64) -> Call {
            self.time += Duration::from_millis(100);
            let level = Level::exact(owned);
            self.watch.make_room(self.time, level, available);
            let next = self.watch.next_look(Duration::from_secs(1));
            self.watch.look(self.time, level, next)
        }

        /// The answers of two seconds in which nothing moves.
        fn hold(&mut self, owned: u64, available: u64) -> Vec<Call> {
            (0..20).map(|_| self.look(owned, available)).collect()
        }
    }

    const MB: u64 = 1_000_000;

    #[test]
    fn a_command_is_told_when_others_leave_less_than_was_to_stay_free() {
        let mut machine = Neighbours::leaving(2 * GB);
        assert!(machine.hold(5 * GB, 10 * GB).iter().all(|call| *call == Call::Fine));
        assert_eq!(machine.watch.limit(), 13 * GB);
        let calls = machine.hold(5 * GB, 1900 * MB);
        let why = "1.90 GB are left of the 2.00 GB to leave free; the command uses 5.00 GB";
        assert_eq!(calls.last(), Some(&Call::Tell(why.to_owned())));
        assert!(!calls.iter().any(|call| matches!(call, Call::End(_))), "others took it: {calls:?}");
        assert!(
            matches!(machine.look(4900 * MB, 1000 * MB), Call::Tell(_)),
            "and a checkpoint may still be written, however much more they take"
        );
        assert!(matches!(machine.look(5300 * MB, 600 * MB), Call::End(_)), "but it may not take more itself");
    }

    #[test]
    fn a_dip_of_the_others_is_sat_out() {
        let mut machine = Neighbours::leaving(2 * GB);
        machine.hold(5 * GB, 10 * GB);
        for _ in 0..9 {
            assert_eq!(machine.look(5 * GB, 100 * MB), Call::Fine);
        }
        assert!(machine.hold(5 * GB, 10 * GB).iter().all(|call| *call == Call::Fine));
    }

    #[test]
    fn a_command_that_takes_what_was_to_stay_free_is_ended_at_once() {
        let mut machine = Neighbours::leaving(2 * GB);
        machine.hold(5 * GB, 10 * GB);
        let began = machine.time;
        let (why, taken) = loop {
            let next = machine.watch.next_look(Duration::from_secs(1));
            machine.time += next;
            let taken = (2e9 * (machine.time - began).as_secs_f64()) as u64;
            assert!(taken < 8 * GB, "the part to leave free was touched");
            let level = Level::exact(5 * GB + taken);
            machine.watch.make_room(machine.time, level, 10 * GB - taken);
            let next = machine.watch.next_look(Duration::from_secs(1));
            if let Call::End(why) = machine.watch.look(machine.time, level, next) {
                break (why, taken);
            }
        };
        assert!(taken as f64 + 2e9 * KILL_TIME.as_secs_f64() < 8e9, "{why}");
        assert!(
            why.contains(" GB are available, of which 2.00 GB are to stay free; the command uses 1"),
            "{why}"
        );
        assert!(why.contains("growing by 2.00 GB/s"), "{why}");
    }

    #[test]
    fn a_shortage_ends_only_with_some_room_to_spare() {
        let mut machine = Neighbours::leaving(2 * GB);
        machine.hold(GB, 10 * GB);
        machine.hold(GB, 2000 * MB);
        for available in [2055, 2040, 2060, 2090, 2050] {
            assert!(matches!(machine.look(GB, available * MB), Call::Tell(_)), "{available}");
        }
        assert_eq!(machine.look(GB, 3 * GB), Call::Fine);
    }

    #[test]
    fn a_measurement_that_finds_more_or_less_takes_no_room() {
        let mut machine = Neighbours::leaving(2 * GB);
        machine.hold(5 * GB, 3 * GB);
        let level = Level { owned: 3 * GB, ..Level::exact(5 * GB) };
        machine.watch.make_room(machine.time, level, 3 * GB);
        assert_eq!(machine.watch.limit(), 4 * GB, "there is one gigabyte left to take");
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
