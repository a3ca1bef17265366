//! Traces as files: what is written comes back, what other tools write is understood, what is broken is
//! named.

use garden_memory::{RunFacts, Sample, TraceError, TraceHeader, TraceReader, TraceWriter};
use std::path::PathBuf;
use tempfile::TempDir;

/// A file with `text` in it.
fn file(name: &str, text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a written file");
    (folder, path)
}

fn read(name: &str, text: &str) -> Result<Vec<Sample>, TraceError> {
    let (_folder, path) = file(name, text);
    TraceReader::open(path)?.collect()
}

fn error(name: &str, text: &str) -> String {
    let (folder, path) = file(name, text);
    let error = TraceReader::open(path)
        .and_then(|reader| reader.collect::<Result<Vec<_>, _>>())
        .expect_err("an error");
    error.to_string().replace(&format!("{}/", folder.path().display()), "")
}

const HEADER: &str = r#"{"trace":"model-garden/1","name":"run","dataset_size":663,"samples_per_step":8}"#;

#[test]
fn what_is_written_comes_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("run.jsonl");
    let facts = RunFacts { dataset_size: Some(663), limit: Some(32_000_000_000), ..RunFacts::default() };
    let header = TraceHeader::new("run", facts);
    let samples = [
        Sample { t: 0.5, rss: 10, anon: 7, file: 3, ..Sample::default() },
        Sample {
            t: 1.5,
            step: Some(1),
            epoch: Some(0.25),
            rss: 20,
            anon: 20,
            procs: Some(3),
            ..Sample::default()
        },
    ];
    let mut writer = TraceWriter::create(&path, &header).expect("a writer");
    for (written, sample) in samples.iter().enumerate() {
        writer.append(sample).expect("a written sample");
        // Readable at any moment, while the writer is still open.
        assert_eq!(TraceReader::open(&path).expect("a reader").count(), written + 1);
    }
    let reader = TraceReader::open(&path).expect("a reader");
    assert_eq!(*reader.header(), header);
    assert_eq!(reader.collect::<Result<Vec<_>, _>>().expect("samples"), samples);
}

#[test]
fn a_malformed_line_is_named_with_its_number() {
    let good = r#"{"t":1,"rss":5}"#;
    let cases = [
        (format!("{HEADER}\n{good}\nnot json\n"), "run.jsonl:3: expected a sample such as"),
        (format!("{HEADER}\n{good}\n{{\"t\":1}}\n"), "missing field `rss`"),
        (format!("{HEADER}\n{{\"t\":1,\"rss\":-5}}\n"), "run.jsonl:2: "),
        (format!("{good}\n{good}\n"), "run.jsonl:1: expected the header"),
        (HEADER.replace("garden/1", "garden/9"), "version 'model-garden/9'"),
        (HEADER.replace("663", "\"many\""), "run.jsonl:1: bad header"),
        (format!("{HEADER}\n"), "no memory figure in 1 line"),
        (String::new(), "the file is empty"),
        ("\n\n".to_owned(), "the file is empty"),
    ];
    for (text, expected) in cases {
        let found = error("run.jsonl", &text);
        assert!(found.contains(expected), "{found}\nexpected {expected}");
    }
}

#[test]
fn a_line_that_was_cut_by_a_kill_costs_one_sample_only() {
    let (_folder, path) = file("run.jsonl", &format!("{HEADER}\n{{\"t\":1,\"rss\":5}}\n{{\"t\":2,\"rs"));
    let mut reader = TraceReader::open(path).expect("a reader");
    assert_eq!(reader.by_ref().map(|sample| sample.expect("a sample").rss).collect::<Vec<_>>(), [5]);
    assert_eq!(reader.notes().len(), 1);
    assert_eq!(reader.notes()[0].as_str(), "Line 3, the last, is cut off in its middle and was left out.");
    // The same fragment inside the file is damage.
    assert!(
        error("run.jsonl", &format!("{HEADER}\n{{\"t\":2,\"rs\n{{\"t\":1,\"rss\":5}}\n"))
            .contains("run.jsonl:2:")
    );
}

