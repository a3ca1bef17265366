//! The data of a run, from names to batches.
//!
//! Takes the settings and the model folder. Gives the rows to train on and those to evaluate on, with what a
//! survey of all of them found: how many are used, how long the longest batch is, and one row as the model
//! reads it.

use super::{
    RunError,
    longest::{Longest, Unusable},
    together,
};
use crate::{
    config::{DataConfig, EvalRows, OnBadRow, Portion, RunConfig},
    event::{ExampleRow, ImageSize, RowsSurveyed},
    group::Group,
    model_folder::ModelFolder,
    numbers::verb,
    plan::{Load, Supply, workers},
    rows::Rows,
    selective_loss::{KeyFinder, Level, ROWS_LOOKED_AT, SelectiveLoss, TokenBytes},
    trainer::BatchSource,
};
use garden_data::{
    BadRow, DataError, Dataset, DatasetOptions, Measure, OnLongRow, PixelLimits, Progress, Purpose, Recipe,
    RowCounts, RowError, RowReader, RowSet, RowShare, SharedRows, SizeClass, SplitChoice, Survey,
    SurveyOptions, fnv1a, shared_rows, survey_part,
};
use garden_memory::counted;
use std::sync::Arc;

/// Characters that are shown of each stretch of a row: enough to see what is learned.
const SHOWN_CHARACTERS: usize = 300;
/// Image sizes that are announced, the most frequent ones.
const SIZES_TOLD: usize = 16;

/// Rows and what is known about them.
pub struct RunData {
    /// To train on.
    pub training: Rows,
    /// To evaluate on.
    pub evaluation: Option<Rows>,
    /// What all rows are like.
    pub survey: Survey,
    /// Changes when the rows or their split change: with another split, a resumed run would be judged by rows
    /// it has learned. Excludes a separate evaluation set, so fixing one of its rows does not block resuming.
    pub fingerprint: u64,
    /// The keys that selective loss masks.
    pub keys: Vec<String>,
    /// Epochs before selective loss begins; the row that is shown is from a later one.
    pub selective_from_epoch: u64,
    /// The most that the rows ask for at once.
    pub load: Load,
    /// The same for one row at a time.
    pub one_row: Load,
    /// The longest row, and the most tokens that a row may have.
    longest: (Longest, usize),
    /// Evaluation rows that are also trained on.
    pub shared: Option<SharedRows>,
    /// Bad rows of a separate evaluation set, such as are named.
    pub bad_to_evaluate: Vec<RowError>,
    /// What lies beside the rows and is not read, one line each: other splits, folders behind links.
    splits: Vec<String>,
}

/// Opens and surveys the data of a run.
pub fn open(config: &RunConfig, model: &ModelFolder, progress: &dyn Progress) -> Result<RunData, RunError> {
    open_together(config, model, progress, &Group::alone())
}

