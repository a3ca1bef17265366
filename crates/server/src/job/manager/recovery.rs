//! What a server finds when it starts: jobs that run, jobs that wait, and an index that may be behind.
//!
//! Every folder of a job is looked at. Those that are over go into the index if they are not there; the others are
//! taken over as they are, running ones with their memory reserved, and looked at like any other from then on.

use super::{Live, Manager, announce};
use crate::{
    data_dir::DataDir,
    job::{
        folder::JobFolder,
        journal::Level,
        planner::JobPlan,
        record::{JobRecord, KeyedRequest, Phase},
        runner::ProcessName,
    },
    store::MadeByKey,
};
use garden_memory::probe::Probe;
use std::{collections::BTreeSet, fs};

impl Manager {
    pub(super) fn recover(&mut self, notes: &mut Vec<String>) {
        let store = &self.surroundings.store;
        let known: BTreeSet<String> = store.all_job_ids().unwrap_or_default().into_iter().collect();
        let known_as_over: BTreeSet<String> =
            store.finished_job_ids().unwrap_or_default().into_iter().collect();
        let mut found = BTreeSet::new();
        let mut missing = Vec::new();
        let mut keys = Vec::new();
        for entry in fs::read_dir(self.surroundings.data.jobs()).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(".new-") || name.starts_with(".deleted-") {
                // Never known to anybody, or not wanted any more.
                let _ = fs::remove_dir_all(entry.path());
                continue;
            }
            let Some(folder) = self.surroundings.data.job(&name).map(JobFolder::at) else { continue };
            let read = folder.read_record().and_then(|record| Ok((record, folder.read_state()?)));
            let (record, state) = match read {
                Ok(read) => read,
                Err(error) => {
                    notes.push(format!("the job {name} cannot be read and is left alone: {error}"));
                    continue;
                }
            };
            found.insert(name.clone());
            keys.extend(made_by_key(&record));
            self.newest = self.newest.max(record.number);
            let over = state.phase.is_final();
            // A server that died may have written the end to the folder and not to the index.
            if over && state.announced && known_as_over.contains(&name) {
                continue;
            }
            let mut job = Live::new(folder, record, state);
            if over && !job.state.announced {
                announce(&self.surroundings.on_end, &mut job);
            }
            while job.catch_up() {}
            missing.push((job.record.number, job.row()));
            if !over {
                self.take_over(job);
            }
        }
        for entry in fs::read_dir(self.surroundings.data.models()).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(".deleted-") {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let gone = known.difference(&found);
        gone.for_each(|id| drop(self.surroundings.store.delete_job_blocking(id)));
        missing.sort_by_key(|(number, _)| *number);
        let missing = missing.into_iter().map(|(_, row)| row).collect();
        let refilled = self.surroundings.store.refill_jobs_blocking(missing);
        let refilled = refilled.and_then(|()| self.surroundings.store.refill_keys_blocking(keys));
        if let Err(error) = refilled {
            notes.push(format!("the index is behind the folders: {error}"));
        }
        self.bring_index_up_to_date(true);
        self.publish();
    }

    fn take_over(&mut self, mut job: Live) {
        if job.state.phase == Phase::Running {
            let budget = &self.surroundings.budget;
            let bytes = job.plan.as_ref().map_or(0, |plan| plan.limit(budget.total()));
            job.reservation = Some(budget.reserve_anyway(bytes));
            job.tell(Level::Info, "found", "The server has started again and looks after the job");
        }
        let id = job.id().to_owned();
        self.live.insert(id.clone(), job);
        // The server may have died before it did what was wanted.
        self.signal(&id);
    }
}

fn made_by_key(record: &JobRecord) -> Option<MadeByKey> {
    let KeyedRequest { key, hash } = record.request.clone()?;
    Some(MadeByKey { key, hash, at: record.created_at.cast_signed(), job: record.id.clone() })
}

/// Bytes of this machine that the jobs of an earlier server hold now: at most their plans. One that still loads holds
/// less, and what it will take is not free.
pub(crate) fn held_by_running(data: &DataDir) -> u64 {
    let folders = fs::read_dir(data.jobs()).into_iter().flatten().flatten();
    let running = folders.filter_map(|entry| {
        let folder = JobFolder::at(data.job(entry.file_name().to_str()?)?);
        let state = folder.read_state().ok()?;
        if state.phase != Phase::Running || !folder.is_kept().ok()? {
            return None;
        }
        let plan: JobPlan = serde_json::from_value(folder.read_plan().ok()?).ok()?;
        let keeper = folder.read_attempt(state.attempt).ok()??;
        let pid = ProcessName::parse(&keeper.process).filter(ProcessName::lives)?.pid();
        let held = Probe::attach(pid).ok()?.snapshot().ok()??;
        Some(held.sample.rss.min(plan.total_bytes))
    });
    running.sum()
}
