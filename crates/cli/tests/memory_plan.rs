//! `memory plan` as a user runs it: what it prints, and that a plan agrees with its run.

mod support;

use serde_json::Value;
use std::{fs, path::Path};
use support::{Finished, model_garden, training::Garden};

const PARTS: [&str; 9] = [
    "process",
    "weights",
    "adapters",
    "gradients",
    "optimizer",
    "activations",
    "recompute",
    "work",
    "batches",
];

fn plan(flags: &[&str]) -> Finished {
    Finished::of(model_garden().args(["memory", "plan"]).args(flags))
}

/// The figures for programs, and the exit code.
fn figures(flags: &[&str]) -> (Value, Option<i32>) {
    let done = plan(&[flags, &["--format", "json"]].concat());
    let figures = serde_json::from_str(&done.output);
    (figures.unwrap_or_else(|_| panic!("{flags:?}: {}", done.errors)), done.code)
}

fn bytes(figures: &Value, part: &str) -> u64 {
    figures["parts"][part].as_u64().unwrap_or_else(|| panic!("no {part} in {figures}"))
}

#[test]
fn the_parts_have_the_documented_names_and_add_up_to_the_total() {
    let (plan, code) = figures(&["--base-model", "tiny", "--max-seq-length", "64"]);
    assert_eq!((code, &plan["fits"], &plan["budget"]), (Some(0), &true.into(), &Value::Null));
    assert_eq!(plan["parts"].as_object().unwrap().len(), PARTS.len());
    assert_eq!(PARTS.iter().map(|part| bytes(&plan, part)).sum::<u64>(), plan["total"].as_u64().unwrap());
    let batch = serde_json::json!({"rows": 2, "tokens": 128, "patches": 512, "labels": 128});
    assert_eq!(plan["longest_batch"], batch);
    assert_eq!((plan["blocks"].as_u64(), plan["recomputed_blocks"].as_u64()), (Some(8), Some(0)));
    assert!(plan["available"].as_u64() > plan["total"].as_u64(), "{plan}");
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/memory-plan.md");
    let document = fs::read_to_string(document).unwrap();
    let documented = document.lines().skip_while(|line| !line.starts_with("| line")).skip(2);
    let documented = documented.map_while(|line| line.split('|').nth(1)).flat_map(|names| names.split(','));
    assert_eq!(documented.map(str::trim).collect::<Vec<_>>(), PARTS);
}

