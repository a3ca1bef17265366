//! Files as people have them: odd lines, missing units, shuffled rows, packed files. The reader says what it
//! assumed or left out.

use garden_memory::{
    RunFacts, Sample, Sentence, StepPatterns, TraceError, TraceOptions, TraceReader, Verdict, report::Run,
};
use std::{io::Write, path::PathBuf};
use tempfile::TempDir;

fn file(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("a written file");
    (folder, path)
}

/// Sentences, a line each.
fn said(sentences: &[Sentence]) -> String {
    sentences.iter().map(Sentence::as_str).collect::<Vec<_>>().join("\n")
}

/// The samples of a file, and what is said of it.
fn read_with(bytes: &[u8], options: &TraceOptions) -> Result<(Vec<Sample>, String), TraceError> {
    let (_folder, path) = file("run", bytes);
    let mut reader = TraceReader::open_with(path, options)?;
    let samples = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
    Ok((samples, said(reader.notes())))
}

fn read(text: &str) -> (Vec<Sample>, String) {
    read_with(text.as_bytes(), &TraceOptions::default()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn refused(text: &str) -> String {
    read_with(text.as_bytes(), &TraceOptions::default()).expect_err(text).to_string()
}

fn sizes(samples: &[Sample]) -> Vec<u64> {
    samples.iter().map(|sample| sample.rss).collect()
}

/// A log of `lines` lines with one figure each, from 1 GB on.
fn log(lines: u64) -> String {
    (1..=lines).map(|step| format!("Step {step}: RSS: {} MB\n", 1000 + step)).collect()
}

#[test]
fn one_odd_line_is_left_out_and_said() {
    let mut text = log(30);
    text.insert_str(text.find("Step 17").expect("a line"), "Step 16: RSS: 1.2.3 MB\n");
    let (samples, notes) = read(&text);
    assert_eq!(samples.len(), 30);
    assert!(
        notes.starts_with("1 of 31 lines cannot be read and was left out: line 17, expected a size"),
        "{notes}"
    );

    let rows: String = (1..=30).map(|step| format!("{step},{}\n", 1_000_000_000 + step)).collect();
    let (samples, notes) = read(&format!("t,rss\n1,1e300\n2,-5\n3,x\n{rows}"));
    assert_eq!(samples.len(), 30);
    assert!(
        notes.contains("3 of 33 lines cannot be read") && notes.contains("the first is line 2"),
        "{notes}"
    );
}

#[test]
fn a_file_of_odd_lines_is_refused_by_the_first() {
    let error = refused("t,rss\n1,1000000000\n2,1e300\n3,-5\n");
    assert!(error.contains("run:3: ") && error.contains("more memory than any machine has"), "{error}");
    assert!(error.contains("2 of 3 lines"), "{error}");
}

#[test]
fn colours_and_redrawn_lines_are_text() {
    let text = "\x1b[32mStep 10\x1b[0m RAM: \x1b[1m5552\x1b[0m MB\n\
                \r12%|█▏  | 11/83 [00:12<01:30, RAM=5600MB]\r13%|█▏  | 12/83 [00:12<01:30, RAM=5700MB]\n";
    let (samples, _) = read(text);
    assert_eq!(sizes(&samples), [5_552_000_000, 5_600_000_000, 5_700_000_000], "every redrawing counts");
}

#[test]
fn steps_epochs_and_times_of_other_lines_belong_to_the_next_figure() {
    let text = "[INFO|2025-06-01 10:00:00] >> {'loss': 0.5, 'epoch': 0.12}\n\
                 12%|█▏        | 10/83 [00:12<01:30,  1.23s/it]\n\
                 RSS: 5552 MB\n[INFO|2025-06-01 10:00:30] RSS: 5600 MB\n";
    let (samples, _) = read(text);
    let seen: Vec<_> = samples.iter().map(|s| (s.t, s.step, s.epoch)).collect();
    assert_eq!(seen, [(0.0, Some(10), Some(0.12)), (30.0, Some(10), None)], "an epoch is told once");
}

#[test]
fn a_log_of_several_kinds_of_memory_is_read_by_one() {
    let both: String = (1..=20)
        .map(|step| format!("Step {step} system memory used: 40 GB\nStep {step} RSS: {} MB\n", 1000 + step))
        .collect();
    let (samples, notes) = read(&both);
    assert_eq!((samples.len(), samples[0].rss), (20, 1_001_000_000));
    assert!(notes.contains("20 lines of another kind left out"), "{notes}");

    let machine = "CPU Virtual Memory:  used = 93.11 GB, percent = 5.0%\n".repeat(3);
    assert!(read(&machine).1.contains("the whole machine"), "{}", read(&machine).1);
}

#[test]
fn a_unit_is_assumed_only_where_no_other_fits_and_then_it_is_said() {
    let (samples, notes) = read("step,mem\n10,5434\n20,17412.5\n");
    assert_eq!(sizes(&samples), [5_434_000_000, 17_412_500_000]);
    assert!(notes.contains("Column 'mem' has no unit") && notes.contains("taken for MB"), "{notes}");

    let (samples, notes) = read("step,rss\n10,5434000000\n20,17412000000\n");
    assert_eq!(samples[1].rss, 17_412_000_000);
    assert!(notes.contains("taken for bytes"), "{notes}");

    let (samples, notes) = read("step=1 pmem(rss=1000000000, vms=2000000000)\n");
    assert_eq!(sizes(&samples), [1_000_000_000]);
    assert!(notes.contains("taken for bytes"), "{notes}");

    for text in ["step,mem\n10,5.4\n20,17.4\n", "step,mem\n10,543400\n", "Step 1 RAM: 17.4\n"] {
        assert!(refused(text).contains("has no unit"), "{text}: {}", refused(text));
    }
    let in_gib = TraceOptions { unit: Some("GiB".parse().expect("a unit")), ..TraceOptions::default() };
    for text in ["step,mem\n10,1.5\n", "Step 1 RAM: 1.5\n", "step,mem_mb\n10,1.5\n"] {
        let (samples, notes) = read_with(text.as_bytes(), &in_gib).expect(text);
        assert_eq!((sizes(&samples), notes.as_str()), (vec![3 << 29], ""), "{text}");
    }
}

#[test]
fn units_of_time_are_read_from_the_name_or_from_what_can_be() {
    let times = |text: &str| read(text).0.iter().map(|sample| sample.t).collect::<Vec<_>>();
    assert_eq!(times("time_ms,rss_mb\n0,900\n1000,900\n2500,900\n"), [0.0, 1.0, 2.5]);
    assert_eq!(
        times("time,rss_mb\n0,900\n1000,900\n2000,900\n"),
        [0.0, 1.0, 2.0],
        "nobody looks every 1000 s"
    );
    assert!(read("time,rss_mb\n0,900\n1000,900\n2000,900\n").1.contains("taken for milliseconds"));
    assert_eq!(times("time,rss_mb\n0,900\n600,900\n1200,900\n"), [0.0, 600.0, 1200.0], "by the minute");
    assert_eq!(times("timestamp,rss_mb\n1718000000000,900\n1718000001500,900\n"), [0.0, 1.5]);
    assert_eq!(
        times("timestamp,rss_mb\n2024-06-10T06:13:20.000Z,900\n2024-06-10T06:13:21.500Z,900\n"),
        [0.0, 1.5]
    );
    let seconds = TraceOptions { time_unit: Some("s".parse().expect("a unit")), ..TraceOptions::default() };
    let (samples, _) = read_with(b"time,rss_mb\n0,900\n1000,900\n2000,900\n", &seconds).expect("samples");
    assert_eq!(samples[1].t, 1000.0);
}

#[test]
fn shuffled_rows_are_sorted_and_restarts_are_not() {
    let (samples, notes) = read("time,step,rss_mb\n3,30,930\n1,10,910\n4,40,940\n2,20,920\n0,0,900\n");
    assert_eq!(samples.iter().filter_map(|s| s.step).collect::<Vec<_>>(), [0, 10, 20, 30, 40]);
    assert!(notes.contains("not in the order of their time and were sorted"), "{notes}");
    let (samples, notes) = read("step,rss_mb\n30,930\n10,910\n40,940\n20,920\n0,900\n");
    assert_eq!(sizes(&samples), [900, 910, 920, 930, 940].map(|mb| mb * 1_000_000));
    assert!(notes.contains("order of their step"), "{notes}");
    let newest_first: String = (0..30).rev().map(|t| format!("{t},{}\n", 900 + t)).collect();
    assert_eq!(read(&format!("time,rss_mb\n{newest_first}")).0[0].rss, 900_000_000);

    let run: String = (0..30).map(|t| format!("{t},900\n")).collect();
    let (samples, notes) = read(&format!("time,rss_mb\n{run}{run}"));
    assert_eq!((samples[30].t, notes.as_str()), (0.0, ""), "a run that began again");
}

#[test]
fn tables_of_other_tools_are_read() {
    let tables = [
        (
            "W&B's export",
            "\"Relative Time (Process)\",\"lake-12 - system/proc.memory.rssMB\",\"lake-12 - system/proc.memory.rssMB__MIN\",\"lake-12 - system/proc.memory.rssMB__MAX\"\n12.5,5552,5000,6000\n",
            5_552_000_000,
        ),
        (
            "W&B's history",
            "_step,_runtime,train/global_step,loss,system.proc.memory.rssMB\n1,1.5,10,0.5,\n2,2.5,,,5552\n",
            5_552_000_000,
        ),
        (
            "MLflow",
            "step,timestamp,system/system_memory_usage_megabytes,system/system_memory_usage_percentage\n1,1718000000000,5552,8.5\n",
            5_552_000_000,
        ),
        (
            "Lightning's CSVLogger",
            "epoch,step,train_loss,cpu_ram_mb,cpu_vm_percent\n0,10,0.5,5552,8.5\n",
            5_552_000_000,
        ),
        (
            "a script",
            "Timestamp;Step;Free RAM (MB);Peak RSS (MB);RSS (MB);Swap (MB)\n2024-06-10 06:13:20;10;9999;6000;5552;0\n",
            5_552_000_000,
        ),
        ("a script", "timestamp,gpu_mem_mb,mem_mb,mem_percent\n1,81920,5552,8.5\n", 5_552_000_000),
    ];
    for (tool, table, bytes) in tables {
        assert_eq!(sizes(&read(table).0), [bytes], "{tool}");
    }
    let tensorboard = TraceOptions {
        column: Some("value".into()),
        unit: Some("MB".parse().expect("a unit")),
        ..TraceOptions::default()
    };
    let (samples, _) =
        read_with(b"Wall time,Step,Value\n1718000000.5,10,5552\n", &tensorboard).expect("samples");
    assert_eq!((sizes(&samples), samples[0].step), (vec![5_552_000_000], Some(10)));
    assert!(refused("Wall time,Step,Value\n1718000000.5,10,5552\n").contains("a column with memory"));
}

#[test]
fn a_table_with_swap_is_not_judged_by_its_swap() {
    let (samples, _) = read("step,rss_mb,swap_mb\n1,5000,552\n");
    assert_eq!((samples[0].rss, samples[0].owned()), (5_000_000_000, 5_552_000_000));
}

#[test]
fn the_user_s_patterns_find_what_no_form_covers() {
    let options = TraceOptions {
        memory: Some(r"host~(\d+)(M|G)".parse().expect("a pattern")),
        steps: StepPatterns {
            step: Some(r"it<(\d+)>".parse().expect("a pattern")),
            epoch: Some(r"ep<([\d.]+)>".parse().expect("a pattern")),
        },
        ..TraceOptions::default()
    };
    let (samples, _) = read_with(b"Step 99 it<7> ep<0.5> RSS: 1 GB host~5552M\n", &options).expect("samples");
    assert_eq!((samples[0].step, samples[0].epoch, samples[0].rss), (Some(7), Some(0.5), 5_552_000_000));
}

#[test]
fn packed_files_and_utf_16_are_read() {
    let text = log(20);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(text.as_bytes()).expect("gzip");
    let gzip = gzip.finish().expect("gzip");
    let zstd = zstd::stream::encode_all(text.as_bytes(), 1).expect("zstd");
    let utf_16: Vec<u8> =
        "\u{feff}".encode_utf16().chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    let expected = read(&text).0;
    for (form, bytes) in [("gzip", &gzip), ("zstd", &zstd), ("UTF-16", &utf_16)] {
        let (samples, notes) = read_with(bytes, &TraceOptions::default()).expect(form);
        assert_eq!((&samples, notes.as_str()), (&expected, ""), "{form}");
    }
    let (samples, notes) =
        read_with(&gzip[..gzip.len() - 12], &TraceOptions::default()).expect("what stands before the cut");
    assert!(!samples.is_empty() && notes.contains("cut off"), "{} samples; {notes}", samples.len());
    let error = read_with(b"\xfd7zXZ\0...", &TraceOptions::default()).expect_err("xz").to_string();
    assert!(error.contains("xz-compressed"), "{error}");
}

#[test]
fn what_a_log_says_of_its_dataset_makes_the_verdict_certain() {
    let banner = "   \\\\   /|    Num examples = 663 | Num Epochs = 3 | Total steps = 249\n\
                  \\        /    Data Parallel GPUs = 1 | Total batch size (2 x 4 x 1) = 8\n";
    let steps: String =
        (1..=160).map(|step| format!("Step {step}: RSS: {} MB\n", 5000 + 150 * step.min(83))).collect();
    let (_folder, path) = file("run.log", format!("{banner}{steps}").as_bytes());
    let run = Run::read(&path, &RunFacts::default(), &TraceOptions::default()).expect("a run");
    let facts = run.analyst.facts();
    assert_eq!((facts.dataset_size, facts.samples_per_step), (Some(663), Some(8)));
    assert_eq!(run.assessment.verdict.name(), "fill");
    let told = RunFacts { dataset_size: Some(100), ..RunFacts::default() };
    let run = Run::read(&path, &told, &TraceOptions::default()).expect("a run");
    assert_eq!(run.analyst.facts().dataset_size, Some(100), "what the user says stands");
}

#[test]
fn a_log_of_several_amounts_is_a_curve_of_one() {
    let status = "VmHWM:\t 6000000 kB\nVmRSS:\t 5421875 kB\nRssAnon:\t 5000000 kB\nRssFile:\t 421875 kB\n";
    assert_eq!(sizes(&read(&status.repeat(3)).0), [5_421_875_000; 3]);
    let smaps = "Rss:  5421875 kB\nPss:  5300000 kB\nPss_Anon:  5000000 kB\nUss:  1000 kB\n";
    assert_eq!(sizes(&read(&smaps.repeat(3)).0), [5_421_875_000; 3]);
    let deepspeed = "[2024-07-24 02:13:16,631] [INFO] [utils.py:782:see_memory_usage] MA 0.81 GB         Max_MA 0.81 GB\n\
                     [2024-07-24 02:13:16,632] [INFO] [utils.py:789:see_memory_usage] CPU Virtual Memory:  used = 17.18 GB, percent = 6.8%\n";
    assert_eq!(sizes(&read(&deepspeed.repeat(3)).0), [17_180_000_000; 3]);
}

#[test]
fn few_rows_in_no_order_are_sorted_and_runs_that_begin_again_are_not() {
    let table = |steps: &[u64]| {
        let rows = steps.iter().map(|step| format!("{step},{}\n", 900 + step));
        format!("step,rss_mb\n{}", rows.collect::<String>())
    };
    let sorted = sizes(&read(&table(&[5, 2, 9, 1, 7, 3, 8, 4, 6, 10])).0);
    assert!(sorted.is_sorted(), "{sorted:?}");
    let again = [1, 2, 3, 1, 2, 3, 1, 2, 3, 4];
    assert_eq!(sizes(&read(&table(&again)).0), again.map(|step| (900 + step) * 1_000_000));
}

#[test]
fn a_file_without_steps_and_times_is_judged_over_its_readings() {
    let lines: String = (0..200).map(|i| format!("RAM: {} MB\n", 5552 + 3 * i)).collect();
    let (_folder, path) = file("log", lines.as_bytes());
    let run = Run::read(&path, &RunFacts::default(), &TraceOptions::default()).expect("a run");
    let rate = run.assessment.growth_per_step.expect("a rate");
    assert!((2.9e6..3.1e6).contains(&rate), "{rate}");
    assert!(
        run.assessment
            .evidence
            .iter()
            .any(|said| said.as_str().contains("200 readings are counted as steps"))
    );
    assert_eq!(run.assessment.growth_per_minute, None, "no clock, no minutes");
}

/// The log of two ranks that go in step: the first is level, the second leaks.
fn ranks(name: impl Fn(u64) -> String) -> String {
    let line = |step: u64, rank: u64| {
        let rss = 5_000 + 900 * (1 - rank) + 20 * step * rank;
        format!("{} Step {step} RSS: {rss} MB\n", name(rank))
    };
    (1..=100).flat_map(|step| [line(step, 0), line(step, 1)]).collect()
}

#[test]
fn of_several_ranks_in_one_log_the_one_that_holds_the_most_at_the_end_is_judged() {
    let forms: [&dyn Fn(u64) -> String; 4] = [
        &|rank| format!("[rank{rank}]:"),
        &|rank| format!("rank={rank}"),
        &|rank| format!("(RayTrainWorker pid={})", 1000 + rank),
        &|rank| format!(r#"{{"pid": {}, "level": "info"}}"#, 1000 + rank),
    ];
    for form in forms {
        let text = ranks(form);
        let (_folder, path) = file("run", text.as_bytes());
        let run = Run::read(
            path,
            &RunFacts { steps_per_epoch: Some(20.0), ..RunFacts::default() },
            &TraceOptions::default(),
        )
        .expect(&text);
        let said = said(&run.assessment.evidence);
        assert_eq!(run.assessment.verdict, Verdict::Leak, "{said}");
        let rate = run.assessment.growth_per_step.expect("a rate");
        assert!((rate / 20e6 - 1.0).abs() < 0.05, "{rate}: {said}");
        assert!(said.contains("the memory of 2 processes"), "{said}");
    }
}

#[test]
fn ranks_whose_logs_were_put_one_after_the_other_are_told_apart() {
    let mut lines: Vec<String> = ranks(|rank| format!("[rank{rank}]:")).lines().map(str::to_owned).collect();
    lines.sort_by_key(|line| line.starts_with("[rank1]"));
    let (samples, notes) = read(&lines.join("\n"));
    assert_eq!((samples.len(), samples[99].rss), (100, 7_000_000_000));
    assert!(notes.contains("the verdict is about rank 1, which held the most at the end"), "{notes}");

    let rows = |rank: u64| (1..=20).map(move |step| format!("{step},{rank},{}\n", 5_000 + step + rank * 100));
    let table: String = rows(0).chain(rows(1)).collect();
    let (samples, notes) = read(&format!("step,rank,rss_mb\n{table}"));
    assert_eq!((samples.len(), samples[19].rss), (20, 5_120_000_000), "{notes}");
    assert!(!notes.contains("sorted"), "{notes}");
}

#[test]
fn numbers_that_name_no_process_do_not_split_a_file() {
    let forms: [&dyn Fn(u64) -> String; 7] = [
        &|step| format!("process {} images", 4 + step % 3),
        &|step| format!("[{}] INFO", 1 + step % 2),
        &|step| format!("lora_rank={}", 8 << (step % 2)),
        &|step| format!("rank {}.5 of", step % 2),
        &|step| format!("pid={step}"),
        &|step| format!("worker {}", 7 + step / 51),
        &|step| format!("process: {} MB,", 7 + step % 2),
    ];
    for form in forms {
        let text: String =
            (1..=100).map(|step| format!("{} Step {step} RSS: {} MB\n", form(step), 5_000 + step)).collect();
        let (samples, notes) = read(&text);
        assert_eq!((samples.len(), notes.as_str()), (100, ""), "{}", form(1));
    }
    let restarted: String =
        (1..=40).map(|step| format!("{step},{},{}\n", 100 + step / 21, 5_000 + step)).collect();
    let (samples, notes) = read(&format!("time,pid,rss_mb\n{restarted}"));
    assert_eq!((samples.len(), notes.as_str()), (40, ""));
}

#[test]
fn a_process_can_be_chosen_by_its_name() {
    let text = ranks(|rank| format!("[rank{rank}]:"));
    let options = |process: &str| TraceOptions { process: Some(process.into()), ..TraceOptions::default() };
    for name in ["0", "rank 0", "Rank 0"] {
        let (samples, notes) = read_with(text.as_bytes(), &options(name)).expect(name);
        assert_eq!((samples.len(), samples[99].rss), (100, 5_900_000_000), "{notes}");
    }
    let error = read_with(text.as_bytes(), &options("7")).expect_err("an unknown rank").to_string();
    assert!(error.ends_with("there is no process '7'; the file names rank 0, rank 1"), "{error}");
    let error = read_with(log(20).as_bytes(), &options("7")).expect_err("no ranks").to_string();
    assert!(error.contains("the file names no"), "{error}");
    let table = b"step,rank,rss_mb\n1,0,5000\n1,1,6000\n2,0,5100\n2,1,6100\n";
    assert_eq!(sizes(&read_with(table, &options("0")).expect("a rank").0), [5_000_000_000, 5_100_000_000]);
}

#[test]
fn bare_numbers_without_an_owner_are_refused_for_that_and_not_for_their_unit() {
    let error = refused("Step 1 memory: 2345\nStep 2 memory: 2346\n");
    assert!(error.contains("says whose it is") && !error.contains("several"), "{error}");
    assert!(refused("Step 1 RAM: 17.4\n").contains("could be in several units"));
}
