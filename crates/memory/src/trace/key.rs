//! What a name says: whose memory it is about, and in which unit.
//!
//! One list of words serves lines of logs, keys of dictionaries and headers of tables. `rss`, `Process RAM`,
//! `cpu_ram_mb` and `system.proc.memory.rssMB` are memory that a process has; `available memory`, `peak RSS`,
//! `gpu_mem` and `swap` are not, and are never taken for it.

use crate::units::unit_bytes;

/// Whose memory a name speaks of, the most general first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Subject {
    /// The whole machine's: `system memory used`.
    Machine,
    /// Not said whose: `memory`.
    Unsaid,
    /// Not a device's: `RAM`, `CPU memory`.
    Ram,
    /// Memory that the process shares with none: `uss`.
    Unique,
    /// With its share of common memory: `pss`.
    Proportional,
    /// The process's: `rss`, `process memory`.
    Process,
}

/// Words that speak of memory.
const MEMORY: [&str; 7] = ["rss", "ram", "resident", "mem", "memory", "pss", "uss"];
/// Words that say that the memory is a process's.
const PROCESS: [&str; 6] = ["rss", "resident", "pss", "uss", "process", "proc"];
/// Words that say that it is main memory.
const MAIN: [&str; 4] = ["ram", "cpu", "host", "main"];
/// Words that say that it is the machine's.
const MACHINE: [&str; 6] = ["system", "sys", "machine", "node", "server", "virtual"];
/// Words of devices: memory of a GPU is not the process's, nor is any memory without an owner beside them.
pub(super) const DEVICE: [&str; 16] = [
    "gpu",
    "gpus",
    "cuda",
    "vram",
    "hbm",
    "device",
    "npu",
    "xpu",
    "tpu",
    "mps",
    "nvidia",
    "rocm",
    "alloc",
    "allocated",
    "reserved",
    "active",
];
/// Words that make it an amount other than what is in use now, by what they say instead.
const OTHER: [&str; 6] = [
    // What is not used.
    "free available avail left remaining headroom limit cap capacity budget quota threshold installed detected",
    // What was once used.
    "max maximum peak peaked highest hwm min minimum lowest mean average avg std",
    // What lies elsewhere, or is shared.
    "swap swapped disk mapped vms vsz vmsize shared shmem shm cache cached buffer buffers pinned inactive",
    // Differences and shares.
    "delta diff difference change increase increased growth grew grown leak leaked freed released reclaimed collected saved percent percentage pct ratio per",
    // What somebody wants, expects or failed to get.
    "required requires needed needs estimated estimate expected error allocate out killed oom",
    // A part.
    "model dataset weights optimizer activations gradients footprint anon anonymous file files clean dirty",
];
/// Words between a name and its number that carry no meaning of their own; more of them and it is a sentence.
const MOST_WORDS_AFTER: usize = 4;

/// The words of a name in lower case: `system.proc.memory.rssMB` is `system proc memory rss mb`, `GPU0` is
/// `gpu 0`.
pub(super) fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for run in name.split(|c: char| !c.is_alphanumeric()).filter(|run| !run.is_empty()) {
        let mut before = None;
        for c in run.chars() {
            // A capital after a small letter begins a word, but not in units such as `MiB` and `kB`.
            let in_unit = || {
                let word = words.last().map_or("", String::as_str);
                c == 'B' && ["k", "ki", "mi", "gi", "ti"].contains(&word)
            };
            let begins = before.is_none_or(|before: char| {
                (c.is_uppercase() && before.is_lowercase() && !in_unit())
                    || (c.is_ascii_digit() && !before.is_ascii_digit())
            });
            if begins {
                words.push(String::new());
            }
            words.last_mut().expect("one was begun").extend(c.to_lowercase());
            before = Some(c);
        }
    }
    words
}

