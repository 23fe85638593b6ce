//! Interrupts for frames that a guest has sent and that are done with.

use floodway_core::time::Instant;

use super::pace::{Deferred, Pace};

/// The state of one transmit queue. See the theory of operation of [`crate::queues::moderation`].
///
/// An interrupt that the guest wants waits while the guest goes on sending one way, and less than half of its ring has been given
/// back since it was told last. A guest that waits for room pauses, or has used up its ring.
#[derive(Debug, Default)]
pub struct Completions {
    pace: Pace,
}

/// Frames that were taken from a guest and given back together.
#[derive(Clone, Copy, Debug)]
pub struct Completed {
    /// How many, at least 1.
    pub frames: u64,
    /// Frames that the guest has sent so far, without bare acknowledgements.
    pub data_frames: u64,
    /// Answers that it was given so far, counted alike.
    pub reverse_data_frames: u64,
    /// Descriptor chains given back since the guest was last told or did not want to be.
    pub used_since_signal: u16,
    /// Entries of the ring.
    pub size: u16,
}

impl Completions {
    /// Descriptors were given back. `wanted` says whether the guest wants an interrupt for them, or for those before. Returns
    /// until when that waits at most; `None` if it must not wait.
    pub fn completed(&mut self, now: Instant, what: Completed, wanted: bool) -> Option<Instant> {
        self.pace.learn(now, what.frames, what.data_frames, what.reverse_data_frames);
        let since = self.pace.deferred.map_or(now, |deferred| deferred.since);
        let due = self.pace.until(now, since);
        let waits =
            wanted && self.pace.is_one_way() && what.used_since_signal < what.size / 2 && due > now;
        self.pace.deferred = waits.then_some(Deferred { since, frames: 0, bytes: 0, due });
        waits.then_some(due)
    }

    /// Returns until when the interrupt waits that waits now.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.pace.due()
    }

    /// The guest has been considered for an interrupt, which was sent or not.
    pub fn on_signal_decision(&mut self, interrupted: bool) {
        self.pace.on_signal_decision(interrupted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues::moderation::{LONGEST, SHORTEST};

    const US: u64 = 1000;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(1_000_000 + ns)
    }

    fn one(data_frames: u64, reverse_data_frames: u64, used_since_signal: u16) -> Completed {
        Completed { frames: 1, data_frames, reverse_data_frames, used_since_signal, size: 256 }
    }

    /// A guest sends a frame every `gap`, and wants each interrupt. Each delays it by `cost`. Answers how many there were, and how
    /// long the longest waited.
    fn stream(completions: &mut Completions, gap: u64, cost: u64, frames: u64) -> (u32, u64) {
        let (mut now, mut interrupts, mut longest, mut first) = (0, 0, 0, None);
        for data_frames in 1..=frames {
            now += gap;
            let late = completions.due().is_some_and(|due| due <= at(now));
            if late || completions.completed(at(now), one(data_frames, 0, 0), true).is_none() {
                completions.on_signal_decision(true);
                longest = longest.max(now - first.take().unwrap_or(now));
                interrupts += 1;
                now += cost;
            } else {
                first.get_or_insert(now);
            }
        }
        (interrupts, longest)
    }

    #[test]
    fn who_goes_on_sending_is_told_once_in_the_limit() {
        let mut completions = Completions::default();
        let (interrupts, longest) = stream(&mut completions, 5 * US, 0, 1000);
        assert!((50..=140).contains(&interrupts), "{interrupts}");
        assert!(longest <= SHORTEST.as_nanos() as u64 + 5 * US, "{longest}");
    }

    #[test]
    fn where_an_interrupt_takes_the_core_away_there_are_fewer() {
        let mut shared = Completions::default();
        let (interrupts, longest) = stream(&mut shared, 5 * US, 200 * US, 2000);
        assert!(interrupts < 40, "{interrupts}");
        assert!(longest <= LONGEST.as_nanos() as u64 + 5 * US, "{longest}");
    }

    #[test]
    fn who_asks_and_is_answered_is_told_at_once() {
        let mut completions = Completions::default();
        for turn in 0..1000 {
            for part in 0..2 {
                let now = at((100 * turn + part) * US);
                assert_eq!(
                    completions.completed(now, one(2 * turn + part + 1, turn, 0), true),
                    None
                );
                completions.on_signal_decision(true);
            }
        }
    }

    #[test]
    fn who_pauses_is_told_after_two_gaps() {
        let mut completions = Completions::default();
        stream(&mut completions, 5 * US, 0, 100);
        completions.on_signal_decision(true);
        let now = at(600 * US);
        let due = completions.completed(now, one(101, 0, 0), true).expect("a stream");
        assert!(due.since(now).as_nanos() as u64 <= 40 * US, "{:?}", due.since(now));
    }

    #[test]
    fn half_a_ring_given_back_does_not_wait() {
        let mut completions = Completions::default();
        stream(&mut completions, 5 * US, 0, 100);
        completions.on_signal_decision(true);
        assert!(completions.completed(at(505 * US), one(101, 0, 127), true).is_some());
        assert_eq!(completions.completed(at(510 * US), one(102, 0, 128), true), None);
        assert_eq!(completions.due(), None);
    }

    #[test]
    fn who_frees_by_itself_is_not_told() {
        let mut completions = Completions::default();
        stream(&mut completions, 5 * US, 0, 100);
        assert_eq!(completions.completed(at(505 * US), one(101, 0, 0), false), None);
        assert_eq!(completions.due(), None);
    }
}
