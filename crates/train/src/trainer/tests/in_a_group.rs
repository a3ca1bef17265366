//! The loop in several processes, each a thread here: one model and one history, whatever their number.

use super::*;
use crate::group::threads;

/// Five micro-batches a step, so that no number of processes but one and five divides them.
fn group_settings() -> TrainerSettings {
    TrainerSettings { accumulation: 5, evaluate: When::Steps(2), save: When::Steps(1), ..settings() }
}

/// What a run comes to in one of its processes.
fn run_rank(
    group: &Group,
    dir: &Path,
    killed_at: Option<Position>,
    callbacks: Vec<&mut dyn Callback>,
) -> Result<(Vec<u32>, TrainerState, Option<StopReason>), TrainError> {
    let settings = group_settings();
    let mut data = ToyData::new(64, 3).shared(group, settings.accumulation);
    // Only one process meets the row.
    data.fails_at = killed_at;
    let mut evaluation = ToyData::new(14, 4).shared(group, group.size() as u64);
    let done = train_in(group, dir, settings, &mut data, Some(&mut evaluation), callbacks);
    done.map(|(model, outcome)| {
        (model.weights.iter().map(|w| w.to_bits()).collect(), outcome.state, outcome.stopped)
    })
}

fn whole() -> (Vec<u32>, TrainerState) {
    let dir = tempfile::tempdir().unwrap();
    let (weights, state, _) = run_rank(&Group::alone(), dir.path(), None, vec![]).unwrap();
    (weights, state)
}

fn assert_same(state: &TrainerState, expected: &TrainerState) {
    for series in ["loss", "grad_norm", "eval_loss", "eval_token_accuracy"] {
        assert_eq!(state.series(series), expected.series(series), "{series}");
    }
    assert_eq!(state.best_global_step, expected.best_global_step);
    assert_eq!(state.num_input_tokens_seen, expected.num_input_tokens_seen);
}

#[test]
fn any_number_of_processes_makes_one_model_and_one_history() {
    let (weights, expected) = whole();
    for processes in [2, 3, 4, 5] {
        let dir = tempfile::tempdir().unwrap();
        for run in threads::run(processes, |group| run_rank(&group, dir.path(), None, vec![])) {
            let (found, state, _) = run.unwrap();
            assert!(found == weights, "{processes} processes");
            assert_same(&state, &expected);
        }
    }
}

#[test]
fn a_run_goes_on_in_any_number_of_processes() {
    let (weights, expected) = whole();
    let dir = tempfile::tempdir().unwrap();
    for (processes, killed_at) in [(3, Some((0, 40))), (1, Some((1, 20))), (4, Some((2, 3))), (2, None)] {
        let killed_at = killed_at.map(|(epoch, row)| Position { epoch, row });
        let runs = threads::run(processes, |group| run_rank(&group, dir.path(), killed_at, vec![]));
        for run in runs {
            match killed_at {
                Some(_) => assert!(run.unwrap_err().to_string().ends_with("killed")),
                None => {
                    let (found, state, _) = run.unwrap();
                    assert!(found == weights);
                    assert_same(&state, &expected);
                }
            }
        }
    }
}

#[test]
fn every_process_knows_which_one_failed() {
    let dir = tempfile::tempdir().unwrap();
    // The sixth batch is the first of the second step: that of rank 0.
    let at = Some(Position { epoch: 0, row: 15 });
    let fails = |group: Group| {
        let killed_at = at.filter(|_| group.rank() == 1);
        run_rank(&group, dir.path(), killed_at, vec![]).unwrap_err().to_string()
    };
    assert_eq!(
        threads::run(3, fails),
        ["step 2: rank 1: killed", "step 2: killed", "step 2: rank 1: killed"]
    );
}

#[test]
fn all_end_after_the_step_at_which_one_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let reasons = threads::run(3, |group| {
        let mut recorder = Recorder { events: Rc::default(), stop_at: if group.rank() == 1 { 4 } else { 0 } };
        let (_, state, stopped) = run_rank(&group, dir.path(), None, vec![&mut recorder]).unwrap();
        (state.global_step, stopped)
    });
    assert_eq!(reasons, vec![(4, Some(StopReason::MemoryLimit("rank 1: near".into()))); 3]);
    let kept = CheckpointStore::open(dir.path()).unwrap().newest().unwrap().newest;
    assert_eq!(kept.map(|checkpoint| checkpoint.step), Some(4));
}

#[test]
fn weights_that_differ_between_processes_are_not_saved() {
    let dir = tempfile::tempdir().unwrap();
    let errors = threads::run(2, |group| {
        let mut model = ToyModel::new();
        // A machine that computes otherwise.
        model.weights[3] += group.rank() as f32 * 1e-7;
        let mut data = ToyData::new(20, 4).shared(&group, 2);
        let (settings, store) = (settings(), CheckpointStore::open(dir.path()).unwrap());
        let (schedule, rows) =
            (schedule(&settings, &data), TrainingData { training: &mut data, evaluation: None });
        let mut learner = NativeLearner::new(&mut model, &settings, &group);
        let trainer = Trainer::new(&mut learner, rows, settings, schedule, store, vec![]).together(&group);
        trainer.run().unwrap_err().to_string()
    });
    assert!(errors[0].starts_with("step 3: rank 1 has other weights than rank 0") && errors[0] == errors[1]);
    assert!(CheckpointStore::open(dir.path()).unwrap().list().unwrap().is_empty());
}

#[test]
fn steps_whose_rows_all_turn_out_bad_come_to_nothing_on_any_number_of_processes() {
    // As many micro-batches as processes, and three steps an epoch: one in the middle is bad as a whole, and the batch that is left
    // over at the end of the last epoch.
    let run = |group: &Group, dir: &Path| {
        let settings = TrainerSettings { accumulation: 3, save: When::Steps(1), ..settings() };
        let spoiled =
            |at: Position| at.epoch == 1 && (9..18).contains(&at.row) || at.epoch == 2 && at.row == 27;
        let mut data = ToyData { spoiled, ..ToyData::new(30, 3) }.shared(group, 3);
        let (model, outcome) = train_in(group, dir, settings, &mut data, None, vec![]).unwrap();
        (model.weights, outcome.state.series("loss"), outcome.state.global_step)
    };
    let dir = tempfile::tempdir().unwrap();
    let alone = run(&Group::alone(), dir.path());
    assert_eq!(alone.2, 4 + 3 + 3);
    for processes in [2, 3] {
        let dir = tempfile::tempdir().unwrap();
        for found in threads::run(processes, |group| run(&group, dir.path())) {
            assert!(found == alone, "{processes} processes");
        }
    }
}
