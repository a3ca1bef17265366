//! Datasets as people have them: files, folders, Parquet by other writers; each row by its number.

use garden_data::{Conversation, DataError, Dataset, DatasetOptions, ImageSource, Part, RowReader};
use std::{fs, path::Path, sync::Arc};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

fn open(path: &Path) -> Result<RowReader, DataError> {
    let dataset = Dataset::open(path.to_str().expect("a plain path"), &DatasetOptions::default(), &())?;
    Ok(RowReader::new(Arc::new(dataset)))
}

fn rows(path: &Path) -> u64 {
    Dataset::open(path.to_str().expect("a plain path"), &DatasetOptions::default(), &()).unwrap().rows()
}

fn texts(conversation: &Conversation) -> Vec<&str> {
    let parts = conversation.turns.iter().flat_map(|turn| &turn.parts);
    parts.filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None }).collect()
}

/// As `make_parquet.py` makes them.
fn picture(n: u64) -> Vec<u8> {
    format!("picture {n} ").repeat(1 + n as usize % 5).into_bytes()
}

fn question(n: usize) -> String {
    format!(r#"{{"text": "Question {n}", "response": "Answer {n}"}}"#)
}

#[test]
fn a_folder_numbers_the_rows_of_all_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("more")).unwrap();
    fs::write(path("a.jsonl"), format!("{}\n{}\n", question(0), question(1))).unwrap();
    fs::write(path("b.json"), format!("[{}, {}]", question(2), question(3))).unwrap();
    fs::write(path("more/c.ndjson"), question(4)).unwrap();
    fs::write(path("dataset_info.json"), "{}").unwrap();
    fs::write(path("readme.md"), "no rows").unwrap();
    let mut reader = open(folder.path()).unwrap();
    assert_eq!(rows(folder.path()), 5);
    for n in [3, 0, 4, 1, 2] {
        let row = reader.read(n as u64).unwrap();
        assert_eq!(row.shape.to_string(), "question and answer");
        assert_eq!(texts(&row.conversation), [format!("Question {n}"), format!("Answer {n}")]);
    }
    assert_eq!(reader.read(3).unwrap().id.to_string(), format!("{}, row 2", path("b.json").display()));
    assert!(reader.read(5).is_err());
}

#[test]
fn a_bad_row_is_named_and_the_others_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.jsonl");
    fs::write(&file, format!("{}\n{{\"text\": \n{}\n", question(0), question(2))).unwrap();
    let mut reader = open(&file).unwrap();
    let error = reader.read(1).unwrap_err();
    assert!(matches!(error, DataError::Row { .. }));
    assert!(error.to_string().contains("a.jsonl, row 2: not JSON"), "{error}");
    assert_eq!(texts(&reader.read(2).unwrap().conversation)[0], "Question 2");
}

#[test]
fn says_what_is_no_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("a.txt"), "text,image").unwrap();
    fs::write(path("a.parquet"), "no parquet").unwrap();
    let message = |path: &Path| open(path).err().expect("an error").to_string();
    assert!(message(folder.path()).contains("a.parquet"));
    assert!(message(&path("a.txt")).contains("expected .jsonl, .json (also .gz or .zst), .csv or .parquet"));
    assert!(message(&path("gone.jsonl")).contains("gone.jsonl"));
    fs::remove_file(path("a.parquet")).unwrap();
    assert!(message(folder.path()).contains("no .jsonl, .json or .parquet file"));
}

#[test]
fn reads_what_the_datasets_library_wrote() {
    let mut reader = open(&Path::new(FIXTURES).join("datasets_image.parquet")).unwrap();
    for n in [0, 1, 2, 6, 3] {
        let row = reader.read(n).unwrap();
        assert_eq!(row.shape.to_string(), "question and answer");
        assert_eq!(texts(&row.conversation), [format!("Question {n}"), format!("Answer {n}")]);
        assert_eq!(row.conversation.images().collect::<Vec<_>>(), [&ImageSource::Bytes(picture(n))]);
    }
}

#[test]
fn finds_any_parquet_row_by_its_group_and_page() {
    for name in ["messages_zstd.parquet", "messages_snappy.parquet"] {
        let path = Path::new(FIXTURES).join(name);
        assert_eq!(rows(&path), 100);
        let mut reader = open(&path).unwrap();
        let jumps = (0..100).map(|n| n * 37 % 100);
        for n in (0..100).chain(jumps) {
            let row = reader.read(n).unwrap();
            let images: Vec<_> = (0..n % 3).map(|i| ImageSource::Bytes(picture(n * 10 + i))).collect();
            assert_eq!(
                row.conversation.images().collect::<Vec<_>>(),
                images.iter().collect::<Vec<_>>(),
                "{name} {n}"
            );
            assert_eq!(
                texts(&row.conversation),
                [format!("Question {n}"), format!("Answer {n}")],
                "{name} {n}"
            );
        }
    }
}

#[test]
fn many_files_need_few_open_ones() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..40 {
        fs::write(folder.path().join(format!("{n:02}.jsonl")), question(n)).unwrap();
    }
    let mut reader = open(folder.path()).unwrap();
    for n in (0..40).chain([0, 20, 0]) {
        assert_eq!(texts(&reader.read(n).unwrap().conversation)[0], format!("Question {n}"));
    }
}

#[test]
fn image_paths_are_relative_to_the_data_or_to_the_given_root() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = folder.path().join("a.jsonl");
    fs::write(&file, r#"{"text": "x", "image": "a.png", "response": "y"}"#).unwrap();
    fs::write(folder.path().join("a.png"), "here").unwrap();
    fs::write(elsewhere.path().join("a.png"), "there").unwrap();
    for (image_roots, content) in [(vec![], "here"), (vec![elsewhere.path().to_owned()], "there")] {
        let options = DatasetOptions { image_roots, ..DatasetOptions::default() };
        let dataset = Dataset::open(file.to_str().unwrap(), &options, &()).unwrap();
        let mut reader = RowReader::new(Arc::new(dataset));
        let row = reader.read(0).unwrap();
        let image = row.conversation.images().next().unwrap();
        assert_eq!(&*reader.image_bytes(0, image).unwrap(), content.as_bytes());
    }
}

#[test]
fn the_fingerprint_follows_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.jsonl");
    let fingerprint =
        || Dataset::open(file.to_str().unwrap(), &DatasetOptions::default(), &()).unwrap().fingerprint();
    fs::write(&file, question(1)).unwrap();
    let first = fingerprint();
    assert_eq!(fingerprint(), first);
    fs::write(&file, question(2)).unwrap();
    assert_ne!(fingerprint(), first);
}

#[test]
fn a_damaged_parquet_file_is_an_error_not_a_panic() {
    let error = open(&Path::new(FIXTURES).join("damaged.parquet"))
        .and_then(|mut reader| (0..64).try_for_each(|row| reader.read(row).map(|_| ())));
    assert!(error.unwrap_err().to_string().contains("damaged.parquet"));

    let whole = fs::read(Path::new(FIXTURES).join("messages_snappy.parquet")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flipped.parquet");
    for position in (0..whole.len()).step_by(13) {
        let mut bytes = whole.clone();
        bytes[position] ^= 0x5A;
        fs::write(&file, bytes).unwrap();
        let Ok(mut reader) = open(&file) else { continue };
        for row in 0..4 {
            let _ = reader.read(row);
        }
    }
}
