//! `model-garden memory run`, and the hidden command by which it guards what it runs.

use super::{
    live::{self, Ending, View},
    options::{Format, Options, Patterns, parse_duration},
    overwrite::Input,
};
use crate::exit;
use anyhow::{Context, Result};
use clap::ValueEnum;
use garden_memory::{
    Expectation, StopSignal, Verdict, listen,
    supervise::{self, GuardProgram, OnLimit, Orders, Surroundings, run_guard},
};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    process::ExitCode,
    sync::mpsc::channel,
    time::{Duration, Instant},
};

const EXAMPLES: &str = "\
Examples:
  model-garden memory run -- python train.py
  model-garden memory run --dataset-size 663 --samples-per-step 8 --out run.jsonl -- python train.py
  model-garden memory run --leave-free 2GB -- python train.py
  model-garden memory run --who -- python train.py
  model-garden memory run --limit 30GB --on-limit restart --restart-arg=--resume -- python train.py
  model-garden memory run --expect steady --interval 100ms -- python test_loader.py

The command keeps the terminal: it can prompt, page, and take Ctrl-C and Ctrl-Z. Output and signals pass
through; lines about memory go to standard error. With --format tui the screen takes the terminal, so a prompt fails.
The command is told of its limit by a signal and by a message on the socket in MODEL_GARDEN_SOCKET (see
docs/memory-socket.md).
Exit code: the command's own, 128 + n if signal n ended it, 75 if it was stopped at its limit, 2 if it could not be started.
With --expect, for a command that ended with 0: 1 if its memory was worse than expected, 3 if it is too early to tell.";

/// What to do at the limit.
#[derive(Clone, Copy, ValueEnum)]
enum LimitAction {
    /// Tell the command to stop, wait for the grace, then end its whole tree.
    Stop,
    /// The same, then start the command again.
    Restart,
    /// Only warn.
    Warn,
}

/// What is expected of the command's memory.
#[derive(Clone, Copy, ValueEnum)]
enum Expect {
    /// Level by the end: steady, a sawtooth, or a warm-up or fill that has stopped.
    Steady,
    /// No leak; growth may still be going on at the end.
    Bounded,
}

impl From<Expect> for Expectation {
    fn from(expect: Expect) -> Self {
        match expect {
            Expect::Steady => Self::Steady,
            Expect::Bounded => Self::Bounded,
        }
    }
}

/// Flags of `memory run`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// What to show on standard error.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// What to do at the limit.
    #[arg(long, value_enum, default_value = "stop")]
    on_limit: LimitAction,
    /// The signal that tells the command to stop.
    #[arg(long, value_name = "SIGNAL", default_value = "TERM")]
    stop_signal: StopSignal,
    /// How long the command may take to end after it was told to stop.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    grace: Duration,
    /// Start the command again this often at most.
    #[arg(long, value_name = "N", default_value_t = 3)]
    max_restarts: u32,
    /// Add this argument when the command is started again, such as --restart-arg=--resume; may be given
    /// several times.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    restart_arg: Vec<OsString>,
    /// Fail if the last verdict is worse than this: a test for CI. A command's own failure comes first.
    #[arg(long, value_enum, value_name = "VERDICT")]
    expect: Option<Expect>,
    /// Ask the command's Python processes who holds the memory by which they grow: the summary names the list, the attribute or the
    /// cache, and where it is stored. The script needs no change. See docs/memory-who.md.
    #[arg(long)]
    who: bool,
    #[command(flatten)]
    patterns: Patterns,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command to its end.
pub fn run(args: Args) -> Result<ExitCode> {
    let name = args.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let facts = args.options.facts()?;
    let words = args.command.iter().chain(&args.restart_arg).flat_map(|word| with_value(word));
    let inputs = words.map(|word| Input::new("a file of the command,", word)).collect();
    let trace = args.options.trace(&name, &facts, inputs)?;
    let orders = Orders {
        guard: guard_program(),
        command: args.command,
        interval: args.options.interval,
        duration: args.options.duration,
        facts,
        on_limit: match args.on_limit {
            LimitAction::Stop => OnLimit::Stop,
            LimitAction::Restart => OnLimit::Restart,
            LimitAction::Warn => OnLimit::Warn,
        },
        stop_signal: args.stop_signal,
        grace: args.grace,
        max_restarts: args.max_restarts,
        restart_args: args.restart_arg,
        patterns: args.patterns.steps(),
        who: args.who,
    };
    let (sender, wakes) = channel();
    listen(sender.clone()).context("cannot listen for signals")?;
    let mut view = View::open(args.format, live::Place::Run, sender.clone())?;
    let passage = view.passage();
    let surroundings = Surroundings { wakes: &wakes, sender: &sender, passage, trace, observer: &mut view };
    let begun = Instant::now();
    let outcome = supervise::run(&orders, surroundings);
    let how = outcome.as_ref().ok().map(ToString::to_string);
    let succeeded = outcome.as_ref().is_ok_and(|outcome| outcome.exit_code() == 0);
    let missed = args.expect.filter(|_| succeeded).and_then(|expect| missed(expect, &mut view));
    view.close(&Ending { how: how.as_deref(), after: begun.elapsed() });
    let outcome = outcome?;
    supervise::end_like(outcome);
    // Codes above 255 do not exist; a shell would cut them in the same way.
    Ok(missed.unwrap_or_else(|| ExitCode::from(outcome.exit_code() as u8)))
}

/// Says in which way memory was not as expected, and gives the exit code for that.
fn missed(expect: Expect, view: &mut View) -> Option<ExitCode> {
    let wanted = expect.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
    let found = view.assessment();
    let (found, code) = match found.map(|assessment| (assessment, assessment.meets(expect.into()))) {
        Some((_, Some(true))) => return None,
        Some((found, Some(false))) if found.verdict == Verdict::Undecided => {
            (format!("still grows ({})", found.ending()), exit::NEGATIVE)
        }
        Some((found, Some(false))) => {
            (format!("was not, {}: {}", found.meaning, found.ending()), exit::NEGATIVE)
        }
        Some((found, None)) => (
            format!("cannot be told yet ({}): run longer, or take readings more often", found.ending()),
            exit::UNDECIDED,
        ),
        None => ("cannot be told: it ended before its first reading".to_owned(), exit::UNDECIDED),
    };
    view.note(&format!("memory was expected to be {wanted}; it {found}"));
    Some(code.into())
}

/// A word of the command and, for `--config=train.yaml`, the part after the `=`: both may name a file.
fn with_value(word: &OsStr) -> impl Iterator<Item = &OsStr> {
    let sign = word.as_bytes().iter().position(|byte| *byte == b'=');
    let value = sign.map(|sign| OsStr::from_bytes(&word.as_bytes()[sign + 1..]));
    std::iter::once(word).chain(value)
}

/// The words of a guard, which the supervisor writes and [`run_guard`] reads.
#[derive(clap::Args)]
pub struct GuardArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Keeps a command's tree together until its last process has ended.
pub fn guard(args: &GuardArgs) -> Result<ExitCode> {
    run_guard(&guard_program(), &args.words)?;
    Ok(ExitCode::SUCCESS)
}

/// This program as the guard of a command; `/proc/self/exe` is this program even if its file was replaced
/// since it started.
pub fn guard_program() -> GuardProgram {
    GuardProgram {
        program: "/proc/self/exe".into(),
        name: Some("model-garden".into()),
        arguments: ["memory", "__guard"].map(Into::into).to_vec(),
    }
}
