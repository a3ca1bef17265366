//! What joins the processes of a run.
//!
//! Takes bytes and values from each process and gives them to the others. Every call is answered when all processes have made
//! the same call. Nothing is added up here: the order of additions decides the bits of a sum, so it is the caller's.

use super::GroupError;

/// A way to reach the other processes. It is used by one thread only.
pub trait Link {
    /// The number of this process, from 0.
    fn rank(&self) -> usize;

    /// How many processes there are.
    fn size(&self) -> usize;

    /// The bytes of every process, by rank.
    fn gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, GroupError>;

    /// Sends the equal parts of `send` to the processes, by rank, and receives theirs for this one.
    fn exchange(&mut self, send: &[f32], receive: &mut [f32]) -> Result<(), GroupError>;

    /// Puts the equal parts of all processes together, by rank.
    fn collect(&mut self, own: &[f32], all: &mut [f32]) -> Result<(), GroupError>;

    /// Ends all processes with this exit code.
    fn abort(&mut self, code: i32);
}

/// Links between threads of one process, for tests.
#[cfg(test)]
pub(crate) mod threads {
    use super::*;
    use crate::group::Group;
    use std::{
        sync::mpsc::{Receiver, Sender, channel},
        thread,
    };

    pub(crate) struct Threads {
        rank: usize,
        to: Vec<Sender<Vec<u8>>>,
        from: Vec<Receiver<Vec<u8>>>,
    }

    impl Threads {
        /// Sends each thread its message, and receives one of each.
        fn swap(&mut self, messages: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, GroupError> {
            for (to, message) in self.to.iter().zip(messages) {
                to.send(message).map_err(|_| GroupError::Lost)?;
            }
            self.from.iter().map(|from| from.recv().map_err(|_| GroupError::Lost)).collect()
        }
    }

    impl Link for Threads {
        fn rank(&self) -> usize {
            self.rank
        }

        fn size(&self) -> usize {
            self.to.len()
        }

        fn gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, GroupError> {
            self.swap(vec![own.to_vec(); self.size()])
        }

        fn exchange(&mut self, send: &[f32], receive: &mut [f32]) -> Result<(), GroupError> {
            let part = send.len() / self.size();
            let parts = send.chunks_exact(part).map(|part| bytemuck::cast_slice(part).to_vec()).collect();
            let received = self.swap(parts)?.concat();
            bytemuck::cast_slice_mut(receive).copy_from_slice(&received);
            Ok(())
        }

        fn collect(&mut self, own: &[f32], all: &mut [f32]) -> Result<(), GroupError> {
            let received = self.gather(bytemuck::cast_slice(own))?.concat();
            bytemuck::cast_slice_mut(all).copy_from_slice(&received);
            Ok(())
        }

        fn abort(&mut self, _: i32) {}
    }

    /// Runs the same work as each rank of a group, and gives what each came to.
    pub(crate) fn run<T: Send>(size: usize, work: impl Fn(Group) -> T + Sync) -> Vec<T> {
        let mut ends: Vec<Threads> =
            (0..size).map(|rank| Threads { rank, to: Vec::new(), from: Vec::new() }).collect();
        for from in 0..size {
            for to in 0..size {
                let (sender, receiver) = channel();
                ends[from].to.push(sender);
                ends[to].from.push(receiver);
            }
        }
        thread::scope(|scope| {
            let rank = |end: Threads| {
                let work = &work;
                scope.spawn(move || {
                    let group = Group::join(move || Ok(end)).unwrap();
                    let result = work(group.clone());
                    group.part().unwrap();
                    result
                })
            };
            let ranks: Vec<_> = ends.into_iter().map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }
}
