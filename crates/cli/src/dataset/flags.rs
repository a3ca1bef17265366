//! Flags that every command with a dataset shares.

use clap::Args;
use garden_data::{Columns, DatasetOptions};
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
    /// Which columns mean what, where their names do not say it: image=photo,prompt=question,response=answer.
    #[arg(long, value_name = "MEANING=COLUMN,...")]
    pub columns: Option<Columns>,
}

impl SourceFlags {
    /// What the library reads.
    pub fn options(&self) -> DatasetOptions {
        DatasetOptions {
            image_root: self.image_root.clone(),
            allow_remote_images: self.allow_remote_images,
            columns: self.columns.clone().unwrap_or_default(),
        }
    }
}

/// A thread a core.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
