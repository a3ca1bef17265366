//! Which processes answer, and who may start another.
//!
//! Takes questions for models by their folders. A process is started within the memory budget, which it shares with
//! jobs; where there is no room, processes that are idle make it, and without them the question is refused until
//! later. For a job also those make room that answer: they take no more questions and end after the last.

use super::{
    host::{self, Host},
    key::HostKey,
};
use crate::{
    api::error::ApiError,
    budget::{Budget, Reservation},
    job::runner::ChildProgram,
};
use garden_chat::{ChatRequest, HostPlan, Reply};
use garden_memory::ByteSize;
use garden_model::Precision;
use serde::Serialize;
use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Semaphore, mpsc};
use utoipa::ToSchema;

/// Logs that are kept, one after another.
const LOGS: usize = 16;
/// Seconds after which a question that found no room may be asked again.
const LATER: u64 = 20;
/// Seconds after which a question that found too many others may be asked again.
const SOON: u64 = 5;
/// Questions that wait for processes to start.
const WAITING: usize = 32;
/// How often a question waits for room that another may take.
const TRIES: usize = 4;

/// A model that is loaded.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = LoadedModel)]
pub(crate) struct Loaded {
    /// The name that it was first asked by.
    pub model: String,
    /// Bits that a weight is held in; null where they are held as they are stored.
    pub bits: Option<u8>,
    /// Bytes of the budget that it has.
    pub memory_bytes: u64,
    /// Questions that it answers, or that wait for it.
    pub open_questions: usize,
    /// Seconds since its last answer, where it has no question.
    pub idle_seconds: u64,
    /// Whether it takes no more questions and ends after the last.
    pub ending: bool,
}

/// How a pool behaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolSettings {
    /// Time without a question after which a process is ended.
    pub idle: Duration,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self { idle: Duration::from_secs(300) }
    }
}

/// All processes that answer.
#[derive(Clone)]
pub(crate) struct ChatPool(Arc<Inner>);

struct Inner {
    program: ChildProgram,
    /// Where logs go.
    logs: PathBuf,
    budget: Budget,
    settings: PoolSettings,
    hosts: Mutex<Hosts>,
    /// One process is started at a time.
    starting: tokio::sync::Mutex<()>,
    /// Places for questions that wait for that.
    waiting: Semaphore,
    started: AtomicUsize,
}

/// The processes that there are.
#[derive(Default)]
struct Hosts {
    /// Those that take questions.
    serving: HashMap<HostKey, Arc<Host>>,
    /// Those that take none and end after the last.
    retiring: Vec<Arc<Host>>,
}

impl Hosts {
    fn retire(&mut self, host: &Arc<Host>) {
        self.serving.retain(|_, other| !Arc::ptr_eq(other, host));
        self.retiring.push(Arc::clone(host));
        host.wake();
    }

    /// Retires the processes that are so; how many.
    fn retire_where(&mut self, is_so: impl Fn(&Host) -> bool) -> usize {
        let found: Vec<_> = self.serving.values().filter(|host| is_so(host)).cloned().collect();
        found.iter().for_each(|host| self.retire(host));
        found.len()
    }

    /// Retires processes until what they give back comes to so many bytes, the idle ones first and longest idle before
    /// others; none if it cannot come to that. With `busy` also those that answer. Gives those that will end.
    fn make_room(&mut self, bytes: u64, busy: bool) -> Option<Vec<Arc<Host>>> {
        let may = |host: &&Arc<Host>| busy || host.load().0 == 0;
        let mut ending: Vec<_> = self.retiring.iter().filter(may).cloned().collect();
        let mut others: Vec<_> = self.serving.values().filter(may).cloned().collect();
        others.sort_by_key(|host| host.load());
        let mut sum: u64 = ending.iter().map(|host| host.reserved).sum();
        let retired: Vec<_> = (others.into_iter())
            .take_while(|host| {
                let needed = sum < bytes;
                sum += if needed { host.reserved } else { 0 };
                needed
            })
            .collect();
        if sum < bytes {
            return None;
        }
        retired.iter().for_each(|host| self.retire(host));
        ending.extend(retired);
        Some(ending)
    }
}

/// What came of an attempt to start a process.
enum Start {
    Done,
    /// This one ends and makes room.
    After(Arc<Host>),
}

/// An answer on its way. Dropped before its end, it is cancelled.
pub(crate) struct Answer {
    host: Arc<Host>,
    id: u64,
    replies: mpsc::UnboundedReceiver<Reply>,
}

impl Answer {
    /// The next part; nothing after the last one.
    pub(crate) async fn next(&mut self) -> Option<Reply> {
        self.replies.recv().await
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.host.forget(self.id);
    }
}

