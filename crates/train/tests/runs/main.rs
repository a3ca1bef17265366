//! Whole runs through the library, as a program other than the command line starts them.

mod events;
mod garden;
mod library;
mod python_engine;
