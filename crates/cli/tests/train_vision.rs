//! `train-vision` as a user runs it: what it prints, what it leaves, and that settings do what they say.

mod support;

use serde_json::Value;
use std::{fs, process::Command};
use support::{Finished, model_garden, training::Garden};

#[test]
fn a_run_says_what_it_does_and_leaves_what_others_need() {
    let garden = Garden::new(24);
    let finished = garden.train("out", &["--epochs", "2", "--eval-split", "4", "--logging-steps", "2"]);
    let said = |text: &str| assert!(finished.errors.contains(text), "no {text:?} in:\n{}", finished.errors);
    said("LoRA: 54,800 trained");
    said("rows: 24 (24 usable");
    said("evaluation: 4 rows, training: 20");
    said("24 of 56x56 -> 56x56 (4 tokens)");
    said("<|im_start|>assistant\\n[[");
    said("steps: 6 of 2 x 4 rows, 3 an epoch");
    said("memory: plan ");
    said("step 6/6  epoch 2.00  evaluation loss ");
    let last = finished.errors.lines().last().unwrap();
    assert!(last.starts_with("memory: ") && last.contains("(plan "), "{last}");
    assert!(
        !finished.errors.contains('\x1b') && !finished.errors.contains('\r'),
        "plain lines off a terminal"
    );
    assert_eq!(finished.output, "", "standard output is for results");
    let out = garden.output("out");
    for file in
        ["adapter_config.json", "tokenizer.json", "preprocessor_config.json", "README.md", "report.html"]
    {
        assert!(out.exists(file), "{file}");
    }
    assert_eq!(out.checkpoints(), ["checkpoint-3", "checkpoint-6"]);
    assert_eq!(
        out.text("metrics.jsonl").lines().count(),
        out.state()["log_history"].as_array().unwrap().len()
    );
    assert!(out.text("README.md").contains(last), "the card gives the verdict");
    let losses = out.series("loss");
    assert!(losses.len() == 3 && losses[2].1 < losses[0].1, "it learns: {losses:?}");
    let [live, peak, buffers] =
        ["memory_tensors_bytes", "memory_tensors_peak_bytes", "memory_tensor_buffers"]
            .map(|name| out.series(name));
    assert!(live.len() >= 3 && live.iter().zip(&peak).all(|(live, peak)| 0.0 < live.1 && live.1 <= peak.1));
    assert!(buffers.iter().all(|(_, count)| *count > 10.0), "a step has buffers: {buffers:?}");
}

#[test]
fn a_second_run_into_the_same_folder_has_nothing_left_to_do() {
    let garden = Garden::new(16);
    garden.train("out", &["--epochs", "1"]);
    let before = garden.output("out").adapter();
    let again = garden.train("out", &["--epochs", "1"]);
    assert!(again.errors.contains("already finished at step 2"), "{}", again.errors);
    assert_eq!(garden.output("out").adapter(), before);
    let refused = Finished::of(&mut garden.training("out", &["--epochs", "1", "--resume", "never"]));
    assert_eq!(refused.code, Some(2));
    assert!(refused.errors.contains("--resume is never"), "{}", refused.errors);
}

#[test]
fn quiet_is_quiet_and_json_is_json() {
    let garden = Garden::new(8);
    assert_eq!(garden.train("quiet", &["--max-steps", "1", "--quiet"]).errors, "");
    let lines =
        garden.train("json", &["--max-steps", "2", "--logging-steps", "1", "--log-format", "json"]).errors;
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let of = |event: &str| lines.iter().filter(|line| line["event"] == event).count();
    assert_eq!([of("started"), of("step"), of("log"), of("end")], [1, 2, 2, 1]);
    let last = lines.last().unwrap();
    assert_eq!(last["reason"], "finished");
    assert!(last["memory"]["resident_bytes"].as_u64().unwrap() > 1_000_000, "{last}");
}

#[test]
fn a_file_says_the_same_and_flags_win() {
    let garden = Garden::new(8);
    let common = "learning-rate = 0.001\nlora-r = 4\nmax-steps = 3\nlogging-steps = 1\n";
    let named = |key: &str, name: &str| format!("{key} = {:?}\n", garden.path(name));
    let names = named("base-model", "model") + &named("dataset", "rows");
    fs::write(garden.path("run.toml"), format!("{common}{names}{}", named("output-dir", "from-toml")))
        .unwrap();
    let yaml = format!("{common}{names}{}", named("output-dir", "from-yaml")).replace(" = ", ": ");
    fs::write(garden.path("run.yaml"), yaml).unwrap();
    garden.train("from-flags", &["--max-steps", "3", "--logging-steps", "1"]);
    garden.run(&["train-vision", "--config", &garden.path("run.toml")]);
    garden.run(&["train-vision", "--config", &garden.path("run.yaml"), "--seed", "3408"]);
    let adapters = ["from-flags", "from-toml", "from-yaml"].map(|name| garden.output(name).adapter());
    assert_eq!(adapters[0], adapters[1]);
    assert_ne!(adapters[0], adapters[2], "the flag's seed won");
    fs::write(garden.path("wrong.toml"), "lora-rank = 4\n").unwrap();
    let refused =
        Finished::of(support::model_garden().args(["train-vision", "--config", &garden.path("wrong.toml")]));
    assert_eq!(refused.code, Some(2));
    assert!(refused.errors.contains("lora-rank"), "{}", refused.errors);
}

