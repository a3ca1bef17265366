//! The processes that train one model together.
//!
//! Takes what links them, and gives every process the same answers: what each of them says, in the order of their ranks, and
//! the sum of their gradients. Everybody asks the same questions in the same order; a process that cannot go on ends all of
//! them, because the others would wait for it for ever.

mod agree;
mod launch;
mod link;
#[cfg(feature = "mpi")]
mod mpi;
mod sum;

pub use agree::Elsewhere;
pub use launch::{Launch, LaunchError, launched};
pub use link::Link;
#[cfg(feature = "mpi")]
pub use mpi::join as join_mpi;
pub use sum::GradientSum;
pub(crate) use sum::{PART, bytes};

#[cfg(test)]
pub(crate) use link::threads;

use serde::{Serialize, de::DeserializeOwned};
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
};

/// The exit code of processes whose group was given up: what sysexits.h calls an internal error.
const GIVEN_UP: i32 = 70;

/// Why processes cannot go on together.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GroupError {
    /// One of them is gone.
    #[error("the connection to the other processes of this run is lost")]
    Lost,
    /// One says what the others cannot read.
    #[error(
        "rank {rank} says what this program cannot read ({reason}); do all processes run the same program?"
    )]
    Unreadable {
        /// Which.
        rank: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// They cannot be joined.
    #[error("the processes of this run cannot be joined: {0}")]
    NotJoined(String),
}

/// This process among those that train together. Clones are the same group.
#[derive(Debug, Clone)]
pub struct Group {
    rank: usize,
    size: usize,
    worker: Option<Arc<Worker>>,
}

/// The thread that talks to the others: a link is used by one thread only, and in the order of the questions.
struct Worker {
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Whether everybody knows that this process ends.
    parted: AtomicBool,
}

type Job = Box<dyn FnOnce(&mut dyn Link) + Send>;

/// An answer that is on its way.
#[derive(Debug)]
pub(crate) struct Pending<T>(Receiver<T>);

impl<T> Pending<T> {
    /// Waits for it.
    pub fn wait(self) -> Result<T, GroupError> {
        self.0.recv().map_err(|_| GroupError::Lost)
    }
}

impl Group {
    /// One process that trains for itself.
    pub fn alone() -> Self {
        Self { rank: 0, size: 1, worker: None }
    }

