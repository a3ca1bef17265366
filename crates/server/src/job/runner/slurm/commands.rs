//! The commands of Slurm that we call: `sbatch`, `squeue` and `scancel`.
//!
//! Each gets a limit of time, since they wait for a controller that may be away, and each tells its failure in Slurm's
//! own words.

use super::{RunState, follower::Action, script};
use std::{
    collections::HashMap,
    io::{self, Read},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// Slurm's own patience with its controller is about ten seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the keeper takes beside the trainer, whose limit is the job's.
const KEEPER_BYTES: u64 = 64 << 20;
/// Before Slurm ends a job at its time limit, it asks for a checkpoint.
const SECONDS_FOR_A_CHECKPOINT: u32 = 300;

/// What `scancel` says of a job that has ended.
const OVER: [&str; 2] = ["Invalid job id", "already completing or completed"];

/// Why a command of Slurm gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("cannot run {command}: {source}; is Slurm installed on this machine?")]
    NotRun { command: &'static str, source: io::Error },
    #[error("{command} did not answer within {} seconds; is Slurm's controller up?", PATIENCE.as_secs())]
    Silent { command: &'static str },
    #[error("{command} failed: {words}")]
    Failed { command: &'static str, words: String },
}

/// Submits the script in a job's folder and gives the job's number.
pub(super) fn submit(folder: &Path, name: &str, bytes: u64, options: &[String]) -> Result<u64, Failure> {
    let megabytes = bytes.saturating_add(KEEPER_BYTES).div_ceil(1 << 20);
    let mut command = Command::new("sbatch");
    command.args(["--parsable", "--requeue", "--open-mode=append", "--output=slurm.log", "--export=NIL"]);
    command.arg(format!("--signal=B:TERM@{SECONDS_FOR_A_CHECKPOINT}"));
    command.arg(format!("--job-name={name}")).arg(format!("--mem={megabytes}M")).args(options);
    command.arg("--chdir").arg(folder).arg(folder.join(script::NAME));
    let text = run("sbatch", command)?;
    // With several clusters the number is followed by the cluster's name.
    let number = text.trim().split(';').next().and_then(|number| number.parse().ok());
    number.ok_or_else(|| Failure::Failed {
        command: "sbatch",
        words: format!("no job number: {}", text.trim()),
    })
}

/// The number of a job of this name that waits or runs.
pub(super) fn find(name: &str) -> Result<Option<u64>, Failure> {
    let mut command = squeue();
    command.arg(format!("--name={name}"));
    let jobs = parse(&run("squeue", command)?);
    Ok(jobs.into_iter().find(|(_, state)| *state != RunState::Gone).map(|(number, _)| number))
}

/// Our jobs that wait or run.
pub(super) fn list() -> Result<HashMap<u64, RunState>, Failure> {
    run("squeue", squeue()).map(|text| parse(&text))
}

fn squeue() -> Command {
    let mut command = Command::new("squeue");
    command.args(["--me", "--noheader", "--format=%i|%T"]);
    command
}

fn parse(text: &str) -> HashMap<u64, RunState> {
    let line = |line: &str| {
        let (number, state) = line.trim().split_once('|')?;
        Some((number.parse().ok()?, state_of(state)))
    };
    text.lines().filter_map(line).collect()
}

fn state_of(word: &str) -> RunState {
    match word {
        "PENDING" | "CONFIGURING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "RESV_DEL_HOLD"
        | "SPECIAL_EXIT" => RunState::Waiting,
        "BOOT_FAIL" | "CANCELLED" | "COMPLETED" | "DEADLINE" | "FAILED" | "NODE_FAIL" | "OUT_OF_MEMORY"
        | "REVOKED" | "TIMEOUT" => RunState::Gone,
        // Running, suspended, preempted but not yet ended, or a word of a later Slurm: it is still in the queue.
        _ => RunState::Running,
    }
}

/// Does what was asked to a job.
pub(super) fn act(number: u64, action: Action) -> Result<(), Failure> {
    let scancel = |options: &[&str]| {
        let mut command = Command::new("scancel");
        command.args(options).arg(number.to_string());
        match run("scancel", command) {
            Err(Failure::Failed { words, .. }) if OVER.iter().any(|over| words.contains(over)) => Ok(()),
            other => other.map(drop),
        }
    };
    // One that waits has no process. One that begins between the two calls gets the signal.
    scancel(&["--state=PENDING"])?;
    match action {
        Action::Stop => scancel(&["--batch", "--signal=TERM"]),
        // To the keeper alone, whose guard ends the trainer: for the whole job, Slurm sends SIGTERM and waits first.
        Action::Kill => scancel(&["--batch", "--signal=KILL"]),
    }
}

/// Runs a command and gives its standard output.
fn run(name: &'static str, mut command: Command) -> Result<String, Failure> {
    let not_run = |source| Failure::NotRun { command: name, source };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(not_run)?;
    let (sender, ended) = mpsc::channel();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let read = move || {
        let (mut output, mut words) = (Vec::new(), Vec::new());
        // The commands write little to standard error; what they wrote is whole when standard output has ended.
        let _ = stdout.map(|mut stdout| stdout.read_to_end(&mut output));
        let _ = stderr.map(|mut stderr| stderr.read_to_end(&mut words));
        let _ = sender.send((output, words));
    };
    thread::spawn(read);
    let Ok((output, words)) = ended.recv_timeout(PATIENCE) else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(Failure::Silent { command: name });
    };
    let status = child.wait().map_err(not_run)?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&output).into_owned());
    }
    let words = String::from_utf8_lossy(&words).trim().replace('\n', "; ");
    Err(Failure::Failed { command: name, words })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_squeue_prints() {
        let jobs =
            parse("12|PENDING\n 13|RUNNING\n14|COMPLETING\n15|TIMEOUT\n16_[1-3]|RUNNING\n\nnonsense\n");
        let wanted =
            [(12, RunState::Waiting), (13, RunState::Running), (14, RunState::Running), (15, RunState::Gone)];
        assert_eq!(jobs, HashMap::from(wanted));
    }

    #[test]
    fn says_what_a_command_said() {
        let mut failing = Command::new("sh");
        failing.args(["-c", "echo one >&2; echo two >&2; exit 1"]);
        assert_eq!(run("sbatch", failing).unwrap_err().to_string(), "sbatch failed: one; two");
        let missing = run("sbatch", Command::new("no-such-command-here")).unwrap_err().to_string();
        assert!(missing.contains("is Slurm installed"), "{missing}");
    }
}