impl ChatPool {
    /// A pool whose logs go to the folder `logs`.
    pub(crate) fn new(
        program: ChildProgram,
        logs: PathBuf,
        budget: Budget,
        settings: PoolSettings,
    ) -> io::Result<Self> {
        std::fs::create_dir_all(&logs)?;
        let (hosts, starting, started) = Default::default();
        let waiting = Semaphore::new(WAITING);
        Ok(Self(Arc::new(Inner { program, logs, budget, settings, hosts, starting, waiting, started })))
    }

    /// Asks a model; its process is started if there is none, and called by the name that it was first asked
    /// by.
    pub(crate) async fn ask(
        &self,
        name: &str,
        key: HostKey,
        request: ChatRequest,
    ) -> Result<Answer, ApiError> {
        let request = match self.ask_running(&key, request)? {
            Ok(answer) => return Ok(answer),
            Err(request) => request,
        };
        // While no other process is started, this one does not have to make room for it.
        let _one = self.started(name, &key).await?;
        let ended = "the model's process ended as soon as it had begun; ask again";
        self.ask_running(&key, request)?.map_err(|_| ApiError::internal(ended))
    }

    /// Starts the process of a model if there is none.
    pub(crate) async fn load(&self, name: &str, key: &HostKey) -> Result<(), ApiError> {
        self.started(name, key).await.map(drop)
    }

