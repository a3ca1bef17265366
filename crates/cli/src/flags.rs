//! Flags that mean the same in several commands.

use anyhow::Result;
use clap::Args;
use garden_data::PixelLimits;
use garden_model::Precision;
use garden_train::{FrontEndOptions, TrainOptions};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A configuration of a few dozen keys is smaller than this.
const LARGEST_FILE: u64 = 1 << 20;

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// How a run is shown: by flags, or in the configuration file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct DisplayOptions {
    /// Show no progress, only errors.
    #[arg(long, help_heading = "Log", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub quiet: Option<bool>,
    /// How lines are written: for people or for programs (text).
    #[arg(long, help_heading = "Log", value_enum)]
    pub log_format: Option<LogFormat>,
}

impl FrontEndOptions for DisplayOptions {
    const KEYS: &'static [&'static str] = &["quiet", "log_format"];
}

impl DisplayOptions {
    /// These options where they are given, and those of `file` elsewhere.
    fn over(self, file: Self) -> Self {
        Self { quiet: self.quiet.or(file.quiet), log_format: self.log_format.or(file.log_format) }
    }
}

/// Everything about a run: to train, and to plan it.
#[derive(Args)]
pub struct RunFlags {
    /// A TOML, YAML or JSON file with any of these options; flags win.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: TrainOptions,
    #[command(flatten)]
    display: DisplayOptions,
}

impl RunFlags {
    /// How lines are to be written: as the flags say, or else the file, even a file that cannot be used.
    pub fn log_format(&self) -> Option<LogFormat> {
        self.display.log_format.or_else(|| self.config.as_deref().and_then(log_format_of))
    }

    /// The flags over the file.
    pub fn options(self) -> Result<(TrainOptions, DisplayOptions)> {
        let file = self.config.map(|path| TrainOptions::from_file::<DisplayOptions>(&path)).transpose()?;
        let (options, display) = file.unwrap_or_default();
        Ok((self.options.over(options), self.display.over(display)))
    }
}

/// The format of log lines that a file asks for, even if the file cannot be used: a program that reads JSON
/// reads errors as JSON too.
fn log_format_of(path: &Path) -> Option<LogFormat> {
    let bytes = std::fs::read(path).ok().filter(|bytes| bytes.len() as u64 <= LARGEST_FILE)?;
    let text = String::from_utf8_lossy(&bytes);
    let asks = text.lines().any(|line| {
        let line: String = line.chars().filter(|c| !c.is_whitespace() && !"\"',{}".contains(*c)).collect();
        let line = line.split('#').next().unwrap_or_default().replace('-', "_");
        matches!(line.as_str(), "log_format:json" | "log_format=json")
    });
    asks.then_some(LogFormat::Json)
}

/// How images are resized.
#[derive(Args)]
pub struct PixelFlags {
    /// Enlarge images below this number of pixels [default: the limit in the model folder].
    #[arg(long, value_name = "N")]
    pub min_pixels: Option<u64>,
    /// Shrink images above this number of pixels [default: the limit in the model folder].
    #[arg(long, value_name = "N")]
    pub max_pixels: Option<u64>,
}

impl PixelFlags {
    /// The limits as the library takes them.
    pub fn limits(&self) -> PixelLimits {
        PixelLimits { min: self.min_pixels, max: self.max_pixels }
    }
}

/// How frozen weights are held.
#[derive(Args)]
pub struct PrecisionFlags {
    /// Hold frozen weights in 4 bits.
    #[arg(long, conflicts_with_all = ["load_in_8bit", "load_in_16bit"])]
    pub load_in_4bit: bool,
    /// Hold frozen weights in 8 bits.
    #[arg(long, conflicts_with = "load_in_16bit")]
    pub load_in_8bit: bool,
    /// Hold frozen weights in 16 bits.
    #[arg(long)]
    pub load_in_16bit: bool,
}

impl PrecisionFlags {
    /// The precision as the library takes it.
    pub fn precision(&self) -> Precision {
        match (self.load_in_4bit, self.load_in_8bit, self.load_in_16bit) {
            (true, ..) => Precision::Bits4,
            (_, true, _) => Precision::Bits8,
            (.., true) => Precision::Bits16,
            _ => Precision::AsStored,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_of_errors_is_known_though_the_file_cannot_be_used() {
        let folder = tempfile::tempdir().unwrap();
        let asked = |name: &str, text: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            assert!(TrainOptions::from_file::<DisplayOptions>(&path).is_err(), "{name}");
            log_format_of(&path)
        };
        assert_eq!(
            asked("a.yaml", b"log_format: json # for the collector\nseed: abc\n"),
            Some(LogFormat::Json)
        );
        assert_eq!(asked("b.toml", b"log-format = \"json\"\nseed = [\n"), Some(LogFormat::Json));
        assert_eq!(
            asked("c.json", b"{\n  \"log_format\": \"json\",\n  \"seed\": \"x\"\n}"),
            Some(LogFormat::Json)
        );
        assert_eq!(asked("d.yaml", b"log_format: text\nseed: abc\n"), None);
        assert_eq!(asked("e.yaml", b"\xff\xfel\0o\0"), None);
    }

    #[test]
    fn a_file_may_say_how_a_run_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.yaml");
        std::fs::write(&path, "quiet: yes\nlog-format: json\nseed: 3\n").unwrap();
        let (options, display) = TrainOptions::from_file::<DisplayOptions>(&path).unwrap();
        assert_eq!((options.seed, display.quiet), (Some(3), Some(true)));
        let flags = DisplayOptions { quiet: None, log_format: Some(LogFormat::Text) };
        assert_eq!(flags.over(display).log_format, Some(LogFormat::Text), "flags win");
        std::fs::write(&path, "quiet: maybe\n").unwrap();
        let error = TrainOptions::from_file::<DisplayOptions>(&path).unwrap_err().to_string();
        assert!(error.contains("key 'quiet': true or false is needed, not"), "{error}");
    }
}