#[test]
fn the_least_that_would_do_is_said_with_the_flags_that_get_there() {
    let asked = ["--base-model", "tiny", "--max-seq-length", "64", "--batch-size", "4"];
    let (plan, _) = figures(&asked);
    let flags = "--batch-size 1 --gradient-accumulation-steps 16 --gradient-checkpointing on";
    let least = &plan["least"][0];
    let said: Vec<&str> = least["flags"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(said.join(" "), flags);
    // Who follows the advice gets what it says.
    let followed: Vec<&str> =
        asked[..4].iter().copied().chain(flags.split(' ')).chain(["--memory-budget", "1GB"]).collect();
    assert_eq!(figures(&followed).0["total"], least["total"]);
    assert!(least["total"].as_u64() < plan["total"].as_u64(), "{plan}");
    let shown = self::plan(&asked).output;
    assert!(shown.contains("\nless would do: ") && shown.contains(&format!(" with {flags}\n")), "{shown}");
}

#[test]
fn people_see_a_line_a_part_and_what_decides() {
    let shown = plan(&["--base-model", "tiny", "--max-seq-length", "64"]);
    assert_eq!(shown.code, Some(0), "{}", shown.errors);
    assert!(shown.output.starts_with("tiny, 1.6 million parameters, LoRA r 16: 219,200 trained\n"));
    let line = |start: &str| shown.output.lines().find(|line| line.starts_with(start));
    for part in PARTS.into_iter().chain(["total"]) {
        assert!(line(&format!("{part} ")).is_some_and(|line| line.contains("B  ")), "{}", shown.output);
    }
    assert!(line("fits: ").is_some_and(|line| line.contains(" available on this machine, ")));
    assert!(!shown.output.contains('\x1b'), "no colours off a terminal");
}

#[test]
fn the_smaller_of_budget_and_machine_decides() {
    let of_budget = |budget: &str| plan(&["--base-model", "tiny", "--memory-budget", budget]);
    let small = of_budget("1MB");
    assert_eq!(small.code, Some(4), "{}", small.errors);
    assert!(small.output.contains("recomputed: 8 of 8 blocks"), "{}", small.output);
    assert!(small.output.contains("does not fit: 1.0 MB budget, "), "{}", small.output);
    let enough = of_budget("900MB");
    assert_eq!(enough.code, Some(0), "{}", enough.errors);
    assert!(enough.output.contains("\nfits: 900 MB budget, "), "{}", enough.output);
    let beyond = ["--base-model", "72b", "--batch-size", "4096", "--memory-budget", "1000TB"];
    let beyond = plan(&beyond);
    assert_eq!(beyond.code, Some(4), "{}", beyond.errors);
    assert!(beyond.output.contains(" available on this machine, "), "{}", beyond.output);
    for recompute in ["on", "off"] {
        let flags = ["--base-model", "tiny", "--memory-budget", "1MB", "--gradient-checkpointing", recompute];
        let (plan, code) = figures(&flags);
        assert_eq!((code, &plan["fits"], &plan["budget"]), (Some(4), &false.into(), &1_000_000.into()));
    }
}

#[test]
fn a_plan_above_the_limit_that_its_run_stops_at_does_not_fit() {
    let asked = ["--base-model", "tiny", "--max-seq-length", "64", "--memory-limit"];
    let with = |limit| [&asked[..], &[limit]].concat();
    let (figures, code) = figures(&with("5MB"));
    assert_eq!(
        (code, &figures["fits"], &figures["memory_limit"]),
        (Some(4), &false.into(), &5_000_000.into())
    );
    let done = plan(&with("5MB"));
    assert!(
        done.output.contains("does not fit: ") && done.output.contains(" usable below the memory limit, ")
    );
    assert_eq!(plan(&with("1GB")).code, Some(0));
    let warned = plan(&[&with("5MB")[..], &["--on-memory-limit", "warn"]].concat());
    assert_eq!(warned.code, Some(0), "a run that is only warned is not stopped there");
}

#[test]
fn what_no_run_has_is_refused_by_its_flag() {
    let refused = |flags: &[&str], message: &str| {
        let done = plan(&[&["--base-model", "tiny"], flags].concat());
        assert_eq!(done.code, Some(2), "{flags:?}: {}{}", done.output, done.errors);
        assert!(done.errors.contains(message), "{flags:?}: {}", done.errors);
    };
    refused(&["--batch-size", "4294967296"], "--batch-size 4294967296: from 1 to 4096");
    refused(&["--max-seq-length", "4294967296"], "--max-seq-length 4294967296: from 1 to 1048576");
    refused(&["--lora-r", "100000"], "LoRA rank 100000 is not between 1 and 4096");
    refused(&["--max-pixels", "50176"], "--max-pixels needs --dataset");
    refused(&["--eval-dataset", "rows"], "--eval-dataset needs --dataset");
    refused(&["--dataset", "rows", "--image-tokens", "4"], "--image-tokens and --dataset exclude each other");
    let nameless = plan(&["--load-in-4bit"]);
    assert_eq!(nameless.code, Some(2));
    assert!(nameless.errors.contains("--base-model is needed"), "{}", nameless.errors);
}

#[test]
fn a_plan_follows_the_settings_of_its_run() {
    let garden = Garden::new(8);
    let rows = fs::read_to_string(Path::new(&garden.path("rows")).join("train.jsonl")).unwrap();
    fs::write(Path::new(&garden.path("rows")).join("train.jsonl"), rows + "{\"no\": \"row\"}\n").unwrap();
    let (model, dataset) = (garden.path("model"), garden.path("rows"));
    let base = ["--base-model", &model, "--dataset", &dataset];
    let bad = plan(&base);
    assert_eq!(bad.code, Some(2));
    assert!(bad.errors.contains("use --on-bad-row skip"), "{}", bad.errors);
    let skip = ["--on-bad-row", "skip", "--max-bad-rows", "20%", "--lora-r", "4"];
    let with = |flags: &[&str]| figures(&[&base[..], &skip, flags].concat()).0;
    let usual = with(&[]);
    let less = [
        "--finetune-vision-layers",
        "--finetune-language-layers",
        "--finetune-attention-modules",
        "--finetune-mlp-modules",
    ];
    for flag in less {
        assert!(bytes(&with(&[flag, "false"]), "adapters") < bytes(&usual, "adapters"), "{flag}");
    }
    let patches = |plan: &Value| plan["longest_batch"]["patches"].as_u64().unwrap();
    assert!(patches(&with(&["--min-pixels", "12544"])) > patches(&usual), "images are enlarged");
    let larger = garden.path("larger");
    let size = ["--size", "112x112", "--rows", "4"];
    garden.run(&[&["dataset", "create", "--kind", "shapes", "--output", &larger], &size[..]].concat());
    assert!(patches(&with(&["--eval-dataset", &larger])) > patches(&usual), "evaluation has larger ones");
    let said = garden.train("out", &[&skip[..], &["--max-steps", "1"]].concat()).errors;
    let planned = plan(&[&base[..], &skip].concat()).output;
    let total = planned.lines().find_map(|line| line.strip_prefix("total")).unwrap();
    let total = total.split('─').next().unwrap().trim();
    assert!(said.contains(&format!("memory: plan {total}; ")), "planned {total}, the run says:\n{said}");
    fs::write(
        garden.path("run.toml"),
        format!(
            "base-model = {model:?}\ndataset = {dataset:?}\non-bad-row = \"skip\"\nmax-bad-rows = \"20%\"\n"
        ),
    )
    .unwrap();
    let (by_file, _) = figures(&["--config", &garden.path("run.toml"), "--lora-r", "4"]);
    assert_eq!(by_file["total"], usual["total"]);
}

/// A small run, planned for some nodes.
fn on_nodes(flags: &[&str]) -> Vec<&'static str> {
    let run = ["--base-model", "tiny", "--max-seq-length", "64", "--gradient-accumulation-steps", "10"];
    let flags = flags.iter().map(|flag| &*flag.to_string().leak());
    run.into_iter().chain(flags).collect()
}

