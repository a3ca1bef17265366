//! A memory figure in a line: `RAM: 5552MB`, `rss=5.4GiB`, `Memory 5.5/64.0 GB`, `{'cpu_ram_mb': 5552.1}`,
//! `5,552 MB resident`.
//!
//! A line is cut into numbers and the words around them. A number belongs to the words before it or, where a
//! line says what it counted after the number, to those that follow. Of several figures in a line, the one
//! whose words say most plainly that it is the process's is taken. Only what `key` knows as
//! memory in use is taken.

use super::{
    key::{self, Subject},
    lines::excerpt,
};
use crate::units::{number, unit_bytes};
use regex::Regex;
use std::{ops::Range, sync::LazyLock};

/// No process is smaller.
const FEWEST_BYTES: f64 = 1e5;

/// What a line says of memory.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Found {
    /// So many bytes.
    Bytes(Subject, f64),
    /// An amount of memory without a unit.
    Bare(Subject, f64),
    /// Something that should be an amount of memory and is not a number.
    Bad(String),
}

/// What the user says of figures.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wanted<'a> {
    /// The key that holds the figure, instead of the names that are known.
    pub key: Option<&'a str>,
    /// The unit of numbers that have none, in bytes.
    pub unit: Option<f64>,
}

/// A number in a line and what stands around it.
struct Token<'a> {
    digits: &'a str,
    negative: bool,
    /// A plus stands before it: it is a difference.
    is_difference: bool,
    /// The unit behind it, in bytes.
    unit: Option<f64>,
    /// A percentage, or a rate such as `MB/s`.
    is_rate: bool,
    span: Range<usize>,
}

/// Finds all memory that a line tells, in its order.
pub(super) fn find(line: &str, wanted: Wanted<'_>) -> Vec<Found> {
    static HINT: LazyLock<Regex> =
        LazyLock::new(|| Regex::new("(?i)mem|ram|rss|resident|pss|uss").expect("a constant pattern"));
    if wanted.key.is_none() && !HINT.is_match(line) {
        return Vec::new();
    }
    let tokens = tokens(line);
    let beside_device = is_beside_device(line, &tokens);
    let named_after = wanted.key.is_none() && names_follow(line, &tokens);
    let read = |(index, token): (usize, &Token<'_>)| {
        let (before, after) = (before(line, &tokens, index), after(line, &tokens, index));
        let words = key::words(before);
        let subject = match wanted.key {
            Some(key) => names(before, key).then_some(Subject::Process),
            None if named_after => {
                // `freed 100 MB of RAM`: the words before it must not take it back.
                let is_used = token.unit.is_some() && !key::is_other(&words);
                is_used.then(|| key::subject(&key::words(after.text))).flatten()
            }
            None => key::subject(&words).filter(|_| !after.ends_clause || !says_otherwise(after.text)),
        };
        let subject = subject.filter(|subject| *subject != Subject::Unsaid || !beside_device)?;
        let is_counter = wanted.key.is_none() && is_counter(line, token);
        if token.is_difference || is_counter || is_in_row(line, &tokens, index) {
            return None;
        }
        let found = value(token, key::unit(&words).or(wanted.unit), subject)?;
        let text = || excerpt(&line[token.span.start - before.len()..]);
        Some(found.unwrap_or_else(|| {
            Found::Bad(format!("expected a size such as 'RAM: 5552 MB', found '{}'", text()))
        }))
    };
    tokens.iter().enumerate().filter_map(read).collect()
}

