//! `memory run` and `memory watch` on a real terminal: prompts, keys, job control, screens, and closed
//! terminals.

mod support;

use procfs::process::Process;
use rustix::{process::Signal, termios::LocalModes};
use std::{
    fs,
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
};
use support::{Finished, lives, model_garden, signal_process, terminal::Terminal, until};

const BINARY: &str = env!("CARGO_BIN_EXE_model-garden");
const CONTROL_C: &str = "\x03";
const CONTROL_D: &str = "\x04";
const CONTROL_Z: &str = "\x1a";
const ENTER_SCREEN: &str = "\x1b[?1049h";
const LEAVE_SCREEN: &str = "\x1b[?1049l";

fn run(command: &[&str]) -> Terminal {
    run_with(&[], command)
}

fn run_with(flags: &[&str], command: &[&str]) -> Terminal {
    Terminal::start(model_garden().args(["memory", "run"]).args(flags).arg("--").args(command))
}

fn python(code: &str) -> Terminal {
    run(&["python3", "-u", "-c", code])
}

/// Prints what it hears: signals, and lines that are typed.
const LISTENER: &str = "import os, signal, sys
heard = []
def hear(number, _):
    heard.append(signal.Signals(number).name)
    print('heard', ' '.join(heard), flush=True)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1): signal.signal(number, hear)
print('ready', os.getpid(), os.getpgrp(), '.', flush=True)
for line in sys.stdin:
    if line == 'end\\n': sys.exit(5)
    print('got', line, flush=True)";

#[test]
fn a_password_prompt_is_answered_and_not_echoed() {
    let mut terminal =
        python("from getpass import getpass; print('it has', len(getpass('password? ')), 'letters')");
    terminal.await_text("password? ");
    terminal.keys("hunter2\n");
    terminal.await_text("it has 7 letters");
    assert_eq!(terminal.await_end().code(), Some(0));
    assert!(!terminal.seen().contains("hunter2"), "{}", terminal.seen());
}

#[test]
fn control_c_at_a_prompt_ends_it_at_once() {
    // The grace is longer than the test would wait.
    let mut terminal = run_with(
        &["--grace", "1h"],
        &["python3", "-c", "from getpass import getpass; getpass('password? ')"],
    );
    terminal.await_text("password? ");
    let echoes = |terminal: &Terminal| terminal.settings().local_modes.contains(LocalModes::ECHO);
    assert!(!echoes(&terminal));
    terminal.keys(CONTROL_C);
    terminal.await_text("KeyboardInterrupt");
    assert_eq!(terminal.await_end().signal(), Some(2));
    assert!(echoes(&terminal), "what is typed next must show again");
}

#[test]
fn a_prompt_on_the_terminal_works_where_standard_input_is_something_else() {
    let line = format!(
        "{BINARY} memory run -- sh -c 'printf \"name? \" >/dev/tty; read name </dev/tty; echo \"hello $name\"' </dev/null"
    );
    let mut terminal = Terminal::start(Command::new("sh").args(["-c", &line]));
    terminal.await_text("name? ");
    terminal.keys("Ada\n");
    terminal.await_text("hello Ada");
    assert_eq!(terminal.await_end().code(), Some(0));
}

#[test]
fn a_python_prompt_works_and_survives_control_c() {
    let mut terminal = run_with(&["--grace", "0s"], &["python3", "-q"]);
    terminal.await_text(">>> ");
    terminal.keys("6 * 7\n");
    terminal.await_text("42");
    terminal.await_text(">>> ");
    terminal.keys(CONTROL_C);
    terminal.await_text("KeyboardInterrupt");
    terminal.await_text(">>> ");
    terminal.keys("6 * 8\n");
    terminal.await_text("48");
    terminal.await_text(">>> ");
    terminal.keys(CONTROL_D);
    assert_eq!(terminal.await_end().code(), Some(0));
}

#[test]
fn less_pages_and_quits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    fs::write(&path, (1..=200).map(|line| format!("line {line}.\n")).collect::<String>()).unwrap();
    let mut terminal = run(&["less", path.to_str().unwrap()]);
    terminal.await_text("line 20.");
    terminal.keys(" ");
    terminal.await_text("line 40.");
    terminal.keys("q");
    assert_eq!(terminal.await_end().code(), Some(0));
    assert!(!terminal.seen().contains("line 100."));
}