#[test]
fn what_cannot_be_done_is_said_at_once() {
    let garden = Garden::new(8);
    let refused = |flags: &[&str], message: &str| {
        let finished = Finished::of(&mut garden.training("refused", flags));
        assert_eq!(finished.code, Some(2), "{}", finished.errors);
        assert!(finished.errors.contains(message), "{flags:?}: {}", finished.errors);
        assert!(!garden.output("refused").exists("checkpoint-1"));
    };
    refused(&["--target-modules", "nothing_like_this"], "nothing_like_this");
    refused(&["--eval-split", "8"], "nothing is left to train on");
    for recompute in ["auto", "on", "off"] {
        let flags = ["--memory-budget", "1MB", "--gradient-checkpointing", recompute];
        refused(&flags, "blocks recomputed, the budget is 1000000");
    }
    refused(&["--batch-size", "4294967296"], "--batch-size 4294967296: from 1 to 4096");
    refused(&["--max-seq-length", "5"], "longer than 5 tokens, the longest 48; raise --max-seq-length");
    refused(
        &["--max-seq-length", "5", "--on-long-row", "fail"],
        "8 of 8 rows have more than 5 tokens, the longest 48; raise --max-seq-length; or leave long rows out",
    );
    let broken = "{\"image\": \"gone.png\", \"question\": \"What?\", \"answer\": \"a cross\"}\n";
    fs::write(garden.path("broken.jsonl"), broken).unwrap();
    refused(&["--dataset", &garden.path("broken.jsonl")], "1 of 1 row is bad, such as");
    refused(&["--base-model", "/no/such/model"], "/no/such/model: no such folder (/no is not there)");
    refused(&["--base-model", &garden.path("modle")], "no such folder; did you mean ");
    refused(&["--dataset", &garden.path("rosw")], "no such file or folder; did you mean ");
}

#[test]
fn eight_rows_at_once_learn_what_two_times_four_do() {
    let garden = Garden::new(16);
    let run = |name: &str, batch: &str, accumulation: &str| {
        let sizes = ["--batch-size", batch, "--gradient-accumulation-steps", accumulation];
        garden.train(name, &[&sizes[..], &["--epochs", "3", "--logging-steps", "1"]].concat());
        garden.output(name).series("loss")
    };
    let (whole, parts) = (run("8x1", "8", "1"), run("2x4", "2", "4"));
    assert_eq!(whole.len(), 6);
    for ((step, whole), (_, parts)) in whole.iter().zip(&parts) {
        assert!((whole - parts).abs() < 1e-4 * whole.abs(), "step {step}: {whole} and {parts}");
    }
}

#[test]
fn early_stopping_gives_back_the_best_adapter() {
    let garden = Garden::new(24);
    // A rate that destroys what was learned: the first evaluations are the best.
    let flags =
        ["--learning-rate", "0.5", "--eval-split", "8", "--eval-strategy", "steps", "--eval-steps", "1"];
    let stop = ["--early-stopping-patience", "2", "--max-steps", "40", "--save-total-limit", "1"];
    let finished = garden.train("out", &[&flags[..], &stop].concat());
    let out = garden.output("out");
    let state = out.state();
    let best = state["best_global_step"].as_u64().unwrap();
    assert_eq!(state["global_step"].as_u64().unwrap(), best + 2, "{}", finished.errors);
    assert_eq!(out.adapter(), out.bytes(&format!("checkpoint-{best}/adapter_model.safetensors")));
    assert_ne!(out.adapter(), out.bytes(&format!("checkpoint-{}/adapter_model.safetensors", best + 2)));
    let least = out.series("eval_loss").into_iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    assert_eq!(least.0, best);
}

#[test]
fn every_way_to_hold_and_train_the_weights_runs() {
    let garden = Garden::new(8);
    let ways: [&[&str]; 6] = [
        &["--load-in-4bit"],
        &["--load-in-8bit"],
        &["--load-in-16bit"],
        &["--method", "full", "--learning-rate", "1e-4"],
        &["--optim", "adamw", "--lora-dropout", "0.1", "--use-rslora"],
        &["--gradient-checkpointing", "on", "--finetune-vision-layers", "false"],
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let name = format!("out-{number}");
        garden.train(&name, &[way, &["--max-steps", "4", "--logging-steps", "1"]].concat());
        let losses = garden.output(&name).series("loss");
        assert!(losses.len() == 4 && losses[3].1 < losses[0].1, "{way:?}: {losses:?}");
    }
}

