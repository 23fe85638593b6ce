//! Controlled delay (`CoDel`): a queue that is standing is cut, one that absorbs a burst is not.
//!
//! # Theory of operation
//! What tells the two apart is the *least* time that packets wait in an interval of about one round trip. If
//! no packet of a whole `interval` waited less than `target`, the queue is a standing one, and the flow that feeds it
//! is told: by a drop, or by a mark if the packet is ECN-capable.
//!
//! States, per queue: not dropping; *above target* since some time (`first_above`); *dropping*. In the
//! dropping state the n-th drop follows `interval / sqrt(n)` after the one before, so that the rate of drops rises
//! linearly with time, which is what a TCP's throughput (as 1/sqrt(p)) asks for. The state ends with the first packet
//! that waited less than `target`, or when no more than one packet of `mtu` bytes is left: to drop that
//! would idle the link. A queue that starts to drop again soon after (16 intervals) goes on with the rate where it left.
//!
//! All times are integers: `interval / sqrt(n)` is the integer square root of `interval² / n`, so it is
//! exact to the nanosecond and the same everywhere.
//!
//! `ce_threshold` is a step mark for data-centre congestion control: any ECN-capable packet that waited
//! longer leaves marked, whatever the state.
//!
//! Source: RFC 8289 section 5 (pseudo-code), RFC 8290 section 5.2.3 and 5.2.7 for ECN and `ce_threshold`.

use super::arena::{Arena, Chain, Queued};
use super::{Backlog, Cause, Departure, Discipline, Dropped, Limits, Packet};
use crate::time::{Duration, Instant};

/// Settings of `CoDel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodelConfig {
    /// Least delay that is tolerated for longer than an interval. Default 5 ms.
    pub target: Duration,
    /// How long it is tolerated: about the largest round trip. Default 100 ms.
    pub interval: Duration,
    /// Bytes that may stand whatever their delay: the largest frame of the link. Default 1514.
    pub mtu: u32,
    /// ECN-capable packets are marked instead of dropped. Default on.
    pub ecn: bool,
    /// ECN-capable packets that waited longer than this are marked. Default none.
    pub ce_threshold: Option<Duration>,
}

impl Default for CodelConfig {
    fn default() -> Self {
        Self {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            mtu: 1514,
            ecn: true,
            ce_threshold: None,
        }
    }
}

/// The state of one queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Control {
    /// When the delay will have been above target for an interval; `None` while it is below.
    first_above: Option<Instant>,
    dropping: bool,
    drop_next: Instant,
    /// Drops since the dropping state was entered, or went on.
    count: u32,
    /// `count` at the last entry.
    last_count: u32,
}

/// What is at the head of the queue, and what may be done with it.
struct Head<H> {
    queued: Option<Queued<H>>,
    ok_to_drop: bool,
}

/// How one packet is looked at: the arguments that do not change during a dequeue.
pub(super) struct Look<'a, H> {
    pub(super) config: &'a CodelConfig,
    pub(super) arena: &'a mut Arena<H>,
    pub(super) queue: &'a mut Chain,
    pub(super) now: Instant,
}

impl Control {
    /// The state of a queue that was never long.
    pub(super) const NEW: Self = Self {
        first_above: None,
        dropping: false,
        drop_next: Instant::ZERO,
        count: 0,
        last_count: 0,
    };

    /// The next packet of the queue, after drops that are due.
    pub(super) fn dequeue<H>(
        &mut self,
        look: &mut Look<'_, H>,
        dropped: &mut Dropped<'_, H>,
    ) -> Option<Departure<H>> {
        let head = self.head(look);
        let (queued, mark) = if self.dropping {
            self.go_on_dropping(head, look, dropped)
        } else if head.ok_to_drop {
            self.start_dropping(head, look, dropped)
        } else {
            (head.queued, false)
        };
        let Queued { packet, arrived } = queued?;
        let sojourn = look.now.since(arrived);
        let late = look.config.ce_threshold.is_some_and(|threshold| sojourn > threshold);
        let mark = mark || (late && packet.ecn_capable);
        Some(Departure { packet, mark, sojourn })
    }

    /// Drops made on behalf of the queue elsewhere (at its limit) count as a signal too.
    pub(super) fn note_drops(&mut self, n: u32) {
        self.count = self.count.saturating_add(n);
    }

