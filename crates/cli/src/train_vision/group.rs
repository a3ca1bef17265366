//! The processes that were started together with this one, as by `mpirun -n 8`.
//!
//! Joins them before a training, and ends all of them when one fails: the others would wait for it. What all of them know is
//! said once, by the first; another process speaks only if it fails with something that the first does not know.

use crate::{errors, exit};
use anyhow::{Error, Result};
use garden_train::groups::{Group, Launch, launched};
use std::{process::ExitCode, thread, time::Duration};

/// So long the first process may take to say what it knows and to end the others.
const PATIENCE: Duration = Duration::from_secs(10);

/// So long a launcher may take to pass on what was written.
const FORWARDED: Duration = Duration::from_secs(1);

/// The group that this process belongs to.
pub fn join() -> Result<Group> {
    match launched() {
        None => Ok(Group::alone()),
        Some(launch) => of(launch),
    }
}

#[cfg(feature = "mpi")]
fn of(launch: Launch) -> Result<Group> {
    Ok(garden_train::groups::join_mpi(launch)?)
}

#[cfg(not(feature = "mpi"))]
fn of(launch: Launch) -> Result<Group> {
    Err(garden_train::groups::LaunchError::WithoutMpi(launch).into())
}

/// Says why this process failed, and ends the others.
pub fn give_up(group: &Group, error: &Error) -> ExitCode {
    if !group.is_first() {
        thread::sleep(PATIENCE);
        eprintln!("rank {} of {}:", group.rank(), group.size());
    }
    let code = errors::report(error);
    // A launcher that ends its processes at once need not pass on what they wrote a moment before.
    thread::sleep(FORWARDED);
    group.abort(exit::BAD_INPUT.into());
    code
}
