//! The one place where errors are printed.
//!
//! An error becomes one `error:` line with its causes in it, or the event that ends a run where
//! lines of JSON were asked for.

use crate::{
    advice::{self, Advice},
    exit,
};
use garden_train::events::{End, EndReason, Event, Record};
use std::{fmt, process::ExitCode};

/// An error of a command that writes lines of JSON.
#[derive(Debug)]
pub struct AsJson {
    /// The error.
    pub error: anyhow::Error,
    /// The last event of its run, if the run had begun.
    pub end: Option<Box<End>>,
}

impl fmt::Display for AsJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for AsJson {}

/// Prints an error and gives the exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    let line = match error.downcast_ref() {
        Some(AsJson { error, end }) => json_line(&with_causes(error), end.as_deref()),
        None => format!("error: {}", with_causes(error)),
    };
    eprintln!("{line}");
    ExitCode::from(exit::BAD_INPUT)
}

/// Ends the process as clap would: help and versions on standard output, wrong use in the format that was
/// asked for.
pub fn wrong_use(error: &clap::Error) -> ! {
    if error.use_stderr() && asks_for_json(std::env::args()) {
        let text = error.render().to_string();
        eprintln!("{}", json_line(text.trim().strip_prefix("error: ").unwrap_or(&text), None));
        std::process::exit(exit::BAD_INPUT.into());
    }
    error.exit()
}

/// Whether the flags ask for lines of JSON, even though they could not be read.
fn asks_for_json(arguments: impl Iterator<Item = String>) -> bool {
    let arguments: Vec<String> = arguments.collect();
    let apart = arguments.windows(2).any(|pair| pair == ["--log-format", "json"]);
    apart || arguments.iter().any(|argument| argument == "--log-format=json")
}

/// The event that ends a failed run, with the command line's advice in its message.
fn json_line(message: &str, end: Option<&End>) -> String {
    let not_begun = End {
        reason: EndReason::Failed,
        message: None,
        step: 0,
        checkpoint: None,
        best_step: None,
        memory: None,
    };
    let end = End { message: Some(message.to_owned()), ..end.cloned().unwrap_or(not_begun) };
    Record::now(Event::End(Box::new(end))).to_json()
}

/// The error and its causes in one line, with the advice about the first of them that has any. A cause that
/// the text before it already names is not repeated.
fn with_causes(error: &anyhow::Error) -> String {
    let mut told = String::new();
    let mut also = None;
    for cause in error.chain() {
        let advice = advice::about(cause);
        let text = match &advice {
            Some(Advice::Instead(text)) => text.clone(),
            _ => cause.to_string(),
        };
        match told.as_str() {
            "" => told = text,
            _ if told.contains(&text) => {}
            // The text before it names this cause without the flags.
            _ if told.contains(&cause.to_string()) => told = told.replace(&cause.to_string(), &text),
            _ => told = format!("{told}: {text}"),
        }
        if let (None, Some(Advice::Also(text))) = (&also, advice) {
            also = Some(text);
        }
    }
    also.into_iter().fold(told, |told, also| format!("{told}; {also}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn a_cause_is_told_once() {
        let cause = || anyhow!("no such file");
        assert_eq!(with_causes(&cause().context("run.log: no such file")), "run.log: no such file");
        assert_eq!(with_causes(&cause().context("cannot read run.log")), "cannot read run.log: no such file");
    }

    #[test]
    fn wrong_use_is_told_in_the_format_that_was_asked_for() {
        let asks = |line: &str| asks_for_json(line.split(' ').map(str::to_owned));
        assert!(asks("train-vision --epochs many --log-format json") && asks("x --log-format=json"));
        assert!(!asks("train-vision --log-format text --dataset json") && !asks("x"));
    }
}
