//! Which of several processes wrote a line or a row, and which of them is judged.
//!
//! Ranks of a distributed run, workers and whole runs may write into one file; their figures in turn are no
//! curve. [`signature`] reads who wrote a line. [`Writers`] counts the figures of each and chooses one. A
//! number that merely stands in a line names nobody: a name must be that of a process, and the lines of two
//! must alternate. Processes that follow one another are one run that was restarted.

use crate::sentence::{Sentence, Setting};
use regex::{Captures, Regex};
use std::{collections::HashMap, sync::LazyLock};

/// More names than this are a counter, not processes.
pub(super) const MOST_WRITERS: usize = 4096;

/// Who wrote a line, as the line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Signature {
    /// `rank 1`, `pid 123`.
    pub(super) name: String,
    /// Whether the name is beyond doubt, so that even files that were joined end to end are told apart.
    pub(super) is_certain: bool,
}

fn compile(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a constant pattern")
}

/// Reads who wrote a line without colours: a rank before a worker, a worker before a process.
pub(super) fn signature(line: &str) -> Option<Signature> {
    static HINT: LazyLock<Regex> =
        LazyLock::new(|| compile(r"(?i)rank|pid|process|worker|^\s*\[\w+\]:|<std(?:out|err|diag)>"));
    if !HINT.is_match(line) {
        return None;
    }
    rank(line).or_else(|| launcher(line)).or_else(|| ray(line)).or_else(|| process(line))
}

