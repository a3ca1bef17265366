//! One piece of memory for all activations, gradients and work buffers of a step.
//!
//! Takes requests for buffers, each with the part of the step during which it is needed, and gives one
//! allocation in which buffers that are never needed at the same time share their place. It is made before
//! the first step and reused by every step. Buffers handed out together never overlap: asking for two that
//! share a place is an error that panics. Sizes that no memory can hold are counted up to the largest number
//! there is, so that a plan can name them; making an arena of them is an error.

mod memory;

use memory::Memory;
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Buffers start at multiples of this many values: a cache line.
const ALIGNMENT: usize = 16;

/// A buffer of a [`Layout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(usize);

/// What a buffer is for: the lines of a memory plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Kept from forward to backward.
    Activation,
    /// Computed again during backward.
    Recompute,
    /// Gradients of activations, packed panels, logits: needed for a moment.
    Work,
}

#[derive(Debug, Clone)]
struct Request {
    len: usize,
    /// First and last moment of the step at which it is needed.
    life: (usize, usize),
    purpose: Purpose,
}

/// Buffers with their lifetimes, and where each lies.
#[derive(Debug, Clone, Default)]
pub struct Layout {
    requests: Vec<Request>,
    places: Vec<Range<usize>>,
    total: usize,
}

impl Layout {
    /// Asks for `len` values from moment `life.start` up to and including moment `life.end`.
    pub fn request(&mut self, purpose: Purpose, len: usize, life: std::ops::RangeInclusive<usize>) -> Slot {
        self.requests.push(Request { len, life: (*life.start(), *life.end()), purpose });
        Slot(self.requests.len() - 1)
    }

    /// Gives every buffer its place, each as low as those that live at the same time allow: the largest
    /// first, or those that live longest first, whichever needs less in all.
    pub fn place(&mut self) {
        let mut order: Vec<usize> = (0..self.requests.len()).collect();
        order.sort_by_key(|&index| (Reverse(self.requests[index].len), index));
        let by_size = self.placed(&order);
        // The sort is stable: of those that live equally long the largest comes first.
        order.sort_by_key(|&index| Reverse(self.requests[index].life.1 - self.requests[index].life.0));
        let by_life = self.placed(&order);
        (self.total, self.places) = if by_life.0 < by_size.0 { by_life } else { by_size };
    }

    /// Values in all, and the places that the buffers get in this order.
    fn placed(&self, order: &[usize]) -> (usize, Vec<Range<usize>>) {
        let (mut total, mut places) = (0, vec![0..0; self.requests.len()]);
        for (at, &index) in order.iter().enumerate() {
            let request = &self.requests[index];
            let mut taken: Vec<Range<usize>> = order[..at]
                .iter()
                .filter(|&&other| overlap(request.life, self.requests[other].life))
                .map(|&other| places[other].clone())
                .collect();
            taken.sort_by_key(|range| range.start);
            let mut start = 0usize;
            for range in taken {
                if start.saturating_add(request.len) <= range.start {
                    break;
                }
                start = start.max(range.end.checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX));
            }
            let end = start.saturating_add(request.len);
            places[index] = start..end;
            total = total.max(end);
        }
        (total, places)
    }

    /// Bytes of the whole arena.
    pub fn bytes(&self) -> usize {
        bytes(self.total)
    }

    /// Bytes of the buffers alive at `moment`, and how many there are.
    fn alive(&self, moment: usize) -> (usize, usize) {
        let alive = self.requests.iter().filter(|request| overlap(request.life, (moment, moment)));
        alive.fold((0, 0), |(sum, count): (usize, _), request| {
            (sum.saturating_add(bytes(request.len)), count + 1)
        })
    }

    /// Bytes of buffers for `purpose` at the moment when they are most.
    pub fn largest(&self, purpose: Purpose) -> usize {
        let chosen = || self.requests.iter().filter(|request| request.purpose == purpose);
        let at = |moment| -> usize {
            chosen()
                .filter(|request| overlap(request.life, (moment, moment)))
                .fold(0, |sum, request| sum.saturating_add(bytes(request.len)))
        };
        chosen().map(|request| at(request.life.0)).max().unwrap_or(0)
    }
}

