//! Finds the training run among the processes of this machine.
//!
//! Returns the largest process tree that shows evidence of training, together with the trees it was chosen
//! from, so that a person can see why. A Python process alone is no evidence: it may be `pip install` or an
//! editor. This process and its ancestors never count.

use super::{
    Kinds, ProbeError, all_pids, counters,
    tree::{is_alive, read_member},
};
use crate::{
    ByteSize, RunFacts,
    steps::{LogFollower, StepBoard, StepPatterns},
    units::counted,
};
use std::{collections::HashMap, fmt, fs};

/// Programs that train; interpreters carry a version (`python3.11`).
const TRAINERS: [&str; 4] = ["python", "torchrun", "accelerate", "deepspeed"];

/// Our own program.
const OURSELVES: &str = "model-garden";

/// Commands of our own that train; its others watch.
const OWN_TRAINERS: [&str; 3] = ["train-vision", "demo", "serve"];

/// Libraries that a training process maps: how their files' names begin, and what they belong to. Those that
/// only watch a GPU (NVML) are not among them.
const LIBRARIES: [(&str, &str); 9] = [
    ("libtorch", "PyTorch"),
    ("libtensorflow", "TensorFlow"),
    ("_pywrap_tensorflow", "TensorFlow"),
    ("xla_extension", "JAX"),
    ("libjax", "JAX"),
    ("libpaddle", "PaddlePaddle"),
    ("libcudart", "CUDA"),
    ("libcuda.so", "CUDA"),
    ("libamdhip64", "ROCm"),
];

/// What shows that a process trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// A library for training is loaded.
    Library(&'static str),
    /// Steps stand in the file that its output goes to.
    Steps,
    /// It is our own training.
    Own,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(name) => write!(f, "has {name} loaded"),
            Self::Steps => write!(f, "prints steps"),
            Self::Own => write!(f, "is our own training"),
        }
    }
}

/// A process tree that may be a training run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The root's PID.
    pub pid: i32,
    /// The root's command line.
    pub command: String,
    /// What shows that the root trains.
    pub evidence: Evidence,
    /// Resident memory of the tree, shared pages counted for each process.
    pub resident: u64,
    /// Processes in the tree.
    pub processes: usize,
}

/// The tree that was chosen and what it was chosen from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The largest.
    pub chosen: Candidate,
    /// All others, largest first.
    pub others: Vec<Candidate>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Candidate { pid, command, evidence, resident, processes } = &self.chosen;
        write!(
            f,
            "picked process {pid} ({command}), which {evidence}: {} in {}",
            ByteSize(*resident),
            counted(*processes as u64, "process")
        )?;
        match self.others.first() {
            None => write!(f, ", the only one that trains"),
            Some(next) => write!(
                f,
                ", the largest of {} that train; next is {} ({}) with {}",
                self.others.len() + 1,
                next.pid,
                next.command,
                ByteSize(next.resident)
            ),
        }
    }
}

/// What the choice needs to know of a process.
#[derive(Debug, Clone)]
struct Entry {
    parent: i32,
    command: String,
    /// Whether its program may be one that trains.
    could_train: bool,
    evidence: Option<Evidence>,
    resident: u64,
}

/// Picks the largest tree that trains.
pub fn find_training() -> Result<Found, ProbeError> {
    let pids = all_pids().map_err(|error| ProbeError::Proc(error.to_string()))?;
    let table: HashMap<i32, Entry> =
        pids.into_iter().filter_map(|pid| Some((pid, read_entry(pid)?))).collect();
    let own = std::process::id().cast_signed();
    choose(&table, own).ok_or_else(|| ProbeError::NothingFound { passed_over: passed_over(&table) })
}

fn read_entry(pid: i32) -> Option<Entry> {
    let member = read_member(pid).ok().filter(|member| is_alive(&member.stat))?;
    let words = member.process.cmdline().unwrap_or_default();
    let memory: Kinds = member.process.status().map(|status| counters(&status)).unwrap_or_default();
    let kind = program_of(&member.stat.comm, &words);
    Some(Entry {
        parent: member.stat.ppid,
        command: super::command_of(&member),
        could_train: kind != Program::Other,
        evidence: match kind {
            Program::Other => None,
            Program::Own => Some(Evidence::Own),
            Program::Trainer => evidence(pid),
        },
        resident: memory.resident() + memory.swap,
    })
}

/// What a process could be, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Trainer,
    Own,
    Other,
}

