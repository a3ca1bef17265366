//! The loader on rows of one token that a closure makes up.

use super::*;
use crate::{shuffle::RowOrder, text::Encoded};

const ROWS: u64 = 23;

/// Rows of one token; every fifth is without a label, the rows in `bad` are bad.
fn loader(options: LoaderOptions, bad: &'static [u64]) -> Result<Loader, DataError> {
    let worker = move |row: u64| {
        let id = RowId { file: std::path::Path::new("a.jsonl").into(), number: row + 1 };
        if bad.contains(&row) {
            return Outcome::Bad(id, BadRow::Empty);
        }
        if row % 5 == 4 {
            return Outcome::LeftOut(id, LeftOut::NoLabel);
        }
        let encoded = Encoded { ids: vec![row as u32], trained: vec![true], images: vec![] };
        Outcome::Ready(Sample { row, encoded, ..Sample::default() })
    };
    let workers = vec![worker; options.workers];
    Loader::with_workers(ROWS, workers, options, Pool::default())
}

/// The rows that a survey finds without a label.
fn without_label() -> Arc<SkippedRows> {
    Arc::new((0..ROWS).filter(|row| row % 5 == 4).collect())
}

fn batches(mut loader: Loader) -> Vec<Batch> {
    std::iter::from_fn(|| loader.next_batch().unwrap()).collect()
}

fn options() -> LoaderOptions {
    let skip = without_label();
    LoaderOptions { batch_size: 4, epochs: 3, shuffle: Some(1), skip, ..LoaderOptions::default() }
}

#[test]
fn batches_do_not_depend_on_threads_or_prefetch() {
    let expected = batches(loader(options(), &[]).unwrap());
    for (workers, prefetch_bytes) in [(1, 0), (2, 100), (7, 1 << 20)] {
        let options = LoaderOptions { workers, prefetch_bytes, ..options() };
        assert_eq!(batches(loader(options, &[]).unwrap()), expected);
    }
}

#[test]
fn an_epoch_has_every_usable_row_once_in_full_batches_and_a_rest() {
    let all = batches(loader(options(), &[]).unwrap());
    // 19 of 23 rows have a label: four batches of 4 and one of 3 an epoch.
    let lengths: Vec<_> = all.iter().map(Batch::len).collect();
    assert_eq!(lengths, [4, 4, 4, 4, 3].repeat(3));
    let epochs: Vec<Vec<u64>> =
        all.chunks(5).map(|epoch| epoch.iter().flat_map(|b| b.rows.clone()).collect()).collect();
    assert_ne!(epochs[0], epochs[1], "each epoch has its own order");
    for mut epoch in epochs {
        epoch.sort_unstable();
        assert_eq!(epoch, (0..ROWS).filter(|row| row % 5 != 4).collect::<Vec<_>>());
    }
}

#[test]
fn resuming_after_any_batch_gives_the_batches_that_were_left() {
    let all = batches(loader(options(), &[]).unwrap());
    for (done, batch) in all.iter().enumerate() {
        let start: Position = serde_json::from_str(&serde_json::to_string(&batch.end).unwrap()).unwrap();
        let rest = batches(loader(LoaderOptions { start, ..options() }, &[]).unwrap());
        assert_eq!(rest, all[done + 1..], "after batch {done}");
    }
}

#[test]
fn a_bad_row_stops_the_run_and_is_named() {
    let mut loader = loader(LoaderOptions { shuffle: None, ..options() }, &[6]).unwrap();
    assert_eq!(loader.next_batch().unwrap().unwrap().rows, [0, 1, 2, 3]);
    let error = loader.next_batch().unwrap_err().to_string();
    assert_eq!(error, "a.jsonl, row 7: the conversation has no turns");
    assert_eq!(loader.next_batch().unwrap(), None, "and nothing comes after it");
}

