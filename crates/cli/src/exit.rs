//! Exit codes, in one place.

/// The answer is bad news: a leak, a bad row.
#[allow(dead_code)]
pub const NEGATIVE: u8 = 1;
/// Wrong use or unreadable input.
pub const BAD_INPUT: u8 = 2;

/// Shown below `--help`.
pub const HELP: &str = "\
Exit codes:
  0   done; for `memory analyze`: steady, or bounded and it fits
  1   the answer is bad news: a leak, a bad row in a dataset
  2   wrong use, or input that cannot be read
  3   undecided
  4   bounded, but it will not fit the limit
  75  stopped at a memory limit after a checkpoint; running again goes on from there";
