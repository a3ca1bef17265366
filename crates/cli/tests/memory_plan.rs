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
