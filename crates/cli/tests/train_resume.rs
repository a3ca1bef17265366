//! A run that was killed, or ran out of disk or memory, resumes to the same bits as one that was not. Another
//! run's checkpoint is refused.

mod support;

use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Instant, SystemTime},
};
use support::{
    Finished,
    terminal::Terminal,
    training::{Garden, OutputFolder},
};

/// Everything that a resume could forget: dropout, moments in 8 bits, a schedule, evaluations, logs between
/// checkpoints.
const FLAGS: [&str; 22] = [
    "--batch-size",
    "2",
    "--gradient-accumulation-steps",
    "2",
    "--epochs",
    "3",
    "--save-steps",
    "2",
    "--eval-split",
    "4",
    "--eval-strategy",
    "steps",
    "--eval-steps",
    "3",
    "--logging-steps",
    "2",
    "--lora-dropout",
    "0.1",
    "--warmup-steps",
    "2",
    "--lr-scheduler-type",
    "cosine",
]; // 15 steps

fn assert_same_run(ours: &OutputFolder, theirs: &OutputFolder) {
    assert!(ours.adapter() == theirs.adapter(), "the adapters differ");
    let last = ours.checkpoints().pop().unwrap();
    assert_eq!(theirs.checkpoints().pop().unwrap(), last);
    for file in ["optimizer.safetensors", "progress.json"] {
        let file = format!("{last}/{file}");
        assert!(ours.bytes(&file) == theirs.bytes(&file), "{file} differs");
    }
    for name in ["loss", "eval_loss", "learning_rate", "grad_norm"] {
        assert_eq!(ours.series(name), theirs.series(name), "{name}");
    }
    let logged = ours.text("metrics.jsonl").lines().count();
    assert_eq!(logged, ours.state()["log_history"].as_array().unwrap().len(), "neither gaps nor doubles");
}

/// Numbers that look random and are the same in every run (SplitMix64), from 0 to 1.
fn fractions() -> impl Iterator<Item = f64> {
    (1_u64..).map(|i| {
        let mut x = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31) as f64 / u64::MAX as f64
    })
}

#[test]
fn killed_at_fifty_moments_it_ends_with_the_same_bits() {
    const KILLS: usize = 50;
    let garden = Garden::new(24);
    let timed = |name: &str| {
        let start = Instant::now();
        garden.train(name, &FLAGS);
        start.elapsed()
    };
    // The shorter of two: one may have been held up.
    let whole_run = timed("whole").min(timed("again"));
    assert_same_run(&garden.output("again"), &garden.output("whole"));
    let (mut kills, mut finished) = (0, 0);
    let mut moments = fractions();
    while kills < KILLS || finished == 0 {
        let name = format!("killed-{finished}");
        let mut run = garden.training(&name, &FLAGS);
        let mut child = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        if kills < KILLS {
            // A run that goes on begins later, so a part of a whole run reaches every moment of it.
            thread::sleep(whole_run.mul_f64(0.9 * moments.next().unwrap()));
            child.kill().unwrap();
        }
        let status = child.wait().unwrap();
        match status.code() {
            None => kills += 1,
            Some(code) => {
                assert_eq!(code, 0, "{name}");
                assert_same_run(&garden.output(&name), &garden.output("whole"));
                finished += 1;
            }
        }
    }
    assert!(kills == KILLS && finished > 0);
}

/// A shell in which no file can grow beyond so many kilobytes: writes fail as on a full disk.
fn with_small_files(kilobytes: u64, command: &Command) -> Command {
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("trap '' XFSZ; ulimit -f {kilobytes}; exec \"$0\" \"$@\"")]);
    shell.arg(command.get_program()).args(command.get_args());
    shell
}

#[test]
fn a_full_disk_stops_the_run_with_the_last_checkpoint_intact() {
    let garden = Garden::new(24);
    // A constant rate, so that where the run shall end does not change what a step does.
    let flags = |steps| {
        ["--max-steps", steps, "--save-steps", "2", "--logging-steps", "2", "--lr-scheduler-type", "constant"]
    };
    garden.train("whole", &flags("6"));
    garden.train("full", &flags("2"));
    let kept = garden.output("full").bytes("checkpoint-2/adapter_model.safetensors");
    let failed = Finished::of(&mut with_small_files(64, &garden.training("full", &flags("6"))));
    assert_eq!(failed.code, Some(2), "{}", failed.errors);
    let last = failed.errors.lines().last().unwrap();
    assert!(last.starts_with("error: no space left for checkpoint 4 in "), "{last}");
    assert_eq!(garden.output("full").checkpoints(), ["checkpoint-2"]);
    assert_eq!(garden.output("full").bytes("checkpoint-2/adapter_model.safetensors"), kept);
    let resumed = garden.train("full", &flags("6"));
    assert!(resumed.errors.contains("continuing from ") && resumed.errors.contains("checkpoint-2"));
    assert_same_run(&garden.output("full"), &garden.output("whole"));
}

