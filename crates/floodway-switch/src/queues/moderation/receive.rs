//! Interrupts for frames that have come to a guest.

use floodway_core::time::Instant;

use super::pace::{Deferred, Pace};

/// Mean gap between frames above which there is no stream.
const SPARSE: u64 = 250_000;
/// Frames that are worth an interrupt: what Linux takes in one NAPI poll.
const FRAMES: u64 = 64;
/// Bytes that are worth an interrupt: a GSO packet.
const BYTES: u64 = 32 << 10;

/// The state of one receive queue. See the theory of operation of [`crate::queues::moderation`].
///
/// An interrupt that the guest wants waits while frames come one way, less than `SPARSE` apart on average, and since it was first
/// wanted less than `BYTES` have come and fewer than `FRAMES` frames. A GSO packet is reason enough by itself, and so is the last
/// frame of a message whose like was answered before.
#[derive(Debug, Default)]
pub struct Moderation {
    pace: Pace,
}

/// Frames that were delivered together.
#[derive(Clone, Copy, Debug)]
pub struct Delivered {
    /// How many, at least 1.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that the guest was given so far, without bare acknowledgements.
    pub data_frames: u64,
    /// Answers that the guest has sent so far, counted alike.
    pub reverse_data_frames: u64,
}

impl Moderation {
    /// Frames have come. `wanted` says whether the guest wants an interrupt for them, or for those before. Returns
    /// until when that waits at most; `None` if it must not wait.
    pub fn delivered(&mut self, now: Instant, what: Delivered, wanted: bool) -> Option<Instant> {
        self.pace.learn(now, what.frames, what.data_frames, what.reverse_data_frames);
        if !wanted {
            self.pace.deferred = None;
            return None;
        }
        let none = Deferred { since: now, frames: 0, bytes: 0, due: now };
        let before = self.pace.deferred.unwrap_or(none);
        let frames = before.frames + what.frames;
        let bytes = before.bytes + what.bytes;
        let due = self.pace.until(now, before.since);
        let is_stream =
            self.pace.gap() < SPARSE && self.pace.is_one_way() && !self.pace.may_be_over();
        let waits = is_stream && frames < FRAMES && bytes < BYTES && due > now;
        self.pace.deferred = waits.then_some(Deferred { frames, bytes, due, ..before });
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
    use floodway_core::time::Duration;

    use super::*;
    use crate::queues::moderation::LONGEST;

    const US: u64 = 1000;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(1_000_000 + ns)
    }

    fn small(data_frames: u64, reverse_data_frames: u64) -> Delivered {
        Delivered { frames: 1, bytes: 64, data_frames, reverse_data_frames }
    }

    /// Small frames of a stream every `gap`; answers how many interrupts it took. Each delays the sender by `cost`.
    fn stream(moderation: &mut Moderation, gap: u64, cost: u64, frames: u64) -> (u32, u64) {
        let (mut now, mut interrupts, mut longest, mut wanted) = (0, 0, 0, None);
        for data_frames in 1..=frames {
            now += gap;
            if moderation.due().is_some_and(|due| due <= at(now)) {
                moderation.on_signal_decision(true);
                (interrupts, wanted) = (interrupts + 1, None);
                now += cost;
            }
            let first = *wanted.get_or_insert(now);
            if moderation.delivered(at(now), small(data_frames, 0), true).is_none() {
                longest = longest.max(now - first);
                moderation.on_signal_decision(true);
                (interrupts, wanted) = (interrupts + 1, None);
                now += cost;
            }
        }
        (interrupts, longest)
    }

    #[test]
    fn a_stream_of_small_frames_takes_few_interrupts() {
        let mut moderation = Moderation::default();
        let (interrupts, _) = stream(&mut moderation, 5 * US, 0, 1000);
        // 50 us at a frame every 5 us.
        assert!((70..=140).contains(&interrupts), "{interrupts}");
    }

    #[test]
    fn where_an_interrupt_costs_the_sender_its_turn_there_are_fewer() {
        let mut shared = Moderation::default();
        let (on_one_core, longest) = stream(&mut shared, 5 * US, 100 * US, 1000);
        assert!(on_one_core < 40, "{on_one_core}");
        assert!(longest <= LONGEST.as_nanos() as u64, "{longest}");
    }

    #[test]
    fn requests_and_replies_never_wait() {
        let mut moderation = Moderation::default();
        for turn in 0..1000 {
            assert_eq!(moderation.delivered(at(turn * 20 * US), small(turn + 1, turn), true), None);
            moderation.on_signal_decision(true);
        }
    }

    #[test]
    fn the_last_fragment_of_a_request_does_not_wait() {
        let mut moderation = Moderation::default();
        let mut now = 0;
        for turn in 0..100 {
            for fragment in 0..12 {
                now += 2 * US;
                let data_frames = 12 * turn + fragment + 1;
                let due = moderation.delivered(at(now), small(data_frames, turn), true);
                if turn > 2 {
                    assert_eq!(due.is_some(), fragment < 11, "{turn} {fragment}");
                }
            }
            moderation.on_signal_decision(true);
            now += 400 * US;
        }
    }

    #[test]
    fn bare_acknowledgements_make_no_stream() {
        let mut moderation = Moderation::default();
        for n in 0..100 {
            let ack = small(0, n / 8);
            assert_eq!(moderation.delivered(at(n * 5 * US), ack, true), None);
            moderation.on_signal_decision(true);
        }
    }

    #[test]
    fn large_messages_never_wait() {
        let mut moderation = Moderation::default();
        stream(&mut moderation, 5 * US, 0, 100);
        let large =
            Delivered { frames: 1, bytes: 65_000, data_frames: 101, reverse_data_frames: 0 };
        assert_eq!(moderation.delivered(at(600 * US), large, true), None);
    }

    #[test]
    fn sparse_frames_never_wait() {
        let mut moderation = Moderation::default();
        for n in 0..100 {
            assert_eq!(moderation.delivered(at(n * 300 * US), small(n + 1, 0), true), None);
            moderation.on_signal_decision(true);
        }
    }

    #[test]
    fn a_stream_that_stops_is_told_of_after_two_gaps() {
        let mut moderation = Moderation::default();
        stream(&mut moderation, 5 * US, 0, 200);
        moderation.on_signal_decision(true);
        let now = at(1100 * US);
        let _ = moderation.delivered(now, small(201, 0), true);
        moderation.on_signal_decision(false);
        let next = now + Duration::from_micros(5);
        let due = moderation.delivered(next, small(202, 0), true).expect("a stream");
        assert!(due.since(next) <= Duration::from_micros(60), "{:?}", due.since(next));
    }

    #[test]
    fn who_polls_is_not_interrupted() {
        let mut moderation = Moderation::default();
        stream(&mut moderation, 5 * US, 0, 100);
        assert_eq!(moderation.delivered(at(600 * US), small(101, 0), false), None);
        assert_eq!(moderation.due(), None);
    }
}
