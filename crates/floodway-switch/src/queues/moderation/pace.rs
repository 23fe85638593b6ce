//! What a stream of frames is like: how far apart they come, whether anybody answers, and what an interrupt does to it.

use floodway_core::time::{Duration, Instant};

use super::{LONGEST, RUN, SHORTEST};

/// Longest time between frames that is taken for a gap, in nanoseconds. A pause of the stream says nothing about the stream.
const PAUSE: u64 = 500_000;

/// An interrupt that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deferred {
    /// When the guest first wanted it.
    pub since: Instant,
    /// Frames that have come since, and their bytes; not counted for completions.
    pub frames: u64,
    pub bytes: u64,
    /// Until when it waits.
    pub due: Instant,
}

/// See the theory of operation of [`crate::queues::moderation`].
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The interrupt that waits now.
    pub deferred: Option<Deferred>,
    /// When frames came last.
    last: Option<Instant>,
    /// Mean time between frames in nanoseconds; zero while nothing is known.
    gap: u64,
    /// Mean delay of the sender by an interrupt, in nanoseconds.
    cost: u64,
    /// There was an interrupt after the last frames.
    interrupted: bool,
    /// Data frames up to now, up to the last answer, and up to the one before.
    data_frames: [u64; 3],
    /// Answers up to then.
    reverse_data_frames: u64,
}

impl Pace {
    /// `frames` have come. Without pure ACKs, `data_frames` have come so far, and `reverse_data_frames` went the other way.
    pub fn learn(&mut self, now: Instant, frames: u64, data_frames: u64, reverse_data_frames: u64) {
        let answered = reverse_data_frames != self.reverse_data_frames;
        if answered {
            self.reverse_data_frames = reverse_data_frames;
            self.data_frames = [self.data_frames[0], self.data_frames[0], self.data_frames[1]];
        }
        self.data_frames[0] = data_frames;
        let last = self.last.replace(now);
        let interrupted = std::mem::take(&mut self.interrupted);
        // Who was answered in between may have waited for that.
        let Some(last) = last.filter(|_| !answered) else { return };
        let took = (now.since(last).as_nanos() as u64).min(PAUSE);
        let gap = took / frames.max(1);
        if interrupted {
            let usual = if self.gap == 0 { took } else { self.gap * frames };
            self.cost = mean(self.cost, took.saturating_sub(usual));
        }
        self.gap = if self.gap == 0 { gap } else { mean(self.gap, gap) };
    }

    /// When the interrupt that waits is due.
    pub fn due(&self) -> Option<Instant> {
        self.deferred.map(|deferred| deferred.due)
    }

    /// The guest has been considered for an interrupt, which was sent or not.
    pub fn on_signal_decision(&mut self, interrupted: bool) {
        self.deferred = None;
        self.interrupted |= interrupted;
    }

    /// Mean time between frames in nanoseconds.
    pub fn gap(&self) -> u64 {
        self.gap
    }

    /// Nobody answers.
    pub fn is_one_way(&self) -> bool {
        self.runs().iter().any(|&run| run >= RUN)
    }

    /// As many have come as before the last answer: it may be time for the next one.
    pub fn may_be_over(&self) -> bool {
        let [run, before] = self.runs();
        run == before
    }

    /// Frames since the last answer, and in the run before.
    fn runs(&self) -> [u64; 2] {
        let [now, last, before] = self.data_frames;
        [now.wrapping_sub(last), last.wrapping_sub(before)]
    }

    /// Until when an interrupt may wait that was wanted first at `since`, if no more frames come.
    pub fn until(&self, now: Instant, since: Instant) -> Instant {
        let limit = Duration::from_nanos(4 * self.cost).clamp(SHORTEST, LONGEST);
        (now + Duration::from_nanos(2 * self.gap)).min(since + limit)
    }
}

/// A mean that follows: an eighth of the difference.
const fn mean(mean: u64, sample: u64) -> u64 {
    mean - mean / 8 + sample / 8
}
