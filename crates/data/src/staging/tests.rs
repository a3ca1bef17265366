use super::*;
use crate::split::Chosen;
use crate::{Dataset, DatasetOptions, RowReader};
use std::sync::Arc;

const ROWS: &str = "{\"text\": \"1\", \"response\": \"a\"}\n{\"text\": \"2\", \"response\": \"b\"}\n";

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(text).unwrap();
    writer.finish().unwrap()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(text, 1).unwrap()
}

/// The file's rows as they are written out into a folder of their own.
fn written_out(folder: &Path, name: &str, bytes: &[u8]) -> Result<String, String> {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    let place = staged(&path, Some(&folder.join("cache")), &()).map_err(|error| error.to_string())?;
    Ok(fs::read_to_string(place).unwrap())
}

#[test]
fn compressed_files_are_written_out_whole() {
    let folder = tempfile::tempdir().unwrap();
    let array = b"[{\"text\": \"1\", \"response\": \"a\"}]";
    let out = |name: &str, bytes: &[u8]| written_out(folder.path(), name, bytes).unwrap();
    assert_eq!(out("a.jsonl.gz", &gzip(ROWS.as_bytes())), ROWS);
    assert_eq!(out("a.jsonl.zst", &zstd(ROWS.as_bytes())), ROWS);
    assert_eq!(out("a.json.gz", &gzip(array)).as_bytes(), array);
    let (first, second) = ROWS.split_at(ROWS.len() / 2);
    let members = [gzip(first.as_bytes()), gzip(second.as_bytes())].concat();
    assert_eq!(out("b.jsonl.gz", &members), ROWS, "pieces that were compressed apart and joined");
}

#[test]
fn rows_of_a_compressed_file_are_read_by_number_and_named_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl.gz");
    fs::write(&path, gzip(format!("{ROWS}{{\"text\": 1}}\n").as_bytes())).unwrap();
    let found = crate::dataset::Found {
        chosen: Chosen { files: vec![path.clone()], split: None, left: Vec::new(), links: Vec::new() },
        bounds: None,
        index_folder: Some(folder.path().join("cache")),
    };
    let dataset = Arc::new(Dataset::from_files(found, &DatasetOptions::default(), &()).unwrap());
    assert_eq!(dataset.rows(), 3);
    let mut reader = RowReader::new(dataset);
    assert_eq!(reader.read(1).unwrap().id.to_string(), format!("{}, row 2", path.display()));
    let error = reader.read(2).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}, row 3: 'text' ", path.display())), "{error}");
}

#[test]
fn what_was_written_out_is_used_again_until_the_file_changes() {
    let folder = tempfile::tempdir().unwrap();
    let place = |text: &str| {
        let path = folder.path().join("a.jsonl.gz");
        fs::write(&path, gzip(text.as_bytes())).unwrap();
        staged(&path, Some(&folder.path().join("cache")), &()).unwrap()
    };
    let first = place(ROWS);
    fs::write(&first, "marked").unwrap();
    let path = folder.path().join("a.jsonl.gz");
    let again = staged(&path, Some(&folder.path().join("cache")), &()).unwrap();
    assert_eq!((again, fs::read_to_string(&first).unwrap().as_str()), (first.clone(), "marked"));
    let second = place("{\"text\": \"3\", \"response\": \"c\"}\n");
    assert!(second != first && !first.exists(), "the older copy is removed");
}

#[test]
fn a_file_that_is_cut_or_made_to_fill_the_disk_is_an_error_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cut = gzip(ROWS.repeat(100).as_bytes());
    let error = written_out(folder.path(), "cut.jsonl.gz", &cut[..cut.len() / 2]).unwrap_err();
    assert!(error.contains("cut.jsonl.gz: "), "{error}");
    let bomb = zstd(&vec![b' '; SMALL as usize + 1]);
    let error = written_out(folder.path(), "bomb.jsonl.zst", &bomb).unwrap_err();
    assert!(error.contains("expands to more than 67108864 bytes"), "{error}");
    // Every line repeats the name of its column: two bytes a row become 100,000.
    let wide = format!("{}\n{}", "n".repeat(100_000), "1\n".repeat(1000));
    let error = written_out(folder.path(), "wide.csv", wide.as_bytes()).unwrap_err();
    assert!(error.contains("wide.csv: it expands to more than"), "{error}");
    assert_eq!(fs::read_dir(folder.path().join("cache/rows")).unwrap().count(), 0);
}

