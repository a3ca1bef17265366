//! One attempt at the command: watches it, reacts to what happens, and ends it when it must end.
//!
//! [`Attempt::attend`] returns how the command ended, once its last process is gone. Whatever happens, no
//! process of the command outlives the attempt.

use super::{Call, LimitWatch, OnLimit, Outcome, Standing, SuperviseError, Supervisor, job::Job};
use crate::{
    event::Event,
    failed_looks::{Failed, FailedLooks},
    observe::stop_with,
    record::{Reading, Recorder, next_tick},
    sample::Moment,
    sampling::{Need, ProbeError, Snapshot},
    signals::{Heard, asks_to_end},
    socket::{LimitAction, LimitNotice, SupervisorMessage},
    wake::{CommandReport, Wake},
};
use signal_hook::consts;
use std::{
    sync::mpsc::RecvTimeoutError,
    time::{Duration, Instant},
};

/// Processes that a command leaves in the background have this long to end by themselves. Python's resource
/// tracker, which removes shared memory segments, needs a moment.
const STRAGGLER_GRACE: Duration = Duration::from_secs(2);

/// The pause before another attempt to kill what did not end: a process may hang in the kernel for a while.
const NEXT_KILL: Duration = Duration::from_secs(60);

/// Why a command is being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Limit,
    User,
}

#[derive(Debug, Clone, Copy)]
struct Stopping {
    cause: Cause,
    deadline: Instant,
}

/// What decides when to look again.
#[derive(Debug, Clone, Copy)]
struct Pace {
    interval: Duration,
    /// What the limit asks for, if there is one.
    limit: Option<Duration>,
    /// The warning was given, and no more than a warning was asked for.
    warned: bool,
    /// When the next reading is due, as long as readings are taken.
    reading: Option<Instant>,
}

impl Pace {
    fn next_look(&self, now: Instant) -> Instant {
        // Near the limit, looks come more often to act in time; after the warning there is nothing left to
        // do.
        let wait = self.limit.filter(|_| !self.warned).unwrap_or(self.interval);
        let reading = self.reading.map(|due| due.max(now));
        reading.map_or(now + wait, |due| due.min(now + wait))
    }
}

/// One attempt, from the start of the command to the end of its last process.
pub(super) struct Attempt<'a, 'b> {
    supervisor: &'a mut Supervisor<'b>,
    job: &'a Job,
    watch: Option<LimitWatch>,
    next_tick: Instant,
    next_look: Instant,
    stopping: Option<Stopping>,
    warned: bool,
    failed: FailedLooks,
    /// How the command itself ended, and the deadline for what it left in the background.
    ended: Option<(Outcome, Instant)>,
    guard_gone: bool,
    /// Processes that the kernel had killed at the limit before this attempt.
    kills_before: u64,
}

/// A command that failed after the kernel killed some of its processes was stopped at its limit, whatever
/// code it gave.
fn after_kills(ended: Outcome, kills: u64) -> Outcome {
    if kills > 0 && ended != Outcome::Exited(0) { Outcome::StoppedAtLimit } else { ended }
}

impl<'a, 'b> Attempt<'a, 'b> {
    pub(super) fn new(supervisor: &'a mut Supervisor<'b>, job: &'a Job) -> Self {
        let now = Instant::now();
        let orders = supervisor.orders;
        let watch = match (orders.facts.leave_free, orders.facts.limit) {
            (Some(free), _) => Some(LimitWatch::leaving_free(free, orders.grace)),
            (None, limit) => limit.map(|limit| LimitWatch::new(limit, orders.grace)),
        };
        let kills_before = supervisor.kills();
        Self {
            supervisor,
            job,
            watch,
            next_tick: now,
            next_look: now,
            stopping: None,
            warned: false,
            failed: FailedLooks::default(),
            ended: None,
            guard_gone: false,
            kills_before,
        }
    }

    pub(super) fn attend(mut self) -> Result<Outcome, SuperviseError> {
        loop {
            let now = Instant::now();
            if let Some(outcome) = self.outcome(now) {
                return Ok(outcome);
            }
            if self.ended.is_none() {
                if self.stopping.is_some_and(|stopping| now >= stopping.deadline) {
                    self.end_tree("it did not end within the grace");
                } else if now >= self.next_look {
                    self.look(now)?;
                }
            }
            match self
                .supervisor
                .wakes
                .recv_timeout(self.next_event().saturating_duration_since(Instant::now()))
            {
                Ok(wake) => self.wake(wake),
                Err(RecvTimeoutError::Timeout) => {}
                // The supervisor holds a sender itself.
                Err(RecvTimeoutError::Disconnected) => return Err(SuperviseError::GuardLost),
            }
        }
    }

