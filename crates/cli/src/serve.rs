//! `model-garden serve`: the job server.

use anyhow::{Context, Result, bail};
use garden_memory::{ByteSize, report::duration};
use garden_server::{Listening, Runner, ServeConfig, keys};
use garden_train::Engine;
use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

/// Examples below the help.
const EXAMPLES: &str = "\
Examples:
  model-garden serve --models-dir ~/models
      jobs, chat and pages at http://127.0.0.1:8000, for this machine alone
  model-garden serve keys add laptop
      a key for somebody; a server that is running knows it at once
  model-garden serve --host 0.0.0.0 --allowed-host gpu.example.org
      for others too: an address that others reach needs a key
  model-garden serve --models-dir ~/models --python ~/torch/bin/python
      jobs may ask for engine transformers: PyTorch on this machine's GPU

Everything is in the data folder, and a server may be killed at any moment and started again.
Ctrl-C, SIGTERM or closing the terminal lets answers under way finish and jobs write their
checkpoints; the next server goes on with them. A second signal ends the server at once.
Exit codes: 0 after Ctrl-C or SIGTERM, 2 if the server cannot start, 130 after a second signal.";

/// Flags of `serve`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    flags: Flags,
}

/// What may be done instead of serving.
#[derive(clap::Subcommand)]
enum Command {
    /// Add, list and revoke the keys that let people and programs in.
    #[command(subcommand)]
    Keys(KeysCommand),
}

#[derive(clap::Subcommand)]
enum KeysCommand {
    /// Add a key and print its token, which is shown only now.
    Add {
        /// Whose key it is, or what for.
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// List the keys.
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Revoke a key; a server that is running refuses it from now on.
    Revoke {
        /// The name of the key.
        name: String,
        #[command(flatten)]
        place: Place,
    },
}

/// Where the server keeps everything.
#[derive(clap::Args)]
struct Place {
    /// Where jobs, files and models are kept [default: ~/.local/share/model-garden].
    #[arg(long, value_name = "DIR", env = "MODEL_GARDEN_DATA_DIR")]
    data_dir: Option<PathBuf>,
}

/// How to serve.
#[derive(clap::Args)]
struct Flags {
    /// The address to listen at.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    host: IpAddr,
    /// The port; 0 takes any free one.
    #[arg(long, default_value_t = 8000)]
    port: u16,
    #[command(flatten)]
    place: Place,
    /// A folder of model folders; may be given several times.
    #[arg(long = "models-dir", value_name = "DIR")]
    models_dirs: Vec<PathBuf>,
    /// Jobs that run at once.
    #[arg(long, default_value_t = 1, value_name = "N")]
    max_jobs: usize,
    /// Memory that jobs and models in use share, such as 24GB [default: what is free at the start].
    #[arg(long, value_name = "SIZE")]
    memory_budget: Option<ByteSize>,
    /// A file of keys, a line each: a name and a token. Only its owner may read it.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A name or address that the server may be asked for by; may be given several times.
    #[arg(long = "allowed-host", value_name = "HOST")]
    allowed_hosts: Vec<String>,
    /// Let webhook events go to private addresses though others can use the server: whoever has a key can
    /// then make it send requests into its network.
    #[arg(long)]
    webhooks_to_private_addresses: bool,
    /// Who runs the jobs.
    #[arg(long, value_enum, default_value_t)]
    runner: RunnerName,
    /// An option for sbatch, such as --sbatch=--partition=long; may be given several times.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    sbatch: Vec<String>,
    /// The largest file that may be uploaded.
    #[arg(long, default_value = "8GiB", value_name = "SIZE")]
    max_upload: ByteSize,
    /// Requests a second from one client; 0 takes any number.
    #[arg(long, default_value_t = 100, value_name = "N")]
    rate_limit: u32,
    /// Offer engines in Python for jobs, with this interpreter; clients choose the engine, never the interpreter.
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// What computes the steps of a job that does not say.
    #[arg(long, value_enum, default_value = "native")]
    engine: Engine,
}

/// `--runner`.
#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum RunnerName {
    /// This machine.
    #[default]
    Local,
    /// Slurm, by sbatch.
    Slurm,
}

/// Serves until it is told to end, or changes the keys.
pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Some(Command::Keys(command)) => change_keys(command)?,
        None => {
            garden_train::share_one_heap();
            garden_train::return_large_pieces();
            garden_server::run(args.flags.config()?, tell, tell_end)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn change_keys(command: KeysCommand) -> Result<()> {
    match command {
        KeysCommand::Add { name, place } => {
            let token = keys::add(&place.folder()?, &name)?;
            eprintln!("the key of {name}, shown only now; send it as 'Authorization: Bearer TOKEN':");
            println!("{token}");
        }
        KeysCommand::List { place } => list_keys(&place.folder()?)?,
        KeysCommand::Revoke { name, place } => {
            keys::revoke(&place.folder()?, &name)?;
            eprintln!("the key of {name} is revoked");
        }
    }
    Ok(())
}

fn list_keys(data_dir: &Path) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let keys = keys::list(data_dir)?;
    if keys.is_empty() {
        eprintln!("there are no keys in {}", data_dir.display());
    }
    for key in keys {
        println!("{:<24} added {} ago", key.name, duration((now - key.created_at as f64).max(0.0)));
    }
    Ok(())
}

impl Place {
    /// The folder that was asked for, or the user's own.
    fn folder(self) -> Result<PathBuf> {
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
        let data_home =
            std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        self.data_dir
            .or_else(|| data_home.or_else(home).map(|folder| folder.join("model-garden")))
            .context("there is no HOME to keep the data in: name a folder with --data-dir")
    }
}

impl Flags {
    fn config(self) -> Result<ServeConfig> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        if self.engine.is_python() && self.python.is_none() {
            bail!("--engine {} needs --python: the interpreter whose packages it uses", self.engine);
        }
        let python = self.python.map(std::path::absolute).transpose().context("--python")?;
        let defaults = ServeConfig::new(self.place.folder()?, program);
        Ok(ServeConfig {
            host: self.host,
            port: self.port,
            models_dirs: self.models_dirs,
            max_jobs: self.max_jobs,
            memory_budget: self.memory_budget.map(|ByteSize(bytes)| bytes),
            token_file: self.token_file,
            allowed_hosts: self.allowed_hosts,
            webhooks_to_private_addresses: self.webhooks_to_private_addresses,
            max_upload: self.max_upload.0,
            rate_limit: self.rate_limit,
            sbatch: self.sbatch,
            engine: self.engine,
            python,
            runner: match self.runner {
                RunnerName::Local => Runner::Local,
                RunnerName::Slurm => Runner::Slurm,
            },
            ..defaults
        })
    }
}

fn tell_end() {
    eprintln!(
        "ending: jobs write their checkpoints, and the next server goes on with them. A second Ctrl-C ends the server at \
         once and leaves them running."
    );
}

fn tell(listening: &Listening) {
    for note in &listening.notes {
        eprintln!("note: {note}");
    }
    let budget = ByteSize(listening.memory_budget);
    eprintln!("serving at http://{}", listening.address);
    eprintln!("data in {}, memory budget {budget}", listening.data_dir.display());
}