/// `[rank0]:`, `[Rank 0]`, `[RANK:0]`, `[rank: 0]`, `rank=1`, `"local_rank": 1`.
fn rank(line: &str) -> Option<Signature> {
    static RANK: LazyLock<Regex> = LazyLock::new(|| {
        compile(r#"(?i)(?:^|[^a-z_.])((?:global|local|process)?[_ -]?rank)["']?\s*[:=#]?\s*["']?(\d{1,7})\b"#)
    });
    /// Words before it that make it a size of matrices.
    const OF_MATRICES: [&str; 4] = ["lora", "adapter", "low", "matrix"];
    let found = RANK.captures_iter(line).find(|found| is_whole(line, found))?;
    let (name, whole) = (found.get(1)?, found.get(0)?);
    let before = line[..name.start()].trim_end();
    let word = before.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_lowercase();
    if OF_MATRICES.contains(&word.as_str()) {
        return None;
    }
    let is_local = name.as_str().to_lowercase().starts_with("local");
    let is_certain = before.ends_with('[') && line[whole.end()..].starts_with([']', '/', ',']);
    Some(Signature {
        name: format!("{} {}", if is_local { "local rank" } else { "rank" }, &found[2]),
        is_certain,
    })
}

/// What torchrun and mpirun put before each line: `[default0]:`, `[1,0]<stdout>:`.
fn launcher(line: &str) -> Option<Signature> {
    static ROLE: LazyLock<Regex> = LazyLock::new(|| compile(r"^\s*\[([A-Za-z][A-Za-z_-]*)(\d{1,7})\]:"));
    static MPI: LazyLock<Regex> =
        LazyLock::new(|| compile(r"^\s*\[(?:[^\]\s]*@)?\d+,(\d+)\]<std(?:out|err|diag)>:"));
    /// What counts along a run.
    const COUNTED: [&str; 6] = ["step", "epoch", "iter", "iteration", "batch", "it"];
    if let Some(found) = MPI.captures(line) {
        return Some(Signature { name: format!("rank {}", &found[1]), is_certain: true });
    }
    let found = ROLE.captures(line)?;
    let is_counter = COUNTED.contains(&found[1].to_lowercase().as_str());
    (!is_counter).then(|| Signature { name: format!("{}{}", &found[1], &found[2]), is_certain: false })
}

/// What Ray puts before each line: `(RayTrainWorker pid=123, ip=10.0.0.2)`.
fn ray(line: &str) -> Option<Signature> {
    static RAY: LazyLock<Regex> =
        LazyLock::new(|| compile(r"^\s*\([^()]{1,200}\bpid=(\d{1,10})(?:, ip=([0-9a-fA-F.:]+))?\)"));
    let found = RAY.captures(line)?;
    let at = found.get(2).map_or(String::new(), |ip| format!(" at {}", ip.as_str()));
    Some(Signature { name: format!("pid {}{at}", &found[1]), is_certain: false })
}

/// `pid=123`, `[PID:123]`, `"process_id": 1`, `worker 3: RSS ...`.
fn process(line: &str) -> Option<Signature> {
    static PROCESS: LazyLock<Regex> = LazyLock::new(|| {
        compile(
            r#"(?i)(?:^|[^a-z_.])(pid|(?:process|worker)(?:[_ -]?(?:id|index))?)["']?\s*[:=#]?\s*["']?(\d{1,10})\b"#,
        )
    });
    static ENDS: LazyLock<Regex> = LazyLock::new(|| {
        compile(
            r#"(?i)^["']?\s*(?:$|[\]\[)(}{:|,;-]|(?:rss|ram|mem|resident|uss|pss|step|epoch|iter)(?-i:[^a-z]|[a-z]))"#,
        )
    });
    let found = PROCESS.captures_iter(line).find(|found| {
        // `process 8 images` counts images.
        let after = found.get(0).map_or("", |whole| &line[whole.end()..]);
        is_whole(line, found) && (found[1].eq_ignore_ascii_case("pid") || ENDS.is_match(after))
    })?;
    let word = found[1].to_lowercase();
    let word = ["pid", "worker"].into_iter().find(|known| word.starts_with(known)).unwrap_or("process");
    Some(Signature { name: format!("{word} {}", &found[2]), is_certain: false })
}

/// Whether a number ends where it was found to end: it is neither a fraction nor an amount with a unit.
fn is_whole(line: &str, found: &Captures<'_>) -> bool {
    static GOES_ON: LazyLock<Regex> =
        LazyLock::new(|| compile(r"(?i)^(?:[.,]\d|\s?%|\s?(?:[kmgt]i?b|b|bytes)\b)"));
    found.get(0).is_some_and(|whole| !GOES_ON.is_match(&line[whole.end()..]))
}

/// The figures that one process wrote.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    figures: u64,
    /// Place of the first and of the last among all figures.
    first: f64,
    last: f64,
    /// The last amount.
    amount: f64,
    tells_steps: bool,
    /// In the order in which they came.
    order: usize,
}

/// The processes that wrote memory figures into a file. `None` stands for lines without a name.
#[derive(Debug, Default)]
pub(super) struct Writers {
    shares: HashMap<Option<String>, Share>,
    figures: u64,
    is_certain: bool,
    are_too_many: bool,
}

/// The one that is judged.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choice {
    /// Its name; `None` where its lines have none.
    pub(super) name: Option<String>,
    /// Its own lines tell its steps.
    pub(super) tells_steps: bool,
    /// All of them, in words.
    names: Vec<String>,
    is_wanted: bool,
}

/// No process has the name that the user gave; these are the names there are.
#[derive(Debug, PartialEq)]
pub(super) struct Unknown(pub(super) Vec<String>);

impl Writers {
    /// Whether lines name more than one.
    pub(super) fn are_several(&self) -> bool {
        !self.are_too_many && self.shares.keys().flatten().count() > 1
    }

    /// Takes in a figure. `place` is its time, or its position in the file: processes that ran together
    /// overlap there.
    pub(super) fn see(&mut self, name: Option<String>, is_certain: bool, place: Option<f64>, amount: f64) {
        self.figures += 1;
        let order = self.shares.len();
        if order == MOST_WRITERS && !self.shares.contains_key(&name) {
            self.are_too_many = true;
            return;
        }
        let place = place.unwrap_or(self.figures as f64);
        self.is_certain |= is_certain;
        let share =
            self.shares.entry(name).or_insert(Share { first: place, last: place, order, ..Share::default() });
        share.figures += 1;
        (share.first, share.last) = (share.first.min(place), share.last.max(place));
        share.amount = amount;
    }

