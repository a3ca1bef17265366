//! `GET /v1/garden/processes`: processes that could be watched.
//!
//! A command line may hold paths and secrets. Whole ones are for the users of the machine, who see them
//! anyway; holders of keys get the names of program and script.

use crate::{
    api::{blocking, error::ApiError, extract::Json},
    app::App,
};
use axum::extract::State;
use garden_memory::probe::find_training;
use serde::Serialize;
use std::{fs, os::unix::fs::MetadataExt};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

/// The largest processes that are listed.
const MOST: usize = 12;
/// Characters of a command line.
const LONGEST: usize = 160;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(processes))
}

/// Processes of the server's user.
#[derive(Serialize, ToSchema)]
struct Processes {
    data: Vec<Process>,
}

#[derive(Serialize, ToSchema)]
struct Process {
    pid: i32,
    command: String,
    resident_bytes: u64,
    /// Why it is taken for a training, if it is.
    training: Option<String>,
}

/// Lists trainings that were found and the largest processes, all of the server's own user.
#[utoipa::path(get, path = "/v1/garden/processes", tag = "Garden", responses((status = 200, body = Processes)))]
async fn processes(State(app): State<App>) -> Result<Json<Processes>, ApiError> {
    let whole = app.config.is_local() && !app.guard.keys.are_needed();
    blocking(move || Ok(Json(Processes { data: found(whole) }))).await
}

fn found(whole: bool) -> Vec<Process> {
    let trainings = find_training().map(|found| [vec![found.chosen], found.others].concat());
    let ours = trainings.unwrap_or_default().into_iter().filter(|candidate| is_ours(candidate.pid));
    let mut data: Vec<Process> = ours
        .filter_map(|candidate| {
            let training = Some(candidate.evidence.to_string());
            Some(Process { training, resident_bytes: candidate.resident, ..read(candidate.pid, whole)? })
        })
        .collect();
    let largest = pids().filter(|pid| is_ours(*pid)).filter_map(|pid| read(pid, whole));
    let mut largest: Vec<Process> = largest.collect();
    largest.retain(|process| data.iter().all(|known| known.pid != process.pid));
    largest.sort_by_key(|process| std::cmp::Reverse(process.resident_bytes));
    largest.truncate(MOST);
    data.append(&mut largest);
    data
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process is there and belongs to the server's user.
pub(super) fn is_ours(pid: i32) -> bool {
    let own = rustix::process::geteuid().as_raw();
    pid > 0 && fs::metadata(format!("/proc/{pid}")).is_ok_and(|folder| folder.uid() == own)
}

fn read(pid: i32, whole: bool) -> Option<Process> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
    // Threads of the kernel have no memory of their own.
    let kilobytes: u64 = field("VmRSS:")?.split(' ').next()?.parse().ok()?;
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&words);
    let words: Vec<&str> = words.split('\0').collect();
    let command = if whole { words.join(" ").trim().to_owned() } else { names(&words) };
    let command = if command.is_empty() { field("Name:")?.to_owned() } else { command };
    Some(Process { pid, command: short(&command), resident_bytes: kilobytes * 1024, training: None })
}

/// The names of a program and its script, and nothing else of a command line.
fn names(words: &[&str]) -> String {
    let name = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    let Some((program, rest)) = words.split_first() else { return String::new() };
    // What follows -c is code.
    let plain = rest.iter().take_while(|word| **word != "-c").filter(|word| !word.starts_with('-'));
    let is_script = |word: &&&str| [".py", ".sh", ".js", ".pl", ".rb"].iter().any(|end| word.ends_with(end));
    let script = plain.into_iter().find(is_script).map(|script| format!(" {}", name(script)));
    name(program) + &script.unwrap_or_default()
}

fn short(command: &str) -> String {
    match command.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &command[..end]),
        None => command.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_ours_and_has_memory() {
        let own = std::process::id().cast_signed();
        assert!(is_ours(own) && !is_ours(-1) && !is_ours(0) && !is_ours(i32::MAX));
        assert!(
            read(own, true).is_some_and(|process| process.resident_bytes > 0 && !process.command.is_empty())
        );
        assert_eq!(short(&"é".repeat(LONGEST + 1)).chars().count(), LONGEST + 1);
    }

    #[test]
    fn holders_of_keys_see_programs_and_scripts() {
        for (words, shown) in [
            (&["/opt/a/bin/python3", "-u", "/home/anna/train.py", "--token=secret"][..], "python3 train.py"),
            (&["torchrun", "--nproc", "2", "src/train.py", "secret"], "torchrun train.py"),
            (&["bash", "-c", "curl secret | /tmp/run.sh"], "bash"),
            (&["/usr/bin/psql", "postgres://me:secret@db"], "psql"),
            (&[""], ""),
        ] {
            assert_eq!(names(words), shown);
        }
        let own = read(std::process::id().cast_signed(), false).unwrap();
        assert!(!own.command.is_empty() && !own.command.contains('/'), "{}", own.command);
    }
}