    /// The outcome once nothing is left; stragglers past their time are ended here.
    fn outcome(&mut self, now: Instant) -> Option<Outcome> {
        if !self.guard_gone {
            if self.ended.is_some_and(|(_, until)| now >= until) {
                self.end_tree("it was left behind by the command");
                self.ended = self.ended.map(|(outcome, _)| (outcome, now + NEXT_KILL));
            }
            return None;
        }
        if let Some(reading) = self.supervisor.recorder.as_mut().and_then(Recorder::finish) {
            self.show(&reading);
        }
        let kills = self.supervisor.kills().saturating_sub(self.kills_before);
        if kills > 0 {
            self.supervisor.observer.event(&Event::KilledAtLimit { kills });
        }
        let told = self.stopping.is_some_and(|stopping| stopping.cause == Cause::Limit);
        // A guard that went without a word was killed, and the command with it.
        let ended = self.ended.map_or(Outcome::Signaled(consts::SIGKILL), |(outcome, _)| outcome);
        Some(if told { Outcome::StoppedAtLimit } else { after_kills(ended, kills) })
    }

    fn next_event(&self) -> Instant {
        match (self.ended, self.stopping) {
            (Some((_, until)), _) => until,
            (None, Some(stopping)) => self.next_look.min(stopping.deadline),
            (None, None) => self.next_look,
        }
    }

    /// Looks at the level, and takes a reading when one is due.
    fn look(&mut self, now: Instant) -> Result<(), SuperviseError> {
        let interval = self.supervisor.orders.interval;
        let Some(recorder) = &self.supervisor.recorder else { return Ok(()) };
        let at = recorder.elapsed();
        let records = self.supervisor.orders.duration.is_none_or(|duration| at < duration);
        let limit = match self.see(now, records) {
            Ok(seen) => {
                self.failed.end();
                match seen {
                    Some(snapshot) => self.hold_against_limit(at, snapshot),
                    // A command that is just starting shows nothing: the limit is watched all the same.
                    None => self.watch.as_ref().map(|watch| watch.next_look(interval)),
                }
            }
            // Looks that fail are counted, and too many end the run: they must not follow one another in
            // milliseconds.
            Err(error) => {
                self.look_failed(error)?;
                None
            }
        };
        let pace = Pace { interval, limit, warned: self.warned, reading: records.then_some(self.next_tick) };
        self.next_look = pace.next_look(now);
        Ok(())
    }

    /// The tree at this moment, by a reading if one is due.
    fn see(&mut self, now: Instant, records: bool) -> Result<Option<Snapshot>, ProbeError> {
        let Some(recorder) = &mut self.supervisor.recorder else { return Ok(None) };
        if !records || now < self.next_tick {
            return recorder.look(Need::Usual);
        }
        self.next_tick = next_tick(self.next_tick, self.supervisor.orders.interval, now);
        let Some(reading) = recorder.tick()? else { return Ok(None) };
        if let Some(watch) = &mut self.watch {
            watch.judge(&reading);
        }
        self.show(&reading);
        Ok(Some(reading.snapshot))
    }

    fn show(&mut self, reading: &Reading) {
        self.supervisor.observer.reading(reading);
        if let Some(who) = &self.supervisor.who {
            who.reading(reading);
        }
        let lost = self.supervisor.recorder.as_mut().and_then(Recorder::take_lost_trace);
        if let Some(error) = lost {
            self.supervisor.observer.event(&Event::TraceLost { error: error.to_string() });
        }
    }