#[test]
fn less_goes_on_after_control_z() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    fs::write(&path, (1..=200).map(|line| format!("line {line}.\n")).collect::<String>()).unwrap();
    let mut terminal = Terminal::shell();
    terminal.keys(&format!("{BINARY} memory run -- less {}\n", path.display()));
    terminal.await_text("line 20.");
    terminal.press_until(CONTROL_Z, "Stopped");
    terminal.await_text("prompt> ");
    terminal.keys("fg\n");
    terminal.await_text("line 20.");
    terminal.press_until(" ", "line 40.");
    terminal.keys("q");
    terminal.await_text("prompt> ");
    let modes = terminal.settings().local_modes;
    terminal.keys("echo code $?\n");
    terminal.await_text("code 0");
    assert!(modes.contains(LocalModes::ISIG), "{modes:?}");
}

#[test]
fn a_curses_program_gets_its_keys_one_by_one() {
    let code = "import curses
def main(screen):
    screen.addstr('ready'); screen.refresh()
    return screen.getkey()
print('key', curses.wrapper(main))";
    let mut terminal = python(code);
    terminal.await_text("ready");
    terminal.keys("x");
    terminal.await_text("key x");
    assert_eq!(terminal.await_end().code(), Some(0));
    let modes = terminal.settings().local_modes;
    assert!(modes.contains(LocalModes::ECHO | LocalModes::ICANON), "{modes:?}");
}

#[test]
fn control_c_reaches_the_command_once() {
    let mut terminal = run_with(&["--grace", "0s"], &["python3", "-c", LISTENER]);
    terminal.await_text("ready");
    terminal.keys(CONTROL_C);
    terminal.await_text("heard SIGINT\r\n");
    let supervisor = terminal.child.id().cast_signed();
    // A second one would come before what is sent now.
    signal_process(supervisor, Signal::USR1);
    terminal.await_text("heard SIGINT SIGUSR1\r\n");
    terminal.keys("end\n");
    assert_eq!(terminal.await_end().code(), Some(5));
}

#[test]
fn control_c_breaks_off_a_loop_of_the_shell() {
    let mut terminal = Terminal::shell();
    let run = format!("{BINARY} memory run -- sh -c 'echo round $0; exec sleep 600'");
    terminal.keys(&format!("for number in 1 2; do {run} $number; done; echo code $?\n"));
    terminal.await_text("round 1\r\n");
    terminal.keys(CONTROL_C);
    terminal.await_text("prompt> ");
    assert!(!terminal.seen().contains("round 2\r\n"), "{}", terminal.seen());
}

#[test]
fn a_signal_to_our_group_reaches_the_command_once_and_one_to_us_alone_too() {
    let mut terminal = run(&["python3", "-c", LISTENER]);
    terminal.await_text("ready");
    let supervisor = terminal.child.id().cast_signed();
    let group = rustix::process::Pid::from_raw(supervisor).unwrap();
    rustix::process::kill_process_group(group, Signal::TERM).unwrap();
    terminal.await_text("heard SIGTERM\r\n");
    signal_process(supervisor, Signal::USR1);
    terminal.await_text("heard SIGTERM SIGUSR1\r\n");
    signal_process(supervisor, Signal::TERM);
    terminal.await_text("heard SIGTERM SIGUSR1 SIGTERM\r\n");
    terminal.keys("end\n");
    assert_eq!(terminal.await_end().code(), Some(5));
}

#[test]
fn control_z_gives_the_shell_its_prompt_and_fg_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("listener.py");
    fs::write(&script, LISTENER).unwrap();
    let mut terminal = Terminal::shell();
    terminal.keys(&format!("{BINARY} memory run -- python3 {}\n", script.display()));
    for round in 0..2 {
        terminal.await_text(if round == 0 { "ready" } else { "got hello" });
        terminal.keys(CONTROL_Z);
        terminal.await_text("Stopped");
        terminal.await_text("prompt> ");
        terminal.keys("fg\n");
        terminal.await_text("memory run");
        terminal.keys("hello\n");
    }
    terminal.await_text("got hello");
    terminal.keys("end\n");
    terminal.await_text("prompt> ");
    terminal.keys("echo code $?\n");
    terminal.await_text("code 5");
}

