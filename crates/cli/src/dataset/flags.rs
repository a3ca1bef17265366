//! Flags that every command with a dataset shares.

use crate::flags::PixelFlags;
use anyhow::{Context, Result};
use clap::Args;
use garden_data::{
    Columns, Dataset, DatasetOptions, DecodeLimits, Measure, NotRead, Processor, ProcessorConfig, Purpose,
    Recipe, SplitChoice, TrainOn,
};
use garden_train::ModelFolder;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

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
            ..DatasetOptions::default()
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

/// What rows are measured with.
#[derive(Args)]
pub struct MeasureFlags {
    /// The model folder whose tokenizer, template and image limits are used.
    #[arg(long, value_name = "DIR")]
    base_model: Option<PathBuf>,
    /// Which tokens get a label.
    #[arg(long, value_enum, default_value_t, requires = "base_model")]
    train_on: TrainOn,
    #[command(flatten)]
    pixels: PixelFlags,
}

impl MeasureFlags {
    /// The same for the library; rows with more tokens than `max_tokens` are left out.
    pub fn measure(&self, max_tokens: Option<usize>) -> Result<Measure> {
        let Some(folder) = &self.base_model else {
            let config = ProcessorConfig::default().with_limits(self.pixels.limits())?;
            return Ok(Measure::Images(Processor::new(config, DecodeLimits::default())));
        };
        let recipe = self.recipe(folder, max_tokens);
        Ok(Measure::Rows(Arc::new(recipe.with_context(|| format!("--base-model {}", folder.display()))?)))
    }

    fn recipe(&self, folder: &Path, max_tokens: Option<usize>) -> Result<Recipe> {
        let model = ModelFolder::open(folder)?;
        Ok(Recipe {
            processor: model.processor(self.pixels.limits())?,
            encoder: model.encoder().clone(),
            purpose: Purpose::Learn { train_on: self.train_on, max_tokens },
        })
    }
}

/// One thread for each core.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
