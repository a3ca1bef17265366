//! The commands of Slurm that we call: `sbatch`, `squeue` and `scancel`.
//!
//! Each gets a limit of time, since they wait for a controller that may be away, and each tells its failure in Slurm's
//! own words.

use super::{
    RunState,
    follower::{Action, Submission},
    script,
};
use std::{
    collections::HashMap,
    io::{self, Read},
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

/// A job that Slurm has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    /// Slurm's number of it.
    pub number: u64,
    pub state: RunState,
}

/// Submits the script in a job's folder.
pub(super) fn submit(submission: &Submission) -> Result<(), Failure> {
    let Submission { name, folder, bytes, options } = submission;
    let megabytes = bytes.saturating_add(KEEPER_BYTES).div_ceil(1 << 20);
    let mut command = Command::new("sbatch");
    command.args(["--parsable", "--requeue", "--open-mode=append", "--output=slurm.log", "--export=NIL"]);
    command.arg(format!("--signal=B:TERM@{SECONDS_FOR_A_CHECKPOINT}"));
    command.arg(format!("--job-name={name}")).arg(format!("--mem={megabytes}M")).args(options);
    command.arg("--chdir").arg(folder).arg(folder.join(script::NAME));
    run("sbatch", command).map(drop)
}

/// Our jobs that Slurm has, by their names.
pub(super) fn list() -> Result<HashMap<String, Listed>, Failure> {
    let mut command = Command::new("squeue");
    command.args(["--me", "--noheader", "--format=%i|%T|%j"]);
    run("squeue", command).map(|text| parse(&text))
}

fn parse(text: &str) -> HashMap<String, Listed> {
    let mut jobs = HashMap::<String, Listed>::new();
    for line in text.lines() {
        let mut words = line.trim().splitn(3, '|');
        let (Some(number), Some(state), Some(name)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let Ok(number) = number.parse() else { continue };
        let listed = Listed { number, state: state_of(state) };
        // Of two with one name the one that is not over counts.
        if listed.state != RunState::Gone || !jobs.contains_key(name) {
            jobs.insert(name.to_owned(), listed);
        }
    }
    jobs
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
        let jobs = parse(
            "12|PENDING|a.1\n 13|RUNNING|b.2\n14|COMPLETING|c.1\n15|TIMEOUT|d.1\n16_[1-3]|RUNNING|e\n\nnonsense\n\
             17|CANCELLED|b.2\n",
        );
        let listed = |name: &str, number, state| (name.to_owned(), Listed { number, state });
        let wanted = [
            listed("a.1", 12, RunState::Waiting),
            listed("b.2", 13, RunState::Running),
            listed("c.1", 14, RunState::Running),
            listed("d.1", 15, RunState::Gone),
        ];
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