/// The same in each process of a group: every one of them surveys its share of the rows, and reads the rows of its batches.
pub(super) fn open_together(
    config: &RunConfig,
    model: &ModelFolder,
    progress: &dyn Progress,
    group: &Group,
) -> Result<RunData, RunError> {
    let split = config.data.split.clone().map(SplitChoice::Named).unwrap_or_default();
    let (dataset, recipe) = open_part(&config.portions, split, config, model, progress, group)?;
    let rows = dataset.rows();
    let held_out = config.eval_rows.held_out(rows);
    if held_out >= rows {
        return Err(RunError::NothingLeft { held_out, rows });
    }
    let seed = config.seed;
    let split = (held_out > 0).then_some(RowShare::HeldOut { rows: held_out, seed });
    let mut survey = look_at(&dataset, &recipe, split, config, progress, group)?;
    let longest = Longest::of(&survey, &recipe.processor, config.data.max_seq_length);
    check_usable(&survey, &config.dataset_names(), &config.data, longest)?;
    check_parts(&survey, &config.data)?;
    let surveyed = |survey: &Survey, rows| Load { processes: group.size(), ..Load::surveyed(survey, rows) };
    let mut load = surveyed(&survey, config.batch_size);
    let mut one_row = surveyed(&survey, 1);
    let supply = Supply::new(config, recipe.processor.config().patch_bytes(), &load);
    let part = |share, seed| Rows::new(dataset.clone(), recipe.clone(), &config.data, share, supply, seed);
    let share = if held_out > 0 { RowShare::Rest { held_out, seed } } else { RowShare::All };
    let training = part(share, Some(seed)).skipping(survey.skipped.clone(), survey.rest());
    let mut training = training.for_process(group, config.accumulation);
    let mut keys = Vec::new();
    if config.data.selective_loss != Level::None {
        keys = selective_keys(&config.data, &dataset)?;
        let mut selective =
            SelectiveLoss::new(config.data.selective_loss, keys.clone(), TokenBytes::of(&recipe.encoder));
        if let Some(row) = &mut survey.sample {
            row.encoded.trained = selective.learned(&row.encoded.ids, &row.encoded.trained);
            let bad = |error| DataError::Row { row: row.id.clone(), reason: BadRow::Text(error) };
            row.runs = recipe.encoder.runs(&row.encoded).map_err(bad)?;
        }
        training = training.with_selective_loss(selective, config.data.selective_loss_start_epoch);
    }
    let fingerprint = match (dataset.fingerprint(), held_out) {
        (rows, 0) => rows,
        (rows, held_out) => fnv1a(&[rows, held_out].map(u64::to_le_bytes).concat()),
    };
    let own_rows = match &config.eval_rows {
        EvalRows::Split(name) => Some((&config.dataset, SplitChoice::Named(name.clone()))),
        EvalRows::Dataset { name, split: Some(split) } => Some((name, SplitChoice::Named(split.clone()))),
        EvalRows::Dataset { name, split: None } => Some((name, SplitChoice::Evaluation)),
        EvalRows::None | EvalRows::Count(_) | EvalRows::Share(_) => None,
    };
    let trained_on = RowSet { dataset: dataset.clone(), share };
    let mut evaluated_on = split.map(|share| RowSet { share, ..trained_on.clone() });
    let mut bad_to_evaluate = Vec::new();
    let evaluation = match own_rows {
        None => split.map(|share| part(share, None).skipping(survey.skipped.clone(), survey.held_out)),
        Some((name, split)) => {
            let portion = Portion { dataset: name.clone(), weight: 1 };
            let (dataset, recipe) = open_part(&[portion], split, config, model, progress, group)?;
            let survey = look_at(&dataset, &recipe, None, config, progress, group)?;
            let longest = Longest::of(&survey, &recipe.processor, config.data.max_seq_length);
            check_usable(&survey, name, &config.data, longest)?;
            let own = surveyed(&survey, config.batch_size);
            load = load.union(own);
            one_row = one_row.union(surveyed(&survey, 1));
            let supply = Supply::new(config, recipe.processor.config().patch_bytes(), &own);
            evaluated_on = Some(RowSet { dataset: dataset.clone(), share: RowShare::All });
            let rows = Rows::new(dataset, recipe, &config.data, RowShare::All, supply, None);
            let rows = rows.skipping(survey.skipped.clone(), survey.rest());
            bad_to_evaluate = survey.bad_rows;
            Some(rows)
        }
    };
    // An evaluation is a step without an end: each process takes every so manieth batch.
    let evaluation = evaluation.map(|rows| rows.for_process(group, group.size() as u64));
    let compare = |rows: &RowSet| shared_rows(&trained_on, rows, workers(&config.data), progress);
    // A warning alone depends on it, and the first process gives that.
    let shared =
        group.by_first(|| Ok::<_, RunError>(evaluated_on.as_ref().map(compare).transpose()?), || None)?;
    let splits = [Some(&trained_on), evaluated_on.as_ref().filter(|_| split.is_none())];
    let splits = splits.into_iter().flatten().flat_map(|rows| rows.dataset.not_read());
    let splits = splits.map(|note| note.to_string()).collect();
    let longest = (longest, config.data.max_seq_length);
    let selective_from_epoch = match config.data.selective_loss {
        Level::None => 0,
        _ => config.data.selective_loss_start_epoch,
    };
    Ok(RunData {
        training,
        evaluation,
        survey,
        fingerprint,
        keys,
        selective_from_epoch,
        load,
        one_row,
        longest,
        shared,
        bad_to_evaluate,
        splits,
    })
}

fn open_part(
    portions: &[Portion],
    split: SplitChoice,
    config: &RunConfig,
    model: &ModelFolder,
    progress: &dyn Progress,
    group: &Group,
) -> Result<(Arc<Dataset>, Arc<Recipe>), RunError> {
    let data = &config.data;
    let options = DatasetOptions {
        image_roots: data.image_roots.clone(),
        allow_remote_images: data.allow_remote_images,
        columns: data.columns.clone(),
        split,
        ..DatasetOptions::default()
    };
    let open = |portion: &Portion| Ok((Dataset::open(&portion.dataset, &options, progress)?, portion.weight));
    // The first process downloads and makes indexes, the others find them.
    let parts = group.first_then_others(|| portions.iter().map(open).collect::<Result<_, DataError>>())?;
    let dataset = group.all_well(parts.and_then(Dataset::join).map_err(RunError::from))?;
    together::compare_rows(dataset.fingerprint(), group)?;
    let pixels = PixelLimits { min: data.min_pixels, max: data.max_pixels };
    let recipe = Recipe {
        processor: model.processor(pixels)?,
        encoder: model.encoder().clone(),
        purpose: Purpose::Learn { train_on: data.train_on, max_tokens: Some(data.max_seq_length) },
    };
    Ok((Arc::new(dataset), Arc::new(recipe)))
}

fn look_at(
    dataset: &Arc<Dataset>,
    recipe: &Arc<Recipe>,
    held_out: Option<RowShare>,
    config: &RunConfig,
    progress: &dyn Progress,
    group: &Group,
) -> Result<Survey, RunError> {
    let options = SurveyOptions {
        measure: Measure::Rows(recipe.clone()),
        workers: workers(&config.data),
        held_out,
        // A broken image is found when it is trained on, and handled by the rule that the user chose.
        decode: false,
    };
    let (rows, rank, processes) = (dataset.rows(), group.rank() as u64, group.size() as u64);
    let begins = |rank: u64| rows / processes * rank + rank.min(rows % processes);
    let own = survey_part(dataset, &options, begins(rank)..begins(rank + 1), progress);
    let own = group.all_well(own.map_err(RunError::from))?;
    let mut parts = group.gather(&own)?.into_iter();
    let mut all = parts.next().unwrap_or(own);
    parts.for_each(|part| all.join(part));
    Ok(all.finish(dataset, &options)?)
}

