//! Decides which process is asked what, and when.
//!
//! Takes readings and answers, and gives questions. The first census is taken a few steps into the run. Comparisons with it follow while
//! the process grows, each over a longer stretch than the one before; the last one stands. Their cost is bounded by a part of the run's
//! time.

use super::{Asked, Explained, Question, WhoReport};
use crate::{record::Reading, sample::Sample, sampling::ProcessRow};
use serde_json::Value;
use std::collections::HashMap;

/// Censuses may take this part of the run's time ...
const COST: f64 = 0.01;
/// ... and so many seconds of a core, so that a short run is explained too ...
const ALLOWANCE: f64 = 6.0;
/// ... of which so many may be spent before the first step.
const BEFORE_STEPS: f64 = 2.0;
/// A process that grew by less is not asked.
const LEAST_GROWTH: u64 = 4_000_000;
/// A process is asked again once its growth is so many times what it explained.
const AGAIN: f64 = 1.4;
/// A process still grows if its rate since the last reading is this part of its rate since the first census.
const STILL: f64 = 0.8;
/// The first census is taken so many steps after the first that was seen: those before fill caches and make the optimizer's state.
const FIRST_STEPS: u64 = 2;
/// The first comparison spans so many steps ...
const ENOUGH_STEPS: u64 = 20;
/// ... or so many seconds, unless comparisons are cheap.
const ENOUGH_SECONDS: f64 = 60.0;
/// Without steps, a process is asked first when it was seen in so many readings.
const SEEN_FIRST: u32 = 2;
/// Without steps, the first census is taken anew when the run is so many times as old as it was then, as long as the growth is young.
const RENEWED: f64 = 8.0;
/// So many processes are asked for a first census at most, the largest first.
const MOST_ASKED: usize = 8;
/// Python may take so many seconds to start and to answer.
const STARTING: f64 = 1.0;
/// A process that did not answer so often in a row is not asked again.
const MOST_FAILURES: u32 = 3;
/// Seconds that a first question is assumed to take.
const FIRST_GUESS: f64 = 0.05;
/// A comparison costs so many times a census, at most.
const OF_A_CENSUS: f64 = 3.0;

/// A process at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    /// Seconds since the start of the run.
    t: f64,
    step: Option<u64>,
    owned: u64,
}

impl Point {
    pub fn of(row: &ProcessRow, sample: &Sample) -> Self {
        Self { t: sample.t, step: sample.step, owned: owned(row) }
    }

    fn growth_since(&self, before: &Self) -> u64 {
        self.owned.saturating_sub(before.owned)
    }

    /// Bytes a second since then.
    fn rate_since(&self, before: &Self) -> f64 {
        self.growth_since(before) as f64 / (self.t - before.t).max(1e-3)
    }

    fn steps_since(&self, before: &Self) -> Option<u64> {
        Some(self.step?.saturating_sub(before.step?))
    }
}

fn owned(row: &ProcessRow) -> u64 {
    row.share.anon + row.share.shmem + row.share.swap
}

/// What is known of one process.
#[derive(Debug, Clone, Default)]
struct Known {
    /// In how many readings it could be asked.
    seen: u32,
    /// The first step that was seen.
    first_step: Option<u64>,
    /// The last two readings, the newer first.
    now: Option<Point>,
    before: Option<Point>,
    /// When the first census was taken.
    mark: Option<Point>,
    explained: Option<Explained>,
    /// What a census and a comparison cost, in seconds of a core.
    census: Option<f64>,
    comparison: Option<f64>,
    /// How often in a row it did not answer; it may have been about to fork.
    failures: u32,
}

/// What was asked and answered so far.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    busy: bool,
    spent: f64,
    known: HashMap<i32, Known>,
    /// The process that held the most at the last reading, and whether it could be asked.
    largest: Option<(String, bool)>,
    /// When the last reading was taken, in seconds since the start.
    lasted: f64,
}