    /// Notes that a line of this process tells a step.
    pub(super) fn see_step(&mut self, name: &Option<String>) {
        if let Some(share) = self.shares.get_mut(name) {
            share.tells_steps = true;
        }
    }

    /// The one that the user wants. Otherwise, where several ran together: of those that wrote about as often
    /// as any, the one that held the most at the end. `None` where one wrote everything.
    pub(super) fn choose(&self, wanted: Option<&str>) -> Result<Option<Choice>, Unknown> {
        if let Some(wanted) = wanted {
            let name = self.named(wanted).ok_or_else(|| Unknown(self.given_names()))?;
            return Ok(Some(self.choice(name, true)));
        }
        if !self.are_several() || !self.ran_together() {
            return Ok(None);
        }
        let most = self.shares.values().map(|share| share.figures).max().unwrap_or(0);
        let heaviest = self
            .shares
            .iter()
            .filter(|(_, share)| 2 * share.figures >= most)
            .max_by(|(_, a), (_, b)| a.amount.total_cmp(&b.amount).then(b.order.cmp(&a.order)));
        Ok(heaviest.map(|(name, _)| self.choice(name, false)))
    }

    fn choice(&self, name: &Option<String>, is_wanted: bool) -> Choice {
        let tells_steps = self.shares[name].tells_steps;
        Choice { name: name.clone(), tells_steps, names: self.names(), is_wanted }
    }

    /// The name that the user means: all of it, or its last word.
    fn named(&self, wanted: &str) -> Option<&Option<String>> {
        let last_word = |name: &str| name.rsplit(' ').next().is_some_and(|word| word == wanted);
        let find = |fits: &dyn Fn(&str) -> bool| {
            let fitting = self.shares.iter().filter(|(name, _)| name.as_deref().is_some_and(fits));
            fitting.min_by_key(|(_, share)| share.order).map(|(name, _)| name)
        };
        find(&|name| name.eq_ignore_ascii_case(wanted)).or_else(|| find(&last_word))
    }

    /// Whether two of them wrote in turn. If nearly every figure has a name of its own, the names are a
    /// counter.
    fn ran_together(&self) -> bool {
        if 2 * self.shares.len() as u64 > self.figures {
            return false;
        }
        let mut spans: Vec<(f64, f64)> = self
            .shares
            .iter()
            .filter(|(name, _)| name.is_some())
            .map(|(_, it)| (it.first, it.last))
            .collect();
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut reached = f64::NEG_INFINITY;
        self.is_certain
            || spans.into_iter().any(|(first, last)| {
                let overlaps = first < reached;
                reached = reached.max(last);
                overlaps
            })
    }

    /// The names that lines give, as they came.
    fn given_names(&self) -> Vec<String> {
        let mut names: Vec<(usize, &String)> =
            self.shares.iter().filter_map(|(name, share)| Some((share.order, name.as_ref()?))).collect();
        names.sort();
        names.into_iter().map(|(_, name)| name.clone()).collect()
    }

    /// What all of them are called, as they came.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.shares.iter().collect();
        names.sort_by_key(|(_, share)| share.order);
        names.into_iter().map(|(name, _)| called(name.as_deref())).collect()
    }
}

fn called(name: Option<&str>) -> String {
    name.unwrap_or("one without a name").to_owned()
}

impl Choice {
    /// How many there were and which was judged, as a sentence; nothing where there is only one.
    pub(super) fn note(&self, file: &str) -> Option<Sentence> {
        let count = self.names.len();
        let why = if self.is_wanted { "" } else { ", which held the most at the end" };
        (count > 1).then(|| {
            let (names, judged) = (listed(&self.names), called(self.name.as_deref()));
            let text = format!(
                "The {file} tells the memory of {count} processes ({names}): the verdict is about {judged}{why}."
            );
            Sentence::about(Setting::Process, text)
        })
    }
}