/// Bytes of `len` values.
fn bytes(len: usize) -> usize {
    len.saturating_mul(size_of::<f32>())
}

fn overlap(a: (usize, usize), b: (usize, usize)) -> bool {
    a.0 <= b.1 && b.0 <= a.1
}

/// What an arena holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes of live buffers at this moment.
    pub live_bytes: usize,
    /// Live buffers at this moment.
    pub live_buffers: usize,
    /// Bytes of live buffers at the fullest moment of the step, or of the last one where none is under way.
    pub fullest_bytes: usize,
    /// Live buffers at that moment.
    pub fullest_buffers: usize,
    /// Bytes of the whole allocation: the most that can ever be live.
    pub peak_bytes: usize,
}

/// The memory behind a [`Layout`].
#[derive(Debug)]
pub struct Arena {
    memory: Memory,
    layout: Layout,
    moment: AtomicUsize,
    live_bytes: AtomicUsize,
    live_buffers: AtomicUsize,
    fullest_bytes: AtomicUsize,
    fullest_buffers: AtomicUsize,
}

impl Arena {
    /// Allocates what a placed `layout` needs.
    pub fn new(layout: Layout) -> std::io::Result<Self> {
        assert_eq!(layout.places.len(), layout.requests.len(), "a layout is placed before it is used");
        let memory = Memory::zeroed(layout.total)?;
        let [moment, live_bytes, live_buffers, fullest_bytes, fullest_buffers] =
            [const { AtomicUsize::new(0) }; 5];
        Ok(Self { memory, layout, moment, live_bytes, live_buffers, fullest_bytes, fullest_buffers })
    }

    /// The buffers of `slots`, all at once. Each must be needed at the moment that was reached: at any other
    /// its place may hold another buffer, which tests would show only where the two happen to meet.
    pub fn get<const N: usize>(&mut self, slots: [Slot; N]) -> [&mut [f32]; N] {
        let moment = *self.moment.get_mut();
        for Slot(index) in slots {
            let Request { life: (first, last), len, .. } = self.layout.requests[index];
            let alive = (first..=last).contains(&moment) || len == 0;
            debug_assert!(alive, "buffer {index} lives from {first} to {last}, not at moment {moment}");
        }
        let places = slots.map(|Slot(index)| self.layout.places[index].clone());
        match self.memory.values().get_disjoint_mut(places) {
            Ok(buffers) => buffers,
            Err(error) => panic!("buffers {slots:?} of the arena share memory: {error}"),
        }
    }

    /// Tells the arena how far the step is. Moments only grow within a step: an earlier one begins the next.
    pub fn reach(&self, moment: usize) {
        let new_step = moment < self.moment.swap(moment, Ordering::Relaxed);
        let (bytes, count) = self.layout.alive(moment);
        self.live_bytes.store(bytes, Ordering::Relaxed);
        self.live_buffers.store(count, Ordering::Relaxed);
        if new_step || bytes > self.fullest_bytes.load(Ordering::Relaxed) {
            self.fullest_bytes.store(bytes, Ordering::Relaxed);
            self.fullest_buffers.store(count, Ordering::Relaxed);
        }
    }

