//! Training as a program does it: twice in a process, on threads, cancelled and resumed.

use crate::garden::Garden;
use garden_train::{Cancel, Event, RunConfig, RunError, RunReport, TrainOptions, events::EndReason, train};
use std::{process::Command, sync::mpsc, thread};

fn nobody(_: &Event) {}

#[test]
fn everything_that_crosses_the_door_is_send() {
    fn is_send<T: Send>() {}
    is_send::<RunConfig>();
    is_send::<RunReport>();
    is_send::<RunError>();
    is_send::<Event>();
    is_send::<Cancel>();
}

#[test]
fn two_runs_after_one_another_and_two_at_once_give_the_same_bits() {
    let garden = Garden::new();
    let run = |name: &str| {
        let report = train(&garden.config(name, TrainOptions::default()), &mut nobody, &Cancel::default());
        assert_eq!(report.unwrap().reason, EndReason::Finished);
        garden.adapter(name)
    };
    let first = run("first");
    assert!(first == run("second"), "one after the other");
    thread::scope(|scope| {
        let runs = ["third", "fourth"].map(|name| scope.spawn(move || run(name)));
        for other in runs {
            assert!(first == other.join().unwrap(), "beside another");
        }
    });
}

#[test]
fn a_run_that_is_cancelled_from_another_thread_goes_on_to_the_same_bits() {
    let garden = Garden::new();
    let whole = garden.config("whole", TrainOptions::default());
    train(&whole, &mut nobody, &Cancel::default()).unwrap();

    let config = garden.config("halved", TrainOptions::default());
    let cancel = Cancel::default();
    let (steps, heard) = mpsc::channel();
    let (go_on, cancelled) = mpsc::channel::<()>();
    let report = thread::scope(|scope| {
        let (config, inside) = (&config, cancel.clone());
        let run = scope.spawn(move || {
            let mut observer = move |event: &Event| {
                if let Event::Step(step) = event {
                    steps.send(step.step).unwrap();
                    // The first step waits until it is cancelled.
                    cancelled.recv().unwrap_or_default();
                }
            };
            train(config, &mut observer, &inside)
        });
        assert_eq!(heard.recv().unwrap(), 1);
        cancel.cancel();
        drop(go_on);
        run.join().unwrap().unwrap()
    });
    assert_eq!((report.reason, report.state.global_step), (EndReason::Cancelled, 1));
    assert!(report.checkpoint.unwrap().ends_with("checkpoint-1"));
    assert!(
        !garden.path("halved/adapter_model.safetensors").exists(),
        "its results are for the run that ends"
    );

    let report = train(&config, &mut nobody, &Cancel::default()).unwrap();
    assert_eq!((report.reason, report.state.global_step), (EndReason::Finished, crate::garden::STEPS));
    assert!(garden.adapter("whole") == garden.adapter("halved"), "to the bit");

    let again = train(&config, &mut nobody, &Cancel::default()).unwrap();
    assert_eq!(again.reason, EndReason::AlreadyFinished);
}

#[test]
fn a_run_that_is_cancelled_before_its_first_step_leaves_nothing() {
    let garden = Garden::new();
    let cancel = Cancel::default();
    cancel.cancel();
    let config = garden.config("out", TrainOptions::default());
    let report = train(&config, &mut nobody, &cancel).unwrap();
    assert_eq!((report.reason, report.checkpoint), (EndReason::Cancelled, None));
    assert!(!garden.path("out").exists());
}

#[test]
fn a_program_of_thirty_lines_trains_with_an_observer_of_its_own() {
    let garden = Garden::new();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--locked", "--package", "garden-train", "--example", "train", "--"]);
    let paths = ["model", "rows", "out"].map(|name| garden.path(name));
    let done = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(paths).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{errors}");
    assert_eq!(said.matches("\nstep ").count(), 20, "{said}");
    assert!(said.contains("Finished after 20 steps"), "{said}");
    assert!(garden.path("out/adapter_model.safetensors").exists());
}
