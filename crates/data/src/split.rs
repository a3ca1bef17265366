//! The splits of a dataset, as far as the names of its files tell them.
//!
//! Takes the data files below a folder and which split is wanted; gives the files to read. The rules are
//! those of the `datasets` library: what the README's `configs` say, else a word such as `train`, `val` or
//! `test` in the name of a file or of its nearest folder that has one, or the name before `-00000-of-00001`.
//! Rows to train on are never those of another split, unless the user names it.

use crate::{
    card::{Card, Config, Said},
    error::{DataError, counted},
};
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

/// Words in names, and the split that they mean.
const WORDS: [(&str, &[&str]); 3] = [
    (TRAIN, &["train", "training"]),
    (VALIDATION, &["validation", "valid", "val", "dev"]),
    (TEST, &["test", "testing", "eval", "evaluation"]),
];
const TRAIN: &str = "train";
const VALIDATION: &str = "validation";
const TEST: &str = "test";
/// What a user writes to read every file.
const ALL: &str = "all";

/// Which split of a dataset is read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SplitChoice {
    /// The one to train on: `train`, else the files that belong to no split.
    #[default]
    Training,
    /// One to evaluate on: `validation`, else `test`, else the files that belong to no split.
    Evaluation,
    /// By name: several joined with `+`, `all` for every file, `CONFIG/SPLIT` for a split of one of the
    /// README's configurations.
    Named(String),
}

/// The files of a dataset, chosen by their split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub files: Vec<PathBuf>,
    /// The name of the split; none where no file belongs to one.
    pub split: Option<String>,
    /// The splits that are not read.
    pub left: Vec<LeftSplit>,
    /// Links to folders of rows, which are not followed.
    pub links: Vec<PathBuf>,
}

/// Files of a split that are not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftSplit {
    /// Its name; none for files that belong to no split.
    pub split: Option<String>,
    /// How many files it has.
    pub files: usize,
    /// Whether the README's configuration leaves these files out.
    pub outside: bool,
}

impl fmt::Display for LeftSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = counted(self.files as u64, "file");
        match &self.split {
            Some(split) => write!(f, "{split} ({files})"),
            None if self.outside => write!(f, "{files} outside the README's configuration"),
            None => write!(f, "{files} of no split"),
        }
    }
}

/// Rows that lie beside those of a dataset and are not read. Shown, it is a line for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotRead {
    /// Other splits.
    Splits {
        /// The name of the split that is read; none where its files belong to no split.
        read: Option<String>,
        /// The splits that are not.
        left: Vec<LeftSplit>,
    },
    /// A link to a folder of rows. Links are not followed.
    Link(PathBuf),
}

impl fmt::Display for NotRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Splits { read, left } => {
                let read = read.as_deref().unwrap_or("the files of no split");
                let left: Vec<String> = left.iter().map(LeftSplit::to_string).collect();
                write!(f, "split: {read}; not read: {}", left.join(", "))
            }
            Self::Link(link) => write!(
                f,
                "not read: the rows in {}, a link to a folder: name it as a dataset of its own",
                link.display()
            ),
        }
    }
}

/// The split of a file, by its own name or that of its nearest folder that names one.
pub(crate) fn split_of(file: &Path) -> Option<String> {
    let shard = file.file_name().and_then(|name| shard_of(&name.to_string_lossy()).map(str::to_owned));
    let named = |part: std::path::Component<'_>| split_in(&part.as_os_str().to_string_lossy());
    match shard {
        // `train_sft-00000-of-00001` is a split of that name, `train-00000-of-00001` is train.
        Some(name) => Some(word_of(&name).map_or(name, str::to_owned)),
        None => file.components().rev().find_map(named).map(str::to_owned),
    }
}

/// Whether a file's name is that of a split, or of a piece of one.
pub(crate) fn is_split_name(stem: &str) -> bool {
    word_of(stem).is_some() || shard_of(stem).is_some()
}

/// The split that a word means.
fn word_of(word: &str) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    WORDS.iter().find(|(_, words)| words.contains(&word.as_str())).map(|(split, _)| *split)
}

/// The split that a word in a name means; `train` takes precedence.
fn split_in(name: &str) -> Option<&'static str> {
    let words: Vec<_> = name.split(|c: char| !c.is_ascii_alphabetic()).filter_map(word_of).collect();
    [TRAIN, VALIDATION, TEST].into_iter().find(|split| words.contains(split))
}

