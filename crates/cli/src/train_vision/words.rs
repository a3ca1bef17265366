//! The events of a run in words.
//!
//! Each function takes one event and gives the line or lines that a person reads. Advice that names flags is
//! added here, not in the library.

use crate::advice;
use garden_memory::{ByteSize, counted};
use garden_train::{
    Method,
    events::{End, EndReason, Evaluation, ImageSize, Log, ModelLoaded, Note, RowsSurveyed},
    grouped,
};

/// Image sizes that are named; the rest are counted.
const SIZES_NAMED: usize = 4;
/// Unread fields that are named.
const FIELDS_NAMED: usize = 10;

/// What the rows are like.
pub fn rows(survey: &RowsSurveyed) -> Vec<String> {
    let RowsSurveyed { rows, usable, too_long, no_label, bad, .. } = survey;
    let mut lines = vec![format!(
        "rows: {rows} ({usable} usable, {too_long} too long, {no_label} without a label, {bad} bad), tokens {} on \
         average, {} at most",
        survey.mean_tokens.round(),
        survey.longest_tokens
    )];
    if *too_long > 0 {
        lines.push(format!(
            "left out: {} of more than --max-seq-length {} tokens, {}; {}",
            counted(*too_long, "row"),
            survey.max_tokens,
            survey.longest,
            advice::train::about_long_rows(&survey.longest)
        ));
    }
    lines.extend(survey.not_read.iter().cloned());
    if let Some(rows) = survey.evaluation_rows {
        lines.push(format!("evaluation: {}, training: {}", counted(rows, "row"), survey.training_rows));
    }
    lines.extend(images(survey));
    if !survey.selective_loss_keys.is_empty() {
        lines.push(format!("selective loss masks the keys {}", survey.selective_loss_keys.join(", ")));
    }
    let ignored = &survey.ignored_fields;
    if !ignored.is_empty() {
        let more = ignored.len().saturating_sub(FIELDS_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named = &ignored[..ignored.len().min(FIELDS_NAMED)];
        lines.push(format!("fields that are not read: {}{more}", named.join(", ")));
    }
    lines.extend(example(survey));
    lines
}

fn images(survey: &RowsSurveyed) -> Option<String> {
    let size = |size: &ImageSize| {
        let ImageSize { images, width, height, resized_width, resized_height, tokens } = size;
        format!(
            "{images} of {width}x{height} -> {resized_width}x{resized_height} ({})",
            counted(*tokens, "token")
        )
    };
    let mut sizes: Vec<String> = survey.image_sizes.iter().take(SIZES_NAMED).map(size).collect();
    if let Some(more) = survey.image_size_count.checked_sub(SIZES_NAMED as u64).filter(|more| *more > 0) {
        sizes.push(counted(more, "more size"));
    }
    (!sizes.is_empty()).then(|| format!("images: {}", sizes.join(", ")))
}

fn example(survey: &RowsSurveyed) -> Option<String> {
    let row = survey.example.as_ref()?;
    let when = match survey.selective_loss_from_epoch {
        0 => String::new(),
        epochs => format!(" after {} without selective loss", counted(epochs, "epoch")),
    };
    let text = row.text.replace('\n', "\\n");
    Some(format!("one row, learned between {} and {}{when}: {text}", row.learned_from, row.learned_to))
}

/// What the model is.
pub fn model(model: &ModelLoaded) -> String {
    let share = 100.0 * model.trained_parameters as f64 / model.parameters.max(1) as f64;
    let what = if model.method == Method::Full { "all weights" } else { "LoRA" };
    format!(
        "model: {} ({} parameters), {what}: {} trained ({share:.2} %), loaded in {:.1} s",
        model.base_model,
        grouped(model.parameters),
        grouped(model.trained_parameters),
        model.seconds
    )
}

/// The numbers of a log.
pub fn log(log: &Log) -> String {
    let mut parts = vec![place(log.step, log.max_steps, log.epoch)];
    let mut add = |name: &str, show: &dyn Fn(f64) -> String| {
        parts.extend(log.values.get(name).copied().map(show));
    };
    add("loss", &|x| format!("loss {x:.4}"));
    add("grad_norm", &|x| format!("gradient norm {x:.3}"));
    add("learning_rate", &|x| format!("rate {x:.2e}"));
    add("tokens_per_second", &|x| format!("{x:.0} tokens/s"));
    add("images_per_second", &|x| format!("{x:.1} images/s"));
    add("memory_rss_bytes", &|x| format!("RAM {}", ByteSize(x as u64)));
    parts.join("  ")
}

/// How an evaluation went.
pub fn evaluation(evaluation: &Evaluation, resident: Option<u64>) -> String {
    let Evaluation { step, max_steps, epoch, loss, token_accuracy, .. } = evaluation;
    let mut parts = vec![
        place(*step, *max_steps, *epoch),
        format!("evaluation loss {loss:.4}"),
        format!("token accuracy {:.1} %", 100.0 * token_accuracy),
    ];
    parts.extend(resident.map(|bytes| format!("RAM {}", ByteSize(bytes))));
    parts.join("  ")
}

fn place(step: u64, max_steps: u64, epoch: f64) -> String {
    format!("step {step}/{max_steps}  epoch {epoch:.2}")
}

/// A note, with the flag it is about.
pub fn note(note: &Note) -> String {
    match advice::train::about_note(note.topic) {
        Some(advice) => format!("{}, {advice}", note.text),
        None => note.text.clone(),
    }
}

/// How a run ended. The last line is the verdict on a run that is over, or names the checkpoint to go on
/// from.
pub fn end(end: &End) -> Vec<String> {
    let already =
        |more: &str| format!("already finished at step {}: nothing was done; {more} it goes on", end.step);
    let again = match &end.checkpoint {
        Some(path) if end.memory.is_some() => {
            format!("wrote {}, the same command goes on from there", path.display())
        }
        Some(path) => {
            format!("before the first step: the same command goes on from {}", path.display())
        }
        None => "before the first step: the same command begins anew".to_owned(),
    };
    let memory = end.memory.as_ref().map(ToString::to_string);
    let before = (end.reason == EndReason::EarlyStopping).then(|| {
        format!("stopped early: the best evaluation was at step {}", end.best_step.unwrap_or_default())
    });
    let last = match end.reason {
        EndReason::AlreadyFinished => Some(already("with more --epochs or --max-steps")),
        EndReason::AlreadyStopped => Some(already("with a larger --early-stopping-patience")),
        EndReason::MemoryLimit => {
            let reason = end.message.as_deref().unwrap_or_default();
            Some(format!("stopped at a memory limit: {reason}; {again}"))
        }
        EndReason::Cancelled => Some(format!("interrupted; {again}")),
        _ => None,
    };
    before.into_iter().chain(memory).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_memory::Verdict;
    use garden_train::events::MemoryVerdict;

    #[test]
    fn a_log_reads_as_a_line() {
        let values = [
            ("loss", 1.23456),
            ("grad_norm", 0.5),
            ("learning_rate", 2e-4),
            ("tokens_per_second", 1234.5),
            ("images_per_second", 3.25),
            ("memory_rss_bytes", 1.21e9),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
        let line = log(&Log { step: 10, max_steps: 40, epoch: 0.5, values });
        let expected = "step 10/40  epoch 0.50  loss 1.2346  gradient norm 0.500  rate 2.00e-4  1234 tokens/s  \
                        3.2 images/s  RAM 1.21 GB";
        assert_eq!(line, expected);
    }

    #[test]
    fn the_end_says_how_to_go_on() {
        let ended = |reason, checkpoint: Option<&str>| End {
            reason,
            message: Some("9.5 GB of 10 GB".into()),
            step: 7,
            checkpoint: checkpoint.map(Into::into),
            best_step: Some(5),
            memory: None,
        };
        let memory = MemoryVerdict {
            verdict: Verdict::Steady,
            resident_bytes: 10_000_000,
            peak_bytes: 10_000_000,
            plan_bytes: Some(10_000_000),
            level_since_step: Some(1),
            growth_bytes_per_step: None,
            decidable_at_step: None,
        };
        let lines = |reason| {
            let trained = End { memory: Some(memory.clone()), ..ended(reason, Some("out/checkpoint-7")) };
            end(&trained).into_iter().filter(|line| !line.starts_with("memory: steady")).collect::<Vec<_>>()
        };
        assert_eq!(lines(EndReason::Finished), [""; 0]);
        assert_eq!(lines(EndReason::EarlyStopping), ["stopped early: the best evaluation was at step 5"]);
        assert_eq!(
            lines(EndReason::MemoryLimit),
            [
                "stopped at a memory limit: 9.5 GB of 10 GB; wrote out/checkpoint-7, the same command goes on from there"
            ]
        );
        assert_eq!(
            lines(EndReason::AlreadyFinished),
            ["already finished at step 7: nothing was done; with more --epochs or --max-steps it goes on"]
        );
        assert_eq!(
            end(&ended(EndReason::Cancelled, None)),
            ["interrupted; before the first step: the same command begins anew"]
        );
    }
}