#[test]
fn a_damaged_checkpoint_is_skipped_and_named() {
    let garden = Garden::new(24);
    garden.train("whole", &FLAGS);
    garden.train("damaged", &FLAGS);
    let damaged = garden.output("damaged");
    let last = damaged.checkpoints().pop().unwrap();
    let file = damaged.0.join(&last).join("optimizer.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let resumed = garden.train("damaged", &FLAGS);
    let said = format!("skipped {}", damaged.0.join(&last).display());
    assert!(resumed.errors.contains(&said), "{}", resumed.errors);
    assert_same_run(&damaged, &garden.output("whole"));
}

/// The same run under a supervisor that is short of memory in the first two rounds.
fn short_of_memory(garden: &Garden, run: &Command) -> Command {
    let mut command = Command::new("python3");
    command.arg(support::script("short_of_memory.py")).arg(garden.path("starts"));
    command.arg(run.get_program()).args(run.get_args());
    command
}

#[test]
fn at_a_memory_limit_it_stops_with_code_75_and_goes_on_with_more() {
    let garden = Garden::new(24);
    garden.train("whole", &FLAGS);
    let stopped = Finished::of(&mut short_of_memory(&garden, &garden.training("out", &FLAGS)));
    assert_eq!(stopped.code, Some(75), "{}", stopped.errors);
    assert!(stopped.errors.contains("stopped at a memory limit"), "{}", stopped.errors);
    assert!(!garden.output("out").checkpoints().is_empty(), "it stops with a checkpoint");
    let warned =
        garden.train("out", &[&FLAGS[..], &["--memory-limit", "5MB", "--on-memory-limit", "warn"]].concat());
    assert!(warned.errors.contains("going on, as --on-memory-limit warn says"), "{}", warned.errors);
    assert_same_run(&garden.output("out"), &garden.output("whole"));
}

#[test]
fn a_memory_limit_below_the_plan_is_refused_before_the_start() {
    let garden = Garden::new(24);
    let flags = |limit| [&FLAGS[..], &["--memory-limit", limit]].concat();
    let refused = Finished::of(&mut garden.training("out", &flags("5MB")));
    assert_eq!(refused.code, Some(2), "{}", refused.errors);
    assert!(refused.errors.contains("--memory-limit 5.0 MB is too low"), "{}", refused.errors);
    assert!(refused.errors.contains("weights") && refused.errors.contains("total"), "{}", refused.errors);
    let least = refused.errors.split("The lowest that works is --memory-limit ").nth(1).unwrap();
    let least = least.split('.').next().unwrap();
    garden.train("out", &flags(least));
}

#[test]
fn under_memory_run_it_is_started_again_and_carries_on() {
    let garden = Garden::new(24);
    garden.train("whole", &FLAGS);
    let short = short_of_memory(&garden, &garden.training("out", &FLAGS));
    let mut supervised = support::model_garden();
    supervised
        .args(["memory", "run", "--on-limit", "restart", "--"])
        .arg(short.get_program())
        .args(short.get_args());
    let finished = Finished::of(&mut supervised);
    let rounds = finished.errors.matches("stopped at a memory limit").count();
    assert_eq!(rounds, 2, "{}", finished.errors);
    assert_eq!(finished.errors.matches("continuing from ").count(), rounds, "{}", finished.errors);
    assert_eq!(finished.code, Some(0), "{}", finished.errors);
    assert_same_run(&garden.output("out"), &garden.output("whole"));
}

#[test]
fn an_interrupt_ends_it_after_a_checkpoint() {
    let garden = Garden::new(24);
    garden.train("whole", &FLAGS);
    let mut run = garden.training("out", &[&FLAGS[..], &["--log-format", "json"]].concat());
    let mut child = run.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    lines.find(|line| line.as_ref().unwrap().contains("\"loss\"")).expect("a log of steps").unwrap();
    support::signal_process(child.id().cast_signed(), rustix::process::Signal::INT);
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let code = child.wait().unwrap().code();
    // It may have been done already, on a machine that is slow to pass signals on.
    assert!(code == Some(130) || code == Some(0), "{code:?}: {rest:?}");
    if code == Some(130) {
        let last = rest.last().unwrap();
        assert!(last.contains("\"reason\":\"cancelled\"") && last.contains("/checkpoint-"), "{last}");
    }
    garden.train("out", &FLAGS);
    assert_same_run(&garden.output("out"), &garden.output("whole"));
}

/// A run that nobody waits the end of, with a rate by which its steps do not depend on where it ends.
fn endless(steps: &str) -> [&str; 8] {
    [
        "--max-steps",
        steps,
        "--save-steps",
        "1000000",
        "--logging-steps",
        "2",
        "--lr-scheduler-type",
        "constant",
    ]
}

/// Goes on from the one checkpoint that a run left, and compares with a run that was never stopped.
fn assert_goes_on(garden: &Garden, name: &str) {
    let left = garden.output(name).checkpoints();
    assert_eq!(left.len(), 1, "{name}: {left:?}");
    let step: u64 = left[0].strip_prefix("checkpoint-").unwrap().parse().unwrap();
    let steps = (step + 3).to_string();
    let resumed = garden.train(name, &endless(&steps));
    assert!(resumed.errors.contains(&format!("/{}\n", left[0])), "{name}: {}", resumed.errors);
    let whole = format!("{name}-whole");
    garden.train(&whole, &endless(&steps));
    assert_same_run(&garden.output(name), &garden.output(&whole));
}

/// What the bar shows from the first step on.
const STEPS_SHOW: &str = " tokens/s";

#[test]
fn a_closed_terminal_ends_it_after_a_checkpoint() {
    const CONTROL_S: &str = "\x13";
    let garden = Garden::new(24);
    // Held by Ctrl-S the terminal takes nothing more, and the run waits in a write until it is closed.
    for (name, keys) in [("closed", ""), ("held", CONTROL_S)] {
        let mut terminal = Terminal::start(&garden.training(name, &endless("1000000")));
        terminal.await_text(STEPS_SHOW);
        terminal.keys(keys);
        terminal.close();
        assert_eq!(terminal.await_end().code(), Some(130), "{name}");
        assert_goes_on(&garden, name);
    }
}

#[test]
fn a_shell_that_passes_the_hangup_on_does_not_end_it_without_a_checkpoint() {
    let garden = Garden::new(24);
    let training = garden.training("out", &endless("1000000"));
    let words = [training.get_program()].into_iter().chain(training.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let mut terminal = Terminal::shell();
    // The kernel tells the shell, the shell its job, and then the kernel all jobs: two hangups for one.
    terminal.keys(&format!("bash -c 'echo pid=$$.; exec \"$@\"' bash {}\n", words.join(" ")));
    terminal.await_text(STEPS_SHOW);
    let seen = terminal.seen();
    let pid = seen.rsplit("pid=").find_map(|rest| rest.split_once('.')?.0.parse().ok()).expect("its pid");
    terminal.close();
    support::until("the run ends", || !support::lives(pid));
    assert_goes_on(&garden, "out");
}

#[test]
fn a_run_that_ignores_hangups_outlives_its_terminal() {
    let garden = Garden::new(24);
    let training = garden.training("out", &endless("200"));
    let mut ignoring = Command::new("bash");
    ignoring.args(["-c", "trap '' HUP; exec \"$@\"", "bash"]).arg(training.get_program());
    let mut terminal = Terminal::start(ignoring.args(training.get_args()));
    terminal.await_text(STEPS_SHOW);
    let pid = terminal.child.id().cast_signed();
    terminal.close();
    // Also one that is sent, by whomever.
    support::signal_process(pid, rustix::process::Signal::HUP);
    assert_eq!(terminal.await_end().code(), Some(0));
    assert_eq!(garden.output("out").checkpoints(), ["checkpoint-200"]);
    assert_eq!(garden.output("out").state()["global_step"], 200);
}

/// Every file below a folder with its time and content.
fn snapshot(folder: &Path) -> Vec<(PathBuf, SystemTime, Vec<u8>)> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let written = fs::metadata(&path).unwrap().modified().unwrap();
                    files.push((path.clone(), written, fs::read(path).unwrap()));
                }
            }
        }
    }
    files.sort();
    files
}

