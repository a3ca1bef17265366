//! Asking the models of a job, one after another, in the background.

use super::{
    kept::{Kept, Line, Said},
    rows::{questions, shown},
};
use crate::{
    api::error::ApiError,
    app::App,
    chat::HostKey,
    job::{folder::JobFolder, record::JobRecord},
};
use garden_chat::{ChatRequest, Reply};
use garden_model::Precision;
use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// The longest answer in tokens.
const LONGEST: usize = 96;
/// Jobs whose last error is remembered.
const REMEMBERED: usize = 256;

/// What is asked of a job now, and why the last question failed. Jobs have ids of their own across servers.
static ASKED: LazyLock<Mutex<HashMap<String, Asking>>> = LazyLock::new(Mutex::default);

/// Where the asking of a job stands.
#[derive(Debug, Clone, Default)]
pub(super) struct Asking {
    model: Option<String>,
    error: Option<String>,
}

fn asked() -> MutexGuard<'static, HashMap<String, Asking>> {
    ASKED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Asking {
    /// Which model of a job is asked now, and the last error.
    pub(super) fn of(id: &str) -> (Option<String>, Option<String>) {
        let state = asked().get(id).cloned().unwrap_or_default();
        (state.model, state.error)
    }

    fn tell(id: &str, model: Option<String>, error: Option<String>) {
        let mut all = asked();
        if all.len() >= REMEMBERED {
            all.retain(|_, state| state.model.is_some());
        }
        all.insert(id.to_owned(), Self { model, error });
    }

    /// Begins to ask the models of a job; one job is asked at a time.
    pub(super) fn begin(app: App, id: String, folder: JobFolder) -> Result<(), ApiError> {
        let busy = asked().values().any(|state| state.model.is_some());
        if busy {
            return Err(ApiError::busy("a job is being asked already", 10));
        }
        Self::tell(&id, Some("the rows".into()), None);
        tokio::spawn(async move {
            let work = ask(&app, &id, &folder);
            let end = tokio::select! {
                end = work => end,
                () = app.stopping.wait() => Ok(()),
            };
            Self::tell(&id, None, end.err().map(|error| error.message));
        });
        Ok(())
    }
}

async fn ask(app: &App, id: &str, folder: &JobFolder) -> Result<(), ApiError> {
    let disk = |error: std::io::Error| ApiError::disk(&error);
    let record = folder.read_record().map_err(disk)?;
    let mut kept = Kept::read(folder).map_err(disk)?;
    if kept.rows.is_empty() {
        for row in shown(app, &record).await? {
            Kept::add(folder, &Line::Row(row)).map_err(disk)?;
        }
        kept = Kept::read(folder).map_err(disk)?;
    }
    let questions = questions(app, &record).await?;
    for (step, model) in models(&record, folder) {
        let open = questions.iter().filter(|question| !kept.has(question.row, step));
        for question in open {
            Asking::tell(id, Some(model.clone()), None);
            let began = Instant::now();
            let text = match answer(app, &model, question.messages.clone()).await {
                // The run keeps its last checkpoints only: one that went meanwhile is passed over.
                Err(_) if step > 0 && !folder.checkpoints().contains(&step) => break,
                answered => answered?,
            };
            let said = Said { step, text, seconds: began.elapsed().as_secs_f64() };
            Kept::add(folder, &Line::Answer { row: question.row, said }).map_err(disk)?;
        }
    }
    Ok(())
}

/// The base model and the checkpoints, by their steps.
fn models(record: &JobRecord, folder: &JobFolder) -> Vec<(u64, String)> {
    let tuned = record.tuned_model();
    let checkpoints =
        folder.checkpoints().into_iter().map(|step| (step, format!("{tuned}:ckpt-step-{step}")));
    std::iter::once((0, record.base.clone())).chain(checkpoints).collect()
}

async fn answer(app: &App, model: &str, messages: Vec<garden_chat::Message>) -> Result<String, ApiError> {
    let (models, name) = (app.models.clone(), model.to_owned());
    let key = move || Ok(HostKey::new(&models.find_ready(&name)?, Precision::AsStored));
    let key = crate::api::blocking(key).await?;
    let request = ChatRequest { max_tokens: Some(LONGEST), ..ChatRequest::new(messages) };
    let mut answer = app.chat.ask(model, key, request).await?;
    let mut text = String::new();
    while let Some(reply) = answer.next().await {
        match reply {
            Reply::Piece { text: piece, .. } => text.push_str(&piece),
            Reply::End { .. } => return Ok(text),
            Reply::Fault(fault) => return Err(ApiError::internal(fault.message)),
        }
    }
    Err(ApiError::internal("the model's process broke off its answer"))
}
