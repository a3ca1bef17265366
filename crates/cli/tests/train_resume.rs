//! A run that is killed, starved of disk or of memory goes on to the same bits as one that never was.

mod support;

use std::{
    process::{Command, Stdio},
    thread,
    time::Instant,
};
use support::{
    Finished,
    training::{Garden, OutputFolder},
};

/// Everything that a resume could forget: dropout, moments in 8 bits, a schedule, evaluations, logs between checkpoints.
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

#[test]
fn at_a_memory_limit_it_stops_with_code_75_and_goes_on_with_more() {
    let garden = Garden::new(24);
    garden.train("whole", &FLAGS);
    let stopped =
        Finished::of(&mut garden.training("out", &[&FLAGS[..], &["--memory-limit", "5MB"]].concat()));
    assert_eq!(stopped.code, Some(75), "{}", stopped.errors);
    assert!(stopped.errors.contains("stopped at a memory limit"), "{}", stopped.errors);
    assert_eq!(garden.output("out").checkpoints(), ["checkpoint-1"], "it stops at once, with a checkpoint");
    let warned =
        garden.train("out", &[&FLAGS[..], &["--memory-limit", "5MB", "--on-memory-limit", "warn"]].concat());
    assert!(warned.errors.contains("going on, as --on-memory-limit warn says"), "{}", warned.errors);
    assert_same_run(&garden.output("out"), &garden.output("whole"));
}

#[test]
fn under_memory_run_it_is_started_again_and_carries_on() {
    let garden = Garden::new(24);
    let flags = ["--max-steps", "3", "--lr-scheduler-type", "constant"];
    garden.train("whole", &flags);
    // Below what it needs: it stops in every round, and each round is a step further.
    let run = garden.training("out", &[&flags[..], &["--memory-limit", "5MB"]].concat());
    let mut supervised = support::model_garden();
    supervised
        .args(["memory", "run", "--on-limit", "restart", "--"])
        .arg(run.get_program())
        .args(run.get_args());
    let finished = Finished::of(&mut supervised);
    // The third step is at the limit too; the fourth round has only the results to write.
    let rounds = finished.errors.matches("stopped at a memory limit").count();
    assert_eq!(rounds, 3, "{}", finished.errors);
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
    garden.train("out", &FLAGS);
    assert_same_run(&garden.output("out"), &garden.output("whole"));
}