#[test]
fn steps_on_several_nodes_are_estimated_for_programs() {
    let asked = ["--nodes", "1,4,16", "--network", "8Mb", "--latency", "1ms", "--micro-batch-seconds", "2.5"];
    let (plan, code) = figures(&on_nodes(&asked));
    let cluster = &plan["cluster"];
    assert_eq!((code, &cluster["trained_values"]), (Some(0), &219_200.into()), "{cluster}");
    assert_eq!(cluster["micro_batch_seconds_measured"], true);
    assert_eq!(
        (&cluster["network_bits_per_second"], &cluster["latency_seconds"]),
        (&8e6.into(), &1e-3.into())
    );
    let nodes = cluster["nodes"].as_array().unwrap();
    let number = |index: usize, field: &str| {
        nodes[index][field].as_f64().unwrap_or_else(|| panic!("{field}: {nodes:?}"))
    };
    let near = |index, field, expected: f64| {
        let found = number(index, field);
        assert!(
            (found - expected).abs() < 1e-9 * expected.max(1.0),
            "{field} of {index}: {found}, {expected}"
        );
    };
    near(0, "step_seconds", 25.0);
    near(0, "efficiency", 1.0);
    // One bucket goes to three others, in 1 ms each; three quarters of 876,800 bytes at a million a second.
    let transfer = 0.003 + 0.6576;
    near(1, "rounds", 3.0);
    near(1, "compute_seconds", 7.5);
    near(1, "exposed_seconds", 2.0 * transfer);
    near(1, "hidden_seconds", 2.0 * transfer);
    near(1, "idle_seconds", 1.25);
    near(1, "step_seconds", 7.5 + 2.0 * transfer);
    near(1, "efficiency", 25.0 / 4.0 / (7.5 + 2.0 * transfer));
    near(1, "rows_per_second", 20.0 / (7.5 + 2.0 * transfer));
    near(1, "gradient_bytes", 4.0 * (219_200.0 + 54_800.0 + 219_200.0 + 219_200.0));
    let others = plan["total"].as_f64().unwrap() - bytes(&plan, "gradients") as f64;
    const MPI: f64 = 12e6;
    near(1, "process_bytes", others + MPI + number(1, "gradient_bytes"));
    // Sixteen nodes need sixteen micro-batches, and are estimated with them.
    let enough = |index: usize| nodes[index]["enough_micro_batches"].as_bool().unwrap();
    assert_eq!([0, 1, 2].map(enough), [true, true, false]);
    near(2, "micro_batches", 16.0);
    near(2, "rows_per_step", 32.0);
    near(2, "compute_seconds", 2.5);
    let (alone, _) = figures(&on_nodes(&[]));
    assert_eq!(alone["cluster"], Value::Null, "only those who ask see it");
}

