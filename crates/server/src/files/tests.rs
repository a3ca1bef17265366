//! Files and uploads that are swept, or used meanwhile.

use super::{
    uploads::{NewUpload, UploadError, Uploads},
    *,
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

#[test]
fn a_sweep_never_makes_a_request_believe_that_another_one_completes_its_upload() {
    let folder = tempfile::tempdir().unwrap();
    let (data, _lock) = DataDir::open(folder.path()).unwrap();
    let (store, _) = Store::open(&data).unwrap();
    let files = Files::open(&data, &store, &mut Vec::new()).unwrap();
    let uploads = Uploads::new(&data, &files);
    let new = NewUpload {
        filename: "rows.jsonl".to_owned(),
        purpose: Purpose::FineTune,
        bytes: 2,
        expires_after: None,
    };
    let id = uploads.create(new).unwrap().id;
    let asking = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            while asking.load(Ordering::Relaxed) {
                uploads.sweep(now()).unwrap();
            }
        });
        let answers: Vec<_> =
            (0..2000).map(|_| uploads.complete(&id, &["part_none".to_owned()], None)).collect();
        asking.store(false, Ordering::Relaxed);
        for answer in answers {
            assert!(matches!(answer, Err(UploadError::NoPart(_))), "{answer:?}");
        }
    });
}

#[test]
fn a_file_whose_time_has_come_is_deleted_once_no_job_needs_it() {
    let folder = tempfile::tempdir().unwrap();
    let (data, _lock) = DataDir::open(folder.path()).unwrap();
    let (store, _) = Store::open(&data).unwrap();
    let files = Files::open(&data, &store, &mut Vec::new()).unwrap();
    let keep = |text: &str, expires_after| {
        let (id, filename) = (Kind::File.fresh(), "rows.jsonl".to_owned());
        let new = NewFile { id, filename, purpose: Purpose::FineTune, expires_after };
        files.keep_text(text, new).unwrap()
    };
    let (needed, old, young) = (keep("{}", Some(0)), keep("[]", Some(0)), keep("{}\n", Some(3600)));
    static IN_USE: AtomicBool = AtomicBool::new(true);
    let id = needed.id.clone();
    files.ask_before_deleting(move |asked| asked == id && IN_USE.load(Ordering::Relaxed));
    let there = |file: &FileRecord| {
        let found = files.get_blocking(&file.id).unwrap().is_some();
        assert_eq!(files.content(file).unwrap().exists(), found, "the content goes with the record");
        found
    };
    files.sweep().unwrap();
    assert_eq!([&needed, &old, &young].map(there), [true, false, true]);
    IN_USE.store(false, Ordering::Relaxed);
    files.sweep().unwrap();
    assert_eq!([&needed, &young].map(there), [false, true]);
}
