//! What a dataset's README says about its files: the `configs` of the YAML before its text, as the hub reads
//! them.
//!
//! Takes the text of a README and gives, for one configuration, the split of each file. A README without
//! `configs` says nothing; one whose `configs` cannot be followed is an error, since without them rows of a
//! test split would be trained on.

use crate::error::DataError;
use serde::Deserialize;
use std::{collections::BTreeMap, fs, path::Path};

/// The name of the file.
pub(crate) const README: &str = "README.md";
/// The name of the configuration that is meant where none is named.
const DEFAULT: &str = "default";
/// The split of files that are named without one.
const TRAIN: &str = "train";

/// The configurations of a dataset.
#[derive(Debug, Deserialize)]
pub(crate) struct Card {
    #[serde(default)]
    configs: Vec<Config>,
}

/// One configuration: other tools load one of them at a time.
#[derive(Debug, Deserialize)]
pub(crate) struct Config {
    #[serde(rename = "config_name", default = "default_name")]
    pub name: String,
    #[serde(default)]
    default: bool,
    /// The folder that the patterns start from.
    #[serde(default)]
    data_dir: Option<String>,
    #[serde(default)]
    data_files: Option<DataFiles>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum DataFiles {
    Patterns(Patterns),
    Splits(Vec<SplitFiles>),
    BySplit(BTreeMap<String, Patterns>),
}

#[derive(Debug, Deserialize)]
struct SplitFiles {
    split: String,
    path: Patterns,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Patterns {
    One(String),
    Several(Vec<String>),
}

/// What a configuration says about a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said<'a> {
    /// It belongs to this split.
    Split(&'a str),
    /// It belongs to the configuration, and its name tells the split.
    ByName,
    /// It does not belong to the configuration.
    Outside,
}

fn default_name() -> String {
    DEFAULT.into()
}

impl Card {
    /// The card of a folder, if it has one.
    pub fn of_folder(folder: &Path) -> Result<Option<Self>, DataError> {
        let path = folder.join(README);
        match fs::read(&path) {
            Ok(bytes) => Self::parse(&String::from_utf8_lossy(&bytes))
                .map_err(|reason| DataError::File { path, reason }),
            // Without it the names of the files tell.
            Err(_) => Ok(None),
        }
    }

    /// Reads the text of a README; none where it says nothing about files.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n");
        let yaml = text.strip_prefix("---\n").and_then(|rest| rest.split_once("\n---")).map(|(yaml, _)| yaml);
        let Some(yaml) = yaml.filter(|yaml| yaml.lines().any(|line| line.starts_with("configs:"))) else {
            return Ok(None);
        };
        let card: Self = serde_yaml_ng::from_str(yaml)
            .map_err(|error| format!("its `configs` cannot be followed: {error}"))?;
        let strange =
            card.configs.iter().flat_map(Config::patterns).find(|(_, pattern)| pattern.contains('['));
        match strange {
            Some((_, pattern)) => Err(format!("the pattern '{pattern}' of its `configs` is not understood")),
            None => Ok(Some(card).filter(|card| !card.configs.is_empty())),
        }
    }

    /// The configuration of a name; without one the default, or the only one. What is missing is told with
    /// what there is.
    pub fn config(&self, name: Option<&str>) -> Result<&Config, String> {
        let found = match (name, &self.configs[..]) {
            (Some(name), configs) => configs.iter().find(|config| config.name == name),
            (None, [only]) => Some(only),
            (None, configs) => configs.iter().find(|config| config.default || config.name == DEFAULT),
        };
        found.ok_or_else(|| self.configs.iter().map(|config| &*config.name).collect::<Vec<_>>().join(", "))
    }
}

impl Config {
    /// Each pattern with its split.
    fn patterns(&self) -> Vec<(&str, &str)> {
        match &self.data_files {
            None => Vec::new(),
            Some(DataFiles::Patterns(patterns)) => patterns.each().map(|pattern| (TRAIN, pattern)).collect(),
            Some(DataFiles::Splits(splits)) => {
                splits.iter().flat_map(|of| of.path.each().map(|pattern| (&*of.split, pattern))).collect()
            }
            Some(DataFiles::BySplit(splits)) => {
                splits.iter().flat_map(|(split, of)| of.each().map(|pattern| (&**split, pattern))).collect()
            }
        }
    }

    /// What is said about a file, by its path from the folder of the README.
    pub fn of(&self, file: &Path) -> Said<'_> {
        let path = file.to_string_lossy();
        let folder =
            self.data_dir.as_deref().unwrap_or_default().trim_start_matches("./").trim_end_matches('/');
        let inside = match folder {
            "" | "." => Some(&*path),
            folder => path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')),
        };
        let Some(inside) = inside else { return Said::Outside };
        if self.data_files.is_none() {
            return Said::ByName;
        }
        let is_meant = |(_, pattern): &(&str, &str)| matches(pattern.trim_start_matches("./"), inside);
        self.patterns().into_iter().find(is_meant).map_or(Said::Outside, |(split, _)| Said::Split(split))
    }
}