/// A launcher script shows up as its interpreter with the script as the first argument.
fn program_of(name: &str, words: &[String]) -> Program {
    let base = |word: &str| word.rsplit('/').next().unwrap_or(word).to_owned();
    let is_trainer = |word: &str| {
        let word = base(word);
        TRAINERS.iter().any(|trainer| {
            word.strip_prefix(trainer)
                .is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
        })
    };
    if words.first().is_some_and(|word| base(word) == OURSELVES) {
        // Our own watchers are not what is to be watched.
        let trains = words.get(1).is_some_and(|word| OWN_TRAINERS.contains(&word.as_str()));
        return if trains { Program::Own } else { Program::Other };
    }
    let trains = is_trainer(name) || words.iter().take(2).any(|word| is_trainer(word));
    if trains { Program::Trainer } else { Program::Other }
}

/// What shows that a process trains: what it has loaded, or what it prints.
fn evidence(pid: i32) -> Option<Evidence> {
    // Another user's process keeps its mappings to itself.
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    library_in(&maps).map(Evidence::Library).or_else(|| prints_steps(pid).then_some(Evidence::Steps))
}

/// The library for training among the mapped files.
fn library_in(maps: &str) -> Option<&'static str> {
    let mut files = maps.lines().filter_map(|line| line.rsplit_once('/').map(|(_, file)| file));
    files.find_map(|file| {
        LIBRARIES.iter().find(|(start, _)| file.starts_with(start)).map(|(_, belongs)| *belongs)
    })
}

/// Whether steps stand at the end of the file that its output goes to.
fn prints_steps(pid: i32) -> bool {
    let board = StepBoard::default();
    let Ok(mut log) = LogFollower::open(&[pid], None, board.clone(), &StepPatterns::default()) else {
        return false;
    };
    log.catch_up();
    board.now(&RunFacts::default()).step.is_some()
}

/// Processes that could train by their name and show no evidence of it, the largest first.
fn passed_over(table: &HashMap<i32, Entry>) -> Vec<String> {
    let mut entries: Vec<(&i32, &Entry)> = table.iter().filter(|(_, entry)| entry.could_train).collect();
    entries.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.resident));
    entries.into_iter().map(|(pid, entry)| format!("{pid} ({})", entry.command)).collect()
}

fn choose(table: &HashMap<i32, Entry>, own: i32) -> Option<Found> {
    let above: Vec<i32> = ancestors(table, own).collect();
    let evidence_of = |pid: i32| {
        let entry = table.get(&pid).filter(|_| pid != own && !above.contains(&pid))?;
        entry.evidence
    };
    let mut trees: HashMap<i32, Candidate> = HashMap::new();
    for (&pid, entry) in table {
        let chain = std::iter::once(pid).chain(ancestors(table, pid));
        let roots = chain.filter_map(|pid| Some((pid, evidence_of(pid)?)));
        let Some((root, evidence)) = roots.last() else { continue };
        let tree = trees.entry(root).or_insert_with(|| Candidate {
            pid: root,
            command: table[&root].command.clone(),
            evidence,
            resident: 0,
            processes: 0,
        });
        tree.resident += entry.resident;
        tree.processes += 1;
    }
    let mut others: Vec<Candidate> = trees.into_values().collect();
    others.sort_by_key(|tree| (std::cmp::Reverse(tree.resident), tree.pid));
    let mut others = others.into_iter();
    Some(Found { chosen: others.next()?, others: others.collect() })
}

