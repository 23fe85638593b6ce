//! Independent runs side by side, one per core.
//!
//! # Theory of operation
//! A run has one thread and shares nothing with others, so a sweep parallelises over runs. Threads take the
//! next job from a counter; results are kept by job number, so neither order nor content depends on the number
//! of threads or on who was faster. Progress is told after each job, from whichever thread did
//! it.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// How far a sweep is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The job that was just finished.
    pub job: usize,
    /// Jobs finished.
    pub done: usize,
    /// Jobs in all.
    pub total: usize,
}

/// Does every job and gives back the results in the order of the jobs.
///
/// # Panics
/// If a job panics, when the others that were begun have ended.
pub fn sweep<J: Sync, R: Send>(
    jobs: &[J],
    threads: NonZeroUsize,
    run: impl Fn(&J) -> R + Sync,
    progress: impl Fn(Progress) + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<R>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let worker = || {
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            let (Some(input), Some(result)) = (jobs.get(job), results.get(job)) else { break };
            let output = run(input);
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(Progress { job, done, total: jobs.len() });
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.get().min(jobs.len()) {
            scope.spawn(worker);
        }
        worker();
    });
    let taken = |result: Mutex<Option<R>>| result.into_inner().ok().flatten();
    results.into_iter().map(|result| taken(result).expect("every job was done")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_whatever_the_threads() {
        let jobs: Vec<u64> = (0..100).collect();
        let expected: Vec<u64> = jobs.iter().map(|n| n * n).collect();
        for threads in [1, 2, 7, 200] {
            let told = Mutex::new(Vec::new());
            let got = sweep(
                &jobs,
                NonZeroUsize::new(threads).unwrap(),
                |n| n * n,
                |p| told.lock().unwrap().push((p.job, p.done)),
            );
            assert_eq!(got, expected);
            let mut told = told.into_inner().unwrap();
            told.sort_unstable_by_key(|t| t.1);
            assert_eq!(told.iter().map(|t| t.1).collect::<Vec<_>>(), (1..=100).collect::<Vec<_>>());
            told.sort_unstable();
            assert!(told.iter().enumerate().all(|(n, t)| t.0 == n));
        }
        let none: [u64; 0] = [];
        assert!(sweep(&none, NonZeroUsize::MIN, |n| n * n, |_| ()).is_empty());
    }
}
