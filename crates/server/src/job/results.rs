//! The numbers of a job as a table: the file that OpenAI calls a job's result.

use super::{
    folder::JobFolder,
    journal::{Cursor, Journal, Said},
};
use garden_train::events::Event;
use std::{collections::BTreeMap, io};

/// The columns that OpenAI's tables have. The trainer does not measure the accuracy of its steps.
const HEAD: &str = "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy\n";

#[derive(Default)]
struct Row {
    train_loss: Option<f64>,
    valid_loss: Option<f64>,
    valid_accuracy: Option<f64>,
}

/// All steps of a job as CSV. What a run repeated after a checkpoint counts once.
pub(super) fn table(folder: &JobFolder) -> io::Result<String> {
    let mut rows: BTreeMap<u64, Row> = BTreeMap::new();
    let mut journal = Journal::new(folder, Cursor::default());
    while let Some(entry) = journal.next()? {
        let Said::Trainer(said) = entry.said else { continue };
        match said.event {
            Event::Started(started) => drop(rows.split_off(&(started.step + 1))),
            Event::Step(step) => rows.entry(step.step).or_default().train_loss = Some(step.loss),
            Event::Evaluation(evaluation) => {
                let row = rows.entry(evaluation.step).or_default();
                row.valid_loss = Some(evaluation.loss);
                row.valid_accuracy = Some(evaluation.token_accuracy);
            }
            _ => {}
        }
    }
    let cell = |number: Option<f64>| number.map(|number| number.to_string()).unwrap_or_default();
    let line = |(step, row): (&u64, &Row)| {
        let (train, loss, accuracy) = (cell(row.train_loss), cell(row.valid_loss), cell(row.valid_accuracy));
        format!("{step},{train},,{loss},{accuracy}\n")
    };
    Ok(std::iter::once(HEAD.to_owned()).chain(rows.iter().map(line)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_is_repeated_has_one_line() {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::at(root.path());
        let step = |step: u64, loss: f64| {
            format!(
                r#"{{"version":1,"time":{step},"event":"step","step":{step},"max_steps":9,"epoch":0.5,
                "loss":{loss},"grad_norm":1.0,"learning_rate":0.1,"rows":1,"tokens":1,"label_tokens":1,
                "images":0,"seconds":1.0,"data_seconds":0.0}}"#
            )
            .replace('\n', "")
        };
        let lines = [step(1, 4.0), step(2, 3.5), step(2, 3.25)];
        std::fs::write(folder.events(), lines.join("\n") + "\n").unwrap();
        assert_eq!(table(&folder).unwrap(), format!("{HEAD}1,4,,,\n2,3.25,,,\n"));
    }
}