/// Whose memory is meant; `None` for anything but memory in use.
pub(super) fn subject(words: &[String]) -> Option<Subject> {
    let has = |list: &[&str]| words.iter().any(|word| list.contains(&word.as_str()));
    let last = words.iter().rposition(|word| MEMORY.contains(&word.as_str()))?;
    let is_used = has(&["used", "usage", "use"]);
    let process = has(&PROCESS);
    let refused = is_other(words)
        || has(&DEVICE)
        || (has(&["total", "size"]) && !process)
        || (has(&["virtual"]) && !is_used)
        || words.len() - last > MOST_WORDS_AFTER + 1;
    match () {
        () if refused => None,
        () if has(&["uss"]) => Some(Subject::Unique),
        () if has(&["pss"]) => Some(Subject::Proportional),
        () if process => Some(Subject::Process),
        () if has(&MACHINE) => Some(Subject::Machine),
        () if has(&MAIN) => Some(Subject::Ram),
        () => Some(Subject::Unsaid),
    }
}

/// Whether words make an amount another than what is in use now.
pub(super) fn is_other(words: &[String]) -> bool {
    words.iter().any(|word| OTHER.iter().any(|list| list.split(' ').any(|other| other == word)))
}

/// Whether a word can only mean a GPU.
pub(super) fn is_gpu(word: &str) -> bool {
    ["gpu", "gpus", "cuda", "vram", "hbm"].contains(&word)
}

/// Whether a word behind a number says what became of that memory: `9999 MB available`.
pub(super) fn is_state(word: &str) -> bool {
    ["free", "available", "avail", "left", "remaining", "total", "used", "peak", "swap"].contains(&word)
}

/// Whether a name speaks of memory at all, in use or not.
pub(super) fn speaks_of_memory(words: &[String]) -> bool {
    words.iter().any(|word| MEMORY.contains(&word.as_str()))
}

/// The unit with which a name ends: `rss_mb`, `RSS (MiB)`, `resident_memory_bytes`.
pub(super) fn unit(words: &[String]) -> Option<f64> {
    let last = words.last().filter(|_| words.len() > 1)?;
    // A single letter is rarely a unit: `mem_g` may be anything.
    if last.len() < 2 { None } else { unit_bytes(last).map(|bytes| bytes as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> (Option<Subject>, Option<f64>) {
        let words = words(name);
        (subject(&words), unit(&words))
    }

    #[test]
    fn names_of_memory_in_use_are_known_with_their_unit() {
        use Subject::{Machine, Process, Ram, Unsaid};
        let (mib, gib) = (1_048_576.0, 1_073_741_824.0);
        let cases = [
            ("rss", Process, None),
            ("RSS (MiB)", Process, Some(mib)),
            ("rssMiB", Process, Some(mib)),
            ("VmRSS", Process, None),
            ("Process RAM", Process, None),
            ("cpu_ram_mb", Ram, Some(1e6)),
            ("memory [GiB]", Unsaid, Some(gib)),
            ("memory_usage", Unsaid, None),
            ("system.proc.memory.rssMB", Process, Some(1e6)),
            ("process_resident_memory_bytes", Process, Some(1.0)),
            ("rss_total", Process, None),
            ("system/system_memory_usage_megabytes", Machine, Some(1e6)),
            ("CPU Virtual Memory: used", Machine, None),
            ("mem_kb", Unsaid, Some(1e3)),
        ];
        for (name, subject, unit) in cases {
            assert_eq!(of(name), (Some(subject), unit), "{name}");
        }
    }

    #[test]
    fn other_amounts_are_never_memory_in_use() {
        let names = [
            "available memory",
            "free RAM",
            "max RSS",
            "MaxRSS",
            "peak_rss_mb",
            "total memory",
            "memory limit",
            "swap memory",
            "GPU_mem",
            "cuda memory",
            "vram_mb",
            "gpuRam",
            "max_memory_allocated",
            "memory/device_mem_reserved(gib)",
            "memory percent",
            "system.proc.memory.availableMB",
            "RssAnon",
            "Pss_File",
            "train_mem_cpu_alloc_delta",
            "virtual memory",
            "loss",
            "step",
            "ArrayMemoryError: Unable to allocate",
            "model memory footprint",
        ];
        for name in names {
            assert_eq!(of(name).0, None, "{name}");
        }
    }
}
