//! Folders as people have them: models, adapters and datasets that other tools wrote, and what must never be
//! written over.

mod support;

use garden_files::rename;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};
use support::{Finished, model_garden, training::Garden};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file below a folder with its content.
fn contents(folder: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => drop(all.insert(path.clone(), fs::read(&path).unwrap())),
            }
        }
    }
    all
}

fn edit(path: &str, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// Makes the settings of the image processor those of a folder that transformers 5 saved.
fn as_transformers_5(model: &str) {
    let own = format!("{model}/preprocessor_config.json");
    let mut settings: Value = serde_json::from_slice(&fs::read(&own).unwrap()).unwrap();
    fs::remove_file(&own).unwrap();
    let object = settings.as_object_mut().unwrap();
    let [least, most] = ["min_pixels", "max_pixels"].map(|key| object.remove(key).unwrap());
    let class = object.remove("processor_class").unwrap();
    object.insert("size".into(), json!({ "shortest_edge": least, "longest_edge": most }));
    let joint = json!({ "image_processor": settings, "processor_class": class, "video_processor": {} });
    fs::write(format!("{model}/processor_config.json"), joint.to_string()).unwrap();
}

fn copy(from: &str, to: &str) {
    fs::create_dir_all(to).unwrap();
    for (path, content) in contents(from) {
        let to = Path::new(to).join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, content).unwrap();
    }
}