    /// What is live now, and what was at most.
    pub fn usage(&self) -> Usage {
        Usage {
            live_bytes: self.live_bytes.load(Ordering::Relaxed),
            live_buffers: self.live_buffers.load(Ordering::Relaxed),
            fullest_bytes: self.fullest_bytes.load(Ordering::Relaxed),
            fullest_buffers: self.fullest_buffers.load(Ordering::Relaxed),
            peak_bytes: self.layout.bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Layout, [Slot; 4]) {
        let mut layout = Layout::default();
        let kept = layout.request(Purpose::Activation, 100, 0..=3);
        let early = layout.request(Purpose::Work, 60, 0..=1);
        let late = layout.request(Purpose::Work, 50, 2..=3);
        let short = layout.request(Purpose::Recompute, 10, 1..=2);
        layout.place();
        (layout, [kept, early, late, short])
    }

    #[test]
    fn buffers_of_different_times_share_their_place() {
        let (layout, [_, early, late, _]) = sample();
        assert_eq!(layout.places[early.0].start, layout.places[late.0].start);
        assert_eq!(layout.bytes(), 4 * (112 + 64 + 10));
        assert_eq!(layout.alive(0), (640, 2));
        assert_eq!(layout.alive(2), (640, 3));
        assert_eq!(layout.largest(Purpose::Work), 240);
    }

    #[test]
    fn a_buffer_that_stays_is_placed_before_those_that_go_where_that_needs_less() {
        let mut layout = Layout::default();
        layout.request(Purpose::Work, 80, 0..=1);
        layout.request(Purpose::Work, 64, 3..=3);
        // By size it would lie above the 80, in the middle of what the last moment has left.
        layout.request(Purpose::Activation, 48, 0..=3);
        layout.request(Purpose::Work, 48, 3..=3);
        layout.place();
        assert_eq!(layout.bytes(), layout.alive(3).0);
    }

    #[test]
    fn buffers_of_one_time_never_overlap() {
        let (layout, slots) = sample();
        let mut arena = Arena::new(layout).unwrap();
        let [kept, early, _, short] = slots;
        arena.reach(1);
        for (value, buffer) in (1..).zip(arena.get([kept, early, short])) {
            buffer.fill(value as f32);
        }
        let [kept, early, short] = arena.get([kept, early, short]);
        assert!(kept.iter().all(|&v| v == 1.0) && early.iter().all(|&v| v == 2.0));
        assert_eq!((kept.len(), early.len(), short), (100, 60, &mut [3.0; 10][..]));
    }

    #[test]
    fn sizes_that_wrap_are_counted_in_full_and_cannot_be_had() {
        // 4 x (2^62 + 1024) bytes wrap to 4096.
        let mut layout = Layout::default();
        layout.request(Purpose::Work, (1 << 62) + 1024, 0..=0);
        layout.place();
        assert_eq!((layout.bytes(), layout.alive(0).0), (usize::MAX, usize::MAX));
        assert!(Arena::new(layout).is_err());

        // Two halves of all there is, alive together: the end of the second wraps.
        let mut layout = Layout::default();
        let both = [(); 2].map(|()| layout.request(Purpose::Work, usize::MAX / 2 + 16, 0..=0));
        layout.place();
        assert_ne!(both[0], both[1]);
        assert_eq!(layout.largest(Purpose::Work), usize::MAX);
        assert!(Arena::new(layout).is_err());
    }

    #[test]
    #[should_panic(expected = "share memory")]
    fn two_buffers_in_one_place_are_refused() {
        let (layout, [kept, ..]) = sample();
        Arena::new(layout).unwrap().get([kept, kept]);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "buffer 1 lives from 0 to 1, not at moment 2")]
    fn a_buffer_is_refused_after_its_life() {
        let (layout, [_, early, ..]) = sample();
        let mut arena = Arena::new(layout).unwrap();
        arena.reach(2);
        arena.get([early]);
    }

    #[test]
    fn usage_follows_the_step() {
        let (layout, _) = sample();
        let arena = Arena::new(layout).unwrap();
        let at = |moment, live_bytes, live_buffers, fullest_bytes, fullest_buffers| {
            arena.reach(moment);
            let expected =
                Usage { live_bytes, live_buffers, fullest_bytes, fullest_buffers, peak_bytes: 744 };
            assert_eq!(arena.usage(), expected, "at moment {moment}");
        };
        at(0, 640, 2, 640, 2);
        at(1, 680, 3, 680, 3);
        at(3, 600, 2, 680, 3);
        at(4, 0, 0, 680, 3);
        // Another step, in which the fullest moment is passed over.
        at(0, 640, 2, 640, 2);
        at(4, 0, 0, 640, 2);
    }
}