/// The PIDs above `pid`, nearest first; a table read while it changes may hold a loop, so the walk is
/// bounded.
fn ancestors(table: &HashMap<i32, Entry>, pid: i32) -> impl Iterator<Item = i32> {
    let parent = move |pid: &i32| table.get(pid).map(|entry| entry.parent).filter(|parent| *parent > 0);
    std::iter::successors(parent(&pid), parent).take(table.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(parent: i32, command: &str, resident: u64) -> Entry {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let could_train = program_of("", &words) != Program::Other;
        let evidence = could_train.then_some(Evidence::Library("PyTorch"));
        Entry { parent, command: command.to_owned(), could_train, evidence, resident }
    }

    /// Could train by its name, and shows nothing of it.
    fn idle(parent: i32, command: &str, resident: u64) -> Entry {
        Entry { evidence: None, ..entry(parent, command, resident) }
    }

    #[test]
    fn the_largest_tree_wins_and_says_why() {
        let table = HashMap::from([
            (1, entry(0, "/sbin/init", 10)),
            (50, entry(1, "bash", 10)),
            (60, entry(50, "/opt/bin/python3.11 /opt/bin/torchrun train.py", 100)),
            (61, entry(60, "/opt/bin/python3.11 train.py", 5_000_000)),
            (62, entry(61, "/opt/bin/python3.11 train.py", 2_000_000)),
            (70, entry(50, "python notebook.py", 4_000_000)),
            (80, entry(50, "/usr/bin/firefox", 90_000_000)),
            (81, idle(50, "python -m pip install torch", 80_000_000)),
        ]);
        let found = choose(&table, 50).unwrap();
        assert_eq!((found.chosen.pid, found.chosen.processes, found.chosen.resident), (60, 3, 7_000_100));
        assert_eq!(found.others.iter().map(|other| other.pid).collect::<Vec<_>>(), [70]);
        let why = found.to_string();
        assert!(
            why.contains("which has PyTorch loaded: 7.0 MB in 3 processes")
                && why.contains("next is 70 (python notebook.py)"),
            "{why}"
        );
    }

    #[test]
    fn those_above_us_do_not_count_but_their_other_children_do() {
        let table = HashMap::from([
            (1, entry(0, "init", 0)),
            (10, entry(1, "python harness.py", 900)),
            (11, entry(10, "model-garden memory watch", 5)),
            (12, entry(10, "python train.py", 50)),
        ]);
        let found = choose(&table, 11).unwrap();
        assert_eq!((found.chosen.pid, found.others.len()), (12, 0));
    }

    #[test]
    fn nothing_that_trains_is_nothing_found() {
        let table = HashMap::from([(1, entry(0, "init", 0)), (2, entry(1, "pythonic-tool", 50))]);
        assert_eq!(choose(&table, 1), None);
    }

    #[test]
    fn a_table_with_a_loop_ends() {
        let table = HashMap::from([(2, entry(3, "python a.py", 1)), (3, entry(2, "bash", 1))]);
        assert_eq!(choose(&table, 99).map(|found| found.chosen.pid), Some(2));
    }

    #[test]
    fn our_watchers_are_not_training() {
        let program =
            |name, line: &str| program_of(name, &line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(program("model-garden", "model-garden memory run -- python t.py"), Program::Other);
        let ours = "/usr/bin/model-garden train-vision --config job.toml";
        assert_eq!(program("model-garden", ours), Program::Own);
        assert_eq!(program("python3", "python3 -m train"), Program::Trainer);
    }

    #[test]
    fn what_was_passed_over_is_named_the_largest_first() {
        let table = HashMap::from([(2, idle(1, "python a.py", 1)), (3, idle(1, "python b.py", 9))]);
        assert_eq!(choose(&table, 99), None);
        let said = ProbeError::NothingFound { passed_over: passed_over(&table) }.to_string();
        assert!(said.contains("PyTorch") && said.contains("3 (python b.py) and 1 more"), "{said}");
    }

    #[test]
    fn libraries_are_known_by_their_files() {
        let line = |path: &str| format!("7f0000-7f1000 r-xp 00000000 08:01 42    {path}\n");
        let maps = |paths: &[&str]| paths.iter().map(|path| line(path)).collect::<String>();
        let cases = [
            ("/venv/lib/torch/lib/libtorch_cpu.so", Some("PyTorch")),
            ("/venv/tensorflow/libtensorflow_cc.so.2", Some("TensorFlow")),
            ("/venv/jaxlib/libjax_common.so", Some("JAX")),
            ("/usr/lib/libcuda.so.550.54 (deleted)", Some("CUDA")),
            ("/usr/lib/libnvidia-ml.so.1", None),
            ("/home/libtorch/numpy.so", None),
        ];
        for (path, library) in cases {
            assert_eq!(library_in(&maps(&["/lib/libc.so.6", path])), library, "{path}");
        }
    }

    /// A Python process that maps a file of this name and prints to `log`.
    fn python(folder: &std::path::Path, library: &str, printed: &str) -> std::process::Child {
        let code = "import mmap, sys, time
with open(sys.argv[1], 'r+b') as file: kept = mmap.mmap(file.fileno(), 0)
print(sys.argv[2], flush=True)
print('ready', file=sys.stderr, flush=True)
time.sleep(600)";
        fs::write(folder.join(library), [0; 4096]).unwrap();
        let mut command = std::process::Command::new("python3");
        command.args(["-c", code]).arg(folder.join(library)).arg(printed);
        let log = fs::File::create(folder.join("log")).unwrap();
        let mut child = command.stdout(log).stderr(std::process::Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stderr.as_mut().unwrap(), &mut [0; 6]).unwrap();
        child
    }

    #[test]
    fn evidence_is_a_library_that_is_mapped_or_a_step_that_was_printed() {
        let cases = [
            ("libz.so", "Collecting torch", None),
            ("libtorch_cpu.so", "hello", Some(Evidence::Library("PyTorch"))),
            ("libz.so", "Step 10: loss 1.2", Some(Evidence::Steps)),
        ];
        for (library, printed, expected) in cases {
            let folder = tempfile::tempdir().unwrap();
            let mut child = python(folder.path(), library, printed);
            let found = evidence(child.id().cast_signed());
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(found, expected, "{library}, {printed}");
        }
    }
}
