//! Progress bars: `Epoch 2:  12%|█▏  | 10/83 [00:12<01:30, 1.2s/it]` becomes step 93 of epoch 1.12.
//!
//! Takes bars as they are redrawn, of training and of anything else (downloads, shards, evaluation), in the
//! forms that tqdm, rich, Keras and Ultralytics draw, and counts in brackets (`Epoch: [0][10/83]`), which are
//! bars without a picture. Gives the progress of the one that is training. A bar that starts over with the
//! same length is the next epoch.

use super::Progress;
use regex::{Captures, Regex};
use std::sync::LazyLock;

/// Words that only a training loop writes before its bar; a bar without any words is the HF Trainer's.
const TRAINING_WORDS: [&str; 5] = ["train", "epoch", "step", "iter", "loss"];
/// Words that mark a bar as something else even beside those, as in `Evaluating epoch 1` or TRL's
/// `Tokenizing train dataset`.
const OTHER_WORDS: [&str; 13] = [
    "val", "test", "load", "map", "predict", "generat", "token", "truncat", "pack", "appl", "convert", "add",
    "dataset",
];
/// What the bars of `datasets` count; no training does.
const ROWS: &str = "examples";
/// A bar that returns to its start has finished an epoch if it had come this far; otherwise it was restarted.
const NEARLY_DONE: f64 = 0.9;

/// The forms of a bar. Each names its numbers `done` and `total`; `words` come before it, `clock` and `rest`
/// after it.
const FORMS: [&str; 4] = [
    // tqdm, in a terminal and in a notebook; torchtune and Ultralytics put `|` and numbers into the words.
    r"^(?<words>[^%]*?)\s*\d{1,3}%(?:\|[^|]*\|)?\s*(?<done>\d{1,18})/(?<total>\d{1,18})\s*\[(?<clock>[\d:]*)(?<rest>.*)",
    // rich as Lightning uses it, and Ultralytics' own.
    r"^(?<words>[^━╸╺─]*?)(?:\s*\d{1,3}%)?\s*[━╸╺─]{3,}\s+(?<done>\d{1,18})/(?<total>\d{1,18})(?<rest>\s.*)?$",
    // Keras 3, Keras 2, and either without a picture (verbose=2).
    r"^\s*(?<done>\d{1,18})/(?<total>\d{1,18})\s*(?:[━╸╺─]{3,}|\[[=>.]{3,}\]| - \d+m?s\b)(?<rest>.*)",
    // PyTorch's examples, torchvision, MMEngine, timm and Composer count in brackets.
    r"(?i)(?<words>\bepoch(?:\(train\))?:?\s*\[\s*\d+\]\s*|^train:\s*\d+\s*|\[epoch=\d+(?:/\d+)?\])\[(?:batch=)?\s*(?<done>\d{1,18})/\s*(?<total>\d{1,18})",
];

/// One reading of a bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bar {
    done: u64,
    total: u64,
    /// Whether its length is that of an epoch: it says `Epoch`, or stands below a line that does.
    of_epoch: bool,
    /// How long it has been drawn, as far as it says so.
    seconds: Option<u64>,
}

/// Follows the bar that is training.
#[derive(Debug)]
pub(super) struct BarFollower {
    patterns: &'static Patterns,
    /// A line `Epoch 1/10` stands above the bars that follow, as Keras writes it.
    below_heading: bool,
    followed: Option<Bar>,
    epochs_done: u64,
}

/// What bars look like, compiled once.
#[derive(Debug)]
struct Patterns {
    forms: [Regex; FORMS.len()],
    /// Words in columns: torchtune's epoch|step|Loss; Ultralytics' epoch/epochs and the GPU's memory.
    columns: Regex,
    heading: Regex,
    notebook: Regex,
}

static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| {
    let compile = |pattern: &str| Regex::new(pattern).expect("a constant pattern");
    Patterns {
        forms: FORMS.map(compile),
        columns: compile(r"^\s*(?:\d+\|\d+\|Loss|\d+/\d+\s+[\d.]+[KMGT]?\s)"),
        heading: compile(r"^\s*Epoch \d+/\d+\s*$"),
        notebook: compile(r"\[\s*(\d{1,18})/\d{1,18} [\d:]+(?: < [^\]]*)?, Epoch (\d+(?:\.\d+)?)/\d+\]"),
    }
});

