//! The curve that a screen shows: bounded, however long the watch.

/// Points kept at most; when they are reached every second one is dropped. A wide terminal shows 400.
const MOST_POINTS: usize = 2048;
/// Phases shown at most; beyond that the oldest epochs are merged into one.
const MOST_PHASES: usize = 64;

/// One point of the curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub t: f64,
    pub step: Option<u64>,
    pub owned: f64,
    pub file: f64,
}

/// A stretch of the run with a name.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    pub since: f64,
    pub name: String,
}

/// What the watch has seen.
#[derive(Debug, Default)]
pub struct History {
    points: Vec<Point>,
    phases: Vec<Phase>,
    /// Every how many readings one is kept.
    every: usize,
    seen: usize,
}

impl History {
    /// Adds a reading.
    pub fn push(&mut self, point: Point, epoch: Option<f64>) {
        self.every = self.every.max(1);
        if self.seen.is_multiple_of(self.every) {
            self.points.push(point);
        } else if let Some(last) = self.points.last_mut() {
            // The newest reading always shows.
            *last = point;
        }
        self.seen += 1;
        if self.points.len() >= MOST_POINTS {
            let mut index = 0;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.every *= 2;
        }
        self.enter(point.t, phase_name(point.step, epoch));
    }

    fn enter(&mut self, since: f64, name: String) {
        if self.phases.last().is_some_and(|phase| phase.name == name) {
            return;
        }
        self.phases.push(Phase { since, name });
        if self.phases.len() > MOST_PHASES {
            self.phases.remove(1);
        }
    }

    /// The curve, oldest first.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The step at a time, if one was known by then.
    pub fn step_at(&self, t: f64) -> Option<u64> {
        let after = self.points.partition_point(|point| point.t <= t);
        self.points[..after].last().and_then(|point| point.step)
    }

    /// The phases, oldest first.
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }
}

/// Epochs are counted from 1, as people do.
fn phase_name(step: Option<u64>, epoch: Option<f64>) -> String {
    match (step, epoch) {
        (None, None) => "start-up".to_owned(),
        (_, Some(epoch)) => format!("epoch {}", epoch.max(0.0).floor() as u64 + 1),
        (Some(_), None) => "training".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_watch_keeps_its_whole_span_in_bounded_memory() {
        let mut history = History::default();
        for second in 0..100_000 {
            history.push(
                Point { t: f64::from(second), step: None, owned: 1.0, file: 0.0 },
                Some(f64::from(second) / 10.0),
            );
        }
        assert!(history.points().len() <= MOST_POINTS && history.phases().len() <= MOST_PHASES);
        assert_eq!(history.points()[0].t, 0.0);
        assert_eq!(history.points().last().unwrap().t, 99_999.0);
    }

    #[test]
    fn phases_are_start_up_and_epochs() {
        let mut history = History::default();
        let point = |t, step| Point { t, step, owned: 0.0, file: 0.0 };
        for (t, step, epoch) in [
            (0.0, None, None),
            (1.0, Some(1), Some(0.1)),
            (2.0, Some(9), Some(0.9)),
            (3.0, Some(11), Some(1.1)),
        ] {
            history.push(point(t, step), epoch);
        }
        let phases: Vec<_> =
            history.phases().iter().map(|phase| (phase.since, phase.name.as_str())).collect();
        assert_eq!(phases, [(0.0, "start-up"), (1.0, "epoch 1"), (3.0, "epoch 2")]);
        assert_eq!([0.5, 2.0, 9.0].map(|t| history.step_at(t)), [None, Some(9), Some(11)]);
    }
}