#[test]
fn bg_lets_a_stopped_command_finish_behind_the_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let code = format!(
        "import os, time; print(\"ready\", flush=True)\nwhile not os.path.exists(\"{}\"): time.sleep(0.01)\nprint(\"fin\" + \"ished\")",
        go.display()
    );
    let mut terminal = Terminal::shell();
    terminal.keys(&format!("{BINARY} memory run -- python3 -c '{code}'\n"));
    terminal.await_text("ready\r\n");
    terminal.keys(CONTROL_Z);
    terminal.await_text("Stopped");
    terminal.keys("bg\n");
    terminal.keys(&format!("touch {}; wait; echo code $?\n", go.display()));
    terminal.await_text("finished");
    terminal.await_text("code 0");
}

#[test]
fn a_command_that_somebody_stops_and_lets_go_on_takes_us_along() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let line = format!("echo $$ > {}; echo ready; exec sleep 600", file.display());
    let mut terminal = run(&["sh", "-c", &line]);
    terminal.await_text("ready");
    let pid: i32 = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    let supervisor = terminal.child.id().cast_signed();
    let stands = |pid: i32| Process::new(pid).unwrap().stat().unwrap().state == 'T';
    for _ in 0..2 {
        signal_process(pid, Signal::STOP);
        until("we stop with the command", || stands(supervisor));
        signal_process(pid, Signal::CONT);
        until("we go on with the command", || !stands(supervisor) && !stands(pid));
    }
    signal_process(pid, Signal::TERM);
    assert_eq!(terminal.await_end().code(), Some(128 + 15));
}

#[test]
fn a_command_that_dies_in_raw_mode_leaves_a_usable_terminal() {
    let code = "import os, tty; tty.setraw(0); print('raw', flush=True); os.kill(os.getpid(), 9)";
    let mut terminal = python(code);
    terminal.await_text("raw");
    assert_eq!(terminal.await_end().code(), Some(128 + 9));
    let modes = terminal.settings().local_modes;
    assert!(modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG), "{modes:?}");
}

#[test]
fn another_window_size_reaches_the_command() {
    let code = "import os, signal, sys
def tell(*_): print('size', *os.get_terminal_size(1), flush=True)
signal.signal(signal.SIGWINCH, tell); tell()
sys.stdin.readline()";
    let mut terminal = python(code);
    terminal.await_text("size 80 24");
    terminal.resize(40, 100);
    terminal.await_text("size 100 40");
    terminal.keys("\n");
    assert_eq!(terminal.await_end().code(), Some(0));
}

#[test]
fn under_a_screen_a_prompt_fails_at_once_instead_of_waiting() {
    let code = "open('/dev/tty'); input()";
    let mut terminal = run_with(&["--format", "tui"], &["python3", "-c", code]);
    terminal.await_text("No such device or address: '/dev/tty'");
    assert_eq!(terminal.await_end().code(), Some(1));
}

/// A process to watch.
fn sleeper() -> support::Running {
    support::Running::start(Command::new("sleep").arg("600").stdin(Stdio::null()))
}

#[test]
fn control_z_leaves_the_screen_and_fg_draws_it_again() {
    let sleeper = sleeper();
    let mut terminal = Terminal::shell();
    terminal.keys(&format!("{BINARY} memory watch --interval 20ms --pid {}\n", sleeper.pid()));
    terminal.await_text(ENTER_SCREEN);
    terminal.await_text("verdict");
    terminal.keys(CONTROL_Z);
    terminal.await_text(LEAVE_SCREEN);
    terminal.await_text("Stopped");
    terminal.await_text("prompt> ");
    terminal.keys("fg\n");
    terminal.await_text(ENTER_SCREEN);
    terminal.await_text("verdict");
    terminal.keys("q");
    terminal.await_text("stopped by hand");
}

#[test]
fn control_z_on_the_screen_of_a_run_stops_the_command_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let mut terminal = Terminal::shell();
    let line = format!("echo $$ > {}; exec sleep 600", file.display());
    terminal.keys(&format!("{BINARY} memory run --format tui --interval 20ms -- sh -c '{line}'\n"));
    terminal.await_text("verdict");
    let written = || fs::read_to_string(&file).ok().filter(|text| text.ends_with('\n'));
    until("the command has told its number", || written().is_some());
    let pid: i32 = written().unwrap().trim().parse().unwrap();
    let state = || Process::new(pid).unwrap().stat().unwrap().state;
    terminal.keys(CONTROL_Z);
    terminal.await_text("Stopped");
    until("the command stands still", || state() == 'T');
    terminal.await_text("prompt> ");
    terminal.keys("fg\n");
    terminal.await_text(ENTER_SCREEN);
    until("the command goes on", || state() != 'T');
    terminal.keys("q");
    terminal.await_text("the command was ended by signal 2");
}

