//! What to do about an error, in the words of the command line.
//!
//! Takes an error of a library with its causes and gives what the command line adds to it: the flag that
//! helps, or the same message with flags in the place of settings. Libraries know no flags; this folder has
//! one table for each.

pub mod data;
pub mod memory;
mod model;
mod server;
pub mod train;

use std::error::Error;

/// What the command line says about an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Advice {
    /// The error's own text stands; this is said after it.
    Also(String),
    /// The error names settings; this names the flags instead.
    Instead(String),
}

/// Looks up an error, without its causes.
type Table = fn(&(dyn Error + 'static)) -> Option<Advice>;

/// One table for each library; the first that knows the error answers.
const TABLES: [Table; 5] = [data::advice, memory::advice, model::advice, server::advice, train::advice];

/// The advice about one error, leaving its causes aside.
pub fn about(error: &(dyn Error + 'static)) -> Option<Advice> {
    TABLES.iter().find_map(|table| table(error))
}