/// Whether memory without a named owner may be a device's: the line speaks of one, but gives it no figure of
/// its own, as `mem: 5 GB | GPU: 12 GB` does.
fn is_beside_device(line: &str, tokens: &[Token<'_>]) -> bool {
    let speaks = key::words(line).iter().any(|word| {
        // ms-swift prints the GPU's memory as `memory(GiB)`, beside a speed.
        key::DEVICE.contains(&word.as_str()) || word == "speed"
    });
    let of_device =
        |index: usize| key::words(before(line, tokens, index)).iter().any(|word| key::is_gpu(word));
    let has_its_own = || (0..tokens.len()).any(|index| tokens[index].unit.is_some() && of_device(index));
    speaks && !has_its_own()
}

/// Whether numbers follow one another without a word: a row of a table such as `free` prints, whose header
/// tells them apart, or digits in groups (`5 552 MB`).
fn is_in_row(line: &str, tokens: &[Token<'_>], index: usize) -> bool {
    let (token, Some(next)) = (&tokens[index], tokens.get(index + 1)) else { return false };
    let between = &line[token.span.end..next.span.start];
    let alike = token.unit.is_none() || next.unit.is_some();
    alike && !next.is_rate && between.chars().all(|c| c.is_whitespace() || c == '\'')
}

/// Whether a number counts or names something else: `step 10`, `process 1234`.
fn is_counter(line: &str, token: &Token<'_>) -> bool {
    const COUNTED: [&str; 13] = [
        "step",
        "steps",
        "epoch",
        "iter",
        "iteration",
        "batch",
        "process",
        "pid",
        "rank",
        "worker",
        "node",
        "id",
        "line",
    ];
    let before = line[..token.span.start].trim_end_matches([' ', '=', ':', '#', '[', '(']);
    let word = before.rsplit(|c: char| !c.is_alphabetic()).next().unwrap_or_default().to_lowercase();
    token.unit.is_none() && COUNTED.contains(&word.as_str())
}

/// Whether a line names what it counted after the numbers: it shows at the first number with a unit.
fn names_follow(line: &str, tokens: &[Token<'_>]) -> bool {
    let Some(first) = tokens.iter().position(|token| token.unit.is_some()) else { return false };
    let (before, after) = (key::words(before(line, tokens, first)), after(line, tokens, first).text);
    // `VRAM: 12 GB RAM: 5 GB`: what ends so names the next number.
    let names_next = after.trim_end().ends_with([':', '=']);
    let after = key::words(after);
    let after_says = key::speaks_of_memory(&after)
        || after.first().is_some_and(|word| key::is_state(word) || key::is_gpu(word));
    let before_says = key::speaks_of_memory(&before) || before.iter().any(|word| key::is_gpu(word));
    after_says && !names_next && !before_says
}

/// The size of a number with the unit that stands behind it or in its name; `Some(None)` if it should be one
/// and is none.
fn value(token: &Token<'_>, in_name: Option<f64>, subject: Subject) -> Option<Option<Found>> {
    let unit = token.unit.or(in_name);
    let number = number(token.digits, unit.is_some()).filter(|_| !token.negative);
    match (number, unit) {
        _ if token.is_rate => None,
        // `3B` are parameters: no process has so few bytes.
        (Some(number), Some(1.0)) if number < FEWEST_BYTES => None,
        (Some(number), Some(unit)) => Some(Some(Found::Bytes(subject, number * unit))),
        (Some(number), None) => Some(Some(Found::Bare(subject, number))),
        (None, Some(_)) => Some(None),
        // Numbers with several dots are versions and addresses where no unit makes them a size.
        (None, None) => None,
    }
}

fn tokens(line: &str) -> Vec<Token<'_>> {
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
        let unit = r"(?:[kmgt]i?b?|b|bytes|(?:kilo|mega|giga|kibi|mebi|gibi)bytes?)";
        let digits = r"\d[\d.,_]*\d|\d";
        Regex::new(&format!(
            r"(?i)(?P<digits>(?:{digits})(?:e[+-]?\d+)?)(?:\s?(?P<unit>{unit})\b)?(?:\s*(?:/|\bof\b)\s*(?:{digits})\s?(?P<whole>{unit})\b)?(?P<rate>\s?%|/s\b|ps\b)?"
        ))
        .expect("a constant pattern")
    });
    let numbers = NUMBER.captures_iter(line).filter_map(|found| {
        let digits = found.name("digits")?;
        let start = line[..digits.start()].chars().next_back();
        let end = line[found.get(0)?.end()..].chars().next();
        let in_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        // `fp16` and `4bit` are words.
        if in_word(start) || (in_word(end) && found.name("unit").is_none()) {
            return None;
        }
        let signed = line[..digits.start()].strip_suffix('-');
        let negative = signed.is_some_and(|rest| !rest.ends_with(char::is_alphanumeric));
        let is_difference = line[..digits.start()].ends_with('+');
        // `5 m` are minutes, `5m` in a name of memory is a size.
        let letter_apart = |unit: &regex::Match<'_>| unit.len() == 1 && unit.start() > digits.end();
        let unit = found.name("unit").filter(|unit| !letter_apart(unit)).or_else(|| found.name("whole"));
        Some(Token {
            digits: digits.as_str(),
            negative,
            is_difference,
            unit: unit.and_then(|unit| unit_bytes(unit.as_str())).map(|bytes| bytes as f64),
            is_rate: found.name("rate").is_some(),
            span: digits.start()..found.get(0)?.end(),
        })
    });
    numbers.collect()
}