    /// The processes that a link joins. It is made, used and dropped on a thread of its own.
    pub fn join<L: Link + 'static>(
        make: impl FnOnce() -> Result<L, GroupError> + Send + 'static,
    ) -> Result<Self, GroupError> {
        let (jobs, asked) = channel::<Job>();
        let (tell, told) = channel();
        let work = move || match make() {
            Ok(mut link) => {
                // Whoever waits for this may be gone; then nothing is asked either.
                let _ = tell.send(Ok((link.rank(), link.size())));
                for job in asked {
                    // Ending MPI in peace would wait for processes that wait for this one.
                    if catch_unwind(AssertUnwindSafe(|| job(&mut link))).is_err() {
                        link.abort(GIVEN_UP);
                        break;
                    }
                }
            }
            Err(error) => drop(tell.send(Err(error))),
        };
        let thread = thread::Builder::new().name("group".into()).spawn(work);
        let thread = thread.map_err(|error| GroupError::NotJoined(error.to_string()))?;
        let (rank, size) = told.recv().map_err(|_| GroupError::Lost)??;
        let (jobs, thread) = (Mutex::new(Some(jobs)), Mutex::new(Some(thread)));
        Ok(Self { rank, size, worker: Some(Arc::new(Worker { jobs, thread, parted: false.into() })) })
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many processes there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether this process writes and speaks for all.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// What every process says, by rank.
    pub fn gather<T: Serialize + DeserializeOwned + Clone>(&self, own: &T) -> Result<Vec<T>, GroupError> {
        if self.worker.is_none() {
            return Ok(vec![own.clone()]);
        }
        // What we make ourselves can be written as JSON.
        let unreadable =
            |rank| move |error: serde_json::Error| GroupError::Unreadable { rank, reason: error.to_string() };
        let own = serde_json::to_vec(own).map_err(unreadable(self.rank))?;
        let said = self.submit(move |link| link.gather(&own))?.wait()??;
        let read = |(rank, bytes): (usize, Vec<u8>)| serde_json::from_slice(&bytes).map_err(unreadable(rank));
        said.into_iter().enumerate().map(read).collect()
    }

    /// What the first process says.
    pub fn of_first<T: Serialize + DeserializeOwned + Clone>(
        &self,
        say: impl FnOnce() -> T,
    ) -> Result<T, GroupError> {
        // A list, because JSON has one word for nothing and for a `None` that was said.
        let own: Vec<T> = self.is_first().then(say).into_iter().collect();
        self.gather(&own)?.into_iter().flatten().next().ok_or(GroupError::Lost)
    }

    /// Waits until everybody is here.
    pub fn meet(&self) -> Result<(), GroupError> {
        self.gather(&()).map(drop)
    }

    /// Lets the first process do something before the others do it, such as what all of them would download.
    pub fn first_then_others<T>(&self, work: impl FnOnce() -> T) -> Result<T, GroupError> {
        if self.is_first() {
            let done = work();
            self.meet()?;
            return Ok(done);
        }
        self.meet()?;
        Ok(work())
    }

    /// Has something done with the link when all that was asked before is done.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Link) -> T + Send + 'static,
    ) -> Result<Pending<T>, GroupError> {
        let (tell, told) = channel();
        let worker = self.worker.as_ref().ok_or(GroupError::Lost)?;
        // Nobody may wait for the answer any more.
        let job: Job = Box::new(move |link| drop(tell.send(work(link))));
        worker.send(job)?;
        Ok(Pending(told))
    }

    /// Parts from the others in peace: everybody calls it, when nothing is left to be said.
    pub fn part(&self) -> Result<(), GroupError> {
        let Some(worker) = &self.worker else { return Ok(()) };
        self.meet()?;
        worker.parted.store(true, Ordering::Relaxed);
        worker.end();
        Ok(())
    }

    /// Ends all processes, this one too where that is the same: somebody cannot go on, and the others would wait.
    pub fn abort(&self, code: i32) {
        if let Some(worker) = &self.worker {
            worker.abort(code);
        }
    }
}

impl Worker {
    fn send(&self, job: Job) -> Result<(), GroupError> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or(GroupError::Lost)
    }

    fn end(&self) {
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic was printed.
        thread.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn abort(&self, code: i32) {
        if !self.parted.swap(true, Ordering::Relaxed) {
            let _ = self.send(Box::new(move |link| link.abort(code)));
            self.end();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.abort(GIVEN_UP);
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_hears_everybody_in_the_order_of_ranks() {
        let heard = threads::run(3, |group| {
            let said = group.gather(&format!("I am {}", group.rank())).unwrap();
            let first: Option<u8> = group.of_first(|| None).unwrap();
            (said, first, group.of_first(|| group.rank() + 7).unwrap())
        });
        let said: Vec<String> = (0..3).map(|rank| format!("I am {rank}")).collect();
        assert_eq!(heard, vec![(said, None, 7); 3]);
        assert_eq!(Group::alone().gather(&5).unwrap(), [5]);
    }

    #[test]
    fn what_fails_in_one_process_fails_in_all_of_them() {
        #[derive(Debug, thiserror::Error)]
        enum Failure {
            #[error("no room")]
            NoRoom,
            #[error(transparent)]
            Elsewhere(#[from] Elsewhere),
            #[error(transparent)]
            Group(#[from] GroupError),
        }
        let results = threads::run(3, |group| {
            let own = if group.rank() == 1 { Err(Failure::NoRoom) } else { Ok(()) };
            let of_first = group.by_first(|| Ok::<_, Failure>(1), || 2).unwrap();
            (group.all_well(own).unwrap_err().to_string(), of_first)
        });
        let elsewhere = "rank 1: no room".to_owned();
        assert_eq!(results, [(elsewhere.clone(), 1), ("no room".into(), 2), (elsewhere, 2)]);
    }

    #[test]
    fn processes_that_cannot_be_joined_are_no_group() {
        let group = Group::join(|| Err::<threads::Threads, _>(GroupError::NotJoined("alone here".into())));
        assert!(group.unwrap_err().to_string().ends_with("cannot be joined: alone here"));
    }
}
