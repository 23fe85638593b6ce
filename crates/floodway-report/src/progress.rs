//! Progress of long work: a bar on a terminal, plain lines elsewhere. Both go to standard error.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

/// How far a run is whose length is known, but for what has to be done again.
#[derive(Debug)]
pub struct Progress {
    started: Instant,
    total: AtomicU64,
    done: AtomicU64,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Starts counting `total` steps.
    #[must_use]
    pub fn start(total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| terminal_bar(total));
        Self { started: Instant::now(), total: total.into(), done: 0.into(), bar }
    }

    /// Says what is being done now; counts as one step.
    pub fn step(&self, what: &str) {
        let done = 1 + self.done.fetch_add(1, Ordering::Relaxed);
        match &self.bar {
            Some(bar) => {
                bar.set_position(done.saturating_sub(1));
                bar.set_message(what.to_owned());
            }
            None => {
                let seconds = self.started.elapsed().as_secs();
                eprintln!("[{seconds:>4} s] {done}/{} {what}", self.total());
            }
        }
    }

    /// Says what is being done again; the run is one step longer for it.
    pub fn step_again(&self, what: &str) {
        self.total.fetch_add(1, Ordering::Relaxed);
        if let Some(bar) = &self.bar {
            bar.inc_length(1);
        }
        self.step(what);
    }

    /// Steps of the whole run, as far as is known.
    fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn terminal_bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    // The template is a constant that indicatif understands; its default bar would do as well.
    if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} {bar:24} {pos}/{len} {wide_msg}")
    {
        bar.set_style(style);
    }
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_again_makes_a_run_longer() {
        let progress = Progress::start(2);
        progress.step("a block");
        progress.step_again("the block again");
        progress.step("the next block");
        assert_eq!((progress.done.load(Ordering::Relaxed), progress.total()), (3, 3));
    }
}
