//! What is known of who holds the memory of a command, as sentences and as JSON.

use serde::Serialize;
use serde_json::Value;

/// What the Python processes of a command said of their growth.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WhoReport {
    /// A process explained its growth.
    Explained(Explained),
    /// Nothing could be asked or nothing was to be asked, and why.
    Unknown(String),
}

/// One process's explanation of its growth between two censuses.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explained {
    /// The process.
    pub pid: i32,
    /// Its command line.
    pub command: String,
    /// When the first census was taken, in seconds since the start, and the second.
    pub seconds: [f64; 2],
    /// The steps at that time.
    pub at_steps: [Option<u64>; 2],
    /// What the process said: `growth`, `share`, `holders`, `rest`.
    #[serde(flatten)]
    pub told: Value,
}

impl WhoReport {
    /// A sentence a line.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Unknown(why) => vec![why.clone()],
            Self::Explained(explained) => explained.lines(),
        }
    }
}

impl Explained {
    fn lines(&self) -> Vec<String> {
        let lines = self.told["lines"].as_array().into_iter().flatten();
        let mut lines: Vec<String> = lines.filter_map(|line| line.as_str().map(str::to_owned)).collect();
        let [from, to] = self.seconds;
        let when = match self.at_steps {
            [Some(from), Some(to)] => format!("from step {from} to step {to}"),
            _ => format!("from {from:.1} s to {to:.1} s"),
        };
        lines.push(format!("asked of process {}, {when}", self.pid));
        lines
    }

    /// The growth between the two censuses.
    pub(super) fn growth(&self) -> i64 {
        self.told["growth"].as_i64().unwrap_or(0)
    }
}
