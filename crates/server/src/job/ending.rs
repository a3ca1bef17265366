//! What the end of an attempt means for its job.
//!
//! Takes how an attempt ended, as its keeper recorded it, and what the job was told, and gives the [`Next`] thing to
//! happen. A job that was killed says so in words, with its last readings; one that vanished without a record, because
//! its keeper or the machine died, goes on from its checkpoint.

use super::{
    progress::Progress,
    record::{AttemptEnd, Fault, How, JobRecord, JobState, Wanted},
};
use garden_memory::ByteSize;

/// Attempts that may vanish in a row without a step before the job is given up.
pub(crate) const MOST_VANISHED: u32 = 5;
/// The exit codes of the trainer: stopped at a memory limit, and interrupted, both after a checkpoint.
const AT_LIMIT: i32 = 75;
const INTERRUPTED: i32 = 130;

/// What happens to a job whose attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Next {
    Succeeded,
    Failed(Fault),
    /// Cancelled; `kept` if its last checkpoint is the result.
    Cancelled {
        kept: bool,
    },
    /// It waits until somebody resumes it.
    Paused,
    /// Back to the queue because the server asked for it.
    Requeued,
    /// Back to the queue, from its checkpoint, after a kill or a limit; with the reason.
    Restarted(Fault),
    /// Back to the queue, from its checkpoint, because nobody knows how it ended.
    Vanished,
}

/// Decides what happens after an attempt. Without a record of its end the attempt vanished.
pub(crate) fn next(
    record: &JobRecord,
    state: &JobState,
    progress: &Progress,
    end: Option<&AttemptEnd>,
    limit: u64,
) -> Next {
    if state.wanted == Some(Wanted::Cancel) {
        return Next::Cancelled { kept: false };
    }
    let Some(end) = end else { return again(state, progress, vanished_too_often) };
    match (end.how, state.wanted) {
        (How::Exited(0), _) => Next::Succeeded,
        // Somebody else asked it to end, politely: it goes on, like one that vanished.
        (How::Exited(INTERRUPTED), _) => again(state, progress, vanished_too_often),
        // A full disk or too many processes: that passes, and must not cost the whole queue.
        (How::NotStarted, _) => again(state, progress, |_| failed(end, progress)),
        (How::Exited(AT_LIMIT) | How::StoppedAtLimit | How::KilledAtLimit | How::Signaled(_), wanted) => {
            let fault = killed(end, limit);
            match wanted {
                Some(Wanted::Stop) => Next::Cancelled { kept: true },
                Some(Wanted::Pause) => Next::Paused,
                // By the signal that the server itself sent.
                Some(Wanted::Requeue) if matches!(end.how, How::Signaled(_)) => Next::Requeued,
                _ if state.restarts < record.max_restarts => Next::Restarted(fault),
                _ => Next::Failed(fault),
            }
        }
        (How::Exited(_), _) => Next::Failed(failed(end, progress)),
    }
}

/// What was wanted, or another attempt; after too many without a step in between, the fault.
fn again(state: &JobState, progress: &Progress, fault: impl FnOnce(&JobState) -> Fault) -> Next {
    let stuck = state.vanished >= MOST_VANISHED && progress.step <= state.step;
    match state.wanted {
        Some(Wanted::Stop) => Next::Cancelled { kept: true },
        Some(Wanted::Pause) => Next::Paused,
        Some(Wanted::Requeue) => Next::Requeued,
        _ if stuck => Next::Failed(fault(state)),
        _ => Next::Vanished,
    }
}

fn vanished_too_often(state: &JobState) -> Fault {
    let times = state.vanished + 1;
    Fault {
        code: "vanished".into(),
        message: format!(
            "the job's process vanished {times} times in a row without a step: something on this machine ends it"
        ),
        param: None,
    }
}

