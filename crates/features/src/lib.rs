//! One set of features for every dependency, whichever part of the workspace is built.
//!
//! Holds no code. Cargo turns on the features that the crates of one build ask for, so `cargo test -p garden-data` would
//! ask for fewer than `cargo test --workspace` and build Parquet and the tokenizer once more. Each crate's tests depend on this
//! one, which names what the whole workspace turns on.
