//! The engine of one machine: a thread per core.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;

use anyhow::Result;
use floodway_report::progress::Progress;
use floodway_sim::engine;

use super::RETRIES;
use super::journal::{Journal, Line};
use super::plan::Task;

/// Executes the tasks and writes what became of them, in the order in which they end.
///
/// # Errors
/// When the journal cannot be written. Tasks that fail are in the journal.
pub fn run(tasks: &[&Task], threads: Option<NonZeroUsize>, journal: &mut Journal) -> Result<()> {
    let threads = threads.or_else(|| available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN);
    let progress = Progress::start(tasks.len() as u64);
    // Long runs first, so that none is left alone at the end.
    let mut order = tasks.to_vec();
    order.sort_by_key(|task| std::cmp::Reverse(task.task.work.effort()));
    let journal = Mutex::new(journal);
    let written = engine::sweep(
        &order,
        threads,
        |task| {
            let line = Line::new(task.run, attempt(task));
            journal.lock().unwrap_or_else(PoisonError::into_inner).append(&line)
        },
        |done| progress.step(&order[done.job].describe()),
    );
    written.into_iter().collect()
}

fn attempt(task: &Task) -> Result<Vec<crate::simulation::Measurement>> {
    let mut outcome = task.execute();
    for _ in 0..RETRIES {
        if outcome.is_ok() {
            break;
        }
        outcome = task.execute();
    }
    outcome
}
