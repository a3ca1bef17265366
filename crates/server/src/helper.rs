//! Short commands of the program, run in children: whatever reads what clients have sent.
//!
//! Takes the words of a command and gives what it prints. A child has an environment without secrets, bounded time,
//! memory and output, and a turn: only a few run at once. It ends with the request that asked for it.

use crate::{api::error::ApiError, app::App};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::{ffi::OsString, process::Stdio, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    sync::Semaphore,
    time,
};

/// Children of this kind at once: they use all cores while they read rows.
static TURNS: Semaphore = Semaphore::const_new(2);
/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(60);
/// An error is a few lines.
const LONGEST_ERROR: u64 = 64 << 10;

/// What a child may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub time: Duration,
    /// Bytes of its own memory.
    pub memory: u64,
    /// Bytes that it may print.
    pub output: u64,
}

impl Bounds {
    /// Enough to read every row of a large dataset.
    pub(crate) const ROWS: Self = Self { time: Duration::from_secs(600), memory: 4 << 30, output: 8 << 20 };
    /// Enough for a few rows with their images.
    pub(crate) const LOOK: Self = Self { time: Duration::from_secs(60), memory: 2 << 30, output: 64 << 20 };
}

/// A command of the program, not yet started.
pub(crate) fn command(app: &App, words: &[OsString]) -> Command {
    let mut command = app.program.helper_command();
    command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Bounds the memory and the files of a child that has just begun.
pub(crate) fn bound(app: &App, child: &Child, bytes: u64) {
    app.program.bound_files(child.id());
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    // A child that is gone already needs no bound.
    let _ = pid.map(|pid| prlimit(Some(pid), Resource::Data, limit));
}

/// What a command prints, if it ends with one of these exit codes; otherwise its error, as the client's to mend.
pub(crate) async fn ask(
    app: &App,
    words: &[OsString],
    bounds: Bounds,
    fine: &[i32],
) -> Result<Vec<u8>, ApiError> {
    let busy = || ApiError::busy("others are being served; try again in a moment", 10);
    let _turn = time::timeout(PATIENCE, TURNS.acquire()).await.map_err(|_| busy())?;
    let mut child = command(app, words)
        .spawn()
        .map_err(|error| ApiError::internal(format!("cannot start a process: {error}")))?;
    bound(app, &child, bounds.memory);
    let _line = child.stdin.take();
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let all = async {
        // One byte more than is allowed tells that there was more.
        let (output, errors) = tokio::join!(read(output, bounds.output + 1), read(errors, LONGEST_ERROR));
        (output, errors, child.wait().await)
    };
    let slow = |_| {
        ApiError::bad_request(format!("it takes longer than {} s: use a smaller file", bounds.time.as_secs()))
    };
    let (output, errors, status) = time::timeout(bounds.time, all).await.map_err(slow)?;
    let status = status.map_err(ApiError::internal)?;
    if output.len() as u64 > bounds.output {
        return Err(ApiError::bad_request("the answer is larger than this route gives: ask for less"));
    }
    match status.code() {
        Some(code) if fine.contains(&code) => Ok(output),
        // Where the server keeps things is nobody's business.
        Some(_) => Err(ApiError::bad_request(app.program.without_folders(&words_of(&errors)))),
        None => {
            if let Some(words) = app.program.wrote_too_much(status) {
                return Err(ApiError::bad_request(words));
            }
            let memory = garden_memory::ByteSize(bounds.memory);
            Err(ApiError::bad_request(format!(
                "its process was killed ({status}); it may take {memory} of memory"
            )))
        }
    }
}

/// A child's words about a file, under the name that its owner gave it.
pub(crate) fn named(app: &App, words: &str, path: &str, name: &str) -> String {
    let program = &app.program;
    program.without_folders(words).replace(&program.without_folders(path), name)
}

async fn read(stream: Option<impl AsyncRead + Unpin>, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // What came before a broken pipe is still an answer.
        let _ = stream.take(most).read_to_end(&mut bytes).await;
    }
    bytes
}

/// The error that a command ended with.
fn words_of(errors: &[u8]) -> String {
    let text = String::from_utf8_lossy(errors);
    let line = text.lines().rev().find_map(|line| line.strip_prefix("error: "));
    line.or(text.lines().last()).unwrap_or("it failed without a word").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_the_line_that_says_so() {
        assert_eq!(words_of(b"reading\nerror: row 3 is bad\n"), "row 3 is bad");
        assert_eq!(words_of(b"out of memory\n"), "out of memory");
        assert_eq!(words_of(b""), "it failed without a word");
    }
}
