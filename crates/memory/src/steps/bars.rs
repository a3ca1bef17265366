//! tqdm progress bars: `Epoch 2:  12%|█▏  | 10/83 [00:12<01:30, 1.2s/it]` becomes step 93 of epoch 1.12.
//!
//! In come bars as they are redrawn, of training and of anything else (downloads, shards, evaluation); out comes
//! progress for the one that is training. A bar that starts over with the same length is the next epoch.

use super::Progress;
use regex::Regex;

/// Words that only a training loop writes before its bar; a bar without any words is the HF Trainer's.
const TRAINING_WORDS: [&str; 4] = ["train", "epoch", "step", "iter"];
/// Words that mark a bar as something else even beside those, as in `Evaluating epoch 1`.
const OTHER_WORDS: [&str; 7] = ["eval", "valid", "test", "load", "map", "predict", "generat"];
/// A bar that comes back to its start has ended an epoch if it was this far; before, it was started again.
const NEARLY_DONE: f64 = 0.9;

/// One reading of a bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bar {
    done: u64,
    total: u64,
    /// It says `Epoch`, so its length is that of an epoch.
    of_epoch: bool,
}

/// Follows the bar that is training.
#[derive(Debug)]
pub(super) struct BarFollower {
    pattern: Regex,
    followed: Option<Bar>,
    epochs_done: u64,
}

impl BarFollower {
    pub fn new() -> Self {
        let pattern = r"^(?<words>[^%|]*?)\s*\d{1,3}%\|[^|]*\|\s*(?<done>\d{1,18})/(?<total>\d{1,18})\s*\[";
        Self { pattern: Regex::new(pattern).expect("a constant pattern"), followed: None, epochs_done: 0 }
    }

    /// The progress that a line shows, if it is a bar and the one that trains.
    pub fn line(&mut self, line: &str) -> Option<Progress> {
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
        let found = self.pattern.captures(line)?;
        let words = found["words"].to_lowercase();
        let has = |list: &[&str]| list.iter().any(|word| words.contains(word));
        let trains = words.trim().is_empty() || (has(&TRAINING_WORDS) && !has(&OTHER_WORDS));
        let total: u64 = found["total"].parse().ok().filter(|total| *total > 0)?;
        let done: u64 = found["done"].parse().ok().filter(|done| *done <= total)?;
        trains.then(|| Bar { done, total, of_epoch: words.contains("epoch") })
    }

    fn progress(&self, bar: Bar) -> Progress {
        let step = self.epochs_done.saturating_mul(bar.total).saturating_add(bar.done);
        // A bar of unknown meaning may span several epochs: only one that came back, or says so, tells the epoch.
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

/// A bar that is through and was shorter was not the training; one in progress, or a longer one, stays.
fn gives_way(followed: Bar, to: Bar) -> bool {
    followed.done == followed.total && to.total > followed.total
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
}