/// Refuses at once what would end the run later.
fn check_usable(survey: &Survey, dataset: &str, data: &DataConfig, longest: Longest) -> Result<(), RunError> {
    let Survey { rows, too_long, bad, .. } = *survey;
    if bad > 0 && data.on_bad_row == OnBadRow::Fail {
        let first = survey.bad_rows.first().cloned().map(Box::new);
        return Err(RunError::BadRows { bad, rows, first });
    }
    if too_long > 0 && data.on_long_row == OnLongRow::Fail {
        return Err(RunError::LongRows { too_long, rows, limit: data.max_seq_length, longest });
    }
    if survey.used_rows() == 0 {
        let unusable = Box::new(Unusable::of(survey, longest, data.max_seq_length));
        return Err(RunError::NoUsableRow { dataset: dataset.to_owned(), unusable });
    }
    Ok(())
}

/// Refuses at once training or evaluation rows that would end the run later.
fn check_parts(survey: &Survey, data: &DataConfig) -> Result<(), RunError> {
    let (training, held_out) = (survey.rest(), survey.held_out);
    if training.used() == 0 {
        return Err(RunError::NothingUsableLeft { held_out: held_out.rows, rows: survey.rows });
    }
    if training.bad as f64 > data.max_bad_share * training.rows as f64 {
        return Err(RunError::TooManyBadRows {
            bad: training.bad,
            rows: training.rows,
            percent: 100.0 * data.max_bad_share,
            first: survey.bad_rows.first().cloned().map(Box::new),
        });
    }
    let RowCounts { rows, too_long, no_label, bad } = held_out;
    if rows > 0 && held_out.used() == 0 {
        return Err(RunError::NoUsableEvaluation { rows, too_long, no_label, bad });
    }
    Ok(())
}

/// The keys given, or those that the first answers share.
fn selective_keys(config: &DataConfig, dataset: &Arc<Dataset>) -> Result<Vec<String>, RunError> {
    if let Some(keys) = &config.selective_loss_keys {
        return Ok(keys.clone());
    }
    if config.selective_loss != Level::Aggressive {
        return Ok(Vec::new());
    }
    let mut finder = KeyFinder::default();
    let mut reader = RowReader::new(dataset.clone());
    for row in 0..dataset.rows().min(ROWS_LOOKED_AT as u64) {
        // The loader reports a bad row, by the rule that the user chose.
        let Ok(row) = reader.read(row) else { continue };
        finder.observe_row(&row.conversation);
    }
    Ok(finder.keys())
}

impl RunData {
    /// The warning about rows that are both trained and evaluated on, if there are any.
    pub fn warning(&self) -> Option<String> {
        let (shared, evaluation) = (self.shared.as_ref()?, self.evaluation.as_ref()?);
        let (trained, evaluated) = shared.example.as_ref()?;
        Some(format!(
            "{} of the {} to evaluate on {} also trained on, such as {evaluated}, which is {trained}: the evaluation will look \
             better than it is",
            shared.rows,
            counted(evaluation.rows(), "row"),
            verb(shared.rows, ["is", "are"]),
        ))
    }

    /// What the rows are like.
    pub fn describe(&self) -> RowsSurveyed {
        let survey = &self.survey;
        let (longest, max_tokens) = self.longest;
        let image_size = |class: &SizeClass| ImageSize {
            images: class.count,
            width: class.size.0,
            height: class.size.1,
            resized_width: class.resized.0,
            resized_height: class.resized.1,
            tokens: class.tokens as u64,
        };
        let example = survey.sample.as_ref().map(|row| {
            let [learned_from, learned_to] = row.runs.marks().map(str::to_owned);
            ExampleRow { text: row.runs.shown(SHOWN_CHARACTERS), learned_from, learned_to }
        });
        RowsSurveyed {
            rows: survey.rows,
            usable: survey.used_rows(),
            too_long: survey.too_long,
            no_label: survey.no_label,
            bad: survey.bad,
            training_rows: self.training.rows(),
            evaluation_rows: self.evaluation.as_ref().map(BatchSource::rows),
            mean_tokens: survey.used_tokens.mean(),
            longest_tokens: survey.used_tokens.max(),
            max_tokens,
            longest,
            image_sizes: survey.sizes.iter().take(SIZES_TOLD).map(image_size).collect(),
            image_size_count: survey.sizes.len() as u64,
            ignored_fields: survey.ignored.keys().cloned().collect(),
            not_read: self.splits.clone(),
            selective_loss_keys: self.keys.clone(),
            selective_loss_from_epoch: self.selective_from_epoch,
            example,
        }
    }
}

#[cfg(test)]
mod tests;
