//! Uploads that are swept while somebody uses them.

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