#[test]
fn bad_rows_are_skipped_up_to_their_share_of_an_epoch() {
    let skip = |max_share| LoaderOptions { on_bad_row: OnBadRow::Skip { max_share }, ..options() };
    let mut fine = loader(skip(0.1), &[6, 7]).unwrap();
    let mut used = 0;
    while let Some(batch) = fine.next_batch().unwrap() {
        assert!(!batch.rows.contains(&6), "left out and not replaced by anything else");
        assert!(fine.bad_in_epoch() <= 2, "counted anew in each epoch");
        used += batch.len();
        fine.recycle(batch);
    }
    assert_eq!(used as u64, 3 * 17);
    let Tally { bad, no_label, bad_rows, .. } = fine.tally().clone();
    assert_eq!((bad, no_label, bad_rows.len()), (6, 0, 2), "counted each time, named once");
    assert_eq!(fine.bad_in_epoch(), 2);

    let mut too_many = loader(skip(0.05), &[6, 7]).unwrap();
    let error = std::iter::repeat_with(|| too_many.next_batch()).find_map(Result::err).unwrap().to_string();
    assert!(error.contains("2 of 23 rows") && error.contains("5%"), "{error}");
}

#[test]
fn long_rows_are_dropped_or_stop_the_run() {
    let long = |row: u64| {
        let id = RowId { file: std::path::Path::new("a.jsonl").into(), number: row + 1 };
        Outcome::LeftOut(id, LeftOut::TooLong { tokens: 9, limit: 8 })
    };
    let start = |on_long_row| {
        let options = LoaderOptions { on_long_row, shuffle: None, ..options() };
        Loader::with_workers(ROWS, vec![long; 2], options, Pool::default()).unwrap()
    };
    let error = start(OnLongRow::Fail).next_batch().unwrap_err().to_string();
    assert!(error.contains("row 1: 9 tokens, more than the 8"), "{error}");
    let all = batches(start(OnLongRow::Drop));
    assert!(all.iter().all(Batch::is_empty), "an epoch without rows is handed out as empty batches");
    assert_eq!(all.len(), 3 * 5);
}

#[test]
fn a_position_of_another_dataset_is_refused() {
    let start = Position { epoch: 0, row: ROWS + 1 };
    assert!(loader(LoaderOptions { start, ..options() }, &[]).is_err());
}

#[test]
fn rows_held_out_are_never_trained_on_and_none_is_lost() {
    let rows_of = |share, epochs| {
        let options = LoaderOptions { share, epochs, ..options() };
        let mut rows: Vec<u64> =
            batches(loader(options, &[]).unwrap()).into_iter().flat_map(|b| b.rows).collect();
        rows.sort_unstable();
        rows
    };
    let held_out = rows_of(RowShare::HeldOut { rows: 6, seed: 3 }, 1);
    let rest = rows_of(RowShare::Rest { held_out: 6, seed: 3 }, 1);
    let mut together = [held_out.clone(), rest].concat();
    together.sort_unstable();
    assert_eq!(together, rows_of(RowShare::All, 1), "a partition");
    let later = rows_of(RowShare::Rest { held_out: 6, seed: 3 }, 4);
    assert!(held_out.iter().all(|row| !later.contains(row)), "in every epoch");
    assert_ne!(held_out, rows_of(RowShare::HeldOut { rows: 6, seed: 4 }, 1), "the seed decides");
}

#[test]
fn batches_and_positions_are_those_of_the_usable_rows_in_their_order() {
    let position = |epoch, row| Position { epoch, row };
    let all = batches(loader(LoaderOptions { shuffle: None, ..options() }, &[]).unwrap());
    for (epoch, batches) in (0..).zip(all.chunks(5)) {
        let found: Vec<_> = batches.iter().map(|batch| (batch.rows.as_slice(), batch.end)).collect();
        // A batch ends directly after its last row, and the last one of an epoch at the next epoch.
        assert_eq!(
            found,
            [
                (&[0, 1, 2, 3][..], position(epoch, 4)),
                (&[5, 6, 7, 8], position(epoch, 9)),
                (&[10, 11, 12, 13], position(epoch, 14)),
                (&[15, 16, 17, 18], position(epoch, 19)),
                (&[20, 21, 22], position(epoch + 1, 0)),
            ]
        );
    }
    assert_eq!(all.len(), 15);
    for epoch in 0..3 {
        let order = RowOrder::shuffled(ROWS, 1, epoch);
        let usable = (0..ROWS).filter_map(|place| order.row(place)).filter(|row| row % 5 != 4);
        let shuffled = batches(loader(options(), &[]).unwrap());
        let of_epoch = shuffled.iter().filter(|batch| batch.epoch == epoch);
        assert!(of_epoch.flat_map(|batch| batch.rows.clone()).eq(usable), "epoch {epoch}");
    }
}

