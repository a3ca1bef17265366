//! Advice about the errors of `garden-model`.

use super::Advice;
use std::error::Error;

/// What the command line adds to an error of `garden-model`.
pub fn advice(_error: &(dyn Error + 'static)) -> Option<Advice> {
    None
}
