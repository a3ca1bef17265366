//! Processes that MPI started: `mpirun -n 8`, or `srun` with PMIx.
//!
//! Joins the processes of `MPI_COMM_WORLD`. MPI is begun, used and ended on the group's thread, which is all that its lowest
//! level of threading allows. Whoever waits here for others gives its processor to the computation.

use super::{Group, GroupError, Launch, LaunchError, Link};
use mpi::{
    Threading,
    environment::Universe,
    request::{Request, Scope, scope},
    topology::SimpleCommunicator,
    traits::*,
};
use std::{
    thread,
    time::{Duration, Instant},
};

/// So long a message is waited for without sleeping: a small one between machines takes 50 to 100 microseconds.
const PATIENCE: Duration = Duration::from_micros(200);
/// Between two looks after that. In this time 10 Gb/s fill 62 KB, less than any system's buffers.
const PAUSE: Duration = Duration::from_micros(50);

/// Joins the processes that were launched together with this one.
pub fn join(launch: Launch) -> Result<Group, GroupError> {
    Group::join(move || {
        let not_joined = |reason: String| GroupError::NotJoined(reason);
        let begun = mpi::initialize_with_threading(Threading::Funneled);
        let (universe, _) = begun.ok_or_else(|| not_joined("MPI was begun before".into()))?;
        let world = universe.world();
        let found = world.size() as usize;
        if found != launch.processes {
            return Err(not_joined(LaunchError::OtherMpi { launch, found }.to_string()));
        }
        Ok(World { world, _universe: universe })
    })
}

struct World {
    world: SimpleCommunicator,
    /// Ends MPI when it is dropped.
    _universe: Universe,
}

impl Link for World {
    fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    fn size(&self) -> usize {
        self.world.size() as usize
    }

    fn gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, GroupError> {
        let mut lengths = vec![0u64; self.size()];
        self.all_gather(&[own.len() as u64], &mut lengths);
        // All parts are as long as the longest: the calls that do not block take no others.
        let longest = lengths.iter().copied().max().unwrap_or_default() as usize;
        let mut padded = own.to_vec();
        padded.resize(longest, 0);
        let mut all = vec![0u8; longest * self.size()];
        self.all_gather(&padded, &mut all);
        let parts = all.chunks(longest.max(1)).zip(lengths);
        Ok(match longest {
            0 => vec![Vec::new(); self.size()],
            _ => parts.map(|(part, length)| part[..length as usize].to_vec()).collect(),
        })
    }

    fn exchange(&mut self, send: &[f32], receive: &mut [f32]) -> Result<(), GroupError> {
        scope(|scope| wait(self.world.immediate_all_to_all_into(scope, send, receive)));
        Ok(())
    }

    fn collect(&mut self, own: &[f32], all: &mut [f32]) -> Result<(), GroupError> {
        self.all_gather(own, all);
        Ok(())
    }

    fn abort(&mut self, code: i32) {
        self.world.abort(code);
    }
}

impl World {
    fn all_gather<T: Equivalence>(&self, own: &[T], all: &mut [T]) {
        scope(|scope| wait(self.world.immediate_all_gather_into(scope, own, all)));
    }
}

/// Waits for a message to arrive.
fn wait<'a, D: ?Sized, S: Scope<'a>>(mut request: Request<'a, D, S>) {
    let begun = Instant::now();
    while let Err(under_way) = request.test() {
        request = under_way;
        match begun.elapsed() < PATIENCE {
            true => thread::yield_now(),
            false => thread::sleep(PAUSE),
        }
    }
}
