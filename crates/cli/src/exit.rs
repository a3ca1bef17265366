//! Exit codes, in one place.

/// The answer is bad news: a leak, a bad row.
pub const NEGATIVE: u8 = 1;
/// Wrong use or unreadable input.
pub const BAD_INPUT: u8 = 2;
/// There is no verdict yet.
pub const UNDECIDED: u8 = 3;
/// Bounded, but above the limit.
pub const WILL_NOT_FIT: u8 = 4;

/// Stopped at a memory limit, after a checkpoint.
pub const AT_LIMIT: u8 = 75;
/// Interrupted by a signal; the last line says which checkpoint the run goes on from.
pub const INTERRUPTED: u8 = 130;

/// Shown below `--help`.
pub const HELP: &str = "\
Exit codes:
  0   done; for `memory analyze`: steady, or bounded and it fits
  1   the answer is bad news: a leak, a bad row in a dataset, memory that is worse than --expect
  2   wrong use, or input that cannot be read
  3   undecided
  4   bounded, but it will not fit the limit
  75  stopped at a memory limit after a checkpoint; the same command goes on from there
  130 interrupted (Ctrl-C, SIGTERM, a closed terminal): the first signal writes a checkpoint, the second ends at once;
      the last line names the checkpoint that the same command goes on from";