impl Schedule {
    /// What to ask after this reading, and of whom.
    pub fn reading<'a>(&mut self, reading: &'a Reading, pids: &[i32]) -> Option<(&'a ProcessRow, Question)> {
        let sample = &reading.snapshot.sample;
        let rows = &reading.snapshot.processes;
        self.lasted = sample.t;
        if let Some(row) = rows.iter().max_by_key(|row| owned(row)) {
            self.largest = Some((row.command.clone(), pids.contains(&row.pid)));
        }
        let mut rows: Vec<&ProcessRow> = rows.iter().filter(|row| pids.contains(&row.pid)).collect();
        for row in &rows {
            self.known.entry(row.pid).or_default().see(Point::of(row, sample));
        }
        self.known.retain(|pid, known| pids.contains(pid) || known.explained.is_some());
        if self.busy {
            return None;
        }
        rows.sort_by_key(|row| std::cmp::Reverse(owned(row)));
        rows.truncate(MOST_ASKED);
        let budget = self.budget(sample);
        let known = |row: &&&ProcessRow| &self.known[&row.pid];
        if let Some(row) = rows.iter().find(|row| known(row).wants_census(budget)) {
            return Some((row, Question::Mark));
        }
        rows.iter()
            .filter(|row| known(row).wants_comparison(budget))
            .max_by_key(|row| known(row).growth())
            .map(|row| (*row, Question::Explain))
    }

    /// Seconds that may be spent now.
    fn budget(&self, sample: &Sample) -> f64 {
        let allowance = if sample.step.is_some() { ALLOWANCE } else { BEFORE_STEPS };
        allowance + COST * sample.t - self.spent
    }

    /// Whether a question is under way.
    pub fn asking(&mut self, busy: bool) {
        self.busy = busy;
    }

    pub fn answered(&mut self, asked: Asked, answer: Option<Value>) {
        let known = self.known.entry(asked.pid).or_default();
        let failed = answer.as_ref().is_none_or(|answer| answer.get("error").is_some());
        known.failures = if failed { known.failures + 1 } else { 0 };
        let Some(mut answer) = answer.filter(|_| !failed) else { return };
        // What is only for us is no part of the report, which has `seconds` of its own.
        let mut take =
            |name: &str| answer.as_object_mut().and_then(|told| told.remove(name)).unwrap_or_default();
        let cost = take("seconds").as_f64().unwrap_or(0.0);
        self.spent += cost;
        let owned = take("owned").as_u64().unwrap_or(asked.at.owned);
        // The process says what moment it counted, which may be later than the reading.
        let at = Point { owned, step: take("step").as_u64(), ..asked.at };
        match asked.question {
            Question::Mark => {
                known.census = Some(cost);
                known.mark = Some(at);
                known.explained = None;
            }
            Question::Explain => {
                let Some(mark) = known.mark else { return };
                known.comparison = Some(cost);
                let explained = Explained {
                    pid: asked.pid,
                    command: asked.command,
                    seconds: [mark.t, at.t],
                    at_steps: [mark.step, at.step],
                    told: answer,
                };
                if known.explained.as_ref().is_none_or(|before| explained.growth() > before.growth()) {
                    known.explained = Some(explained);
                }
            }
        }
    }

    pub fn report(&self) -> WhoReport {
        let explained = self.known.values().filter_map(|known| known.explained.as_ref());
        if let Some(explained) = explained.max_by_key(|explained| explained.growth()) {
            return WhoReport::Explained(explained.clone());
        }
        let listens = "; it may have been started with -I, -E or -S, which leave out what would ask it";
        WhoReport::Unknown(match &self.largest {
            None => "nothing could be asked: the command ended before it was seen".into(),
            Some((_, false)) if self.lasted < STARTING => {
                "nothing could be asked: the command ended before it answered".into()
            }
            Some((command, false)) => {
                let is_python = command.split_whitespace().next().is_some_and(|word| word.contains("python"));
                let why = if is_python { listens } else { "; it is not Python" };
                format!("nothing could be asked: the process that held the most does not answer{why}")
            }
            Some(_) => "the process did not grow between two censuses, or it ended before the second".into(),
        })
    }
}

impl Known {
    fn see(&mut self, point: Point) {
        self.seen += 1;
        self.first_step = self.first_step.or(point.step);
        self.before = self.now.replace(point);
    }

    fn wants_census(&self, budget: f64) -> bool {
        let Some(now) = self.now else { return false };
        if self.failures >= MOST_FAILURES || self.census.unwrap_or(FIRST_GUESS) > budget {
            return false;
        }
        let is_under_way = now.step >= self.first_step.map(|first| first + FIRST_STEPS);
        match (self.mark, now.step) {
            (None, None) => self.seen >= SEEN_FIRST,
            (None, Some(_)) => is_under_way,
            // What came before the first steps is preparation.
            (Some(mark), Some(_)) => mark.step.is_none() && is_under_way,
            (Some(mark), None) => self.explained.is_none() && now.t > RENEWED * mark.t.max(1.0),
        }
    }

    fn growth(&self) -> u64 {
        self.now.zip(self.mark).map_or(0, |(now, mark)| now.growth_since(&mark))
    }

    fn wants_comparison(&self, budget: f64) -> bool {
        let (Some(mark), Some(now)) = (self.mark, self.now) else { return false };
        let cost = self.comparison.or(self.census).unwrap_or(FIRST_GUESS).max(FIRST_GUESS);
        if self.failures >= MOST_FAILURES || cost > budget || self.growth() < LEAST_GROWTH {
            return false;
        }
        match &self.explained {
            None => self.is_cheap(budget) || spans_enough(&now, &mark),
            Some(explained) => {
                self.growth() as f64 >= AGAIN * explained.growth().max(0) as f64 && self.still_grows()
            }
        }
    }