#[test]
fn another_model_or_other_settings_do_not_continue_a_run() {
    let garden = Garden::new(16);
    garden.train("out", &["--max-steps", "2"]);
    let before = snapshot(&garden.output("out").0);
    let refused = |flags: &[&str], message: &str| {
        let more = [flags, &["--max-steps", "4"]].concat();
        let finished = Finished::of(&mut garden.training("out", &more));
        assert_eq!(finished.code, Some(2), "{flags:?}: {}", finished.errors);
        assert!(finished.errors.contains(message), "{flags:?}: {}", finished.errors);
        assert!(
            snapshot(&garden.output("out").0) == before,
            "{flags:?}: a refused run leaves nothing behind"
        );
    };
    let other = garden.path("other");
    garden.run(&["init", "--preset", "tiny", "--seed", "8", "--output", &other]);
    refused(&["--base-model", &other], "differs from it in its weights. Go on with");
    refused(&["--train-on", "all"], "--train-on was assistant, now all (other tokens would be learned)");
    refused(
        &["--max-pixels", "3136"],
        "--max-pixels was not given, now 3136 (images would have other sizes)",
    );
    refused(&["--batch-size", "4"], "--batch-size x gradient-accumulation-steps was 8 rows, now 16 rows");
    refused(&["--lora-alpha", "8"], "--lora-alpha was 16, now 8");
    refused(&["--seed", "1"], "--seed was 3407, now 1");
    let gone_on = garden.train("out", &["--max-steps", "4", "--learning-rate", "5e-4"]);
    let said = "changed since the checkpoint: max-steps 2 -> 4, learning-rate 0.001 -> 0.0005\n";
    assert!(gone_on.errors.contains(said), "{}", gone_on.errors);
    let card = garden.output("out").text("README.md");
    assert!(card.contains(" s, in 2 processes |"), "{card}");
}