/// A job that was ended because of its memory, or by a signal.
fn killed(end: &AttemptEnd, limit: u64) -> Fault {
    let limit = ByteSize(limit);
    let last = end.last_readings.last().map_or(String::new(), |reading| {
        let step = reading.step.map(|step| format!(" at step {step}")).unwrap_or_default();
        format!("; its last reading was {}{step}", ByteSize(reading.resident_bytes))
    });
    let (code, what) = match end.how {
        How::KilledAtLimit => {
            ("out_of_memory", format!("the kernel killed the job at its memory limit of {limit}"))
        }
        How::Signaled(9) => (
            "killed",
            format!(
                "the job was killed (signal 9): by the kernel because the machine ran out of memory, or by hand. Its \
                 limit was {limit}"
            ),
        ),
        How::Signaled(signal) => ("killed", format!("the job was ended by signal {signal}")),
        _ => (
            "memory_limit",
            format!("the job was stopped at its memory limit of {limit}, after a checkpoint"),
        ),
    };
    let verdict = end
        .verdict
        .map(|verdict| format!("; the verdict on its memory was: {}", verdict.name()))
        .unwrap_or_default();
    let words: String = end.words.iter().map(|words| format!("\n{words}")).collect();
    Fault { code: code.into(), message: format!("{what}{last}{verdict}{words}"), param: None }
}

/// A job whose trainer gave up.
fn failed(end: &AttemptEnd, progress: &Progress) -> Fault {
    let message = match (&progress.last_error, end.how) {
        (Some(error), _) => with_settings_for_flags(error),
        (None, How::Exited(code)) => format!("the trainer ended with code {code}; its log tells more"),
        (None, _) => end.words.join("\n"),
    };
    Fault { code: "training_failed".into(), message, param: None }
}