#[test]
fn selective_loss_trains_on_less_the_higher_its_level() {
    let garden = Garden::new(8);
    let row = |answer: &str| format!("{{\"prompt\": \"Describe it.\", \"completion\": {answer:?}}}\n");
    let json = r#"{"colour": "red", "size": null, "sides": [4, true]}"#;
    fs::write(garden.path("answers.jsonl"), row(json).repeat(6) + &row("a red square").repeat(2)).unwrap();
    let run = |name: &str, flags: &[&str]| {
        let rows = ["--dataset", &garden.path("answers.jsonl"), "--epochs", "2", "--logging-steps", "1"];
        garden.train(name, &[&rows[..], flags].concat());
        let out = garden.output(name);
        (out.series("loss"), out.series("selective_masked_share"), out.series("selective_other_answers"))
    };
    let (whole, none, _) = run("none", &[]);
    assert_eq!((whole.len(), none.len()), (2, 0), "a step an epoch, and nothing is masked unasked");
    let mut last = 0.0;
    for level in ["conservative", "moderate", "aggressive"] {
        let (losses, shares, others) = run(level, &["--selective-loss", level]);
        assert!(shares[0].1 > last && shares[0].1 < 1.0, "{level}: {shares:?} after {last}");
        assert_ne!(losses[0].1, whole[0].1, "{level}: the loss is that of other labels");
        assert_eq!(others[1], (2, 4.0), "{level}: answers in words are counted");
        last = shares[0].1;
    }
    let later = ["--selective-loss", "aggressive", "--selective-loss-start-epoch", "1"];
    let (losses, shares, _) = run("later", &later);
    assert_eq!(losses[0], whole[0], "the first epoch is trained on whole");
    assert_eq!(shares.iter().map(|share| share.0).collect::<Vec<_>>(), [2]);
    let (_, named, _) = run("named", &["--selective-loss", "aggressive", "--selective-loss-keys", "colour"]);
    assert!(named[0].1 < last, "one key of three is less");
}

#[test]
fn memory_is_flat_with_photos_and_returns_after_an_evaluation() {
    let garden = Garden::new(8);
    let photos = garden.path("photos");
    let size = ["--size", "1200x900", "--rows", "24"];
    garden.run(&[&["dataset", "create", "--kind", "photos", "--output", &photos], &size[..]].concat());
    let flags = ["--dataset", &photos, "--max-pixels", "50176", "--eval-split", "4", "--epochs", "8"];
    let every = ["--memory-every", "1", "--batch-size", "2", "--gradient-accumulation-steps", "2"];
    let finished = garden.train("out", &[&flags[..], &every].concat());
    let levels: Vec<u64> = garden
        .output("out")
        .memory()
        .into_iter()
        .filter(|(step, _)| *step >= 2)
        .map(|(_, bytes)| bytes)
        .collect();
    assert!(levels.len() >= 39, "{}", levels.len());
    let (least, most) = (levels.iter().min().unwrap(), levels.iter().max().unwrap());
    // A decoded photo is 3.2 MB: keeping even two of the twenty would show.
    assert!(most - least < 6_000_000, "{least}..{most}\n{}", finished.errors);
}

#[test]
fn an_instruction_set_that_does_not_exist_is_refused_at_the_start() {
    let garden = Garden::new(1);
    let refused = |command: &mut Command| {
        let finished = Finished::of(command.env("MODEL_GARDEN_ISA", "avx-2"));
        assert_eq!(finished.code, Some(2), "{}", finished.errors);
        let expected = "MODEL_GARDEN_ISA=avx-2 is no instruction set: choose one of avx512, avx2, portable";
        assert!(finished.errors.contains(expected), "{}", finished.errors);
        finished
    };
    let as_json = refused(&mut garden.training("out", &["--log-format", "json"])).json();
    assert_eq!(as_json.len(), 1);
    assert!(!garden.output("out").exists(""), "nothing is left behind");
    let [model, demo] = ["model", "demo"].map(|name| garden.path(name));
    refused(model_garden().args(["generate", "--model", &model, "--prompt", "What is it?"]));
    refused(model_garden().args(["demo", "--output", &demo]));
    // What computes nothing does not care.
    let inspected = Finished::of(model_garden().args(["inspect", &model]).env("MODEL_GARDEN_ISA", "avx-2"));
    assert_eq!(inspected.code, Some(0), "{}", inspected.errors);
}
