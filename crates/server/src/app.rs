//! What every handler shares.
//!
//! [`App`] is made once, when the server starts, and handed to the routes as axum's state; a clone is another handle.

use crate::{
    api::{chat::Bodies, jobs::Creating},
    budget::Budget,
    chat::{ChatPool, PoolSettings},
    config::{self, ServeConfig},
    data_dir::DataDir,
    files::{Files, NewFile, Purpose, uploads::Uploads},
    guard::{Counters, Guard, Streams},
    job::{
        keeper::seconds_now,
        manager::{Jobs, KeepResults, OnEnd, Surroundings, held_by_running},
        planner::Planner,
        record::Phase,
        runner::{ChildProgram, Local, Runner, Slurm},
    },
    models::Catalogue,
    serve::ServeError,
    store::{Opened, Store},
    webhook::{EventKind, ReachNow, Webhooks},
};
use axum::extract::FromRef;
use std::{
    fs::{self, File},
    io::{self, Write},
    net::SocketAddr,
    ops::Deref,
    path::PathBuf,
    sync::Arc,
    time::Instant,
};
use tokio::sync::{Semaphore, watch};

/// The parts of a running server.
#[derive(Clone)]
pub(crate) struct App(Arc<Parts>);

/// See [`App`].
pub(crate) struct Parts {
    pub config: ServeConfig,
    pub data: DataDir,
    pub store: Store,
    pub files: Files,
    pub uploads: Uploads,
    pub budget: Budget,
    pub guard: Guard,
    /// Whoever streams an answer takes a place here first.
    pub streams: Streams,
    pub counters: Counters,
    pub webhooks: Webhooks,
    pub models: Catalogue,
    pub planner: Planner,
    pub jobs: Jobs,
    /// New jobs that are being made.
    pub creating: Creating,
    /// How children are started.
    pub program: ChildProgram,
    /// One model is merged at a time: it reads and writes gigabytes.
    pub merging: Arc<Semaphore>,
    pub chat: ChatPool,
    /// Whoever reads a large question takes a place here first.
    pub bodies: Bodies,
    pub stopping: Stopping,
    pub started: Instant,
    /// Held for the server's life: one server has a data folder.
    _lock: File,
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl FromRef<App> for Webhooks {
    fn from_ref(app: &App) -> Self {
        app.webhooks.clone()
    }
}

impl App {
    /// Opens everything below the data folder. What a person should know about it goes to `notes`. Blocks.
    pub(crate) fn open(
        config: ServeConfig,
        address: SocketAddr,
        notes: &mut Vec<String>,
    ) -> Result<Self, ServeError> {
        let (data, lock) = DataDir::open(&config.data_dir)?;
        let guard = Guard::open(&config, &data, address, notes)?;
        let (store, Opened { rebuilt }) = Store::open(&data)?;
        let holds = |folder: PathBuf| fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
        // The first start of all has nothing to tell.
        if let Some(why) = &rebuilt
            && (holds(data.jobs()) || holds(data.files()))
        {
            notes.push(format!("the index is made anew from the folders: {why}"));
        }
        let files = Files::open(&data, &store, notes).map_err(ServeError::files)?;
        // Jobs of an earlier server that still run have taken their part already, and are about to reserve it.
        let free = || Some(garden_memory::probe::memory_available()? + held_by_running(&data));
        let budget = Budget::new(config.memory_budget.or_else(free).unwrap_or(0));
        let program = ChildProgram {
            program: config.program.clone(),
            cache: data.cache(),
            empty: data.empty(),
            models: config.models_dirs.clone(),
            // The rows of the largest upload once more, as JSON Lines: they take up to twice their CSV.
            largest_file: Some(config.max_upload.saturating_mul(2)),
        };
        let models = Catalogue::open(data.clone(), &config.models_dirs)?;
        let logs = data.root().join("chat");
        let chat = ChatPool::new(program.clone(), logs, budget.clone(), PoolSettings::default())?;
        let idle = chat.clone();
        let planner = Planner::new(program.clone());
        let keys = guard.keys.clone();
        let webhooks = Webhooks::open(&data, ReachNow::of(&config, move || keys.are_needed()))?;
        let surroundings = Surroundings {
            data: data.clone(),
            store: store.clone(),
            budget: budget.clone(),
            runner: runner(&config, program.clone())?,
            planner: planner.clone(),
            max_jobs: config.max_jobs,
            on_end: tell_webhooks(webhooks.clone()),
            keep_results: keep_results(files.clone()),
            make_room: Box::new(move |bytes| idle.make_room(bytes)),
            runtime: tokio::runtime::Handle::current(),
        };
        let jobs = Jobs::start(surroundings, notes).map_err(ServeError::System)?;
        let used = jobs.clone();
        files.ask_before_deleting(move |id| used.uses_file(id));
        Ok(Self(Arc::new(Parts {
            webhooks,
            models,
            planner,
            jobs,
            creating: Creating::default(),
            program,
            merging: Arc::new(Semaphore::new(1)),
            chat,
            bodies: Bodies::default(),
            budget,
            uploads: Uploads::new(&data, &files),
            files,
            guard,
            streams: Streams::new(config.max_streams),
            counters: Counters::default(),
            data,
            store,
            stopping: Stopping::default(),
            started: Instant::now(),
            config,
            _lock: lock,
        })))
    }
}

/// Who runs the jobs.
fn runner(config: &ServeConfig, program: ChildProgram) -> io::Result<Box<dyn Runner>> {
    Ok(match config.runner {
        config::Runner::Local => Box::new(Local::new(program)),
        config::Runner::Slurm => Box::new(Slurm::new(program, config.sbatch.clone())?),
    })
}

/// Posts the end of every job.
fn tell_webhooks(webhooks: Webhooks) -> OnEnd {
    Box::new(move |record, phase| {
        let kind = match phase {
            Phase::Succeeded => EventKind::Succeeded,
            Phase::Failed => EventKind::Failed,
            Phase::Cancelled => EventKind::Cancelled,
            Phase::Validating | Phase::Queued | Phase::Running => return true,
        };
        let sent = webhooks.send(kind, &record.id, seconds_now().cast_signed());
        if let Err(error) = &sent {
            // The job's own record tells its end; only those who wait for a post miss it. Nobody may read our words
            // either, and a server must not end because of that.
            let _ = writeln!(io::stderr(), "warning: no webhook for the end of {}: {error}", record.id);
        }
        sent.is_ok()
    })
}

/// Keeps the numbers of a job as one of the files, under an id that the job's own gives.
fn keep_results(files: Files) -> KeepResults {
    Box::new(move |record, table| {
        let new = NewFile {
            id: format!("file-{}", record.id.trim_start_matches("ftjob-")),
            filename: "step_metrics.csv".to_owned(),
            purpose: Purpose::FineTuneResults,
            expires_after: None,
        };
        files.keep_text(&table, new).map(|file| file.id).map_err(io::Error::other)
    })
}

/// Tells everybody that the server is about to end, above all answers that would stream for ever.
#[derive(Debug, Clone)]
pub(crate) struct Stopping(watch::Sender<bool>);

impl Default for Stopping {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Stopping {
    /// The server ends now.
    pub(crate) fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Waits until the server is about to end.
    pub(crate) async fn wait(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(|stopping| *stopping).await;
    }
}
