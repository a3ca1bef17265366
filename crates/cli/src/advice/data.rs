//! Advice about the errors of `garden-data`.

use super::Advice;
use std::error::Error;

/// What the command line adds to an error of `garden-data`.
pub fn advice(_error: &(dyn Error + 'static)) -> Option<Advice> {
    None
}
