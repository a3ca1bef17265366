//! `generate` as a person runs it.

mod support;

use serde_json::Value;
use std::{fs, path::Path};
use support::{Finished, model_garden, training::Garden};

/// Asks the model in `model` of a garden.
fn ask(garden: &Garden, flags: &[&str]) -> Finished {
    let usual = [("--model", garden.path("model")), ("--prompt", "What is it?".to_owned())];
    let mut command = model_garden();
    command.arg("generate").args(flags);
    for (flag, value) in usual.iter().filter(|(flag, _)| !flags.contains(flag)) {
        command.args([flag, &value.as_str()]);
    }
    Finished::of(&mut command)
}

fn refused(garden: &Garden, flags: &[&str], message: &str) {
    let done = ask(garden, flags);
    assert_eq!((done.code, done.output.as_str()), (Some(2), ""), "{message}: {}", done.errors);
    assert!(done.errors.contains(message), "no {message:?} in {}", done.errors);
}

#[test]
fn an_image_that_cannot_be_read_is_named_by_its_file() {
    let garden = Garden::new(1);
    let good = fs::read_dir(garden.path("rows/images")).unwrap().next().unwrap().unwrap().path();
    let (good, notes) = (good.to_str().unwrap(), garden.path("notes.jpg"));
    fs::write(&notes, "no image at all").unwrap();
    let asked = ask(&garden, &["--max-tokens", "2", "--image", good]);
    assert_eq!(asked.code, Some(0), "{}", asked.errors);
    let flags = ["--max-tokens", "2", "--image", good, "--image", &notes];
    refused(&garden, &flags, &format!("--image {notes}: "));
    assert!(!ask(&garden, &flags).errors.contains("image 2"));
}

#[test]
fn what_is_wrong_with_a_question_is_told_before_weights_are_read() {
    let garden = Garden::new(1);
    // Without the weights whoever reads them first can only say that they are not there.
    fs::remove_file(Path::new(&garden.path("model")).join("model.safetensors")).unwrap();
    refused(&garden, &[], "it holds neither model.safetensors");
    refused(&garden, &["--temperature", "nan"], "a temperature of NaN is not usable");
    refused(&garden, &["--temperature", "-1"], "a temperature of -1 is not usable");
    refused(&garden, &["--max-tokens", "0"], "--max-tokens");
    refused(&garden, &["--max-tokens", "500000"], "500000 of answer are more than the model's 32768");
    // Either would fit alone.
    let long = ["--prompt", &"word ".repeat(20_000), "--max-tokens", "20000"];
    refused(&garden, &long, " tokens of question and 20000 of answer are more");
    let notes = garden.path("notes.jpg");
    refused(&garden, &["--image", &notes], "notes.jpg: No such file");
    fs::write(&notes, "no image at all").unwrap();
    refused(&garden, &["--image", &notes], "notes.jpg: ");
}

#[test]
fn an_adapter_of_another_base_is_refused() {
    let garden = Garden::new(8);
    garden.train("adapter", &["--max-steps", "1"]);
    let adapter = garden.path("adapter");
    let fits = ask(&garden, &["--adapter", &adapter, "--max-tokens", "2"]);
    assert_eq!(fits.code, Some(0), "{}", fits.errors);
    let other = garden.path("other");
    garden.run(&["init", "--preset", "small", "--output", &other]);
    refused(&garden, &["--model", &other, "--adapter", &adapter], "error: the adapter: ");
}

#[test]
fn a_folder_that_is_no_adapter_is_told_as_one_with_what_may_be_meant() {
    let garden = Garden::new(8);
    garden.train("out", &["--max-steps", "1"]);
    let refused_by_both = |adapter: &str, advice: &str| {
        let folder = garden.path(adapter);
        let message = format!("{folder} is no adapter: it has no {advice}");
        refused(&garden, &["--adapter", &folder], &message);
        let merge = ["merge", "--base-model", &garden.path("model"), "--output", &garden.path("merged")];
        let merged = Finished::of(model_garden().args(merge).args(["--adapter", &folder]));
        assert_eq!(merged.code, Some(2), "{}", merged.errors);
        assert!(merged.errors.contains(&message), "no {message:?} in {}", merged.errors);
    };
    refused_by_both("rows", "adapter_config.json; name a folder that `train-vision` or PEFT's");
    refused_by_both("model", "adapter_config.json; it is a whole model, which needs no adapter");
    fs::remove_file(garden.path("out/adapter_model.safetensors")).unwrap();
    let newest = garden.path("out/checkpoint-1");
    refused_by_both("out", &format!("adapter_model.safetensors; did you mean {newest}?"));
}

#[test]
fn the_same_seed_gives_the_same_answer() {
    let garden = Garden::new(1);
    let answer = |seed: &str| {
        let flags = ["--temperature", "1.5", "--seed", seed, "--max-tokens", "12", "--format", "json"];
        let done = ask(&garden, &flags);
        assert_eq!(done.code, Some(0), "{}", done.errors);
        let answer: Value = serde_json::from_str(&done.output).unwrap();
        (answer["text"].clone(), answer["tokens"].clone())
    };
    assert_eq!(answer("7"), answer("7"));
    assert_ne!(answer("7"), answer("8"));
}