#[test]
fn a_row_that_turns_out_unusable_is_not_replaced() {
    let on_bad_row = OnBadRow::Skip { max_share: 1.0 };
    let start = |bad, skip| {
        let options = LoaderOptions { shuffle: None, epochs: 1, on_bad_row, skip, ..options() };
        batches(loader(options, bad).unwrap())
    };
    let with = start(&[6, 10, 11, 12, 13], without_label());
    let without = start(&[], without_label());
    let ends = |batches: &[Batch]| batches.iter().map(|batch| (batch.epoch, batch.end)).collect::<Vec<_>>();
    assert_eq!(ends(&with), ends(&without), "positions do not depend on what a row holds");
    let rows: Vec<_> = with.iter().map(|batch| batch.rows.as_slice()).collect();
    assert_eq!(rows, [&[0, 1, 2, 3][..], &[5, 7, 8], &[], &[15, 16, 17, 18], &[20, 21, 22]]);
    // The same where no survey told which rows have no label.
    let rows: Vec<_> = start(&[0], Arc::default()).into_iter().map(|batch| batch.rows).collect();
    assert_eq!(rows[..3], [vec![1, 2, 3], vec![5, 6, 7], vec![8, 10, 11]]);
}

#[test]
fn skipped_rows_are_never_read() {
    // They would stop the run, since no bad row is accepted.
    let skip = Arc::new((0..ROWS).filter(|row| row % 5 == 4 || *row >= 17).collect());
    let start = |start, epochs| {
        let options = LoaderOptions { shuffle: None, skip: Arc::clone(&skip), start, epochs, ..options() };
        batches(loader(options, &[17, 18, 20, 21, 22]).unwrap())
    };
    let all = start(Position::default(), 2);
    let lengths: Vec<_> = all.iter().map(Batch::len).collect();
    assert_eq!(lengths, [4, 4, 4, 2].repeat(2));
    assert_eq!(all[3].end, Position::start_of(1), "nothing of the epoch is left to read");
    // A checkpoint from before this rule may name any of the skipped rows at the end of an epoch.
    for row in 17..ROWS {
        assert_eq!(start(Position { epoch: 0, row }, 2), all[4..], "from row {row}");
        assert!(start(Position { epoch: 1, row }, 2).is_empty(), "from row {row} of the last epoch");
    }
}

/// The turns of a rank, as they come.
fn turns(options: &LoaderOptions, turns: Turns, start: Position) -> Vec<BatchTurn> {
    let options = LoaderOptions { turns, start, ..options.clone() };
    let mut loader = loader(options, &[1, 2, 6, 16]).unwrap();
    std::iter::from_fn(|| loader.next_turn().unwrap()).collect()
}

/// The turns of all ranks, put together. Each is one rank's batch, and all ranks agree where it ends.
fn together(options: &LoaderOptions, size: u64, per_step: u64, start: Position) -> Vec<BatchTurn> {
    let ranks = (0..size).map(|rank| turns(options, Turns { rank, size, per_step }, start));
    let ranks: Vec<Vec<BatchTurn>> = ranks.collect();
    assert!(ranks.iter().all(|turns| turns.len() == ranks[0].len()), "{size} ranks");
    let join = |turn: usize| {
        let of_ranks = || ranks.iter().map(|turns| &turns[turn]);
        assert!(of_ranks().all(|one| (one.epoch, one.end) == (ranks[0][turn].epoch, ranks[0][turn].end)));
        let mut own = of_ranks().filter(|one| one.batch.is_some());
        let read = own.next().expect("a rank that reads it").clone();
        assert!(own.next().is_none(), "turn {turn} is read twice by {size} ranks, {per_step} a step");
        read
    };
    (0..ranks[0].len()).map(join).collect()
}