#[test]
fn people_see_a_table_of_steps_with_all_that_it_assumes() {
    let asked = ["--nodes", "4,16", "--network", "8Mb", "--latency", "1ms"];
    let done = plan(&on_nodes(&[&asked[..], &["--micro-batch-seconds", "2.5"]].concat()));
    assert_eq!(done.code, Some(0), "{}", done.errors);
    let rows: Vec<Vec<&str>> = done.output.lines().map(|line| line.split_whitespace().collect()).collect();
    let head = [
        "nodes",
        "rounds",
        "compute",
        "exchange",
        "hidden",
        "idle",
        "step",
        "efficiency",
        "rows/s",
        "process",
    ];
    let head = rows.iter().position(|row| *row == head).unwrap_or_else(|| panic!("{}", done.output));
    assert_eq!(rows[head + 1][..10], ["4", "3", "7.50", "1.32", "1.32", "1.25", "8.82", "70.9", "%", "2.27"]);
    assert_eq!(rows[head + 2][..3], ["16*", "1", "2.50"]);
    for said in [
        "estimate: 10 micro-batches a step, one process a node, gradients of 877 kB\n",
        "network: 8 Mb/s each way, 1000 us a message\n",
        "a micro-batch takes 2.50 s, as given\n",
        "* 16 nodes need --gradient-accumulation-steps 16: 32 rows a step, not 20\n",
    ] {
        assert!(done.output.contains(said), "{said}{}", done.output);
    }
    let guessed = plan(&on_nodes(&asked)).output;
    for output in [&done.output, &guessed] {
        let estimate = &output[output.find("estimate: ").unwrap()..];
        assert!(estimate.lines().all(|line| line.chars().count() <= 80), "{estimate}");
    }
    assert!(
        guessed.contains(" at 300 GFLOP/s,\nwhich two threads of a Xeon with AVX-512 reach\n")
            && guessed.contains("--micro-batch-seconds S")
    );
    let rated = plan(&on_nodes(&[&asked[..], &["--gflops", "2500"]].concat())).output;
    assert!(rated.contains(" at 2,500 GFLOP/s, as given\n"), "{rated}");
}

#[test]
fn what_no_cluster_has_is_refused_by_its_flag() {
    let refused = |flags: &[&str], message: &str| {
        let done = plan(&[&["--base-model", "tiny"], flags].concat());
        assert_eq!(done.code, Some(2), "{flags:?}: {}{}", done.output, done.errors);
        assert!(done.errors.contains(message), "{flags:?}: {}", done.errors);
    };
    refused(&["--nodes", "8", "--network", "10GB"], "networks are rated in bits: write 80Gb for it");
    refused(
        &["--nodes", "8", "--network", "fast"],
        "'fast' is not a bandwidth: write bits a second, such as 1Gb",
    );
    refused(&["--nodes", "8,0"], "0 is not in 1..=1000000");
    refused(&["--nodes", "8", "--latency", "75"], "'75' is out of range: at most 1s");
    refused(&["--nodes", "8", "--micro-batch-seconds", "0"], "'0' is not a number above zero");
    refused(&["--nodes", "8", "--gflops", "1e300"], "'1e300' is out of range");
    refused(&["--nodes", "8", "--gflops", "300", "--micro-batch-seconds", "4"], "cannot be used with");
    for flags in
        [["--network", "1Gb"], ["--latency", "50us"], ["--gflops", "300"], ["--micro-batch-seconds", "4"]]
    {
        refused(&flags, "--nodes");
    }
}

#[test]
fn the_cluster_guide_shows_what_is_printed_and_the_files_of_the_examples() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guide = fs::read_to_string(root.join("docs/cluster.md")).unwrap();
    for name in ["train.sbatch", "mpijob.yaml"] {
        let file = fs::read_to_string(root.join("examples/cluster").join(name)).unwrap();
        assert!(guide.contains(&format!("\n{file}```\n")), "docs/cluster.md does not show {name} as it is");
    }
    let joined = guide.replace("\\\n", " ");
    let shown =
        joined.lines().find_map(|line| line.trim().strip_prefix("model-garden memory plan ")).unwrap();
    // The memory of a process depends on the processors of this machine.
    let figures = |line: &str| line.rsplitn(3, ' ').nth(2).unwrap_or_default().trim().to_owned();
    let shown_rows: Vec<String> = guide.lines().map(figures).collect();
    let variants = [("10Gb", "35.7"), ("1Gb", "35.7"), ("10Gb", "4.4"), ("1Gb", "4.4")];
    for (network, seconds) in variants {
        let command = shown.replace("10Gb", network).replace("35.7", seconds);
        let printed = plan(&command.split_whitespace().collect::<Vec<_>>()).output;
        let rows: Vec<&str> = printed.lines().filter(|line| line.contains(" % ")).collect();
        assert_eq!(rows.len(), 3, "{command}: {printed}");
        for row in rows {
            assert!(
                shown_rows.contains(&figures(row)),
                "docs/cluster.md does not show this row of `{command}`: {row}"
            );
        }
    }
}
