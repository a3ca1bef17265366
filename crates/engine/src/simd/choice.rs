//! Which instruction set a user asked for.
//!
//! Reads the variable `MODEL_GARDEN_ISA`. A name that is no set, or one that this machine lacks, is an error
//! that names what would do: a comparison of two sets must not run on one of them twice.

use super::Isa;

/// The variable that asks for a set.
const VARIABLE: &str = "MODEL_GARDEN_ISA";
const NAMES: [(&str, Isa); 3] = [("avx512", Isa::Avx512), ("avx2", Isa::Avx2), ("portable", Isa::Portable)];

/// A set that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The name is none.
    #[error("{VARIABLE}={asked} is no instruction set: choose one of {known}")]
    Unknown {
        /// What was asked for.
        asked: String,
        /// The names that there are.
        known: String,
    },
    /// The machine lacks it.
    #[error("{VARIABLE}={asked}: this processor has no {isa}; it can use {usable}")]
    Lacking {
        /// What was asked for.
        asked: String,
        /// The set.
        isa: Isa,
        /// The names that would do.
        usable: String,
    },
}

/// The set that the variable asks for, if it asks for one.
pub(super) fn asked() -> Result<Option<Isa>, IsaError> {
    let asked = std::env::var_os(VARIABLE).unwrap_or_default();
    choose(&asked.to_string_lossy(), &super::detected())
}

/// The set of this name, if it is among those the machine has; an empty name asks for none.
fn choose(asked: &str, has: &[Isa]) -> Result<Option<Isa>, IsaError> {
    let names = |of: &[Isa]| {
        let names = NAMES.iter().filter(|(_, isa)| of.contains(isa)).map(|(name, _)| *name);
        names.collect::<Vec<_>>().join(", ")
    };
    match NAMES.into_iter().find(|(name, _)| *name == asked) {
        _ if asked.is_empty() => Ok(None),
        Some((_, isa)) if has.contains(&isa) => Ok(Some(isa)),
        Some((_, isa)) => Err(IsaError::Lacking { asked: asked.to_owned(), isa, usable: names(has) }),
        None => {
            let known = names(&NAMES.map(|(_, isa)| isa));
            Err(IsaError::Unknown { asked: asked.to_owned(), known })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_that_cannot_be_used_is_refused_with_those_that_can() {
        let has = [Isa::Avx2, Isa::Portable];
        let said = |asked: &str| choose(asked, &has).unwrap_err().to_string();
        assert_eq!(choose("", &has), Ok(None));
        assert_eq!(choose("avx2", &has), Ok(Some(Isa::Avx2)));
        assert_eq!(
            said("avx512"),
            "MODEL_GARDEN_ISA=avx512: this processor has no AVX-512; it can use avx2, portable"
        );
        for unknown in ["AVX2", "avx-2", "sse", " avx2", "neon"] {
            let expected = "is no instruction set: choose one of avx512, avx2, portable";
            assert_eq!(said(unknown), format!("MODEL_GARDEN_ISA={unknown} {expected}"));
        }
    }
}
