//! The hidden commands by which the server starts this program again: a job's keeper and its planner.

use anyhow::Result;
use garden_server::{ENDS_WITH_STDIN, KeepError, KeepOrders, keep, plan_job};
use std::{path::PathBuf, process::ExitCode};

/// Has this process end when its standard input does, if the server that started it asked for that: a server that is
/// killed leaves nothing behind that reads rows for hours.
pub fn end_with_parent() {
    if std::env::var_os(ENDS_WITH_STDIN).is_some() {
        std::thread::spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            std::process::exit(130);
        });
    }
}

/// Words of `serve-keep`.
#[derive(clap::Args)]
pub struct KeepArgs {
    /// The job's folder.
    job: PathBuf,
    /// Which attempt this is.
    #[arg(long)]
    attempt: u32,
    /// Bytes that the trainer may take.
    #[arg(long)]
    limit: u64,
}

/// Keeps one attempt of a job. Another keeper, or a newer attempt, is no fault: somebody looks after the job.
pub fn run_keep(args: &KeepArgs) -> Result<ExitCode> {
    let program = std::env::current_exe()?;
    // A runner may start us anywhere. In the server's empty folder no name that a client gave is a relative path.
    std::env::set_current_dir(args.job.join("../../empty"))?;
    let orders = KeepOrders {
        job: &args.job,
        attempt: args.attempt,
        limit: args.limit,
        program: &program,
        guard: crate::memory::guard_program(),
    };
    match keep(&orders) {
        Ok(()) | Err(KeepError::Kept | KeepError::Stale { .. }) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error.into()),
    }
}

/// Words of `serve-plan`.
#[derive(clap::Args)]
pub struct PlanArgs {
    /// The settings of the run.
    settings: PathBuf,
    /// Bytes that the run may take.
    #[arg(long)]
    room: u64,
    /// Bytes of memory that this process may ask for.
    #[arg(long)]
    limit: Option<u64>,
}

/// Prints the memory plan of a run as JSON, or why there is none.
pub fn run_plan(args: &PlanArgs) -> Result<ExitCode> {
    if let Some(limit) = args.limit {
        garden_chat::host::limit_memory(limit)?;
    }
    println!("{}", plan_job(&args.settings, args.room));
    Ok(ExitCode::SUCCESS)
}