#[test]
fn training_logs_are_read_line_by_line() {
    let log = "Loading model...\n\
        Step 10: 6529 tensors (CPU: 330, GPU: 6199), Process RAM: 5552 MB\n\
        {'loss': 0.31, 'epoch': 0.2}\n\
        2025-11-15 19:20:00,500 | step=20/500 | GPU memory: 9.1 GB | Process RAM: 1.5 GiB\n";
    let samples = read("run.log", log).expect("samples");
    let seen: Vec<_> = samples.iter().map(|sample| (sample.step, sample.rss)).collect();
    assert_eq!(seen, [(Some(10), 5_552_000_000), (Some(20), 1_610_612_736)]);
    assert_eq!((samples[0].anon, samples[0].owned()), (0, 5_552_000_000), "the kinds are not told apart");

    assert!(error("run.log", "hello\nworld\n").contains("no memory figure in 2 lines"));
    assert!(
        error("run.log", "Step 1: RAM: 12 MB\nStep 2: RAM: 1.2.3 MB\n")
            .contains("run.log:2: expected a size")
    );
}

#[test]
fn tables_are_read_by_the_names_of_their_columns() {
    let table = "time_s;Step;RSS (MiB);Shared [kB];note\n0;;100;2;a\n1.5;3;200;2;\"b;c\"\n";
    let samples = read("run.csv", table).expect("samples");
    let seen: Vec<_> = samples.iter().map(|s| (s.t, s.step, s.rss, s.shmem)).collect();
    assert_eq!(seen, [(0.0, None, 100 << 20, 2000), (1.5, Some(3), 200 << 20, 2000)]);

    let dated = "timestamp,memory_mb\n2024-02-28 23:59:59,1\n2024-03-01 00:00:00.5,2\n";
    let times: Vec<_> = read("run.csv", dated).expect("samples").iter().map(|s| s.t).collect();
    assert_eq!(times, [0.0, 86_401.5], "2024 has a 29th of February");

    assert!(error("run.csv", "t,rss_kb\n1,2\n1,2,3\n").contains("run.csv:3: expected 2 fields"));
    assert!(error("run.csv", "t,rss\n1,abc\n").contains("run.csv:2: column 'rss': expected a number"));
    assert!(error("run.csv", "step,loss\n1,2\n").contains("run.csv:1: expected a column with memory"));
}

#[test]
fn psrecord_and_mprof_files_are_read() {
    let psrecord = "# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)\n\
        \x20      0.000        0.000        2.000       10.000\n\
        \x20      1.010       99.000        3.500       11.000\n";
    let seen: Vec<_> = read("ps.txt", psrecord).expect("samples").iter().map(|s| (s.t, s.rss)).collect();
    assert_eq!(seen, [(0.0, 2 << 20), (1.01, 7 << 19)]);
    assert!(
        error("ps.txt", &format!("{psrecord}1.0 nothing\n"))
            .contains("ps.txt:4: expected four or more numbers")
    );

    let mprof = "CMDLINE python train.py\nMEM 2.000000 1718000000.0000\nCHLD 0 1.000000 1718000000.0000\n\
        MEM 3.000000 1718000000.5000\nFUNC f 1.0 1718000000.1 2.0 1718000000.2\n";
    let seen: Vec<_> =
        read("mprofile.dat", mprof).expect("samples").iter().map(|s| (s.t, s.rss, s.procs)).collect();
    assert_eq!(seen, [(0.0, 3 << 20, Some(2)), (0.5, 3 << 20, Some(1))]);
    assert!(
        error("m.dat", &format!("{mprof}MEM lots 1\n")).contains("m.dat:6: expected 'MEM <MiB> <unix time>'")
    );
}

#[test]
fn a_line_without_end_is_refused() {
    let found = error("run.log", &"x".repeat(17 << 20));
    assert!(found.contains("line 1 is longer than 16 MiB"), "{found}");
}
