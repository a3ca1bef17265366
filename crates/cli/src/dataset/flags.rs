//! Flags that every command with a dataset shares.

use clap::Args;
use garden_data::{Columns, Dataset, DatasetOptions, NotRead, SplitChoice};
use std::{ffi::OsString, path::PathBuf, thread};

/// How a dataset is read.
#[derive(Args)]
pub struct SourceFlags {
    /// Also let rows read images below this folder, not only below the folder of their file. Relative paths
    /// are looked up here first. Repeat the flag for several folders.
    #[arg(long, value_name = "DIR")]
    pub image_root: Vec<PathBuf>,
    /// The split of a folder or hub dataset to read: train, validation, test, a name, several joined with +,
    /// or all; CONFIG/train where its README has configurations [default: train, or the files of no split].
    #[arg(long, value_name = "NAME")]
    pub split: Option<String>,
    /// Fetch images that rows name by http(s) address. Private addresses are still refused.
    #[arg(long)]
    pub allow_remote_images: bool,
    /// What columns mean, where their names do not say it: image=photo,prompt=question,response=answer.
    #[arg(long, value_name = "MEANING=COLUMN,...")]
    pub columns: Option<Columns>,
}

impl SourceFlags {
    /// The same as the library's options.
    pub fn options(&self) -> DatasetOptions {
        DatasetOptions {
            image_roots: self.image_root.clone(),
            allow_remote_images: self.allow_remote_images,
            columns: self.columns.clone().unwrap_or_default(),
            split: self.split.clone().map(SplitChoice::Named).unwrap_or_default(),
        }
    }

    /// The same flags as arguments, for a child process.
    pub fn arguments(&self) -> Vec<OsString> {
        let roots = self.image_root.iter().flat_map(|root| ["--image-root".into(), root.into()]);
        let split = self.split.iter().flat_map(|split| ["--split".into(), split.into()]);
        let columns = self.columns.iter().flat_map(|list| ["--columns".into(), list.to_string().into()]);
        let remote = self.allow_remote_images.then(|| "--allow-remote-images".into());
        roots.chain(split).chain(columns).chain(remote).collect()
    }

    /// Prints what is found beside the rows and not read: other splits, folders behind links.
    pub fn say_not_read(dataset: &Dataset) {
        for note in dataset.not_read() {
            let hint = match note {
                NotRead::Splits { .. } => " (--split chooses)",
                NotRead::Link(_) => "",
            };
            eprintln!("{note}{hint}");
        }
    }
}

/// One thread for each core.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