    /// Starts the process of a model if there is none; no other is started while what is given back lives.
    async fn started(&self, name: &str, key: &HostKey) -> Result<tokio::sync::MutexGuard<'_, ()>, ApiError> {
        let many =
            |_| ApiError::busy(format!("{WAITING} questions wait for models to be loaded already"), SOON);
        let _place = self.0.waiting.try_acquire().map_err(many)?;
        for _ in 0..TRIES {
            let one = self.0.starting.lock().await;
            // Another question may have started it meanwhile.
            if self.hosts().serving.contains_key(key) {
                return Ok(one);
            }
            match self.start(name, key.clone()).await? {
                Start::Done => return Ok(one),
                Start::After(host) => {
                    // Others start meanwhile: a process may take its time to end.
                    drop(one);
                    host.wait_gone().await;
                }
            }
        }
        Err(ApiError::busy("others took the memory that became free; ask again later", LATER))
    }

    /// What is loaded, by name.
    pub(crate) fn loaded(&self) -> Vec<Loaded> {
        let hosts = self.hosts();
        let of = |host: &Arc<Host>, ending| {
            let (open_questions, used) = host.load();
            let idle_seconds = if open_questions == 0 { used.elapsed().as_secs() } else { 0 };
            Loaded {
                model: host.name.clone(),
                bits: match host.key.precision {
                    Precision::Bits4 => Some(4),
                    Precision::Bits8 => Some(8),
                    Precision::Bits16 => Some(16),
                    _ => None,
                },
                memory_bytes: host.reserved,
                open_questions,
                idle_seconds,
                ending,
            }
        };
        let serving = hosts.serving.values().map(|host| of(host, false));
        let mut loaded: Vec<_> = serving.chain(hosts.retiring.iter().map(|host| of(host, true))).collect();
        loaded.sort_by(|a, b| a.model.cmp(&b.model));
        loaded
    }

    /// Has the processes of a model end after their last answers; how many there are.
    pub(crate) fn unload(&self, name: &str) -> usize {
        self.hosts().retire_where(|host| host.name == name)
    }

    /// Hands the question to the model's process, or gives it back where there is none.
    fn ask_running(
        &self,
        key: &HostKey,
        request: ChatRequest,
    ) -> Result<Result<Answer, ChatRequest>, ApiError> {
        let hosts = self.hosts();
        let Some(host) = hosts.serving.get(key) else { return Ok(Err(request)) };
        let settings = host.plan.settings;
        let (open, _) = host.load();
        if open >= settings.sequences + settings.waiting {
            return Err(ApiError::busy(format!("{open} questions for this model are waiting already"), SOON));
        }
        let (id, replies) = host.ask(request);
        Ok(Ok(Answer { host: Arc::clone(host), id, replies }))
    }

    fn hosts(&self) -> MutexGuard<'_, Hosts> {
        self.0.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn start(&self, name: &str, key: HostKey) -> Result<Start, ApiError> {
        let planned = key.clone();
        let plan = tokio::task::spawn_blocking(move || {
            garden_chat::plan(&planned.base, planned.adapter.as_deref(), planned.precision, None)
        });
        let plan = plan.await.map_err(ApiError::internal)?;
        let words = |error: garden_chat::PlanFailed| self.0.program.without_folders(&error.to_string());
        let plan = plan.map_err(|error| ApiError::bad_request(words(error)).param("model"))?;
        self.hosts().retire_where(|other| other.key.is_older(&key));
        let reservation = match self.reserve(&plan)? {
            Ok(reservation) => reservation,
            Err(host) => return Ok(Start::After(host)),
        };
        let number = self.0.started.fetch_add(1, Ordering::Relaxed) % LOGS;
        let log = self.0.logs.join(format!("host-{number}.log"));
        let start =
            host::Start { name: name.to_owned(), key, plan, program: &self.0.program, log, reservation };
        let fault = |error| ApiError::internal(format!("cannot start the model's process: {error}"));
        let (host, started) = host::start(start).await.map_err(fault)?;
        self.attend(host, started);
        Ok(Start::Done)
    }

    fn attend(&self, host: Host, started: host::Started) {
        let host = Arc::new(host);
        self.hosts().serving.insert(host.key.clone(), Arc::clone(&host));
        let (pool, same) = (self.clone(), Arc::clone(&host));
        let retire = move || pool.should_end(&same);
        let (pool, same) = (self.clone(), Arc::clone(&host));
        let over = move |reservation| pool.remove(&same, reservation);
        tokio::spawn(started.attend(host, retire, over));
    }

    /// Whether a process should end now: it was idle for long enough, or it retires and has answered everything.
    fn should_end(&self, host: &Arc<Host>) -> bool {
        let mut hosts = self.hosts();
        let (open, used) = host.load();
        if open > 0 {
            return false;
        }
        let retires = hosts.retiring.iter().any(|other| Arc::ptr_eq(other, host));
        if !retires && used.elapsed() >= self.0.settings.idle {
            hosts.retire(host);
            return true;
        }
        retires
    }

    /// Takes a process that is gone out of the pool, and its memory back.
    fn remove(&self, host: &Arc<Host>, reservation: Reservation) {
        let mut hosts = self.hosts();
        hosts.serving.retain(|_, other| !Arc::ptr_eq(other, host));
        hosts.retiring.retain(|other| !Arc::ptr_eq(other, host));
        // Under the lock: nobody sees that the process is gone and its memory is not there.
        drop(reservation);
    }

    /// Reserves the memory of a plan, or gives a process that ends and makes room.
    fn reserve(&self, plan: &HostPlan) -> Result<Result<Reservation, Arc<Host>>, ApiError> {
        let budget = &self.0.budget;
        let (planned, total) = (plan.total() as u64, budget.total());
        if planned > total {
            let (needed, total) = (ByteSize(planned), ByteSize(total));
            let message =
                format!("the model needs {needed} to answer, and the server's memory budget is {total}");
            return Err(ApiError::bad_request(message).param("model"));
        }
        // What is planned to fit gets what there is.
        let bytes = plan.limit().min(total);
        let mut hosts = self.hosts();
        if let Some(reservation) = budget.reserve_unclaimed(bytes) {
            return Ok(Ok(reservation));
        }
        let free = budget.unclaimed();
        // What becomes free goes to a job that claims it first.
        let ending = match budget.is_claimed() {
            true => None,
            false => hosts.make_room(bytes.saturating_sub(free), false),
        };
        match ending.and_then(|ending| ending.into_iter().next()) {
            Some(host) => Ok(Err(host)),
            None => {
                let (needed, free) = (ByteSize(bytes), ByteSize(free));
                let message =
                    format!("the model needs {needed} to answer, and {free} are free; ask again later");
                Err(ApiError::busy(message, LATER))
            }
        }
    }

    /// Has processes end for a job until they give back so many bytes, if they can. Does not wait for them.
    pub(crate) fn make_room(&self, bytes: u64) -> bool {
        self.hosts().make_room(bytes, true).is_some()
    }

    /// Has the processes of models in this folder or below it end after their last answers: the folder is
    /// deleted.
    pub(crate) fn retire_below(&self, folder: &Path) {
        self.hosts().retire_where(|host| host.key.is_below(folder));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ModelPlace;
    use garden_chat::{HostSettings, Message, MessagePart, Speaker};
    use tokio::time;

    const MODEL: u64 = 6;

    fn pool(budget: &Budget, folder: &std::path::Path) -> ChatPool {
        let program = ChildProgram {
            program: "/nonexistent".into(),
            cache: folder.to_owned(),
            empty: folder.to_owned(),
            ..ChildProgram::default()
        };
        ChatPool::new(program, folder.to_owned(), budget.clone(), PoolSettings::default()).unwrap()
    }

    fn key(name: &str) -> HostKey {
        let (base, name) = (name.into(), name.to_owned());
        let place = ModelPlace { base_name: name.clone(), name, base, adapter: None };
        HostKey::new(&place, Precision::AsStored)
    }

    /// Puts a process into the pool that does nothing; the other end of its line.
    fn host(pool: &ChatPool, name: &str) -> tokio::net::UnixStream {
        let settings = HostSettings {
            sequences: 8,
            tokens: 64,
            max_pixels: 784,
            decoding: 1,
            waiting_images: 1,
            image_tokens: 1,
            waiting: 8,
            answer: 8,
        };
        let plan = HostPlan { settings, parts: Vec::new() };
        let reservation = pool.0.budget.reserve_unclaimed(MODEL).unwrap();
        let (host, started, line) = host::hung(name, key(name), plan, reservation);
        pool.attend(host, started);
        line
    }

    fn hello() -> ChatRequest {
        let parts = vec![MessagePart::Text("Hello".into())];
        ChatRequest::new(vec![Message { role: Speaker::User, parts }])
    }

    async fn until_free(budget: &Budget, bytes: u64) {
        while budget.free() < bytes {
            time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn a_process_that_hangs_at_its_end_is_killed() {
        let (budget, folder) = (Budget::new(10), tempfile::tempdir().unwrap());
        let pool = pool(&budget, folder.path());
        let _line = host(&pool, "model");
        assert!(pool.make_room(MODEL));
        until_free(&budget, 10).await;
        assert!(pool.hosts().retiring.is_empty());
    }

    #[tokio::test]
    async fn a_process_that_answers_makes_room_for_a_job_after_its_last_answer() {
        let (budget, folder) = (Budget::new(10), tempfile::tempdir().unwrap());
        let pool = pool(&budget, folder.path());
        let _line = host(&pool, "model");
        let Ok(answer) = pool.ask_running(&key("model"), hello()).unwrap() else {
            panic!("there is a process")
        };
        assert!(!pool.make_room(7), "it cannot give so much, so it goes on");
        assert!(pool.ask_running(&key("model"), hello()).unwrap().is_ok());
        assert!(pool.make_room(5));
        assert!(pool.make_room(5), "what was asked for before counts");
        assert!(pool.ask_running(&key("model"), hello()).unwrap().is_err(), "it takes no more questions");
        let held: Vec<_> = pool.hosts().retiring.clone();
        assert!(!pool.should_end(&held[0]), "it finishes what it has");
        assert_eq!(budget.free(), 4);
        drop(answer);
        until_free(&budget, 10).await;
    }

    #[tokio::test]
    async fn idle_processes_make_room_for_a_model_and_busy_ones_do_not() {
        let (budget, folder) = (Budget::new(12), tempfile::tempdir().unwrap());
        let pool = pool(&budget, folder.path());
        let _lines = [host(&pool, "busy"), host(&pool, "idle")];
        let _answer = pool.ask_running(&key("busy"), hello()).unwrap();
        assert!(pool.hosts().make_room(7, false).is_none());
        assert_eq!(pool.hosts().serving.len(), 2);
        let ending = pool.hosts().make_room(6, false).unwrap();
        assert_eq!(ending.iter().map(|host| host.key.clone()).collect::<Vec<_>>(), [key("idle")]);
    }

    #[tokio::test]
    async fn processes_of_a_deleted_folder_take_no_more_questions() {
        let (budget, folder) = (Budget::new(20), tempfile::tempdir().unwrap());
        let pool = pool(&budget, folder.path());
        let _lines = [host(&pool, "/jobs/a/output"), host(&pool, "/jobs/ab/output")];
        pool.retire_below(Path::new("/jobs/a"));
        assert!(pool.ask_running(&key("/jobs/a/output"), hello()).unwrap().is_err());
        assert!(pool.ask_running(&key("/jobs/ab/output"), hello()).unwrap().is_ok());
    }

    #[tokio::test]
    async fn what_is_loaded_is_told_and_unloaded() {
        let (budget, folder) = (Budget::new(20), tempfile::tempdir().unwrap());
        let pool = pool(&budget, folder.path());
        let _lines = [host(&pool, "b"), host(&pool, "a")];
        let answer = pool.ask_running(&key("b"), hello()).unwrap();
        let told = |pool: &ChatPool| {
            let told = pool.loaded().into_iter();
            told.map(|model| (model.model, model.open_questions, model.ending)).collect::<Vec<_>>()
        };
        assert_eq!(told(&pool), [("a".to_owned(), 0, false), ("b".to_owned(), 1, false)]);
        assert_eq!((pool.unload("b"), pool.unload("b"), pool.unload("c")), (1, 0, 0));
        assert_eq!(told(&pool)[1], ("b".to_owned(), 1, true), "it finishes what it has");
        drop(answer);
        until_free(&budget, 14).await;
        assert_eq!(told(&pool), [("a".to_owned(), 0, false)]);
    }
}