/// The trainer's words for clients of the server, who have settings where the command line has flags:
/// `--learning-rate` becomes `learning_rate`.
fn with_settings_for_flags(words: &str) -> String {
    let name = |flag: &str| match flag {
        // No request can choose it.
        "python" => "the server's --python".to_owned(),
        _ => flag.replace('-', "_"),
    };
    let is_part = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let mut told = String::with_capacity(words.len());
    let mut rest = words;
    while let Some(at) = rest.find("--") {
        let (before, flag) = (&rest[..at], &rest[at + 2..]);
        let end = flag.find(|letter| !is_part(letter)).unwrap_or(flag.len());
        let follows_a_word = before.ends_with(|letter: char| letter.is_alphanumeric() || letter == '-');
        let is_flag = !follows_a_word && flag.starts_with(|letter: char| letter.is_ascii_lowercase());
        told.push_str(before);
        told.push_str(&if is_flag { name(&flag[..end]) } else { format!("--{}", &flag[..end]) });
        rest = &flag[end..];
    }
    told + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::record::{Hyperparameters, LastReading, OrAuto, Phase};

    fn record(max_restarts: u32) -> JobRecord {
        JobRecord {
            id: "ftjob-a".into(),
            number: 1,
            created_at: 1,
            model: "tiny".into(),
            base: "tiny".into(),
            suffix: None,
            training_file: "file-a".into(),
            validation_file: None,
            hyperparameters: Hyperparameters {
                batch_size: OrAuto::AUTO,
                learning_rate_multiplier: OrAuto::AUTO,
                n_epochs: OrAuto::AUTO,
            },
            seed: 1,
            metadata: Default::default(),
            settings: Default::default(),
            max_restarts,
            rerun_of: None,
            resumed_from: None,
            request: None,
        }
    }

    fn ended(how: How) -> AttemptEnd {
        AttemptEnd {
            at: 5,
            how,
            words: vec!["telling the command to stop".into()],
            verdict: Some(garden_memory::Verdict::Leak),
            judgement: Vec::new(),
            peak_bytes: 2_000_000_000,
            last_readings: vec![LastReading {
                t: 3.0,
                step: Some(7),
                resident_bytes: 2_000_000_000,
                owned_bytes: 1_900_000_000,
            }],
            energy_joules: None,
        }
    }

    fn after(how: Option<How>, wanted: Option<Wanted>, restarts_left: u32) -> Next {
        let state = JobState { wanted, ..JobState::new(Phase::Running, 0) };
        let end = how.map(ended);
        next(&record(restarts_left), &state, &Progress::default(), end.as_ref(), 2_100_000_000)
    }

    #[test]
    fn what_was_wanted_decides_what_an_interrupted_attempt_means() {
        let interrupted = Some(How::Exited(130));
        assert_eq!(after(interrupted, Some(Wanted::Stop), 0), Next::Cancelled { kept: true });
        assert_eq!(after(interrupted, Some(Wanted::Pause), 0), Next::Paused);
        assert_eq!(after(interrupted, Some(Wanted::Requeue), 0), Next::Requeued);
        assert_eq!(after(interrupted, None, 0), Next::Vanished, "somebody else interrupted it");
        assert_eq!(after(None, Some(Wanted::Cancel), 0), Next::Cancelled { kept: false });
        assert_eq!(after(None, Some(Wanted::Pause), 0), Next::Paused);
        assert_eq!(
            after(Some(How::Exited(0)), Some(Wanted::Pause), 0),
            Next::Succeeded,
            "it was done already"
        );
    }

    #[test]
    fn a_kill_is_told_with_its_readings_or_restarted_if_asked() {
        for how in [How::Signaled(9), How::StoppedAtLimit, How::KilledAtLimit, How::Exited(75)] {
            let Next::Failed(fault) = after(Some(how), None, 0) else { panic!("{how:?}") };
            assert!(
                fault.message.contains("2.00 GB at step 7") && fault.message.contains("was: leak"),
                "{fault:?}"
            );
            assert!(matches!(after(Some(how), None, 1), Next::Restarted(_)), "{how:?}");
        }
    }

    #[test]
    fn a_limit_that_comes_first_does_not_undo_what_was_wanted() {
        for how in [How::StoppedAtLimit, How::KilledAtLimit, How::Exited(75)] {
            assert_eq!(after(Some(how), Some(Wanted::Stop), 1), Next::Cancelled { kept: true });
            assert_eq!(after(Some(how), Some(Wanted::Pause), 1), Next::Paused);
            assert!(matches!(after(Some(how), Some(Wanted::Requeue), 1), Next::Restarted(_)));
            assert!(matches!(after(Some(how), Some(Wanted::Requeue), 0), Next::Failed(_)));
        }
    }

    #[test]
    fn a_start_that_fails_is_tried_again_but_not_for_ever() {
        let not_started = |vanished| {
            let state = JobState { vanished, ..JobState::new(Phase::Running, 0) };
            next(&record(0), &state, &Progress::default(), Some(&ended(How::NotStarted)), 0)
        };
        assert_eq!(not_started(0), Next::Vanished);
        let Next::Failed(fault) = not_started(MOST_VANISHED) else { panic!() };
        assert_eq!(fault.message, "telling the command to stop");
    }

    #[test]
    fn a_job_that_vanishes_goes_on_but_not_for_ever() {
        let vanished = |vanished, step_before, step| {
            let state = JobState { vanished, step: step_before, ..JobState::new(Phase::Running, 0) };
            let mut progress = Progress::default();
            progress.step = step;
            next(&record(0), &state, &progress, None, 0)
        };
        assert_eq!(vanished(0, 0, 0), Next::Vanished);
        assert_eq!(vanished(MOST_VANISHED, 3, 4), Next::Vanished, "it gets ahead");
        assert!(matches!(vanished(MOST_VANISHED, 3, 3), Next::Failed(_)));
    }

    #[test]
    fn the_trainers_own_words_are_the_error() {
        let mut progress = Progress::default();
        progress.last_error = Some("row 3 is bad".into());
        let state = JobState::new(Phase::Running, 0);
        let Next::Failed(fault) = next(&record(0), &state, &progress, Some(&ended(How::Exited(1))), 0) else {
            panic!()
        };
        assert_eq!(fault.message, "row 3 is bad");
    }

    #[test]
    fn clients_of_the_server_read_of_settings_where_the_trainer_names_flags() {
        let told = with_settings_for_flags(
            "Lower --learning-rate or add --warmup-steps; use '--on-bad-row skip' (--seed)",
        );
        assert_eq!(told, "Lower learning_rate or add warmup_steps; use 'on_bad_row skip' (seed)");
        let told = with_settings_for_flags("no torch; --python names another interpreter");
        assert_eq!(told, "no torch; the server's --python names another interpreter");
        for same in ["a -- b", "x--y is a name", "--", "a row --1", "none"] {
            assert_eq!(with_settings_for_flags(same), same);
        }
    }
}