/// What stands before `-00000-of-00001` in a name.
fn shard_of(name: &str) -> Option<&str> {
    let (before, after) = name.split_once("-of-")?;
    let (split, number) = before.rsplit_once('-')?;
    let digits = |text: &str| text.len() >= 5 && text.bytes().take(5).all(|byte| byte.is_ascii_digit());
    (digits(number) && digits(after) && !split.is_empty()).then_some(split)
}

/// Chooses among the files below `root`. A card takes precedence over names, and names above `root` do not
/// count.
pub(crate) fn choose(
    root: &Path,
    files: Vec<PathBuf>,
    card: Option<&Card>,
    wanted: &SplitChoice,
) -> Result<Chosen, DataError> {
    let (config, wanted) = match card {
        Some(card) => configured(root, card, wanted)?,
        None => (None, wanted.clone()),
    };
    let mut splits = Splits::new();
    let mut outside = 0;
    for file in files {
        let path = file.strip_prefix(root).unwrap_or(&file);
        let split = match config.map_or(Said::ByName, |config| config.of(path)) {
            Said::Split(split) => Some(word_of(split).unwrap_or(split).to_owned()),
            Said::ByName => split_of(path),
            Said::Outside => {
                outside += 1;
                continue;
            }
        };
        splits.entry(split).or_default().push(file);
    }
    let mut chosen = among(root, splits, &wanted)?;
    chosen.left.extend((outside > 0).then_some(LeftSplit { split: None, files: outside, outside: true }));
    Ok(chosen)
}

/// The configuration that is wanted, and its split. If no configuration is the default, `all` means every
/// file.
fn configured<'c>(
    root: &Path,
    card: &'c Card,
    wanted: &SplitChoice,
) -> Result<(Option<&'c Config>, SplitChoice), DataError> {
    let mut name = None;
    let mut rest = wanted.clone();
    if let SplitChoice::Named(names) = wanted {
        let parts: Vec<_> = names.split('+').map(|one| one.rsplit_once('/').unwrap_or(("", one))).collect();
        let configs = parts.iter().map(|(config, _)| config.trim()).filter(|config| !config.is_empty());
        // Two configurations at once are refused, by a name that no configuration has.
        name = configs.reduce(|one, other| if one == other { one } else { names });
        rest = SplitChoice::Named(parts.iter().map(|(_, split)| *split).collect::<Vec<_>>().join("+"));
    }
    match card.config(name) {
        Ok(config) => Ok((Some(config), rest)),
        Err(_) if name.is_none() && rest == SplitChoice::Named(ALL.into()) => Ok((None, rest)),
        Err(has) => Err(DataError::Config { path: root.to_owned(), has }),
    }
}

fn among(root: &Path, mut splits: Splits, wanted: &SplitChoice) -> Result<Chosen, DataError> {
    let names = match wanted {
        SplitChoice::Training => vec![first_of(&splits, &[TRAIN])],
        SplitChoice::Evaluation => vec![first_of(&splits, &[VALIDATION, TEST])],
        SplitChoice::Named(name) if name == ALL => splits.keys().cloned().map(Some).collect(),
        SplitChoice::Named(names) => names.split('+').map(|name| named(&splits, name.trim())).collect(),
    };
    let mut chosen = Chosen { files: Vec::new(), split: None, left: Vec::new(), links: Vec::new() };
    let has = listed(&splits);
    for name in names {
        let name = name.filter(|name| splits.contains_key(name)).ok_or_else(|| DataError::Split {
            path: root.to_owned(),
            wanted: match wanted {
                SplitChoice::Training => "which split to train on".into(),
                SplitChoice::Evaluation => "which split to evaluate on".into(),
                SplitChoice::Named(name) => format!("where split '{name}' is"),
            },
            has: has.clone(),
        })?;
        chosen.files.extend(splits.remove(&name).unwrap_or_default());
        let joined = [chosen.split.take(), name].into_iter().flatten().collect::<Vec<_>>().join("+");
        chosen.split = Some(joined).filter(|joined| !joined.is_empty());
    }
    chosen.files.sort_unstable();
    let left =
        splits.into_iter().map(|(split, files)| LeftSplit { split, files: files.len(), outside: false });
    chosen.left = left.collect();
    Ok(chosen)
}

