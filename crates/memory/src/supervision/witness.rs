//! Tells a signal that was sent to our process group from one that was sent to us alone.
//!
//! Where the command belongs to our process group, a signal to the group (`kill %1`, `timeout`) reaches the
//! command directly. Passing ours on would deliver it twice, and a trainer that writes a checkpoint at the
//! first signal would break off at the second. The guard belongs to the group too: a signal that it received
//! has reached the command as well.

use crate::signals::{Heard, on_signals};
use signal_hook::consts;
use std::{
    io,
    ops::ControlFlow,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// A signal to a group reaches all of it within microseconds; this is what a busy machine may take to run a
/// handler.
const SETTLE: Duration = Duration::from_millis(50);
/// What was heard longer ago than this belongs to another signal.
const MEMORY: Duration = Duration::from_secs(2);

/// The signals that reached this process lately.
#[derive(Debug, Clone, Default)]
pub(super) struct Witness(Arc<Mutex<Vec<(Heard, Instant)>>>);

impl Witness {
    /// Listens from now on. Signals of the keyboard do not end or stop a process that listens.
    pub fn listen() -> io::Result<Self> {
        let witness = Self::default();
        on_signals(&[consts::SIGTSTP, consts::SIGTTIN, consts::SIGTTOU], {
            let witness = witness.clone();
            move |heard| {
                witness.note(heard, Instant::now());
                ControlFlow::Continue(())
            }
        })?;
        Ok(witness)
    }

    /// Whether this signal reached this process as well; each received signal answers for one.
    pub fn heard_too(&self, heard: Heard) -> bool {
        self.take(heard, Instant::now()) || {
            thread::sleep(SETTLE);
            self.take(heard, Instant::now())
        }
    }

    fn note(&self, heard: Heard, now: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, at)| now.duration_since(*at) < MEMORY);
        all.push((heard, now));
    }

    fn take(&self, heard: Heard, now: Instant) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, at)| now.duration_since(*at) < MEMORY);
        let found = all.iter().position(|(known, _)| *known == heard);
        found.map(|index| all.remove(index)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_heard_answers_once_for_its_sender_and_soon() {
        let witness = Witness::default();
        let now = Instant::now();
        let term = Heard { signal: consts::SIGTERM, sender: Some(7) };
        witness.note(term, now);
        assert!(!witness.take(Heard { sender: Some(8), ..term }, now), "another sender");
        assert!(!witness.take(Heard { signal: consts::SIGINT, ..term }, now), "another signal");
        assert!(witness.take(term, now));
        assert!(!witness.take(term, now), "the second one was for us alone");
        witness.note(term, now);
        assert!(!witness.take(term, now + MEMORY), "long ago");
    }
}
