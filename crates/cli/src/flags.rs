//! Flags that mean the same in several commands.

use anyhow::Result;
use clap::Args;
use garden_data::processor::PixelLimits;
use garden_model::Precision;
use garden_train::config::{LogFormat, TrainOptions};
use std::path::PathBuf;

/// Everything about a run: to train, and to plan it.
#[derive(Args)]
pub struct RunFlags {
    /// A TOML, YAML or JSON file with any of these options; flags win.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: TrainOptions,
}

impl RunFlags {
    /// How lines are to be written, as the flags say or else the file, even one that cannot be used.
    pub fn log_format(&self) -> Option<LogFormat> {
        let in_file = || self.config.as_deref().and_then(TrainOptions::log_format_of);
        self.options.log_format.or_else(in_file)
    }

    /// The flags over the file.
    pub fn options(self) -> Result<TrainOptions> {
        let file = self.config.map(|path| TrainOptions::from_file(&path)).transpose()?.unwrap_or_default();
        Ok(self.options.over(file))
    }
}

/// How images are resized.
#[derive(Args)]
pub struct PixelFlags {
    /// Enlarge images below this number of pixels [default: the checkpoint's].
    #[arg(long, value_name = "N")]
    pub min_pixels: Option<u64>,
    /// Shrink images above this number of pixels [default: the checkpoint's].
    #[arg(long, value_name = "N")]
    pub max_pixels: Option<u64>,
}

impl PixelFlags {
    /// What the library reads.
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
    /// What the library reads.
    pub fn precision(&self) -> Precision {
        match (self.load_in_4bit, self.load_in_8bit, self.load_in_16bit) {
            (true, ..) => Precision::Bits4,
            (_, true, _) => Precision::Bits8,
            (.., true) => Precision::Bits16,
            _ => Precision::AsStored,
        }
    }
}