#[test]
fn csv_becomes_rows_of_texts() {
    let folder = tempfile::tempdir().unwrap();
    let csv = "\u{feff}file_name,text\r\na.png,\"A \"\"red\"\" kite,\nand a lake\"\r\n\r\nb.png,\r\n";
    let rows = written_out(folder.path(), "metadata.csv", csv.as_bytes()).unwrap();
    let expected = "{\"file_name\": \"a.png\", \"text\": \"A \\\"red\\\" kite,\\nand a lake\"}\n\
                    {\"file_name\": \"b.png\"}\n";
    assert_eq!(rows, expected);
    let packed = written_out(folder.path(), "metadata.csv.gz", &gzip(csv.as_bytes())).unwrap();
    assert_eq!(packed, expected);
    for (csv, message) in [
        ("a,b\n1\n", "row 1 has 1 field, the first line names 2"),
        ("a,b\n1,2\n1,\"2\n", "row 2 ends inside quotes"),
        ("a,a\n1,2\n", "the column 'a' is there twice"),
        ("", "it is empty"),
    ] {
        let error = written_out(folder.path(), "bad.csv", csv.as_bytes()).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn csv_that_is_not_utf_8_is_told_by_its_row() {
    let folder = tempfile::tempdir().unwrap();
    for (csv, message) in [
        (&b"a,b\n1,2\n\n1,\xfc\n"[..], "row 2 is not UTF-8 (byte 3): save the file as UTF-8"),
        (b"\xff\xfea\0,\0b\0\n\0", "the line of names is not UTF-8 (byte 1): save the file as UTF-8"),
    ] {
        let error = written_out(folder.path(), "bad.csv", csv).unwrap_err();
        assert!(error.ends_with(message), "{error}");
    }
}

#[test]
fn a_quote_that_nobody_closes_costs_one_pass() {
    let folder = tempfile::tempdir().unwrap();
    // Counting the quotes of the whole record at each of its lines would take hours.
    let csv = format!("a,b\n1,5\" pipe\n{}", "1,2\n".repeat(1_000_000));
    let error = written_out(folder.path(), "stray.csv", csv.as_bytes()).unwrap_err();
    assert!(error.ends_with("row 1 ends inside quotes"), "{error}");
}

#[test]
fn only_metadata_and_splits_are_taken_for_rows_among_the_csv_files_of_a_folder() {
    for (name, taken) in [
        ("metadata.csv", true),
        ("train.csv", true),
        ("Validation.csv.gz", true),
        ("test-00000-of-00001.csv", true),
        ("training_log.csv", false),
        ("results.csv", false),
        ("train.jsonl.gz", true),
        ("train.json.zst", true),
        ("backup.tar.gz", false),
    ] {
        assert_eq!(is_text_of_folder(Path::new(name)), taken, "{name}");
    }
    assert!(is_text(Path::new("results.csv")), "named by itself it is");
}

#[test]
fn what_another_process_is_writing_is_left_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut living =
        garden_files::PartialFile::create(&folder.path().join(format!("{:016x}-1-a.rows", 7))).unwrap();
    std::io::Write::write_all(&mut living, b"rows").unwrap();
    let older = folder.path().join(format!("{:016x}-0-a.rows", 7));
    std::fs::write(&older, "older").unwrap();
    remove_older(folder.path(), "0000000000000007-");
    assert!(!older.exists());
    living.keep().expect("it was not taken away");
}
