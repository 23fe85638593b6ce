//! Interrupt moderation: when a guest hears of frames from a neighbour.
//!
//! # Theory of operation
//! **Goal**: a stream of small messages between guests of one host must not cost an interrupt each. An interrupt is
//! work for the guest, and if it shares its core with the sender, it takes the core away from the one that
//! has more to send: two switches of VMs for one message ("Residency Aware Inter-VM Communication", section 4.3).
//!
//! Frames become visible at once, whatever happens here; only the interrupt waits, for those of the frames that follow. A
//! guest that looks by itself finds them. An interrupt that the guest wants waits while all of this holds:
//!
//! - **One way**: the guest was given at least [`RUN`] frames for one that it sent. Requests and replies come in
//!   turns, and so do acknowledgements and data: nobody would gain if they waited.
//! - **Dense**: frames come less than [`SPARSE`] apart on average.
//! - **Small**: since the interrupt was first wanted, less than [`BYTES`] have come and fewer than [`FRAMES`] frames. A
//!   super-frame is reason enough by itself.
//! - **Not over**: the next frame is at most two mean gaps late. A sender that pauses may be waiting for an answer.
//! - **Within the limit** since it was first wanted. The limit is four times what an interrupt costs the sender: the time
//!   from an interrupt to the next frame beyond a usual gap, which is nothing where both have a core, and
//!   the receiver's turn where they share one. It lies between [`SHORTEST`] and [`LONGEST`].
//!
//! **Who ends it**: the worker that let an interrupt wait looks again at the time that it was told; any delivery to the queue may be
//! earlier. Times are that worker's clock readings.
//!
//! **Invariant**: a guest that wants an interrupt gets it at most [`LONGEST`] after it wanted it first, plus the length of one
//! round of the worker. Frames from uplinks never wait.

use floodway_core::time::{Duration, Instant};

/// Frames to a guest for one from it that make a stream.
const RUN: u32 = 4;
/// Mean gap between frames above which there is no stream.
const SPARSE: u64 = 250_000;
/// Frames that are worth an interrupt: what Linux takes in one NAPI poll.
const FRAMES: u64 = 64;
/// Bytes that are worth an interrupt: a super-frame.
const BYTES: u64 = 32 << 10;
/// Limit where an interrupt costs the sender nothing.
const SHORTEST: Duration = Duration::from_micros(50);
/// Limit where it costs much.
const LONGEST: Duration = Duration::from_millis(1);

/// An interrupt that waits.
#[derive(Clone, Copy, Debug)]
struct Held {
    since: Instant,
    frames: u64,
    bytes: u64,
    due: Instant,
}

/// The state of one receive queue. See the module's theory of operation.
#[derive(Debug, Default)]
pub struct Moderation {
    held: Option<Held>,
    /// When frames came last.
    last: Option<Instant>,
    /// Mean time between frames in nanoseconds; zero while nothing is known.
    gap: u64,
    /// Mean delay of the sender by an interrupt, in nanoseconds.
    cost: u64,
    /// The guest was interrupted after the last frames.
    interrupted: bool,
    /// Frames since the guest sent something, and in the run before.
    runs: [u32; 2],
    /// Frames that the guest had sent then.
    sent: u64,
}

/// Frames that were delivered together.
#[derive(Clone, Copy, Debug)]
pub struct Delivered {
    /// How many, at least 1.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that the guest itself has sent so far.
    pub sent: u64,
}

impl Moderation {
    /// Frames have come. `wanted` says whether the guest wants an interrupt for them, or for those before. Answers
    /// until when that waits at most; none if it must not wait.
    pub fn delivered(&mut self, now: Instant, what: Delivered, wanted: bool) -> Option<Instant> {
        self.learn(now, what);
        if !wanted {
            self.held = None;
            return None;
        }
        let before = self.held.unwrap_or(Held { since: now, frames: 0, bytes: 0, due: now });
        let frames = before.frames + what.frames;
        let bytes = before.bytes + what.bytes;
        let due = (now + Duration::from_nanos(2 * self.gap)).min(before.since + self.limit());
        let waits = self.is_stream() && frames < FRAMES && bytes < BYTES && due > now;
        self.held = waits.then_some(Held { frames, bytes, due, ..before });
        waits.then_some(due)
    }

