//! How many threads ask other hosts: front-ends decide when that is done, so it is bounded for each port and for all together.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Threads that ask hosts at once, of all ports.
pub(super) const ASKERS: usize = 256;
/// Between two VMs for which a port asks, on average.
const INTERVAL: Duration = Duration::from_secs(1);
/// How many VMs a port may ask for in a row.
pub(super) const IN_A_ROW: u32 = 4;

/// Threads that ask hosts.
#[derive(Debug, Default)]
pub(super) struct Askers(AtomicUsize);

/// A VM for which hosts are asked: its threads hold it.
#[derive(Debug, Default)]
pub(super) struct Asking {
    is_over: AtomicBool,
}

/// A thread that asks, or is about to be started.
#[derive(Debug)]
pub(super) struct Asker {
    askers: Arc<Askers>,
    asking: Arc<Asking>,
}

/// How often something of a port may be done: once an interval on average.
#[derive(Debug)]
pub(super) struct Pace {
    /// When it would be done next if it had always been done at the interval.
    due: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { due: Instant::now() }
    }

    /// Returns `true` if it may be done now, which counts as done: `in_a_row` times without a pause.
    pub(super) fn take(&mut self, in_a_row: u32) -> bool {
        let now = Instant::now();
        let may = self.due <= now + INTERVAL * (in_a_row - 1);
        if may {
            self.due = self.due.max(now) + INTERVAL;
        }
        may
    }

    /// Returns `true` if a new one would not differ.
    pub(super) fn is_over(&self) -> bool {
        self.due <= Instant::now()
    }
}

/// What a port has asked.
#[derive(Debug)]
pub(super) struct Asked {
    /// Alive as long as its threads.
    last: Weak<Asking>,
    pace: Pace,
}

impl Asked {
    pub(super) fn new() -> Self {
        Self { last: Weak::new(), pace: Pace::new() }
    }

    /// Takes `count` threads for the next VM of the port.
    ///
    /// # Errors
    /// Why there are none, for operators.
    pub(super) fn begin(
        &mut self,
        askers: &Arc<Askers>,
        count: usize,
    ) -> Result<Vec<Asker>, &'static str> {
        if self.last.strong_count() > 0 {
            return Err("hosts are still asked for the port's last move");
        }
        if !self.pace.take(IN_A_ROW) {
            return Err("the port's VM is about to move too often");
        }
        let before = askers.0.fetch_add(count, Ordering::Relaxed);
        let asking = Arc::new(Asking::default());
        let asker = || Asker { askers: Arc::clone(askers), asking: Arc::clone(&asking) };
        let taken = (0..count).map(|_| asker()).collect();
        if before + count > ASKERS {
            return Err("hosts are asked for too many other VMs");
        }
        self.last = Arc::downgrade(&asking);
        Ok(taken)
    }

    /// Returns `true` if nothing of it matters any more.
    pub(super) fn is_over(&self) -> bool {
        self.last.strong_count() == 0 && self.pace.is_over()
    }
}

impl Asker {
    /// Nobody waits for answers any more.
    pub(super) fn end(&self) {
        self.asking.is_over.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if nobody does.
    pub(super) fn is_over(&self) -> bool {
        self.asking.is_over.load(Ordering::Relaxed)
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.askers.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_asks_when_it_has_no_thread_and_not_too_often() {
        let askers = Arc::default();
        let mut asked = Asked::new();
        let threads = asked.begin(&askers, 2).unwrap();
        assert_eq!(
            asked.begin(&askers, 2).unwrap_err(),
            "hosts are still asked for the port's last move"
        );
        drop(threads);
        asked.pace.due = Instant::now();
        for _ in 0..IN_A_ROW {
            drop(asked.begin(&askers, 1).unwrap());
        }
        asked.pace.due += INTERVAL * 60;
        assert_eq!(
            asked.begin(&askers, 1).unwrap_err(),
            "the port's VM is about to move too often"
        );
        assert!(!asked.is_over());
        asked.pace.due = Instant::now();
        assert!(asked.is_over());
    }

    #[test]
    fn all_ports_together_have_so_many_threads_and_no_more() {
        let askers = Arc::default();
        let threads = Asked::new().begin(&askers, ASKERS).unwrap();
        let mut next = Asked::new();
        assert_eq!(next.begin(&askers, 1).unwrap_err(), "hosts are asked for too many other VMs");
        drop(threads);
        assert_eq!(askers.0.load(Ordering::Relaxed), 0);
        next.begin(&askers, ASKERS).unwrap();
    }
}
