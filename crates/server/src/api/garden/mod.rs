//! What the pages need beside OpenAI's API; any other client may ask for it too.

mod analyze;
mod answers;
mod chat;
mod datasets;
mod energy;
mod machine;
mod options;
mod processes;
mod storage;
mod watch;

use crate::app::App;
use utoipa_axum::router::OpenApiRouter;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .merge(options::routes())
        .merge(datasets::routes())
        .merge(analyze::routes())
        .merge(answers::routes())
        .merge(chat::routes())
        .merge(watch::routes())
        .merge(processes::routes())
        .merge(machine::routes())
        .merge(storage::routes())
        .merge(energy::routes())
}
