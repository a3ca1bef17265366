//! The server: opened, listening, ended.
//!
//! Takes a [`ServeConfig`] and answers requests until it is told to stop. Everything it keeps is below the data
//! folder, so it may be killed at any moment and started again.

use crate::{
    api,
    app::App,
    config::ServeConfig,
    data_dir::DataDirError,
    guard::keys::KeysError,
    listen::listen,
    notify::Manager,
    store::{StoreError, now},
};
use std::{future::Future, io, net::SocketAddr, path::PathBuf, time::Duration};
use tokio::{
    net::TcpListener,
    runtime,
    signal::unix::{self, SignalKind},
    sync::mpsc,
    time,
};

/// How long jobs may take to write their checkpoints when the server ends. Those that take longer are left running, and
/// the next server finds them.
const CHECKPOINT_PATIENCE: Duration = Duration::from_secs(80);
/// The same below a service manager, which ends everything as soon as the server has ended: longer than a keeper gives
/// its trainer, and less than the unit's `TimeoutStopSec`.
const MANAGED_PATIENCE: Duration = Duration::from_secs(540);
/// Threads that may wait for the disk at once.
const BLOCKING_THREADS: usize = 64;

/// How often what has expired is deleted.
const SWEEP: Duration = Duration::from_secs(60);

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ServeError {
    #[error("cannot listen at {address}: {source}")]
    Bind { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error(transparent)]
    Keys(#[from] KeysError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot read the files of the data folder: {0}")]
    Files(String),
    #[error("cannot start the server: {0}")]
    System(#[from] io::Error),
    #[error(
        "the thread that looks after the jobs has failed; start the server again: the jobs go on where they are"
    )]
    Jobs,
}

impl ServeError {
    pub(crate) fn files(error: impl std::fmt::Display) -> Self {
        Self::Files(error.to_string())
    }
}

/// What a server that listens tells about itself.
#[derive(Debug, Clone)]
pub struct Listening {
    /// Where it listens.
    pub address: SocketAddr,
    /// Where it keeps everything.
    pub data_dir: PathBuf,
    /// Bytes that jobs and models in use may take together.
    pub memory_budget: u64,
    /// What a person should know: an index that was made anew, say.
    pub notes: Vec<String>,
}

/// Answers requests until `stop`. `ready` is told when the first one can come.
pub async fn serve(
    config: ServeConfig,
    ready: impl FnOnce(&Listening),
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let manager = Manager::from_environment();
    let asked = SocketAddr::new(config.host, config.port);
    let refused = |source| ServeError::Bind { address: asked, source };
    let listener = TcpListener::bind(asked).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let open = move || {
        let mut notes = Vec::new();
        App::open(config, address, &mut notes).map(|app| (app, notes))
    };
    let (app, notes) = tokio::task::spawn_blocking(open).await.map_err(io::Error::from)??;
    let routes = api::router(&app);
    ready(&Listening {
        address,
        data_dir: app.data.root().to_owned(),
        memory_budget: app.budget.total(),
        notes,
    });
    manager.tell("READY=1");
    let sweeper = tokio::spawn(sweep(app.clone()));
    let stopping = || {
        manager.tell("STOPPING=1");
        app.stopping.begin();
    };
    tokio::select! {
        () = listen(listener, routes, stop, stopping) => {}
        never = watchdog(&manager) => match never {},
        () = app.jobs.wait_ended() => return Err(ServeError::Jobs),
    }
    sweeper.abort();
    let patience = if manager.is_there() { MANAGED_PATIENCE } else { CHECKPOINT_PATIENCE };
    app.jobs.shutdown(patience).await;
    Ok(())
}

/// As [`serve`], on threads of its own, until SIGINT, SIGTERM or the end of the terminal; `ending` is told of it. A
/// second signal ends the process at once.
pub fn run(
    config: ServeConfig,
    ready: impl FnOnce(&Listening),
    ending: impl FnOnce() + Send + 'static,
) -> Result<(), ServeError> {
    // Streams and uploads keep files open: the soft limit is for programs that use select().
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
    let runtime =
        runtime::Builder::new_multi_thread().max_blocking_threads(BLOCKING_THREADS).enable_all().build()?;
    let end = runtime.block_on(async {
        let mut signals = signals()?;
        let stop = async move {
            signals.recv().await;
            ending();
            tokio::spawn(async move {
                signals.recv().await;
                std::process::exit(130);
            });
        };
        serve(config, ready, stop).await
    });
    runtime.shutdown_timeout(Duration::from_secs(2));
    end
}

/// The signals that end a server. One that was ignored when the program started, as `nohup` arranges, stays so.
fn signals() -> io::Result<mpsc::UnboundedReceiver<()>> {
    let (sender, heard) = mpsc::unbounded_channel();
    let kinds = [SignalKind::interrupt(), SignalKind::hangup(), SignalKind::terminate()];
    for kind in garden_memory::heeded(kinds.map(|kind| kind.as_raw_value())) {
        let mut signal = unix::signal(SignalKind::from_raw(kind))?;
        let sender = sender.clone();
        tokio::spawn(async move { while signal.recv().await.is_some() && sender.send(()).is_ok() {} });
    }
    // Where all are ignored nobody tells: that must not look like a signal.
    tokio::spawn(async move { sender.closed().await });
    Ok(heard)
}

async fn watchdog(manager: &Manager) -> std::convert::Infallible {
    let Some(interval) = manager.watchdog else { return std::future::pending().await };
    let mut ticks = time::interval(interval);
    loop {
        ticks.tick().await;
        manager.tell("WATCHDOG=1");
    }
}

/// Deletes what has expired, now and every minute.
async fn sweep(app: App) -> std::convert::Infallible {
    let mut ticks = time::interval(SWEEP);
    loop {
        ticks.tick().await;
        let (files, uploads) = (app.files.clone(), app.uploads.clone());
        // What fails, on a full disk or a locked index, is done at a later tick.
        let _ =
            tokio::task::spawn_blocking(move || (files.sweep().is_ok(), uploads.sweep(now()).is_ok())).await;
    }
}