/// Where one statement ends and the next begins.
const CLAUSE: [char; 5] = [',', ';', '|', '{', '}'];

/// The words between the last number or clause and this one.
fn before<'a>(line: &'a str, tokens: &[Token<'_>], index: usize) -> &'a str {
    let mut first = index;
    while let Some(at) = first.checked_sub(1) {
        let between = line[tokens[at].span.end..tokens[first].span.start].trim();
        // `RAM: 45.2% (28.9 GB)`, `Memory at step 10: 5552 MB`: the name stands before both numbers.
        let same_name = (tokens[at].is_rate && between == "(")
            || ([":", "=", "-", "):", "is", "was"].contains(&between) && is_counter(line, &tokens[at]));
        if !same_name {
            break;
        }
        first = at;
    }
    let from = first.checked_sub(1).map_or(0, |before| tokens[before].span.end);
    let text = &line[from..tokens[index].span.start];
    let text = text.rsplit(CLAUSE).next().unwrap_or_default();
    let text = text.rsplit(". ").next().unwrap_or_default();
    // `[utils.py:782:see_memory_usage] MA 0.8 GB`: a bracket that closes here says who wrote the line.
    match text.find(']') {
        Some(end) if !text[..end].contains('[') => &text[end + 1..],
        _ => text,
    }
}

/// What follows a number.
struct After<'a> {
    text: &'a str,
    /// The clause ends with it, so it speaks of this number and not of the next.
    ends_clause: bool,
}

