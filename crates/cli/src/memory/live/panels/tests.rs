//! What the live screen shows, drawn into a buffer.

use super::*;
use crate::memory::live::history::Point;
use garden_memory::{Plateau, Recorder, RunFacts, StepBoard, probe::Probe};
use ratatui::{Terminal, backend::TestBackend, crossterm::event::KeyCode};

/// A reading of this process with a verdict that has much to say.
fn reading() -> Reading {
    let probe = Probe::attach(std::process::id().cast_signed()).unwrap();
    let facts = RunFacts { limit: Some(24_000_000_000), ..RunFacts::default() };
    let mut reading = Recorder::new(probe, StepBoard::default(), facts, None).tick().unwrap().unwrap();
    reading.snapshot.sample.step = Some(80);
    let assessment = &mut reading.assessment;
    assessment.verdict = Verdict::Fill;
    let (bytes, step) = (17_400_000_000, Some(83));
    assessment.plateau = Some(Plateau { bytes, low: bytes, high: bytes, step });
    assessment.advice = vec!["Decode images into private copies.".into()];
    assessment.evidence = (1..=30).map(|number| format!("Reason {number} of many reasons.").into()).collect();
    reading
}

fn history() -> History {
    let mut history = History::default();
    for second in 0..100_u32 {
        let step = second.checked_sub(10).map(u64::from);
        let point = Point { t: f64::from(second), step, owned: 15e9, file: 1e9 };
        history.push(point, step.map(|step| step as f64 / 40.0));
    }
    history
}

fn drawn(width: u16, height: u16, scroll: &mut Scroll, printed: Option<&[String]>) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let (reading, history) = (reading(), history());
    let note = Some("steps are read from run.log");
    let shown = Shown { reading: &reading, history: &history, printed, note };
    terminal.draw(|frame| draw(frame, &shown, scroll)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(usize::from(width));
    rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>() + "\n").collect()
}

#[test]
fn a_fact_without_room_is_left_out_whole() {
    let facts = ["machine: 21.9 GB".to_owned(), "1 thread".into(), "0 major faults".into()];
    assert_eq!(fitting(&facts, 60), "machine: 21.9 GB · 1 thread · 0 major faults");
    assert_eq!(fitting(&facts, 40), "machine: 21.9 GB · 1 thread");
    assert_eq!(fitting(&facts, 5), "");
}

#[test]
fn on_a_usual_terminal_one_process_leaves_its_room_to_the_curve() {
    let screen = drawn(80, 24, &mut Scroll::default(), Some(&["Step 1".to_owned()]));
    assert!(!screen.contains("1 process"), "{screen}");
    let of_the_curve = screen.lines().take_while(|line| !line.contains(" verdict ")).count();
    assert!(of_the_curve >= 10, "{screen}");
    assert!(drawn(80, 40, &mut Scroll::default(), None).contains("1 process"));
}

#[test]
fn one_thing_is_not_told_as_several() {
    assert_eq!([1, 0, 2].map(|count| counted(count, "thread")), ["1 thread", "0 threads", "2 threads"]);
}

#[test]
fn every_usual_size_shows_verdict_advice_steps_levels_and_keys() {
    for (width, height) in [(60, 20), (80, 24), (120, 40)] {
        let screen = drawn(width, height, &mut Scroll::default(), None);
        for text in ["FILL", "step 89", "plateau 17.4 GB", "limit 24.0 GB", "epoch 1", "scroll", "quit"] {
            assert!(screen.contains(text), "{text} at {width}x{height}:\n{screen}");
        }
        let at = |text: &str| screen.find(text).unwrap_or_else(|| panic!("{text} in\n{screen}"));
        assert!(at("→ Decode") < at("· Reason 1"), "advice comes first:\n{screen}");
    }
}

#[test]
fn what_does_not_fit_is_counted_and_can_be_scrolled_to() {
    let mut scroll = Scroll::default();
    let screen = drawn(80, 24, &mut scroll, None);
    assert!(screen.contains(" below ") && !screen.contains("Reason 30"), "{screen}");
    scroll.key(KeyCode::End);
    let screen = drawn(80, 24, &mut scroll, None);
    assert!(screen.contains(" above ") && screen.contains("Reason 30"), "{screen}");
}

#[test]
fn a_command_that_prints_leaves_room_for_the_verdict() {
    let printed: Vec<String> = (1..=6).map(|line| format!("line {line}")).collect();
    for (width, height) in [(60, 20), (80, 24), (120, 40)] {
        let screen = drawn(width, height, &mut Scroll::default(), Some(&printed));
        for text in ["line 6", "FILL", "step 89"] {
            assert!(screen.contains(text), "{text} at {width}x{height}:\n{screen}");
        }
    }
}
