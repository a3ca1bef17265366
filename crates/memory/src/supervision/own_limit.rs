//! The limit of a program that watches itself and stops by itself.
//!
//! An [`OwnLimit`] is shown each reading of a [`Recorder`] and gives the reason to stop, where there is one.
//! The limit is the one that was given or what the machine can still give, whichever is nearer; the decision
//! is that of [`LimitWatch`].

use super::limit::{Call, LimitWatch};
use crate::{
    record::{Reading, Recorder, natural_limit},
    sampling::{Need, Snapshot},
};
use std::time::Duration;

/// Says when a program must stop to stay below its limit.
#[derive(Debug)]
pub struct OwnLimit {
    given: Option<u64>,
    grace: Duration,
    watch: Option<LimitWatch>,
    /// When it was last asked.
    last: Duration,
}

impl OwnLimit {
    /// A limit in bytes, if one was given; the program needs `grace` to write what it must keep.
    pub fn new(given: Option<u64>, grace: Duration) -> Self {
        Self { given, grace, watch: None, last: Duration::ZERO }
    }

    /// Why the program should stop now, by this reading of `recorder`.
    pub fn judge(&mut self, recorder: &mut Recorder, reading: &Reading) -> Option<String> {
        self.nearest(&reading.snapshot)?.judge(reading);
        self.ask(recorder, &reading.snapshot)
    }

    /// The same between two readings, by a look that is not recorded.
    pub fn look(&mut self, recorder: &mut Recorder) -> Option<String> {
        let snapshot = recorder.look(Need::Usual).ok().flatten()?;
        self.nearest(&snapshot)?;
        self.ask(recorder, &snapshot)
    }

    /// The watch, with the limit of this moment.
    fn nearest(&mut self, snapshot: &Snapshot) -> Option<&mut LimitWatch> {
        let nearest = natural_limit(snapshot).into_iter().chain(self.given).min()?;
        let watch = self.watch.get_or_insert_with(|| LimitWatch::new(nearest, self.grace));
        watch.set_limit(nearest);
        Some(watch)
    }

    fn ask(&mut self, recorder: &mut Recorder, snapshot: &Snapshot) -> Option<String> {
        let watch = self.watch.as_mut()?;
        let now = recorder.elapsed();
        // The next time will be as far away as the last.
        let until_next = now.saturating_sub(std::mem::replace(&mut self.last, now));
        let mut call = watch.look(now, snapshot.level, until_next);
        if let Call::Measure(need) = call {
            let measured = recorder.look(need).ok().flatten().filter(|snapshot| snapshot.measured);
            call = measured.map_or(Call::Fine, |found| watch.decide(found.level.owned, until_next));
        }
        match call {
            Call::Fine | Call::Measure(_) => None,
            Call::Tell(reason) | Call::End(reason) => Some(reason),
        }
    }
}