fn after<'a>(line: &'a str, tokens: &[Token<'_>], index: usize) -> After<'a> {
    let to = tokens.get(index + 1).map(|next| next.span.start);
    let text = &line[tokens[index].span.end..to.unwrap_or(line.len())];
    let clause = text.split(CLAUSE).next().unwrap_or_default();
    let clause = clause.split(['(', ')']).next().unwrap_or_default();
    After { text: clause, ends_clause: to.is_none() || clause.len() < text.len() }
}

/// `64 GB total`, `5552 MB is free`: the first word behind a number takes it back.
fn says_otherwise(after: &str) -> bool {
    const EMPTY: [&str; 5] = ["is", "are", "was", "still", "currently"];
    let first = key::words(after).into_iter().find(|word| !EMPTY.contains(&word.as_str()));
    first.is_some_and(|word| key::subject(&["memory".to_owned(), word]).is_none())
}

/// Whether the words before a number end with the name that the user gave.
fn names(before: &str, key: &str) -> bool {
    let name = before.trim_end_matches([' ', ':', '=', '"', '\'']);
    let Some((rest, end)) = name.len().checked_sub(key.len()).and_then(|at| name.split_at_checked(at)) else {
        return false;
    };
    end.eq_ignore_ascii_case(key) && !rest.ends_with(|c: char| c.is_alphanumeric() || "_./".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(line: &str) -> Option<u64> {
        let sizes = find(line, Wanted::default()).into_iter().filter_map(|found| match found {
            Found::Bytes(subject, bytes) => Some((subject, bytes)),
            _ => None,
        });
        let best = sizes.reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.map(|(_, bytes)| bytes.round() as u64)
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let gib = |n: f64| (n * 1_073_741_824.0).round() as u64;
        let cases = [
            ("Step 10: 6529 tensors (CPU: 330, GPU: 6199), Process RAM: 5552 MB", 5_552_000_000),
            ("RAM: 5552MB", 5_552_000_000),
            ("rss=5.4GiB", gib(5.4)),
            ("RSS: 5,552 MB", 5_552_000_000),
            ("RAM: 5,4 GB", 5_400_000_000),
            ("cpu_ram=5.4GB", 5_400_000_000),
            ("RAM: 5.5/64.0 GB", 5_500_000_000),
            ("RAM 5.5GB / 64GB", 5_500_000_000),
            ("Memory usage: 5.5 of 64 GB (8.6%)", 5_500_000_000),
            ("{'loss': 0.5, 'cpu_ram_mb': 5552.1, 'epoch': 0.12}", 5_552_100_000),
            (r#"{"step": 10, "rss_mb": 5552}"#, 5_552_000_000),
            (r#"{"step":10,"rss_bytes":5552000000,"gpu_mb":81920}"#, 5_552_000_000),
            ("process_resident_memory_bytes 5.552e+09", 5_552_000_000),
            ("available memory: 9999 MB RSS: 5552 MB", 5_552_000_000),
            ("RSS: 5552 MB available memory: 9999 MB", 5_552_000_000),
            ("mem 7 GB, rss 5552 MB", 5_552_000_000),
            ("5552 MB RSS, 9999 MB available", 5_552_000_000),
            ("9999 MB available, 5552 MB RSS", 5_552_000_000),
            ("using 5552 MB of RAM", 5_552_000_000),
            ("RSS 5552 MB (peak 6000 MB)", 5_552_000_000),
            ("VmRSS:\t 5421875 kB", 5_421_875_000),
            ("Memory: RSS=5.4GB VMS=20GB", 5_400_000_000),
            ("Mem: 5552M", 5_552_000_000),
            ("CPU Virtual Memory:  used = 93.11 GB, percent = 5.0%", 93_110_000_000),
            ("GPU memory: 9.1 GB | RAM: 1.5 GiB", gib(1.5)),
            ("mem: 5.4GB gpu: 12GB", 5_400_000_000),
            ("VRAM: 12.3GB RAM: 5.5GB", 5_500_000_000),
            ("GPU: 12.3GB RAM: 5.5GB", 5_500_000_000),
            ("12000MB VRAM, 5552MB RAM", 5_552_000_000),
            ("RAM usage: 45.2% (28.9 GB / 64 GB)", 28_900_000_000),
            ("Memory at step 10: 5552 MB", 5_552_000_000),
            ("[rank0]: memory of process 1234: 5.5 GB", 5_500_000_000),
            ("Process memory: 5552 MB (+12 MB since last)", 5_552_000_000),
            (r#"{"system.proc.memory.rssMB": 5552.5, "system.memory_percent": 8.1}"#, 5_552_500_000),
        ];
        let wrong = cases.into_iter().filter(|(line, expected)| bytes(line) != Some(*expected));
        let wrong: Vec<_> = wrong.map(|(line, expected)| (line, bytes(line), expected)).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn what_is_not_the_memory_of_the_process_is_not_taken() {
        let lines = [
            "available memory: 9999 MB",
            "RAM: 9999 MB free",
            "RAM 64 GB total, 5.5 GB used",
            "Max RSS: 5552 MB",
            "peak_rss_mb=5552",
            "total memory: 64 GB",
            "memory limit: 64 GB",
            "swap memory: 5552 MB",
            "GPU 0 | mem 5.4GB",
            "[GPU0] memory: 12.3 GB",
            "cuda:0 memory usage while training: 12.345GB (+1.200GB cache, +0.500GB misc)",
            "Iter 10: Train loss 1.2, Trained Tokens 1234, Peak mem 12.3 GB",
            "Epoch(train)  [1][10/83]  memory: 2345  loss: 1.2",
            "iter: 19  total_loss: 1.2  max_mem: 2345M",
            "MA 0.81 GB         Max_MA 0.81 GB         CA 0.88 GB         Max_CA 1 GB",
            "[Rank 0] (after 10 iterations) memory (MB) | allocated: 1234.5 | max allocated: 2345.6 | reserved: 3000.0",
            "{'loss': '0.29', 'memory(GiB)': '14.3', 'train_speed(s/it)': '42.51'}",
            "{'loss': 0.1, 'memory/max_mem_active(gib)': 14.56, 'memory/device_mem_reserved(gib)': 14.6}",
            "  init_mem_cpu_alloc_delta   =     1324MB",
            "[2024-07-24 02:13:16,632] [INFO] [utils.py:782:see_memory_usage] MA 0.81 GB         Max_MA 0.81 GB         CA 0.88 GB",
            "Mem:            62Gi        29Gi        19Gi       100Mi        13Gi        32Gi",
            "RAM: 5 552 MB",
            "memory: +120.5 MB",
            "freed 100 MB of RAM",
            "Detected 64.0 GB RAM, 8 CPUs",
            "RAM size 64 GB",
            "RssAnon:\t 5000000 kB",
            "RAM: 85%",
            "memory bandwidth 5552 MB/s",
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.69 GiB of \
             which 5.12 MiB is free. Including non-PyTorch memory, this process has 23.67 GiB memory in use.",
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 3.05 GiB for an array with shape (1, 2)",
            "      1/100      2.06G      2.681      4.744      3.814         37        640: 12%",
            "Loading memory-mapped file of 12 GB",
            "",
        ];
        let taken: Vec<_> = lines.into_iter().filter(|line| bytes(line).is_some()).collect();
        assert!(taken.is_empty(), "{taken:#?}");
    }

    #[test]
    fn a_figure_that_cannot_be_read_is_told_from_one_without_a_unit() {
        let found = |line| find(line, Wanted::default());
        assert!(matches!(&found("RAM: 1.2.3 MB")[..], [Found::Bad(what)] if what.contains("RAM: 1.2.3 MB")));
        assert!(matches!(found("RSS: -5 MB")[..], [Found::Bad(_)]));
        assert_eq!(found("RAM: 5552"), [Found::Bare(Subject::Ram, 5552.0)]);
        for line in [
            "Out of memory: Killed process 1234 (python)",
            "memory of process 1234",
            "Mem: 64215 30000 20000",
        ] {
            assert!(
                found(line).iter().all(|found| *found == Found::Bare(Subject::Unsaid, 20000.0)),
                "{line}"
            );
        }
        let psutil = "pmem(rss=1000000000, vms=2000000000, shared=19935232)";
        assert_eq!(found(psutil), [Found::Bare(Subject::Process, 1e9)]);
        let in_megabytes = Wanted { unit: Some(1e6), key: None };
        assert_eq!(find("RAM: 5552", in_megabytes), [Found::Bytes(Subject::Ram, 5.552e9)]);
    }

    #[test]
    fn the_user_s_key_is_the_only_one() {
        let wanted = Wanted { key: Some("host_used"), unit: Some(1e6) };
        let line = r#"{"rss_mb": 1, "host_used": 5552, "not_host_used": 7}"#;
        assert_eq!(find(line, wanted), [Found::Bytes(Subject::Process, 5.552e9)]);
        assert_eq!(find(r#"{"rss_mb": 1}"#, wanted), []);
    }
}