/// The first few of them.
pub(super) fn listed(names: &[String]) -> String {
    const SHOWN: usize = 4;
    match names.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{} and {more} more", names[..SHOWN].join(", ")),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(line: &str) -> Option<String> {
        signature(line).map(|signature| signature.name)
    }

    #[test]
    fn who_wrote_a_line_is_read_from_what_launchers_and_trainers_put_there() {
        for (line, wanted) in [
            ("[rank0]: RSS: 5.1 GB", "rank 0"),
            ("[rank12]:W1118 01:02:03.000000 140 torch/x.py:1] RSS: 5.1 GB", "rank 12"),
            (
                "[2024-07-24 02:13:16,632] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, rss=5.1GB",
                "rank 0",
            ),
            ("[2024-07-24 02:13:16,632] [INFO] [axolotl.train:45] [PID:1234] [RANK:1] RSS: 5 GB", "rank 1"),
            ("[rank: 1] Seed set to 42, RSS: 5 GB", "rank 1"),
            ("rank 1/8 step 10 RSS: 5 GB", "rank 1"),
            (r#"{"step": 10, "local_rank": 3, "rss_mb": 5552}"#, "local rank 3"),
            ("[default1]:Step 10 RSS: 5 GB", "default1"),
            ("[1,3]<stdout>:Step 10 RSS: 5 GB", "rank 3"),
            ("(RayTrainWorker pid=123, ip=10.0.0.2) RSS: 5 GB", "pid 123 at 10.0.0.2"),
            ("(RayTrainWorker pid=123) [rank2] RSS: 5 GB", "rank 2"),
            ("pid=123 rss=5GB", "pid 123"),
            ("Worker 3: RSS: 5 GB", "worker 3"),
            ("process 1234 RSS 5 GB", "process 1234"),
            (r#"{"process_index": 2, "rss_mb": 5552}"#, "process 2"),
        ] {
            assert_eq!(name(line).as_deref(), Some(wanted), "{line}");
        }
    }

    #[test]
    fn a_number_that_merely_stands_in_a_line_names_nobody() {
        for line in [
            "Step 10 RSS: 5552 MB",
            "[step10]: RSS: 5552 MB",
            "LoRA rank 8, RSS: 5552 MB",
            "lora_rank=16 RSS: 5552 MB",
            "Process RAM: 5552 MB",
            "Process: 5552 MB RSS",
            "process 8 images, RSS: 5552 MB",
            "processed 8 rows, RSS: 5552 MB",
            "num_workers=8 RSS: 5552 MB",
            "rank_loss 5 RSS: 5552 MB",
            "rank 0.5 RSS: 5552 MB",
            "[1234] RSS: 5552 MB",
            "2: RSS: 5552 MB",
        ] {
            assert_eq!(name(line), None, "{line}");
        }
    }

    fn seen(names: &[&str]) -> Writers {
        let mut writers = Writers::default();
        for (amount, name) in (1..).zip(names) {
            writers.see(Some((*name).to_owned()), false, None, f64::from(amount));
        }
        writers
    }

    #[test]
    fn only_those_that_write_in_turn_are_several() {
        let together = seen(&["a", "b", "a", "b", "a", "b"]).choose(None).unwrap().expect("a choice");
        assert_eq!(together.name.as_deref(), Some("b"));
        assert_eq!(seen(&["a", "a", "a", "b", "b", "b"]).choose(None), Ok(None), "one after the other");
        assert_eq!(seen(&["a", "b", "c", "d", "a", "e"]).choose(None), Ok(None), "a counter");
        let wanted = seen(&["rank 0", "rank 1"]).choose(Some("1")).unwrap().expect("a choice");
        assert_eq!(wanted.name.as_deref(), Some("rank 1"));
        assert!(seen(&["rank 0", "rank 1"]).choose(Some("2")).is_err());
    }
}