impl BarFollower {
    pub fn new() -> Self {
        Self { patterns: &PATTERNS, below_heading: false, followed: None, epochs_done: 0 }
    }

    /// Whether a line shows any bar, of training or not.
    pub fn is_bar(&self, line: &str) -> bool {
        line.contains("%|") || self.found(line).is_some()
    }

    fn found<'a>(&self, line: &'a str) -> Option<Captures<'a>> {
        // Every form has `done/total`, most lines have not.
        line.contains('/').then_some(())?;
        self.patterns.forms.iter().find_map(|form| form.captures(line))
    }

    /// The progress that a line shows, if it is a bar and the one that trains.
    pub fn line(&mut self, line: &str) -> Option<Progress> {
        if let Some(found) = self.patterns.notebook.captures(line) {
            let (step, epoch) = (found[1].parse().ok(), found[2].parse().ok());
            return Some(Progress { step, epoch, ..Progress::default() });
        }
        if self.patterns.heading.is_match(line) {
            self.below_heading = true;
            return None;
        }
        let bar = self.read(line)?;
        let before = self.followed.filter(|before| before.total == bar.total);
        match before {
            Some(before) if bar.done < before.done => {
                if before.done as f64 >= NEARLY_DONE * before.total as f64 {
                    self.epochs_done += 1;
                }
            }
            Some(_) => {}
            None if self.followed.is_none_or(|other| gives_way(other, bar)) => self.epochs_done = 0,
            None => return None,
        }
        self.followed = Some(bar);
        Some(self.progress(bar))
    }

    fn read(&self, line: &str) -> Option<Bar> {
        let found = self.found(line)?;
        let text = |name| found.name(name).map_or("", |group| group.as_str());
        let words = text("words").to_lowercase();
        let has = |list: &[&str]| list.iter().any(|word| words.contains(word));
        let in_columns = self.patterns.columns.is_match(text("words"));
        let named = words.trim().is_empty() || in_columns || (has(&TRAINING_WORDS) && !has(&OTHER_WORDS));
        let trains = named && !text("rest").contains(ROWS);
        let total: u64 = found["total"].parse().ok().filter(|total| *total > 0)?;
        let done: u64 = found["done"].parse().ok().filter(|done| *done <= total)?;
        let below_heading = self.below_heading && words.is_empty();
        let of_epoch = in_columns || words.contains("epoch") || words.starts_with("train:") || below_heading;
        trains.then(|| Bar { done, total, of_epoch, seconds: seconds(text("clock")) })
    }

    fn progress(&self, bar: Bar) -> Progress {
        let step = self.epochs_done.saturating_mul(bar.total).saturating_add(bar.done);
        // A bar of unknown meaning may span several epochs: only one that came back, or says so, tells the
        // epoch.
        let tells_epoch = bar.of_epoch || self.epochs_done > 0;
        Progress {
            // Before the first step is done a bar shows 0, which is start-up.
            step: (step > 0).then_some(step),
            epoch: (tells_epoch && step > 0).then(|| step as f64 / bar.total as f64),
            steps_per_epoch: tells_epoch.then_some(bar.total as f64),
            ..Progress::default()
        }
    }
}

/// A finished bar gives way to a longer one, and to one that has already taken more time: training is what
/// takes time. A shorter and faster bar is an evaluation. A bar in progress stays.
fn gives_way(followed: Bar, to: Bar) -> bool {
    let slower = matches!((followed.seconds, to.seconds), (Some(all), Some(so_far)) if so_far > all);
    followed.done == followed.total && (to.total > followed.total || slower)
}