    /// Acts if the limit is near; gives the time until the next look that the limit asks for.
    fn hold_against_limit(&mut self, at: Duration, snapshot: Snapshot) -> Option<Duration> {
        let interval = self.supervisor.orders.interval;
        let watch = self.watch.as_mut()?;
        if let Some(available) = snapshot.available() {
            watch.make_room(at, snapshot.level, available);
        }
        let next = watch.next_look(interval);
        let call = watch.look(at, snapshot.level, next);
        // No action is taken on a figure that may count shared pages twice; the tree may also have ended by
        // now.
        let (call, snapshot) = match call {
            Call::Measure(need) => {
                let recorder = self.supervisor.recorder.as_mut()?;
                match recorder.look(need).ok().flatten().filter(|measured| measured.measured) {
                    Some(measured) => (watch.decide(measured.level.owned, next), measured),
                    None => return Some(next),
                }
            }
            call => (call, snapshot),
        };
        let next = watch.next_look(interval);
        self.answer(call, snapshot);
        Some(next)
    }

    /// A failed look costs one reading; the command runs on.
    fn look_failed(&mut self, error: ProbeError) -> Result<(), SuperviseError> {
        let keeps_limit = self.watch.is_some() && self.supervisor.orders.on_limit != OnLimit::Warn;
        match self.failed.count(keeps_limit) {
            Failed::Tell => {
                self.supervisor.observer.event(&Event::LookFailed { error: error.to_string() });
                Ok(())
            }
            Failed::GoOn => Ok(()),
            Failed::GiveUp => Err(error.into()),
        }
    }

    fn answer(&mut self, call: Call, snapshot: Snapshot) {
        let warns = self.supervisor.orders.on_limit == OnLimit::Warn;
        match call {
            Call::Fine | Call::Measure(_) => self.warned = false,
            Call::Tell(why) | Call::End(why) if warns => {
                if !self.warned {
                    self.notify(LimitAction::Warn, snapshot.sample.owned(), &why);
                    let held = self.keep_evidence(snapshot, &why);
                    self.supervisor.observer.event(&Event::LimitNear { why, held });
                }
                self.warned = true;
            }
            Call::Tell(why) => self.stop_for_limit(&why, snapshot),
            Call::End(why) => {
                self.stop_for_limit(&why, snapshot);
                self.end_tree(&why);
            }
        }
    }

    /// Tells the command, once.
    fn stop_for_limit(&mut self, why: &str, snapshot: Snapshot) {
        if self.stopping.is_some() {
            return;
        }
        let orders = self.supervisor.orders;
        self.stopping = Some(Stopping { cause: Cause::Limit, deadline: Instant::now() + orders.grace });
        self.notify(LimitAction::Checkpoint, snapshot.sample.owned(), why);
        self.job.tell(orders.stop_signal.0);
        let held = self.keep_evidence(snapshot, why);
        self.supervisor.observer.event(&Event::Stopping { why: why.to_owned(), held, grace: orders.grace });
    }

    /// Records the moment at which the limit is acted upon; gives who held what.
    fn keep_evidence(&mut self, snapshot: Snapshot, why: &str) -> Moment {
        let Some(recorder) = &mut self.supervisor.recorder else { return snapshot.moment(0.0) };
        let reading = recorder.record_action(snapshot, why);
        self.show(&reading);
        reading.snapshot.sample.peak.unwrap_or_default()
    }

    fn notify(&self, action: LimitAction, owned: u64, why: &str) {
        let orders = self.supervisor.orders;
        self.supervisor.socket.tell(&SupervisorMessage::MemoryLimit(LimitNotice {
            action,
            owned,
            limit: self.watch.as_ref().map_or(0, LimitWatch::limit),
            grace_seconds: orders.grace.as_secs_f64(),
            reason: why.to_owned(),
        }));
    }

    fn end_tree(&mut self, why: &str) {
        let stuck = self.job.end();
        self.supervisor.observer.event(&Event::EndedTree { why: why.to_owned(), stuck });
        // What could not be killed will not be killed by trying again at once.
        if let Some(stopping) = &mut self.stopping {
            stopping.deadline = Instant::now() + NEXT_KILL;
        }
    }

    fn wake(&mut self, wake: Wake) {
        match wake {
            Wake::Signal(heard) => self.heard(heard),
            Wake::Quit => self.heard(Heard { signal: consts::SIGINT, sender: Some(0) }),
            Wake::Pause => self.stop_everything(),
            Wake::Redraw => self.supervisor.observer.redraw(),
            Wake::OutputLost { stream, error } => {
                self.supervisor.observer.event(&Event::OutputLost { stream: stream.to_string(), error });
            }
            Wake::Guard(CommandReport::Started(_)) => {}
            Wake::Guard(CommandReport::Exited(code)) => self.command_ended(Outcome::Exited(code)),
            Wake::Guard(CommandReport::Signaled(signal)) => self.command_ended(Outcome::Signaled(signal)),
            Wake::Guard(CommandReport::Stopped(_)) => self.stop_with_command(),
            Wake::GuardGone => self.guard_gone = true,
        }
    }