#[test]
fn a_watch_ends_with_its_terminal_also_where_hangups_are_ignored() {
    let sleeper = sleeper();
    let watch = format!("exec {BINARY} memory watch --interval 20ms --pid {}", sleeper.pid());
    for line in [watch.clone(), format!("trap '' HUP; {watch}")] {
        let mut terminal = Terminal::start(Command::new("sh").args(["-c", &line]));
        terminal.await_text("verdict");
        terminal.close();
        assert_eq!(terminal.await_end().code(), Some(0), "{line}");
    }
}

#[test]
fn term_ends_a_screen() {
    let sleeper = sleeper();
    let flags = ["memory", "watch", "--interval", "20ms", "--pid"];
    let mut terminal = Terminal::start(model_garden().args(flags).arg(sleeper.pid().to_string()));
    terminal.await_text("verdict");
    signal_process(terminal.child.id().cast_signed(), Signal::TERM);
    terminal.await_text(LEAVE_SCREEN);
    assert_eq!(terminal.await_end().code(), Some(0));
}

#[test]
fn a_command_hears_that_its_terminal_was_closed_and_may_carry_on_without_a_screen() {
    let folder = tempfile::tempdir().unwrap();
    let (file, go) = (folder.path().join("heard"), folder.path().join("go"));
    let code = format!(
        "import os, signal, time
def hear(*_): print('written', file=open('{}', 'w'), flush=True)
signal.signal(signal.SIGHUP, hear)
print('ready', flush=True)
while not os.path.exists('{}'): time.sleep(0.01); print('alive', flush=True)
os._exit(6)",
        file.display(),
        go.display()
    );
    for format in ["tui", "text"] {
        let flags = ["--format", format, "--interval", "20ms", "--grace", "0s"];
        let mut terminal = run_with(&flags, &["python3", "-c", &code]);
        terminal.await_text("alive");
        terminal.close();
        until("the command hears of it", || fs::read_to_string(&file).is_ok_and(|text| text == "written\n"));
        assert!(lives(terminal.child.id().cast_signed()));
        fs::write(&go, "").unwrap();
        assert_eq!(terminal.await_end().code(), Some(6), "{format}");
        fs::remove_file(&go).unwrap();
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn a_command_that_does_not_heed_a_hangup_ends_with_its_terminal() {
    for format in ["tui", "text"] {
        let mut terminal = run_with(&["--format", format, "--interval", "20ms"], &["sleep", "600"]);
        let supervisor = Process::new(terminal.child.id().cast_signed()).unwrap();
        until("it runs", || !descendants(&supervisor).is_empty());
        terminal.close();
        assert_eq!(terminal.await_end().code(), Some(128 + 1), "{format}");
    }
}

/// Processes called `sleep` below a supervisor.
fn descendants(supervisor: &Process) -> Vec<i32> {
    let children = |pid: i32| -> Vec<Process> {
        let all = procfs::process::all_processes().unwrap().filter_map(Result::ok);
        all.filter(|process| process.stat().is_ok_and(|stat| stat.ppid == pid)).collect()
    };
    let below = children(supervisor.pid).into_iter().flat_map(|guard| children(guard.pid));
    below
        .filter(|process| process.stat().is_ok_and(|stat| stat.comm == "sleep"))
        .map(|process| process.pid)
        .collect()
}

#[test]
fn a_command_without_a_terminal_gets_none() {
    // `setsid` leaves the terminal of whoever runs the tests behind.
    let code = "open('/dev/tty')";
    let flags = ["memory", "run", "--", "python3", "-c", code];
    let command = Finished::of(Command::new("setsid").args(["--wait", BINARY]).args(flags));
    assert_eq!(command.code, Some(1), "{}", command.errors);
    assert!(command.errors.contains("/dev/tty"), "{}", command.errors);
}
