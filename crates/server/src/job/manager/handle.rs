//! How requests reach the manager: a handle whose clones are the same.
//!
//! Takes what a handler asks of a job, sends it as a message and waits for the answer. What many ask, the place in the
//! queue and the files in use, is read without a message.

use super::{Indexed, Manager, NewJob, Surroundings, queue::DiskWatch};
use crate::{
    api::error::ApiError,
    job::planner::{JobPlan, PlanFault},
    store::{StoreError, Written},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};
use tokio::sync::{oneshot, watch};

/// How long somebody who changed a job waits for the index.
const INDEX_PATIENCE: Duration = Duration::from_secs(2);
/// A manager that has not looked for so long hangs; what it waits for, the disk and the index, gives up before.
const HANGING: Duration = Duration::from_secs(60);

/// What somebody asks of a job.
#[derive(Debug)]
pub(crate) enum Action {
    Cancel,
    Stop,
    Pause,
    Resume,
    Priority(i64),
}

pub(super) enum Message {
    Create(Box<NewJob>, oneshot::Sender<Result<Done, ApiError>>),
    Act(String, Action, oneshot::Sender<Result<Done, ApiError>>),
    Delete(String, oneshot::Sender<Result<Written, ApiError>>),
    Planned(String, Box<Result<JobPlan, PlanFault>>),
    Shutdown(Duration, oneshot::Sender<()>),
}

/// What was done: the job as it is now, and its way into the index.
pub(super) struct Done {
    pub job: Box<Indexed>,
    pub written: Result<Written, StoreError>,
}

/// A handle to the manager.
#[derive(Clone)]
pub(crate) struct Jobs {
    messages: Sender<Message>,
    changed: watch::Receiver<u64>,
    outlook: Arc<RwLock<Outlook>>,
    pinned: Arc<Mutex<Vec<String>>>,
    /// When the manager last looked at its jobs.
    looked: Arc<Mutex<Instant>>,
}

/// What handlers ask without a message.
#[derive(Debug, Default)]
pub(super) struct Outlook {
    /// The jobs that wait, in the order of their turn.
    pub queue: Vec<String>,
    /// The files of jobs that are not over.
    pub files: BTreeSet<String>,
    /// The models that they start from.
    pub models: BTreeSet<String>,
}

/// Files and models of a job that is being made: they are not deleted meanwhile.
pub(crate) struct Pin {
    names: Vec<String>,
    pinned: Arc<Mutex<Vec<String>>>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        for name in &self.names {
            if let Some(place) = pinned.iter().position(|other| other == name) {
                pinned.swap_remove(place);
            }
        }
    }
}

impl Jobs {
    /// Finds the jobs of the data folder and starts the manager. `notes` are told what a person should know.
    pub(crate) fn start(surroundings: Surroundings, notes: &mut Vec<String>) -> io::Result<Self> {
        let (messages, inbox) = channel();
        let (change, changed) = watch::channel(0);
        let outlook = Arc::<RwLock<Outlook>>::default();
        let mut manager = Manager {
            surroundings,
            live: BTreeMap::new(),
            messages: messages.clone(),
            change,
            outlook: outlook.clone(),
            indexed: Instant::now(),
            disk: DiskWatch::default(),
            claim: None,
            newest: 0,
            stopping: false,
            looked: Arc::new(Mutex::new(Instant::now())),
        };
        let looked = manager.looked.clone();
        manager.recover(notes);
        thread::Builder::new().name("jobs".into()).spawn(move || manager.run(&inbox))?;
        Ok(Self { messages, changed, outlook, pinned: Arc::default(), looked })
    }

    /// Makes a new job.
    pub(crate) async fn create(&self, job: NewJob) -> Result<(), ApiError> {
        self.ask(|reply| Message::Create(Box::new(job), reply)).await?.indexed().await;
        Ok(())
    }

    /// Does something with a job that is not over, and gives the job as it is then.
    pub(crate) async fn act(&self, id: &str, action: Action) -> Result<Indexed, ApiError> {
        Ok(self.ask(|reply| Message::Act(id.to_owned(), action, reply)).await?.indexed().await)
    }

    /// Removes a job that is over, with all its files.
    pub(crate) async fn delete(&self, id: &str) -> Result<(), ApiError> {
        let written = self.ask(|reply| Message::Delete(id.to_owned(), reply)).await?;
        let _ = tokio::time::timeout(INDEX_PATIENCE, written).await;
        Ok(())
    }

    /// Writes checkpoints and ends what runs here, waiting no longer than `patience`; the next server goes on with it.
    pub(crate) async fn shutdown(&self, patience: Duration) {
        let (reply, done) = oneshot::channel();
        if self.messages.send(Message::Shutdown(patience, reply)).is_ok() {
            let _ = done.await;
        }
        // Its thread lets go of the index a moment after its last word; whoever starts another server waits for that.
        self.wait_ended().await;
    }

    /// Changes whenever something about any job has changed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.clone()
    }

    /// Waits until the manager has ended. Before a shutdown that is a fault: nobody looks after the jobs any more.
    pub(crate) async fn wait_ended(&self) {
        let mut changed = self.changed.clone();
        while changed.changed().await.is_ok() {}
    }

    /// Whether the manager answers: it may hang on a disk that does.
    pub(crate) fn is_alive(&self) -> bool {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner).elapsed() < HANGING
    }

    /// The place of a job in the queue, from 1.
    pub(crate) fn queue_position(&self, id: &str) -> Option<usize> {
        let outlook = self.outlook.read().unwrap_or_else(PoisonError::into_inner);
        outlook.queue.iter().position(|queued| queued == id).map(|index| index + 1)
    }

    /// Whether a job that is not over, or one that is being made, reads this file.
    pub(crate) fn uses_file(&self, id: &str) -> bool {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|pinned| pinned == id)
            || self.outlook.read().unwrap_or_else(PoisonError::into_inner).files.contains(id)
    }

    /// Whether a job that is not over, or one that is being made, starts from this model.
    pub(crate) fn uses_model(&self, name: &str) -> bool {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|pinned| pinned == name)
            || self.outlook.read().unwrap_or_else(PoisonError::into_inner).models.contains(name)
    }

    /// Keeps files and models from being deleted while a job is made of them.
    pub(crate) fn pin(&self, names: Vec<String>) -> Pin {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner).extend(names.iter().cloned());
        Pin { names, pinned: self.pinned.clone() }
    }

    async fn ask<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<Result<T, ApiError>>) -> Message,
    ) -> Result<T, ApiError> {
        let (reply, answer) = oneshot::channel();
        let gone = || ApiError::internal("the server is ending");
        self.messages.send(message(reply)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

impl Done {
    /// The job, once whoever lists jobs finds it so. The folder is the truth: an index that is locked or full learns of
    /// it later, and nobody waits for that.
    async fn indexed(self) -> Indexed {
        if let Ok(written) = self.written {
            let _ = tokio::time::timeout(INDEX_PATIENCE, written).await;
        }
        *self.job
    }
}
