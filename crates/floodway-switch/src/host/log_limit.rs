//! Log lines that outsiders can cause: a few at once, then a trickle.
//!
//! Each port has a [`LogLimit`] of its own, so that one guest or front-end cannot keep another's lines out of the log. What was left
//! out is counted, and the next line says how many (`suppressed`).

use std::sync::Mutex;
use std::time;

use floodway_core::time::Instant;
use floodway_core::token_bucket::TokenBucket;

use crate::sync::lock;

/// Lines that may come at once.
const BURST: u64 = 20;
/// Lines per second after that.
const RATE: u64 = 1;

/// The limit of one port.
#[derive(Debug)]
pub struct LogLimit {
    started: time::Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    bucket: TokenBucket,
    suppressed: u64,
}

impl Default for LogLimit {
    fn default() -> Self {
        let bucket = TokenBucket::new(RATE, BURST, Instant::ZERO);
        let state = Mutex::new(State { bucket, suppressed: 0 });
        Self { started: time::Instant::now(), state }
    }
}

impl LogLimit {
    /// Returns the number of lines that were left out before, or `None` if this one has to be left out, too.
    pub fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::from_nanos(self.started.elapsed().as_nanos() as u64))
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.state);
        if state.bucket.take(1, now) {
            return Some(std::mem::take(&mut state.suppressed));
        }
        state.suppressed += 1;
        None
    }
}

/// Logs a line about a port that its guest or front-end has caused and that is no event, unless there were too many.
macro_rules! log_limited {
    ($level:ident, $port:expr, $($line:tt)+) => {
        if let Some(suppressed) = $port.events.limit.admit() {
            // Only where there were any.
            let suppressed = (suppressed > 0).then_some(suppressed);
            tracing::$level!(port = $port.config.name, suppressed, $($line)+);
        }
    };
}
pub(crate) use log_limited;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_burst_are_counted_and_trickle() {
        let limit = LogLimit::default();
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let admitted = |ms, n: usize| (0..n).filter(|_| limit.admit_at(at(ms)).is_some()).count();
        assert_eq!(admitted(0, 1000), BURST as usize);
        assert_eq!(admitted(999, 10), 0);
        assert_eq!(limit.admit_at(at(1000)), Some(990));
        assert_eq!(limit.admit_at(at(2000)), Some(0));
    }
}