    #[cfg(test)]
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// `dodequeue` of RFC 8289.
    fn head<H>(&mut self, look: &mut Look<'_, H>) -> Head<H> {
        let Some(queued) = look.arena.pop(look.queue) else {
            self.first_above = None;
            return Head { queued: None, ok_to_drop: false };
        };
        let sojourn = look.now.since(queued.arrived);
        let short = look.queue.backlog().bytes <= u64::from(look.config.mtu);
        let mut ok_to_drop = false;
        if sojourn < look.config.target || short {
            self.first_above = None;
        } else {
            let since = *self.first_above.get_or_insert(look.now + look.config.interval);
            ok_to_drop = look.now >= since;
        }
        Head { queued: Some(queued), ok_to_drop }
    }

    fn go_on_dropping<H>(
        &mut self,
        mut head: Head<H>,
        look: &mut Look<'_, H>,
        dropped: &mut Dropped<'_, H>,
    ) -> (Option<Queued<H>>, bool) {
        self.dropping = head.ok_to_drop;
        while self.dropping && look.now >= self.drop_next {
            self.count = self.count.saturating_add(1);
            let Some(queued) = head.queued.take() else { break };
            if look.config.ecn && queued.packet.ecn_capable {
                self.drop_next = self.control_law(self.drop_next, look.config);
                return (Some(queued), true);
            }
            dropped(queued.packet, Cause::Aqm);
            head = self.head(look);
            self.dropping = head.ok_to_drop;
            if self.dropping {
                self.drop_next = self.control_law(self.drop_next, look.config);
            }
        }
        (head.queued, false)
    }

    fn start_dropping<H>(
        &mut self,
        head: Head<H>,
        look: &mut Look<'_, H>,
        dropped: &mut Dropped<'_, H>,
    ) -> (Option<Queued<H>>, bool) {
        let Some(queued) = head.queued else { return (None, false) };
        let (queued, mark) = if look.config.ecn && queued.packet.ecn_capable {
            (Some(queued), true)
        } else {
            dropped(queued.packet, Cause::Aqm);
            (self.head(look).queued, false)
        };
        self.dropping = true;
        // Recently dropping: the rate that controlled the queue then is a better start than 1.
        let delta = self.count.saturating_sub(self.last_count);
        let recent = look.now.since(self.drop_next) < 16 * look.config.interval;
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.drop_next = self.control_law(look.now, look.config);
        self.last_count = self.count;
        (queued, mark)
    }

    fn control_law(&self, from: Instant, config: &CodelConfig) -> Instant {
        from + spacing(config.interval, self.count)
    }
}

/// `interval / sqrt(count)`, rounded down to a nanosecond.
fn spacing(interval: Duration, count: u32) -> Duration {
    // An interval of 584 years squared still fits.
    let ns = u128::from(u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX));
    let root = (ns * ns / u128::from(count.max(1))).isqrt();
    Duration::from_nanos(u64::try_from(root).unwrap_or(u64::MAX))
}

/// One queue under `CoDel`; at its limit it drops at the tail.
#[derive(Debug)]
pub struct Codel<H> {
    limits: Limits,
    config: CodelConfig,
    control: Control,
    arena: Arena<H>,
    queue: Chain,
}

impl<H> Codel<H> {
    /// An empty queue.
    #[must_use]
    pub fn new(limits: Limits, config: CodelConfig) -> Self {
        let (control, arena, queue) = (Control::NEW, Arena::new(), Chain::EMPTY);
        Self { limits, config, control, arena, queue }
    }
}

impl<H> Discipline<H> for Codel<H> {
    fn enqueue(&mut self, packet: Packet<H>, now: Instant, dropped: &mut Dropped<'_, H>) {
        if self.limits.admit(self.queue.backlog(), packet.len) {
            self.arena.push(&mut self.queue, packet, now);
        } else {
            dropped(packet, Cause::Full);
        }
    }

    fn dequeue(&mut self, now: Instant, dropped: &mut Dropped<'_, H>) -> Option<Departure<H>> {
        let Self { config, control, arena, queue, .. } = self;
        control.dequeue(&mut Look { config, arena, queue, now }, dropped)
    }