#[test]
fn a_finished_run_is_left_as_it_is_and_goes_on_with_more_epochs() {
    let garden = Garden::new(16);
    let flags = ["--epochs", "1", "--eval-split", "4", "--early-stopping-patience", "3"];
    garden.train("out", &flags);
    let before = snapshot(&garden.output("out").0);
    let changed = [&flags[..], &["--learning-rate", "5e-4", "--log-format", "json"]].concat();
    for flags in [&flags[..], &changed] {
        let again = garden.train("out", flags);
        let already =
            ["already finished at step 2", "\"reason\":\"already_finished\",\"message\":null,\"step\":2"];
        assert!(already.iter().any(|said| again.errors.contains(said)), "{}", again.errors);
        assert!(snapshot(&garden.output("out").0) == before, "nothing was touched");
    }
    // Rows that it was never trained on are not claimed to be.
    let rows = fs::read_to_string(garden.path("rows/train.jsonl")).unwrap();
    fs::write(garden.path("rows/train.jsonl"), rows.replacen("\"a ", "\"an unusual ", 1)).unwrap();
    let others = Finished::of(&mut garden.training("out", &flags));
    assert_eq!(others.code, Some(2), "{}", others.errors);
    assert!(others.errors.contains("was made with other rows: the dataset has changed"), "{}", others.errors);
    assert!(snapshot(&garden.output("out").0) == before, "nothing was touched");
    fs::write(garden.path("rows/train.jsonl"), rows).unwrap();
    // A run that was killed before its last file was written still writes them.
    fs::remove_file(garden.output("out").0.join(".finished")).unwrap();
    fs::remove_file(garden.output("out").0.join("README.md")).unwrap();
    garden.train("out", &flags);
    assert!(garden.output("out").exists("README.md"));
    let more = garden.train("out", &[&["--epochs", "2"], &flags[2..]].concat());
    assert!(
        more.errors.contains("continuing from ") && more.errors.contains("epochs 1 -> 2"),
        "{}",
        more.errors
    );
    assert_eq!(garden.output("out").checkpoints().last().unwrap(), "checkpoint-4");
}

#[test]
fn a_run_that_stopped_early_says_what_would_make_it_go_on() {
    let garden = Garden::new(16);
    // A rate of zero: no evaluation is better than the first.
    let flags = ["--learning-rate", "0", "--eval-split", "4", "--eval-steps", "1", "--epochs", "9"];
    let patience = |steps| [&flags[..], &["--early-stopping-patience", steps]].concat();
    let stopped = garden.train("out", &patience("1"));
    assert!(
        stopped.errors.contains("stopped early: the best evaluation was at step 1"),
        "{}",
        stopped.errors
    );
    let again = garden.train("out", &[&patience("1")[..], &["--max-steps", "50"]].concat());
    let said =
        "already finished at step 2: nothing was done; with a larger --early-stopping-patience it goes on";
    assert!(again.errors.contains(said), "{}", again.errors);
    let patient = garden.train("out", &patience("2"));
    assert!(patient.errors.contains("continuing from "), "{}", patient.errors);
}

#[test]
fn a_refused_start_leaves_nothing_behind() {
    let garden = Garden::new(8);
    for flags in [&["--eval-split", "8"][..], &["--lora-r", "100000"], &["--report-to", "mlflow"]] {
        let refused = Finished::of(garden.training("deep/out", flags).env_remove("MLFLOW_TRACKING_URI"));
        assert_eq!(refused.code, Some(2), "{}", refused.errors);
        assert!(!garden.output("deep").exists(""), "{flags:?}: {}", refused.errors);
    }
}