impl Patterns {
    fn each(&self) -> impl Iterator<Item = &str> {
        match self {
            Self::One(pattern) => std::slice::from_ref(pattern),
            Self::Several(patterns) => patterns,
        }
        .iter()
        .map(String::as_str)
    }
}

/// Whether a path is one that a pattern means: `*` and `?` stand for what is inside a name, `**` for any
/// folders.
fn matches(pattern: &str, path: &str) -> bool {
    fn folders(patterns: &[&str], names: &[&str]) -> bool {
        match (patterns.split_first(), names.split_first()) {
            (None, None) => true,
            (Some((&"**", [])), Some(_)) => true,
            (Some((&"**", rest)), _) => (0..=names.len()).any(|skipped| folders(rest, &names[skipped..])),
            (Some((first, rest)), Some((name, names))) => is_like(first, name) && folders(rest, names),
            _ => false,
        }
    }
    folders(&pattern.split('/').collect::<Vec<_>>(), &path.split('/').collect::<Vec<_>>())
}

/// Whether a name is like a pattern without folders.
fn is_like(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // Where the last star was, and how far it reached: it takes one more character whenever what follows does
    // not fit.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, reached)) => {
                    star = Some((at, reached + 1));
                    (p, n) = (at + 1, reached + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(yaml: &str) -> Card {
        Card::parse(&format!("---\nlicense: mit\n{yaml}\n---\n# Rows\n")).unwrap().expect("configs")
    }

    #[test]
    fn patterns_mean_what_they_mean_to_the_hub() {
        for (pattern, path, meant) in [
            ("a.jsonl", "a.jsonl", true),
            ("a.jsonl", "b/a.jsonl", false),
            ("*.jsonl", "a.jsonl", true),
            ("*.jsonl", "b/a.jsonl", false),
            ("**/*.jsonl", "a.jsonl", true),
            ("**/*.jsonl", "b/c/a.jsonl", true),
            ("data/train-*", "data/train-00000-of-00001.parquet", true),
            ("data/train-*", "data/test-00000-of-00001.parquet", false),
            ("data/**", "data/b/a.jsonl", true),
            ("data/**", "other/a.jsonl", false),
            ("part?.json*", "part1.jsonl", true),
            ("*a*b*c", "xaxbxbxc", true),
            ("*a*b*c", "xaxbxbx", false),
        ] {
            assert_eq!(matches(pattern, path), meant, "{pattern} and {path}");
        }
    }

    #[test]
    fn files_belong_to_the_split_that_the_card_says() {
        for yaml in [
            "configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: [a.jsonl, b/*]\n  - split: test\n    path: c.jsonl",
            "configs:\n- data_files:\n    train: [a.jsonl, b/*]\n    test: c.jsonl",
        ] {
            let card = card(yaml);
            let config = card.config(None).unwrap();
            for (file, split) in [("a.jsonl", "train"), ("b/x.csv", "train"), ("c.jsonl", "test")] {
                assert_eq!(config.of(Path::new(file)), Said::Split(split), "{file}");
            }
            assert_eq!(config.of(Path::new("d.jsonl")), Said::Outside);
        }
        let card = card(
            "configs:\n- config_name: one\n  data_files: '*.jsonl'\n- config_name: two\n  data_dir: ./two/\n  default: true",
        );
        assert_eq!(card.config(Some("one")).unwrap().of(Path::new("a.jsonl")), Said::Split("train"));
        let two = card.config(None).unwrap();
        assert_eq!(two.of(Path::new("two/test.jsonl")), Said::ByName);
        assert_eq!(two.of(Path::new("twofold/test.jsonl")), Said::Outside);
        assert_eq!(card.config(Some("three")).unwrap_err(), "one, two");
    }

    #[test]
    fn a_readme_without_configs_says_nothing_and_a_broken_one_is_told() {
        for text in [
            "",
            "# Rows\nconfigs: none",
            "---\nlicense: mit\n---\n",
            "---\nnot: [yaml\n---\n",
            "---\nconfigs: []\n---",
        ] {
            assert!(Card::parse(text).unwrap().is_none(), "{text}");
        }
        for (yaml, words) in [
            ("configs: 7", "its `configs` cannot be followed: "),
            (
                "configs:\n- data_files: 'a[0-9].jsonl'",
                "the pattern 'a[0-9].jsonl' of its `configs` is not understood",
            ),
        ] {
            let error = Card::parse(&format!("---\r\n{yaml}\r\n---\r\n")).unwrap_err();
            assert!(error.starts_with(words), "{error}");
        }
    }
}