/// `1:02:03` or `02:03` in seconds.
fn seconds(clock: &str) -> Option<u64> {
    let parts = clock.split(':').map(|part| part.parse::<u64>().ok());
    parts.reduce(|high, low| high?.checked_mul(60)?.checked_add(low?)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_step(lines: &[&str]) -> Option<(Option<u64>, Option<f64>)> {
        let mut bars = BarFollower::new();
        lines.iter().filter_map(|line| bars.line(line)).last().map(|progress| (progress.step, progress.epoch))
    }

    #[test]
    fn the_trainer_s_bar_has_no_words() {
        let line = " 12%|█▏        | 10/83 [00:12<01:30,  1.23s/it]";
        assert_eq!(last_step(&[line]), Some((Some(10), None)));
        assert_eq!(last_step(&["  0%|          | 0/83 [00:00<?, ?it/s]"]), Some((None, None)));
    }

    #[test]
    fn bars_of_other_things_are_passed_over() {
        let others = [
            "Loading checkpoint shards: 100%|██████████| 2/2 [00:01<00:00,  1.9it/s]",
            "Map:  50%|█████     | 331/663 [00:01<00:01, 300 examples/s]",
            "Evaluating step: 5%|▌   | 1/20 [00:01<00:10]",
            "model.safetensors:  10%|█  | 1.2G/3.4G [00:10<00:20, 100MB/s]",
            "99%|",
            "",
        ];
        assert_eq!(last_step(&others), None);
    }

    #[test]
    fn an_evaluation_in_between_does_not_move_the_step() {
        let lines =
            [" 50%|█████     | 50/100 [..]", " 10%|█         | 2/20 [..]", "100%|██████████| 20/20 [..]"];
        assert_eq!(last_step(&lines), Some((Some(50), None)));
    }

    #[test]
    fn a_bar_that_starts_over_is_the_next_epoch() {
        let lines =
            ["100%|██████████| 83/83 [..]", "  0%|          | 0/83 [..]", " 12%|█▏        | 10/83 [..]"];
        assert_eq!(last_step(&lines), Some((Some(93), Some(93.0 / 83.0))));
        let named = ["Epoch 1/3:  50%|█████     | 40/80 [..]"];
        assert_eq!(last_step(&named), Some((Some(40), Some(0.5))));
    }

    #[test]
    fn a_short_bar_that_is_through_gives_way_to_the_training() {
        let lines = ["100%|██████████| 4/4 [..]", "  3%|▎         | 3/100 [..]"];
        assert_eq!(last_step(&lines), Some((Some(3), None)));
    }

    #[test]
    fn what_comes_before_a_training_does_not_take_its_place() {
        let prepared = [
            "Tokenizing train dataset: 100%|██████████| 663/663 [00:01<00:00, 500.10 examples/s]",
            "Adding EOS to train dataset: 100%|██████████| 663/663 [00:00<00:00, 9000 examples/s]",
            "Packing train dataset: 100%|██████████| 663/663 [00:00<00:00, 9000 examples/s]",
            "100%|██████████| 663/663 [00:30<00:00, 22.1 examples/s]",
        ];
        assert_eq!(last_step(&prepared), None);
        let training = "  4%|▍         | 10/249 [00:12<04:51,  1.22s/it]";
        let lines: Vec<&str> = prepared.into_iter().chain([training]).collect();
        assert_eq!(last_step(&lines), Some((Some(10), None)));
    }

    #[test]
    fn a_bar_that_is_through_gives_way_to_a_slower_one() {
        let through = "100%|██████████| 663/663 [00:11<00:00, 60.0it/s]";
        let training = ["  2%|▏         | 5/249 [00:06<..]", "  4%|▍         | 10/249 [00:12<04:51]"];
        assert_eq!(last_step(&[through, training[0]]), Some((Some(663), None)), "it may be an evaluation");
        assert_eq!(last_step(&[through, training[0], training[1]]), Some((Some(10), None)));
    }

    #[test]
    fn an_evaluation_between_two_epochs_is_not_the_training() {
        let lines = [
            "100%|██████████| 83/83 [01:02:03<00:00]",
            "100%|██████████| 20/20 [02:10<00:00]",
            "  1%|          | 1/83 [00:45<01:01:00]",
        ];
        assert_eq!(last_step(&lines), Some((Some(84), Some(84.0 / 83.0))));
    }
}