#[test]
fn a_run_that_diverged_is_not_repeated_from_its_checkpoint() {
    let garden = Garden::new(24);
    let flags = |rate: &'static str, steps: &'static str| {
        let length = ["--max-steps", steps, "--save-steps", "1", "--lr-scheduler-type", "constant"];
        [&length[..], &["--learning-rate", rate]].concat()
    };
    garden.train("out", &flags("1e-3", "2"));
    let diverged = Finished::of(&mut garden.training("out", &flags("1e30", "9")));
    assert_eq!(diverged.code, Some(2), "{}", diverged.errors);
    assert!(diverged.errors.contains("training diverged"), "{}", diverged.errors);
    let checkpoints = garden.output("out").checkpoints();
    let again = Finished::of(&mut garden.training("out", &flags("1e30", "9")));
    assert_eq!(again.code, Some(2), "not 75: nobody is to try it again");
    assert!(
        again.errors.contains("error: with these settings the run diverged at step "),
        "{}",
        again.errors
    );
    assert_eq!(garden.output("out").checkpoints(), checkpoints);
    let slower = garden.train("out", &flags("1e-3", "9"));
    assert!(slower.errors.contains("the run diverged at step "), "{}", slower.errors);
    assert!(
        slower.errors.contains(&format!("{}\n", checkpoints[0])),
        "from the older one: {}",
        slower.errors
    );
}

#[test]
fn errors_are_lines_of_json_where_lines_of_json_were_asked_for() {
    let garden = Garden::new(8);
    let error = |flags: &[&str]| {
        let failed = Finished::of(&mut garden.training("out", flags));
        assert_eq!(failed.code, Some(2), "{}", failed.errors);
        let lines: Vec<Value> =
            failed.errors.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        let last = lines.last().unwrap();
        assert_eq!([&last["event"], &last["reason"]], ["end", "failed"], "{last}");
        last["message"].as_str().unwrap().to_owned()
    };
    let json = ["--log-format", "json"];
    assert!(error(&[&json[..], &["--eval-split", "8"]].concat()).contains("nothing is left to train on"));
    assert!(error(&[&json[..], &["--epochs", "0"]].concat()).starts_with("--epochs 0: "));
    assert!(error(&[&json[..], &["--config", "/no/such.toml"]].concat()).starts_with("/no/such.toml: "));
    assert!(error(&[&json[..], &["--epochs", "many"]].concat()).contains("invalid value 'many'"));
    let file = garden.path("run.yaml");
    for (text, message) in
        [("seed: many", "key 'seed': "), ("seed: [", "run.yaml: "), ("epochs: 0", "--epochs 0")]
    {
        fs::write(&file, format!("log_format: json\n{text}\n")).unwrap();
        assert!(error(&["--config", &file]).contains(message), "{text}");
    }
}

#[test]
fn images_that_vanish_in_the_middle_of_a_run_do_not_make_its_best_evaluation() {
    let garden = Garden::new(8);
    let held_out = garden.path("held-out");
    let size = ["--size", "56x56", "--rows", "4", "--seed", "9"];
    garden.run(&[&["dataset", "create", "--kind", "shapes", "--output", &held_out], &size[..]].concat());
    let evaluation = ["--eval-dataset", &held_out, "--eval-steps", "1", "--early-stopping-patience", "1000"];
    let length = ["--max-steps", "100000", "--on-bad-row", "skip", "--log-format", "json"];
    let mut run = garden.training("out", &[&evaluation[..], &length].concat());
    let mut child = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    lines
        .find(|line| line.as_ref().unwrap().contains("\"event\":\"evaluation\""))
        .expect("an evaluation")
        .unwrap();
    fs::remove_dir_all(format!("{held_out}/images")).unwrap();
    let last: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(2), "{last:?}");
    let out = garden.output("out");
    let newest = out.checkpoints().pop().unwrap();
    let state: Value = serde_json::from_str(&out.text(&format!("{newest}/trainer_state.json"))).unwrap();
    assert!(state["best_metric"].as_f64().unwrap() > 0.0, "{}", state["best_metric"]);
    let error = last.last().unwrap();
    assert!(error.contains("\"reason\":\"failed\"") && error.contains("could be used"), "{error}");
    assert!(error.contains(&format!("out/{newest}\"")), "it names the last checkpoint: {error}");
    assert!(!out.exists("adapter_model.safetensors"), "nothing is delivered");
}