    fn command_ended(&mut self, outcome: Outcome) {
        self.ended = Some((outcome, Instant::now() + STRAGGLER_GRACE));
    }

    /// Answers a signal that reached us.
    fn heard(&mut self, heard: Heard) {
        match heard.signal {
            consts::SIGWINCH => {
                self.job.resize();
                self.supervisor.observer.redraw();
            }
            // A command in our group is stopped by the same signal, or by what we pass on, and we follow it.
            consts::SIGTSTP if self.job.standing() != Standing::WithUs => self.stop_everything(),
            _ => self.job.pass_on(heard),
        }
        if asks_to_end(heard.signal) {
            self.supervisor.user_stops = true;
            if self.is_for_us(heard) {
                let deadline = Instant::now() + self.supervisor.orders.grace;
                self.stopping.get_or_insert(Stopping { cause: Cause::User, deadline });
            }
        }
    }

    /// Whether the supervisor must make sure that the command ends. A key's signal is the command's to answer
    /// and may mean little: Ctrl-C at a Python prompt. A command that hears of a closed terminal may carry
    /// on.
    fn is_for_us(&self, heard: Heard) -> bool {
        let by_keyboard = heard.is_by_key() && self.job.standing() == Standing::WithUs;
        let hangs_up = heard.signal == consts::SIGHUP && self.supervisor.terminal.is_some();
        !by_keyboard && !hangs_up
    }

    /// Stops the command and ourselves, until the shell lets us go on.
    fn stop_everything(&mut self) {
        self.job.stop();
        stop_with(self.supervisor.observer);
        self.job.go_on();
        self.job.resize();
    }

    /// The command was stopped. The shell must see us stopped too, or it would not show its prompt.
    fn stop_with_command(&mut self) {
        if self.job.standing() != Standing::WithUs {
            return;
        }
        self.job.settle();
        // Somebody may have continued it by now.
        if !self.job.is_stopped() {
            return;
        }
        stop_with(self.supervisor.observer);
        self.job.resize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const BRINK: Duration = Duration::from_millis(5);

    #[test]
    fn a_command_that_the_kernel_killed_at_its_limit_was_stopped_at_it() {
        let (killed, failed, done) = (Outcome::Signaled(9), Outcome::Exited(1), Outcome::Exited(0));
        assert_eq!(after_kills(killed, 0), killed);
        assert_eq!(after_kills(killed, 1), Outcome::StoppedAtLimit);
        assert_eq!(
            after_kills(failed, 2),
            Outcome::StoppedAtLimit,
            "a worker was killed, and the command gave up"
        );
        assert_eq!(after_kills(done, 1), done, "it did its work without the one that was killed");
    }

    #[test]
    fn looks_come_with_the_readings_or_sooner() {
        let now = Instant::now();
        let due = now + SECOND / 4;
        let pace = Pace { interval: SECOND, limit: None, warned: false, reading: Some(due) };
        assert_eq!(pace.next_look(now), due);
        assert_eq!(Pace { limit: Some(BRINK), ..pace }.next_look(now), now + BRINK, "the limit is near");
        assert_eq!(pace.next_look(due + SECOND), due + SECOND, "a reading that is overdue comes at once");
    }

    #[test]
    fn after_the_warning_looks_are_not_hurried() {
        let now = Instant::now();
        let pace = Pace { interval: SECOND, limit: Some(BRINK), warned: true, reading: None };
        assert_eq!(pace.next_look(now), now + SECOND);
    }

    #[test]
    fn without_readings_a_look_comes_after_the_interval() {
        let now = Instant::now();
        let pace = Pace { interval: SECOND, limit: None, warned: false, reading: None };
        assert_eq!(pace.next_look(now), now + SECOND);
        assert_eq!(Pace { limit: Some(BRINK), ..pace }.next_look(now), now + BRINK, "the limit still counts");
    }
}
