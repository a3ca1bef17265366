//! Memory that must stay available to others, and the room that this leaves to a command.
//!
//! Follows what is available and what the command holds, look by look. What the command takes counts at once.
//! What others take counts once it has lasted: a dip of a moment is no shortage, and neither is the memory of
//! an ended process that the kernel is still giving back.

use crate::ByteSize;
use std::{collections::VecDeque, fmt, time::Duration};

/// What others take counts once every look has shown it for this long.
const DIP: Duration = Duration::from_secs(1);
/// A shortage is over once this part of the reserve is to spare. Otherwise a machine at the edge would switch
/// back and forth.
const RELIEF: f64 = 0.05;

/// Follows how much is available to others.
#[derive(Debug)]
pub(super) struct Reserve {
    /// What must stay available.
    pub free: u64,
    /// Whether the room is too small.
    pub is_short: bool,
    /// What was available at the last look.
    available: u64,
    /// What the command had and could get, at the looks of the last [`DIP`], oldest first.
    obtainable: VecDeque<(Duration, u64)>,
}

impl Reserve {
    pub fn new(free: u64) -> Self {
        Self { free, is_short: false, available: 0, obtainable: VecDeque::new() }
    }

    /// The room that is left to a command that holds `held` bytes; it is short from `least` on.
    pub fn follow(&mut self, at: Duration, held: u64, available: u64, least: i128) -> i128 {
        self.available = available;
        // Memory that moves between the two does not change their sum; only other processes do.
        self.obtainable.push_back((at, held.saturating_add(available)));
        while self.obtainable.get(1).is_some_and(|(second, _)| at.saturating_sub(*second) >= DIP) {
            self.obtainable.pop_front();
        }
        let most = self.obtainable.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let room = i128::from(most) - i128::from(held) - i128::from(self.free);
        let relief = if self.is_short { (self.free as f64 * RELIEF) as i128 } else { 0 };
        self.is_short = room <= least + relief;
        room
    }
}

impl fmt::Display for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (available, free) = (ByteSize(self.available), ByteSize(self.free));
        if self.available < self.free {
            write!(f, "{available} are left of the {free} to leave free")
        } else {
            write!(f, "{available} are available, of which {free} are to stay free")
        }
    }
}
