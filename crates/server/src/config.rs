//! What a server is told when it starts.

use crate::job::settings::Engines;
use garden_train::Engine;
use std::{
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
};

/// Who runs the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Runner {
    /// Processes of this machine.
    #[default]
    Local,
    /// Slurm, by `sbatch`.
    Slurm,
}

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// The address to listen at; anything but loopback needs a key.
    pub host: IpAddr,
    /// The port; 0 takes any free one.
    pub port: u16,
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// Folders of model folders.
    pub models_dirs: Vec<PathBuf>,
    /// Jobs that run at once.
    pub max_jobs: usize,
    /// Bytes that jobs and models in use may take together; without it, what the machine has free at the start.
    pub memory_budget: Option<u64>,
    /// A file of named keys.
    pub token_file: Option<PathBuf>,
    /// Who runs the jobs.
    pub runner: Runner,
    /// Options for `sbatch` where Slurm runs the jobs: a partition, an account, processors.
    pub sbatch: Vec<String>,
    /// Names besides its address that the server may be asked for by.
    pub allowed_hosts: Vec<String>,
    /// Whether webhook events may go to private addresses though others can use the server.
    pub webhooks_to_private_addresses: bool,
    /// Bytes of the largest file that is taken.
    pub max_upload: u64,
    /// Requests a second that one client may send for long; 0 takes any number.
    pub rate_limit: u32,
    /// Answers that stream at once.
    pub max_streams: usize,
    /// What computes the steps of a job that does not say.
    pub engine: Engine,
    /// The interpreter for engines in Python; without it there are none.
    pub python: Option<PathBuf>,
    /// The `model-garden` program, which the server starts again for each job and each model in use.
    pub program: PathBuf,
}

impl ServeConfig {
    /// The defaults: port 8000 of this machine alone, and one job at a time.
    pub fn new(data_dir: PathBuf, program: PathBuf) -> Self {
        Self {
            host: Ipv4Addr::LOCALHOST.into(),
            port: 8000,
            data_dir,
            models_dirs: Vec::new(),
            max_jobs: 1,
            memory_budget: None,
            token_file: None,
            runner: Runner::Local,
            sbatch: Vec::new(),
            allowed_hosts: Vec::new(),
            webhooks_to_private_addresses: false,
            max_upload: 8 << 30,
            rate_limit: 100,
            max_streams: 1024,
            engine: Engine::Native,
            python: None,
            program,
        }
    }

    /// The engines that jobs may have.
    pub(crate) fn engines(&self) -> Engines {
        Engines { default: self.engine, python: self.python.clone() }
    }

    /// Whether nobody but the users of this machine can come, as long as there are no keys. A server that
    /// goes by another name than its address is behind a proxy.
    pub(crate) fn is_local(&self) -> bool {
        self.host.is_loopback() && self.allowed_hosts.is_empty()
    }
}