/// `rows/` of a garden with every third row in a test split instead, and two of the others there as well.
fn split_rows(garden: &Garden) {
    let text = fs::read_to_string(garden.path("rows/train.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let (test, train): (Vec<_>, Vec<_>) = lines.iter().enumerate().partition(|(number, _)| number % 3 == 0);
    let joined =
        |rows: Vec<(usize, &&str)>| rows.iter().map(|(_, row)| format!("{row}\n")).collect::<String>();
    let shared = train[..2].to_vec();
    fs::write(garden.path("rows/train.jsonl"), joined(train)).unwrap();
    fs::write(garden.path("rows/test.jsonl"), joined([test, shared].concat())).unwrap();
}

/// Rows that name the images of `rows/` in the ways that people write paths.
fn rows_elsewhere(garden: &Garden) {
    fs::create_dir(garden.path("elsewhere")).unwrap();
    let text = fs::read_to_string(garden.path("rows/train.jsonl")).unwrap();
    let images = garden.path("rows/images");
    symlink(&images, garden.path("elsewhere/images")).unwrap();
    for (name, start) in [
        ("absolute", images.as_str()),
        ("parent", "../rows/images"),
        ("linked", "images"),
        ("working", "rows/images"),
    ] {
        let rows = text.replace("\"images/", &format!("\"{start}/"));
        assert_ne!(rows, text.replace("images/", ""), "rows name their images");
        fs::write(garden.path(&format!("elsewhere/{name}.jsonl")), rows).unwrap();
    }
}

#[test]
fn the_base_is_never_written_over() {
    let garden = Garden::new(8);
    symlink(garden.path("model"), garden.path("link")).unwrap();
    let before = contents(&garden.path("model"));
    for method in ["full", "lora"] {
        for output in ["model", "link", "model/out", "link/../model"] {
            let refused = Finished::of(&mut garden.training(output, &["--method", method]));
            assert_eq!(refused.code, Some(2), "{output}: {}", refused.errors);
            assert!(refused.errors.contains("the base model"), "{}", refused.errors);
        }
    }
    assert!(contents(&garden.path("model")) == before, "nothing was written");
}

#[test]
fn a_folder_with_foreign_files_is_left_as_it_is() {
    let garden = Garden::new(8);
    copy(&garden.path("model"), &garden.path("other"));
    let before = contents(&garden.path("other"));
    let refused = Finished::of(&mut garden.training("other", &["--method", "full"]));
    assert_eq!(refused.code, Some(2));
    assert!(refused.errors.contains("which no run wrote"), "{}", refused.errors);
    assert!(contents(&garden.path("other")) == before);
    // What a shell has opened for the run's own lines is in nobody's way.
    fs::create_dir(garden.path("logged")).unwrap();
    fs::write(garden.path("logged/run.log"), "").unwrap();
    garden.train("logged", &["--max-steps", "1"]);
    garden.train("logged", &["--max-steps", "1"]);
    let mixed = Finished::of(&mut garden.training("logged", &["--max-steps", "1", "--method", "full"]));
    assert_eq!(mixed.code, Some(2), "{}", mixed.errors);
    assert!(mixed.errors.contains("holds adapter_config.json"), "{}", mixed.errors);
}

#[test]
fn a_folder_of_transformers_5_trains_and_answers_and_gives_what_both_versions_read() {
    let garden = Garden::new(8);
    let plain = garden.train("from-4", &["--max-steps", "2"]);
    as_transformers_5(&garden.path("model"));
    let finished = garden.train("from-5", &["--max-steps", "2"]);
    assert_eq!(garden.output("from-5").adapter(), garden.output("from-4").adapter(), "{}", plain.errors);
    for file in ["processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"] {
        assert!(garden.output("from-5").exists(file), "{file}: {}", finished.errors);
    }
    let image = garden.path("rows/images/000000.png");
    let image = if Path::new(&image).exists() { image } else { first_image(&garden) };
    let flags = ["--image", &image, "--prompt", "What is it?", "--max-tokens", "2"];
    garden.run(
        &[&["generate", "--model", &garden.path("model"), "--adapter", &garden.path("from-5")], &flags[..]]
            .concat(),
    );
    // A result is a whole folder again: what was made for version 4 agrees with what was there.
    let flags = ["--base-model", &garden.path("model"), "--adapter", &garden.path("from-5"), "--output"];
    garden.run(&[&["merge"], &flags[..], &[&garden.path("merged")]].concat());
    garden.train("again", &["--max-steps", "1", "--base-model", &garden.path("merged")]);
}

fn first_image(garden: &Garden) -> String {
    let mut names: Vec<_> =
        fs::read_dir(garden.path("rows/images")).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names[0].to_string_lossy().into_owned()
}

#[test]
fn paths_as_people_write_them_train_once_their_folder_is_named() {
    let garden = Garden::new(8);
    let expected = garden.train("expected", &["--max-steps", "2"]);
    rows_elsewhere(&garden);
    let folder = garden.path("");
    for (name, root) in
        [("absolute", "rows/images"), ("parent", "rows/images"), ("linked", "rows/images"), ("working", ".")]
    {
        let data = garden.path(&format!("elsewhere/{name}.jsonl"));
        let train = |flags: &[&str]| {
            let flags = [&["--max-steps", "2", "--dataset", &data], flags].concat();
            Finished::of(garden.training(name, &flags).current_dir(&folder))
        };
        let refused = train(&[]);
        assert_eq!(refused.code, Some(2), "{name}: {}", refused.errors);
        let words = if name == "working" { "no such file" } else { "--image-root" };
        assert!(refused.errors.contains(words), "{name}: {}", refused.errors);
        let finished = train(&["--image-root", root]);
        assert_eq!(finished.code, Some(0), "{name}: {}", finished.errors);
        let adapter = garden.output("expected").adapter();
        assert!(
            garden.output(name).adapter() == adapter,
            "{name} trains on the same images: {}",
            expected.errors
        );
    }
    let nowhere = Finished::of(&mut garden.training("nowhere", &["--image-root", "/no/such/folder"]));
    assert!(nowhere.errors.contains("/no/such/folder: --image-root needs a folder"), "{}", nowhere.errors);
}

#[test]
fn rows_of_the_test_split_are_evaluated_on_and_never_trained_on() {
    let garden = Garden::new(18);
    split_rows(&garden);
    let rows = garden.path("rows");
    let finished = garden.train("both", &["--max-steps", "1", "--eval-dataset", &rows]);
    let said = |text: &str| assert!(finished.errors.contains(text), "no {text:?} in:\n{}", finished.errors);
    said("rows: 12 (12 usable");
    said("split: train; not read: test (1 file)");
    said("evaluation: 8 rows, training: 12");
    said("2 of the 8 rows to evaluate on are also trained on, such as ");
    let alone = garden.train("alone", &["--max-steps", "1", "--dataset", &garden.path("rows/train.jsonl")]);
    assert_eq!(garden.output("both").adapter(), garden.output("alone").adapter(), "{}", alone.errors);
    let all = garden.train("all", &["--max-steps", "1", "--split", "all"]);
    assert!(all.errors.contains("rows: 20 (20 usable"), "{}", all.errors);
    let none = Finished::of(&mut garden.training("none", &["--split", "gold"]));
    assert_eq!(none.code, Some(2));
    assert!(
        none.errors.contains("where split 'gold' is; it has test (1 file), train (1 file)"),
        "{}",
        none.errors
    );
}

#[test]
fn a_run_goes_on_from_an_adapter_with_its_rank_and_layers() {
    let garden = Garden::new(8);
    let first =
        garden.train("first", &["--max-steps", "2", "--target-modules", "all-linear", "--lora-r", "3"]);
    assert!(first.errors.contains("LoRA: "), "{}", first.errors);
    let (from, model) = (garden.path("first"), garden.path("model"));
    let rows = garden.path("rows");
    // Not by way of the usual flags: the rank is the adapter's.
    let further = |output: &str, flags: &[&str]| {
        let output = garden.path(output);
        let names = ["--base-model", &model, "--dataset", &rows, "--output-dir", &output, "--adapter", &from];
        Finished::of(model_garden().arg("train-vision").args(names).args(["--max-steps", "1"]).args(flags))
    };
    let still = further("still", &["--learning-rate", "0", "--weight-decay", "0"]);
    assert_eq!(still.code, Some(0), "{}", still.errors);
    assert!(
        garden.output("still").adapter() == garden.output("first").adapter(),
        "its weights are the start"
    );
    let config: Value = serde_json::from_slice(&garden.output("still").bytes("adapter_config.json")).unwrap();
    assert_eq!(config["r"], 3);
    let moved = further("moved", &[]);
    assert_eq!(moved.code, Some(0), "{}", moved.errors);
    assert!(garden.output("moved").adapter() != garden.output("first").adapter(), "it learns");
    for (output, flags, words) in [
        ("other", &["--lora-r", "16"][..], "--lora-r 16 contradicts --adapter "),
        ("other", &["--target-modules", "q_proj"], "--target-modules and --adapter exclude each other"),
        ("first", &[], "is the adapter to start from"),
    ] {
        let refused = further(output, flags);
        assert_eq!(refused.code, Some(2), "{}", refused.errors);
        assert!(refused.errors.contains(words), "{}", refused.errors);
    }
    // As PEFT writes a list of names.
    edit(&format!("{from}/adapter_config.json"), |config| {
        config["target_modules"] = json!(["mlp.0", "mlp.2", "q_proj"]);
    });
    let refused = further("fewer", &[]);
    assert!(refused.errors.contains("layers, not the "), "{}", refused.errors);
}

/// The flags that a text names.
fn flags_in(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("--") {
        let before = text[..at].chars().next_back();
        let name: String = text[at + 2..]
            .chars()
            .take_while(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-')
            .collect();
        let begins = !before.is_some_and(|c| c.is_alphanumeric() || c == '-');
        if begins && name.starts_with(|c: char| c.is_ascii_lowercase()) {
            found.insert(name.trim_end_matches('-').to_owned());
        }
    }
    found
}

/// What a source file says to people: no comments, no tests.
fn said_in(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text
        .split("#[cfg(test")
        .next()
        .and_then(|text| text.split("#[cfg(all(test").next())
        .unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Libraries know no flags: a program that uses them has none.
#[test]
fn no_library_advises_a_flag() {
    // The guard's own command line, and colours of a page.
    const NO_MESSAGES: [&str; 2] = ["memory/src/supervision/guard.rs", "memory/src/render/chart"];
    for name in ["data", "engine", "files", "memory", "model", "train"] {
        let sources = contents(root().join("crates").join(name).join("src").to_str().unwrap());
        let sources = sources.into_keys().filter(|path| path.extension().is_some_and(|end| end == "rs"));
        for path in sources {
            let place = path.to_string_lossy().into_owned();
            if !NO_MESSAGES.iter().any(|other| place.contains(other)) && !place.contains("tests") {
                assert_eq!(flags_in(&said_in(&path)), BTreeSet::new(), "{place}");
            }
        }
    }
}

/// What the command line advises about a run, its rows and its model must be there.
#[test]
fn every_flag_that_is_advised_exists() {
    let help = flags_in(&Finished::of(model_garden().args(["train-vision", "--help"])).output);
    assert!(help.contains("image-root") && help.len() > 50, "{help:?}");
    let mut advised = 0;
    for name in ["data", "train"] {
        let path = root().join(format!("crates/cli/src/advice/{name}.rs"));
        for flag in flags_in(&said_in(&path)) {
            assert!(help.contains(&flag), "{name}.rs advises --{flag}, which train-vision does not have");
            advised += 1;
        }
    }
    assert!(advised > 10, "{advised} flags were found");
}

/// A command that the page shows, and lines that it says are printed.
#[derive(Debug)]
struct Example {
    command: String,
    printed: Vec<String>,
}

/// The examples of a section, in order.
fn examples(page: &str, section: &str) -> Vec<Example> {
    let start = page.find(&format!("\n## {section}\n")).expect(section) + 1;
    let text = &page[start..];
    let text = text[3..].find("\n## ").map_or(text, |end| &text[..end + 3]);
    let mut found: Vec<Example> = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("    ")) {
        match (line.strip_prefix("$ "), found.last_mut()) {
            (Some(command), _) => found.push(Example { command: command.to_owned(), printed: Vec::new() }),
            (None, Some(last)) => last.printed.push(line.to_owned()),
            (None, None) => {}
        }
    }
    found
}

/// The folders that the page's examples name.
fn stage() -> Garden {
    let garden = Garden::new(18);
    let path = |name: &str| garden.path(name);
    for name in ["models/qwen", "models/version-5", "models/contradiction", "models/pickled"] {
        copy(&path("model"), &path(name));
    }
    as_transformers_5(&path("models/version-5"));
    rename(path("models/pickled/model.safetensors"), path("models/pickled/pytorch_model.bin")).unwrap();
    let image_processor = json!({ "size": { "shortest_edge": 3136, "longest_edge": 50176 } });
    let joint = json!({ "image_processor": image_processor }).to_string();
    fs::write(path("models/contradiction/processor_config.json"), joint).unwrap();
    rows_elsewhere(&garden);
    split_rows(&garden);
    // Six rows to evaluate on, as the page has them.
    let test = fs::read_to_string(path("rows/test.jsonl")).unwrap();
    let six: Vec<&str> = test.lines().skip(2).collect();
    fs::write(path("rows/test.jsonl"), six.join("\n")).unwrap();
    for entry in fs::read_dir(path("elsewhere")).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|end| end == "jsonl") {
            let rows = fs::read_to_string(&file).unwrap().replace("rows/images", "data/images");
            fs::write(file, rows).unwrap();
        }
    }
    rename(path("rows"), path("data")).unwrap();
    fs::remove_file(path("elsewhere/images")).unwrap();
    symlink(path("data/images"), path("elsewhere/images")).unwrap();
    let names = ["--base-model", &path("model"), "--dataset", &path("data"), "--output-dir", &path("peft")];
    garden.run(
        &[&["train-vision", "--max-steps", "1", "--target-modules", "q_proj,v_proj"], &names[..]].concat(),
    );
    fs::create_dir(path("hub")).unwrap();
    fs::write(path("hub/a.jsonl"), "{\"prompt\": \"1\", \"completion\": \"2\"}\n").unwrap();
    fs::write(path("hub/b.jsonl"), "{\"prompt\": \"3\", \"completion\": \"4\"}\n").unwrap();
    let card =
        "configs:\n- data_files:\n  - split: train\n    path: a.jsonl\n  - split: test\n    path: b.*\n";
    fs::write(path("hub/README.md"), format!("---\nlicense: mit\n{card}---\n# Rows\n")).unwrap();
    symlink(path("data"), path("hub/more")).unwrap();
    fs::create_dir(path("peft-adapter")).unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(path(&format!("peft/{file}")), path(&format!("peft-adapter/{file}"))).unwrap();
    }
    edit(&path("peft-adapter/adapter_config.json"), |config| {
        config["target_modules"] = json!(["v_proj", "q_proj"])
    });
    garden
}

#[test]
fn every_example_of_folders_is_as_the_page_says() {
    let page = fs::read_to_string(root().join("docs/compatibility.md")).unwrap();
    let examples = examples(&page, "Folders");
    assert!(examples.len() >= 15, "{examples:?}");
    let garden = stage();
    for Example { command, printed } in examples {
        let words = command.strip_prefix("model-garden ").expect("a command of ours").split(' ');
        let done = Finished::of(model_garden().args(words).current_dir(garden.path("")));
        let all = format!("{}{}", done.output, done.errors);
        for line in &printed {
            assert!(all.contains(line.as_str()), "`{command}` does not print {line:?}:\n{all}");
        }
        // Without what is missing, and with what is wrong, a command ends badly; all others must not.
        let signs = ["error: ", "contradict", "name its folder", "choose with", "save the model"];
        let refused = printed.iter().any(|line| signs.iter().any(|sign| line.contains(sign)));
        let expected: &[i32] = if refused { &[1, 2] } else { &[0] };
        assert!(
            done.code.is_some_and(|code| expected.contains(&code)),
            "`{command}` ended with {:?}:\n{all}",
            done.code
        );
    }
}
