//! Flags that every command with a dataset shares.

use clap::{Args, ValueEnum};
use garden_data::{DatasetOptions, processor::PixelLimits, text::TrainOn};
use std::{path::PathBuf, thread};

/// How rows reach their images.
#[derive(Args)]
pub struct SourceFlags {
    /// Read images from below this folder instead of the data file's own; no path may leave it.
    #[arg(long, value_name = "DIR")]
    pub image_root: Option<PathBuf>,
    /// Fetch images that rows name by http(s) address. Private addresses are refused all the same.
    #[arg(long)]
    pub allow_remote_images: bool,
}

impl SourceFlags {
    /// What the library reads.
    pub fn options(&self) -> DatasetOptions {
        DatasetOptions { image_root: self.image_root.clone(), allow_remote_images: self.allow_remote_images }
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

/// Which tokens are learned.
#[derive(Clone, Copy, Default, ValueEnum)]
pub enum TrainOnFlag {
    /// Every turn of the assistant.
    #[default]
    Assistant,
    /// The last turn of the assistant.
    Last,
    /// Everything.
    All,
}

impl From<TrainOnFlag> for TrainOn {
    fn from(flag: TrainOnFlag) -> Self {
        match flag {
            TrainOnFlag::Assistant => Self::Assistant,
            TrainOnFlag::Last => Self::Last,
            TrainOnFlag::All => Self::All,
        }
    }
}

/// A thread a core.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