#[test]
fn ranks_read_together_what_one_would_read_alone() {
    // Among the rows are some without a label that the loader passes over, and some bad ones that it finds.
    let on_bad_row = OnBadRow::Skip { max_share: 1.0 };
    let options = LoaderOptions { batch_size: 2, on_bad_row, ..options() };
    let alone = turns(&options, Turns::default(), Position::default());
    assert_eq!(alone.len(), 3 * 10);
    for (size, per_step) in [(1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 3), (2, 4), (3, 3), (3, 4)] {
        assert_eq!(together(&options, size, per_step, Position::default()), alone, "{size}, {per_step}");
        // A run resumes after a whole step, or at the start of an epoch.
        let mut of_epoch = 0;
        for (done, turn) in alone.iter().enumerate() {
            of_epoch += 1;
            if turn.end.epoch > turn.epoch {
                of_epoch = 0;
            }
            if of_epoch % per_step == 0 {
                let rest = together(&options, size, per_step, turn.end);
                assert_eq!(rest, alone[done + 1..], "{size} ranks, {per_step} a step, after turn {done}");
            }
        }
    }
    for epoch in 0..3 {
        let of_epoch = alone.iter().filter(|turn| turn.epoch == epoch);
        let mut rows: Vec<u64> =
            of_epoch.flat_map(|turn| turn.batch.as_ref().unwrap().rows.clone()).collect();
        rows.sort_unstable();
        let usable = (0..ROWS).filter(|row| row % 5 != 4 && ![1, 2, 6, 16].contains(row));
        assert_eq!(rows, usable.collect::<Vec<_>>(), "each usable row once");
    }
}

#[test]
fn a_rank_gets_its_own_batches_and_no_other_row_is_read() {
    // Unshuffled batches of four: the second of each step of two belongs to rank 1.
    let turns = |rank| Turns { rank, size: 2, per_step: 2 };
    let start = |rank, bad| {
        let options = LoaderOptions { shuffle: None, epochs: 1, turns: turns(rank), ..options() };
        loader(options, bad).unwrap()
    };
    let rows = |rank, bad| batches(start(rank, bad)).into_iter().map(|batch| batch.rows).collect::<Vec<_>>();
    assert_eq!(
        rows(1, &[0, 10, 20]),
        [vec![5, 6, 7, 8], vec![15, 16, 17, 18]],
        "bad rows of others are not seen"
    );
    assert_eq!(rows(0, &[5, 15]), [vec![0, 1, 2, 3], vec![10, 11, 12, 13], vec![20, 21, 22]]);
    assert_eq!(
        start(1, &[8]).next_batch().unwrap_err().to_string(),
        "a.jsonl, row 9: the conversation has no turns"
    );
}

#[test]
fn a_rank_without_batches_is_told_at_once_and_still_sees_the_turns_of_others() {
    let turns = Turns { rank: 5, size: 6, per_step: 6 };
    let mut loader = loader(LoaderOptions { epochs: u64::MAX, turns, ..options() }, &[]).unwrap();
    assert_eq!(loader.next_batch().unwrap(), None);
    let epochs: Vec<_> = (0..7).map(|_| loader.next_turn().unwrap().unwrap()).collect();
    assert!(epochs.iter().all(|turn| turn.batch.is_none()));
    assert_eq!(epochs.iter().map(|turn| turn.epoch).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 1, 1]);
}

#[test]
fn a_loader_without_rows_to_read_is_refused() {
    let skip = Arc::new((0..ROWS).collect());
    let error = loader(LoaderOptions { skip, epochs: u64::MAX, ..options() }, &[]).err().unwrap();
    assert!(matches!(error, DataError::NoUsableRows { .. }), "{error}");
}