    fn backlog(&self) -> Backlog {
        self.queue.backlog()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const LIMITS: Limits = Limits { packets: 100_000, bytes: u64::MAX };

    fn packet(handle: u64, ecn_capable: bool) -> Packet<u64> {
        Packet { handle, len: 1000, flow: 0, ecn_capable }
    }

    /// A queue that came at time zero and is drained at one packet a millisecond: times of drops and marks.
    fn signals(mut codel: Codel<u64>, packets: u64, ecn: bool) -> Vec<(u64, &'static str)> {
        let mut signals = Vec::new();
        for i in 0..packets {
            codel.enqueue(packet(i, ecn), Instant::ZERO, &mut |_, _| panic!("there is room"));
        }
        for ms in 0.. {
            let now = Instant::from_millis(ms);
            let departure = codel.dequeue(now, &mut |_, cause| {
                assert_eq!(cause, Cause::Aqm);
                signals.push((ms, "drop"));
            });
            match departure {
                Some(departure) if departure.mark => signals.push((ms, "mark")),
                Some(_) => {}
                None => break,
            }
        }
        signals
    }

    /// By hand. The first packet that waited for 5 ms leaves at 5 ms; an interval later, at 105 ms, is the first
    /// drop. Then n = 1: 205; n = 2: + 70.71 = 275.71; n = 3: + 57.735 = 333.45; n = 4: + 50 = 383.45;
    /// n = 5: + 44.72 = 428.17; n = 6: + 40.82 = 468.99; n = 7: + 37.80 = 506.79. Each is seen at the next whole ms.
    const SCHEDULE: [u64; 8] = [105, 205, 276, 334, 384, 429, 469, 507];

    #[test]
    fn drops_follow_the_schedule_of_the_rfc() {
        let drops = signals(Codel::new(LIMITS, CodelConfig::default()), 520, false);
        assert_eq!(drops, SCHEDULE.map(|ms| (ms, "drop")));
    }

    #[test]
    fn marks_follow_the_same_schedule_and_nothing_is_lost() {
        let marks = signals(Codel::new(LIMITS, CodelConfig::default()), 512, true);
        assert_eq!(marks, SCHEDULE.map(|ms| (ms, "mark")));
        let no_ecn = CodelConfig { ecn: false, ..CodelConfig::default() };
        let drops = signals(Codel::new(LIMITS, no_ecn), 520, true);
        assert_eq!(drops, SCHEDULE.map(|ms| (ms, "drop")));
    }

    #[test]
    fn spacing_is_the_exact_root() {
        let interval = Duration::from_millis(100);
        assert_eq!(spacing(interval, 1), interval);
        assert_eq!(spacing(interval, 4), Duration::from_millis(50));
        assert_eq!(spacing(interval, 2), Duration::from_nanos(70_710_678));
        assert_eq!(spacing(interval, 0), interval, "no division by zero");
        assert_eq!(spacing(Duration::MAX, 1), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn a_burst_that_drains_within_an_interval_is_left_alone() {
        assert_eq!(signals(Codel::new(LIMITS, CodelConfig::default()), 100, false), []);
    }

    #[test]
    fn the_last_packet_of_an_mtu_is_never_dropped() {
        let mut codel = Codel::new(LIMITS, CodelConfig::default());
        let mut dropped = |_: Packet<u64>, _| panic!("no more than one frame is left behind");
        for s in 0..100 {
            // Two packets that wait for a second each: behind the first there are 1000 bytes, behind the other none.
            let then = Instant::from_millis(1000 * s);
            (0..2).for_each(|i| codel.enqueue(packet(i, false), then, &mut dropped));
            for _ in 0..2 {
                let now = then + Duration::from_secs(1);
                assert_eq!(codel.dequeue(now, &mut dropped).unwrap().sojourn.as_secs(), 1);
            }
        }
    }

    /// RFC 8289 section 5.4: re-entry within 16 intervals goes on with the drop rate that worked.
    #[test]
    fn dropping_goes_on_where_it_left() {
        let mut control = Control { count: 9, last_count: 1, ..Control::NEW };
        control.drop_next = Instant::from_millis(1000);
        let enter = |mut control: Control, ms: u64| {
            let mut arena = Arena::new();
            let mut queue = Chain::EMPTY;
            for i in 0..10 {
                arena.push(&mut queue, packet(i, false), Instant::ZERO);
            }
            let config = CodelConfig::default();
            control.first_above = Some(Instant::ZERO);
            let now = Instant::from_millis(ms);
            let mut look = Look { config: &config, arena: &mut arena, queue: &mut queue, now };
            control.dequeue(&mut look, &mut |_, _| {});
            (control.dropping, control.count, control.drop_next.as_nanos() - ms * MS)
        };
        assert_eq!(enter(control, 1100), (true, 8, 35_355_339), "100 ms / sqrt(8)");
        assert_eq!(enter(control, 2600), (true, 1, 100 * MS), "16 intervals later: anew");
    }

    #[test]
    fn the_step_mark_needs_no_state() {
        let ce_threshold = Some(Duration::from_micros(60));
        let config = CodelConfig { ce_threshold, ..CodelConfig::default() };
        let mut codel = Codel::new(LIMITS, config);
        let mut mark = |us, ecn| {
            codel.enqueue(packet(0, ecn), Instant::ZERO, &mut |_, _| {});
            codel.dequeue(Instant::from_micros(us), &mut |_, _| {}).unwrap().mark
        };
        assert_eq!([mark(60, true), mark(61, true), mark(61, false)], [false, true, false]);
    }
}