    /// Whether a comparison leaves enough for another.
    fn is_cheap(&self, budget: f64) -> bool {
        let cost = self.comparison.unwrap_or(OF_A_CENSUS * self.census.unwrap_or(FIRST_GUESS));
        2.0 * cost <= budget
    }

    /// A comparison after the growth has ended would spread it over steps in which nothing came.
    fn still_grows(&self) -> bool {
        let (Some(mark), Some(now), Some(before)) = (self.mark, self.now, self.before) else { return false };
        now.rate_since(&before) >= STILL * now.rate_since(&mark)
    }
}

fn spans_enough(now: &Point, mark: &Point) -> bool {
    now.steps_since(mark).is_some_and(|steps| steps >= ENOUGH_STEPS) || now.t - mark.t >= ENOUGH_SECONDS
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: f64 = 1.0;

    fn point(step: u64, owned: u64) -> Point {
        Point { t: step as f64, step: Some(step), owned: owned * 1_000_000 }
    }

    /// A process that was counted at step 3 and holds so much at the steps after it.
    fn counted(census: f64, owned: impl IntoIterator<Item = (u64, u64)>) -> Known {
        let mut known = Known { mark: Some(point(3, 0)), census: Some(census), ..Known::default() };
        owned.into_iter().for_each(|(step, owned)| known.see(point(step, owned)));
        known
    }

    fn explained(growth: u64) -> Option<Explained> {
        Some(Explained {
            pid: 1,
            command: String::new(),
            seconds: [0.0; 2],
            at_steps: [None; 2],
            told: serde_json::json!({ "growth": growth * 1_000_000 }),
        })
    }

    #[test]
    fn the_first_census_waits_for_the_first_steps_to_be_over() {
        let mut known = Known::default();
        let wants: Vec<bool> = (1..=4)
            .map(|step| {
                known.see(point(step, 0));
                known.wants_census(BUDGET)
            })
            .collect();
        assert_eq!(wants, [false, false, true, true]);
    }

    #[test]
    fn a_census_before_the_first_step_is_taken_anew() {
        let mut known = Known::default();
        let early = Point { t: 0.0, step: None, owned: 0 };
        known.see(early);
        assert!(!known.wants_census(BUDGET), "the program may only be starting");
        known.see(early);
        assert!(known.wants_census(BUDGET));
        known.mark = Some(early);
        known.see(point(1, 0));
        known.see(point(3, 0));
        assert!(known.wants_census(BUDGET));
    }

    #[test]
    fn a_costly_comparison_waits_until_it_spans_enough_steps() {
        let growing = |last: u64| (4..=last).map(|step| (step, 8 * (step - 3)));
        assert!(counted(0.05, growing(5)).wants_comparison(BUDGET));
        assert!(!counted(0.5, growing(5)).wants_comparison(BUDGET));
        assert!(counted(0.5, growing(23)).wants_comparison(BUDGET));
        assert!(!counted(2.0, growing(23)).wants_comparison(BUDGET), "it costs more than is left");
    }

    #[test]
    fn growth_that_has_ended_is_not_compared_again() {
        let mut known = counted(0.05, [(22, 152), (23, 160)]);
        known.explained = explained(100);
        assert!(known.wants_comparison(BUDGET));
        known.see(point(60, 200));
        assert!(!known.wants_comparison(BUDGET), "it grew by 40 in 37 steps, and by 8 a step before");
        known.see(point(61, 200));
        assert!(!known.wants_comparison(BUDGET));
    }

    #[test]
    fn a_report_tells_when_it_was_asked_and_not_what_asking_cost() {
        let at = |t| Point { t, ..point(3, 0) };
        let asked = |t, question| Asked { pid: 1, command: "python".into(), at: at(t), question };
        let answer =
            |growth: u64| serde_json::json!({ "growth": growth, "seconds": 0.1, "owned": growth, "step": 3 });
        let mut schedule = Schedule::default();
        schedule.answered(asked(2.0, Question::Mark), Some(answer(0)));
        schedule.answered(asked(9.0, Question::Explain), Some(answer(50)));
        let WhoReport::Explained(explained) = schedule.report() else { panic!("nothing was explained") };
        let text = serde_json::to_string(&explained).unwrap();
        assert_eq!(text.matches("\"seconds\"").count(), 1, "{text}");
        assert!(text.contains("\"seconds\":[2.0,9.0]"), "{text}");
    }

    #[test]
    fn a_process_that_cannot_answer_is_not_asked_again() {
        let known = Known { failures: MOST_FAILURES, ..counted(0.05, [(22, 152), (23, 160)]) };
        assert!(!known.wants_comparison(BUDGET) && !known.wants_census(BUDGET));
    }
}