type Splits = BTreeMap<Option<String>, Vec<PathBuf>>;

/// The first of these splits that is there, else the files of no split, else the only split there is.
fn first_of(splits: &Splits, names: &[&str]) -> Option<Option<String>> {
    let there = names.iter().map(|name| Some((*name).to_owned())).find(|name| splits.contains_key(name));
    there.or_else(|| splits.contains_key(&None).then_some(None)).or_else(|| match splits.len() {
        1 => splits.keys().next().cloned(),
        _ => None,
    })
}

/// The split of a name, as it is written or as the word means; files of no split are `train` where nothing
/// else is.
fn named(splits: &Splits, name: &str) -> Option<Option<String>> {
    let meant = word_of(name).unwrap_or(name);
    let there =
        [name, meant].into_iter().map(|name| Some(name.to_owned())).find(|name| splits.contains_key(name));
    there.or_else(|| (meant == TRAIN && splits.contains_key(&None)).then_some(None))
}

fn listed(splits: &Splits) -> String {
    let split = |(split, files): (&Option<String>, &Vec<PathBuf>)| {
        LeftSplit { split: split.clone(), files: files.len(), outside: false }.to_string()
    };
    splits.iter().map(split).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folder may be called anything.
    const ROOT: &str = "/test/train/datasets--garden--eval";

    /// Names of the chosen files, and the split, or the message.
    fn pick(names: &[&str], wanted: &SplitChoice) -> Result<(Vec<String>, Option<String>), String> {
        pick_with(None, names, wanted)
    }

    fn pick_with(
        card: Option<&str>,
        names: &[&str],
        wanted: &SplitChoice,
    ) -> Result<(Vec<String>, Option<String>), String> {
        let root = Path::new(ROOT);
        let card = card.map(|yaml| Card::parse(&format!("---\n{yaml}\n---\n")).unwrap().unwrap());
        let chosen = choose(root, names.iter().map(|name| root.join(name)).collect(), card.as_ref(), wanted);
        let relative = |file: &PathBuf| file.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        let chosen = chosen.map_err(|error| error.to_string())?;
        Ok((chosen.files.iter().map(relative).collect(), chosen.split))
    }

    #[track_caller]
    fn assert_picks(names: &[&str], wanted: &SplitChoice, files: &[&str], split: Option<&str>) {
        let (found, name) = pick(names, wanted).unwrap();
        assert_eq!(
            (found.iter().map(String::as_str).collect::<Vec<_>>(), name.as_deref()),
            (files.to_vec(), split)
        );
    }

    #[test]
    fn training_never_reads_the_rows_of_another_split() {
        let training = &SplitChoice::Training;
        for (names, files, split) in [
            (&["train.jsonl", "test.jsonl"][..], &["train.jsonl"][..], Some("train")),
            (
                &[
                    "data/train-00000-of-00002.parquet",
                    "data/train-00001-of-00002.parquet",
                    "data/test-00000-of-00001.parquet",
                ],
                &["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
                Some("train"),
            ),
            (&["a.jsonl", "validation.jsonl"], &["a.jsonl"], None),
            (&["constraint.jsonl", "latest.jsonl"], &["constraint.jsonl", "latest.jsonl"], None),
            (&["test.jsonl"], &["test.jsonl"], Some("test")),
            (&["train/0000.parquet", "test/0000.parquet"], &["train/0000.parquet"], Some("train")),
            (&["default/0.parquet", "default/validation/0.parquet"], &["default/0.parquet"], None),
            (&["training/test.jsonl", "training/a.jsonl"], &["training/a.jsonl"], Some("train")),
            (&["my_train_v2.jsonl", "my_dev.jsonl"], &["my_train_v2.jsonl"], Some("train")),
            (&["Train.jsonl", "Val.jsonl", "testing.jsonl"], &["Train.jsonl"], Some("train")),
        ] {
            assert_picks(names, training, files, split);
        }
    }

    #[test]
    fn evaluation_reads_what_training_does_not() {
        let evaluation = &SplitChoice::Evaluation;
        let all = ["dev.jsonl", "test.jsonl", "train.jsonl"];
        assert_picks(&all, evaluation, &["dev.jsonl"], Some("validation"));
        assert_picks(&["eval.jsonl", "train.jsonl"], evaluation, &["eval.jsonl"], Some("test"));
        assert_picks(&["rows.jsonl", "train.jsonl"], evaluation, &["rows.jsonl"], None);
        assert_picks(&["train.jsonl"], evaluation, &["train.jsonl"], Some("train"));
    }

    #[test]
    fn a_split_can_be_named() {
        let named = |name: &str| SplitChoice::Named(name.into());
        let all = ["dev.jsonl", "test.jsonl", "train.jsonl"];
        assert_picks(&all, &named("test"), &["test.jsonl"], Some("test"));
        assert_picks(&all, &named("val"), &["dev.jsonl"], Some("validation"));
        assert_picks(&all, &named("train+dev"), &["dev.jsonl", "train.jsonl"], Some("train+validation"));
        assert_picks(&all, &named("all"), &all, Some("test+train+validation"));
        assert_picks(&["a.jsonl"], &named("train"), &["a.jsonl"], None);
        let own = ["data/train_sft-00000-of-00001.parquet", "data/test_sft-00000-of-00001.parquet"];
        assert_picks(&own, &named("train_sft"), &own[..1], Some("train_sft"));
        let error = pick(&all, &named("gold")).unwrap_err();
        assert!(error.contains("'gold'") && error.contains("test (1 file), train (1 file)"), "{error}");
    }

    #[test]
    fn what_the_readme_says_goes_before_names() {
        let card = "configs:\n- data_files:\n  - {split: train, path: a.jsonl}\n  - {split: test, path: [b.jsonl, train.jsonl]}";
        let names = ["a.jsonl", "b.jsonl", "other.jsonl", "train.jsonl"];
        let named = |name: &str| SplitChoice::Named(name.into());
        for (wanted, files, split) in [
            (SplitChoice::Training, &["a.jsonl"][..], "train"),
            (SplitChoice::Evaluation, &["b.jsonl", "train.jsonl"], "test"),
            (named("default/test"), &["b.jsonl", "train.jsonl"], "test"),
            (named("all"), &["a.jsonl", "b.jsonl", "train.jsonl"], "test+train"),
        ] {
            let expected = (files.iter().map(ToString::to_string).collect(), Some(split.to_owned()));
            assert_eq!(pick_with(Some(card), &names, &wanted), Ok(expected), "{wanted:?}");
        }
        let several = "configs:\n- {config_name: one, data_dir: one}\n- {config_name: two, data_dir: two}";
        let names = ["one/test.jsonl", "one/train.jsonl", "two/train.jsonl"];
        let error = pick_with(Some(several), &names, &SplitChoice::Training).unwrap_err();
        assert!(error.contains("one, two") && error.contains("configurations"), "{error}");
        let error = pick_with(Some(several), &names, &named("one/train+two/train")).unwrap_err();
        assert!(error.contains("choose one of them"), "{error}");
        let (files, _) = pick_with(Some(several), &names, &named("one/train+one/test")).unwrap();
        assert_eq!(files, names[..2]);
        assert_eq!(pick_with(Some(several), &names, &named("all")).unwrap().0, names);
    }

    #[test]
    fn a_line_says_what_is_not_read() {
        let left =
            |split: Option<&str>, files, outside| LeftSplit { split: split.map(Into::into), files, outside };
        let left = vec![left(Some("test"), 1, false), left(None, 2, false), left(None, 3, true)];
        let splits = |read: Option<&str>| NotRead::Splits { read: read.map(Into::into), left: left.clone() };
        let rest = "not read: test (1 file), 2 files of no split, 3 files outside the README's configuration";
        assert_eq!(splits(Some("train")).to_string(), format!("split: train; {rest}"));
        assert_eq!(splits(None).to_string(), format!("split: the files of no split; {rest}"));
        let link = NotRead::Link("more".into()).to_string();
        assert!(link.starts_with("not read: the rows in more, a link to a folder"), "{link}");
    }

    #[test]
    fn where_names_do_not_decide_the_user_must() {
        for names in [
            &["test.jsonl", "validation.jsonl"][..],
            &["data/train_sft-00000-of-00001.parquet", "data/train_gen-00000-of-00001.parquet"],
        ] {
            let error = pick(names, &SplitChoice::Training).unwrap_err();
            assert!(error.contains("which split to train on"), "{error}");
        }
    }
}