    /// Until when the interrupt waits that waits now.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.held.map(|held| held.due)
    }

    /// The guest has been considered for an interrupt, which was sent or not.
    pub fn considered(&mut self, interrupted: bool) {
        self.held = None;
        self.interrupted |= interrupted;
    }

    fn learn(&mut self, now: Instant, Delivered { frames, sent, .. }: Delivered) {
        if sent != self.sent {
            self.sent = sent;
            self.runs = [0, self.runs[0]];
        }
        self.runs[0] = self.runs[0].saturating_add(u32::try_from(frames).unwrap_or(u32::MAX));
        let Some(last) = self.last.replace(now) else { return };
        // A pause of the stream says nothing about the stream.
        let took = (now.since(last).as_nanos() as u64).min(2 * SPARSE);
        let gap = took / frames.max(1);
        if std::mem::take(&mut self.interrupted) {
            let usual = if self.gap == 0 { took } else { self.gap * frames };
            self.cost = mean(self.cost, took.saturating_sub(usual));
        }
        self.gap = if self.gap == 0 { gap } else { mean(self.gap, gap) };
    }

    fn is_stream(&self) -> bool {
        self.gap < SPARSE && self.runs.iter().any(|&run| run >= RUN)
    }

    fn limit(&self) -> Duration {
        Duration::from_nanos(4 * self.cost).clamp(SHORTEST, LONGEST)
    }
}

/// A mean that follows: an eighth of the difference.
const fn mean(mean: u64, sample: u64) -> u64 {
    mean - mean / 8 + sample / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(1_000_000 + ns)
    }

    fn small(sent: u64) -> Delivered {
        Delivered { frames: 1, bytes: 64, sent }
    }

    /// Small frames of a stream every `gap`; answers how many interrupts it took. Each delays the sender by `cost`.
    fn stream(moderation: &mut Moderation, gap: u64, cost: u64, frames: u32) -> (u32, u64) {
        let (mut now, mut interrupts, mut longest, mut wanted) = (0, 0, 0, None);
        for _ in 0..frames {
            now += gap;
            if moderation.due().is_some_and(|due| due <= at(now)) {
                moderation.considered(true);
                (interrupts, wanted) = (interrupts + 1, None);
                now += cost;
            }
            let first = *wanted.get_or_insert(now);
            if moderation.delivered(at(now), small(0), true).is_none() {
                longest = longest.max(now - first);
                moderation.considered(true);
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
            assert_eq!(moderation.delivered(at(turn * 20 * US), small(turn), true), None);
            moderation.considered(true);
        }
    }

    #[test]
    fn large_messages_never_wait() {
        let mut moderation = Moderation::default();
        stream(&mut moderation, 5 * US, 0, 100);
        let large = Delivered { frames: 1, bytes: 65_000, sent: 0 };
        assert_eq!(moderation.delivered(at(600 * US), large, true), None);
    }

    #[test]
    fn sparse_frames_never_wait() {
        let mut moderation = Moderation::default();
        for n in 0..100 {
            assert_eq!(moderation.delivered(at(n * 300 * US), small(0), true), None);
            moderation.considered(true);
        }
    }

    #[test]
    fn a_stream_that_stops_is_told_of_after_two_gaps() {
        let mut moderation = Moderation::default();
        stream(&mut moderation, 5 * US, 0, 200);
        moderation.considered(true);
        let now = at(1100 * US);
        let _ = moderation.delivered(now, small(0), true);
        moderation.considered(false);
        let next = now + Duration::from_micros(5);
        let due = moderation.delivered(next, small(0), true).expect("a stream");
        assert!(due.since(next) <= Duration::from_micros(60), "{:?}", due.since(next));
    }

    #[test]
    fn who_polls_is_not_interrupted() {
        let mut moderation = Moderation::default();
        stream(&mut moderation, 5 * US, 0, 100);
        assert_eq!(moderation.delivered(at(600 * US), small(0), false), None);
        assert_eq!(moderation.due(), None);
    }
}
