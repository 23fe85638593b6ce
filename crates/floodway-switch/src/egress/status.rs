//! What an egress says of itself: pairs of guests and destinations, and the state of the queues.

use floodway_core::egress::meter::PairSummary;
use floodway_core::egress::qdisc::{Backlog, Class};
use floodway_core::l2::PortId;
use floodway_core::time::Instant;

use super::Egress;
use crate::api::status::{ClassStatus, EgressStatus, MeterStatus};
use crate::frame::Frame;

/// What would become of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forecast {
    pub class: Class,
    /// Its class comes from a meter, or from the code point of another uplink's frame.
    pub metered: bool,
    /// Frames that wait leave before it, or the device takes none now.
    pub waits: bool,
    /// Packets and bytes that wait in its class.
    pub backlog: Backlog,
    /// There is a device.
    pub present: bool,
}

impl Egress {
    /// Returns what would become of a frame of `source`. Nothing is noted, sent or taken from a bucket.
    pub(crate) fn forecast(&self, source: PortId, frame: &Frame<'_>, now: Instant) -> Forecast {
        let now = self.latest.max(now);
        let class = self.tagger.would_classify(source, frame, now);
        Forecast {
            class,
            metered: self.tagger.is_enabled(),
            waits: !self.queue.may_pass(class, source) || !self.device.would_be_ready(now),
            backlog: self.queue.backlog(class),
            present: self.device.is_present(),
        }
    }

    /// Pairs of a guest in `limit` places from `from` on, and where to go on.
    pub(crate) fn pairs(
        &self,
        guest: usize,
        from: u32,
        limit: u32,
        now: Instant,
    ) -> (Vec<PairSummary>, Option<u32>) {
        let Some(meter) = self.tagger.meter_of(guest) else { return (Vec::new(), None) };
        let (pairs, next) = meter.pairs(from, limit, now);
        (pairs.collect(), next)
    }

    /// What waits, what was done, and under which limits.
    #[must_use]
    pub fn status(&self) -> EgressStatus {
        let class = |class: Class| {
            let backlog = self.queue.backlog(class);
            ClassStatus { packets: backlog.packets.into(), bytes: backlog.bytes }
        };
        let counters = self.queue.counters();
        let device = self.device.limit();
        EgressStatus {
            discipline: self.discipline.name().to_owned(),
            segment: self.segment,
            high: class(Class::High),
            low: class(Class::Low),
            queued: counters.enqueued,
            marked: counters.marked,
            dropped_full: counters.dropped_full,
            dropped_aqm: counters.dropped_aqm,
            device_limit: device.map(|(limit, _)| limit),
            device_bytes: device.map(|(_, outstanding)| outstanding),
            meter: self.tagger.is_enabled().then(|| self.meter_status()),
        }
    }

    fn meter_status(&self) -> MeterStatus {
        let (pairs, done) = self.tagger.sums();
        MeterStatus {
            pairs,
            high_packets: done.high,
            low_packets: done.low,
            refused_packets: done.refused,
            capped_packets: done.capped,
            demoted: done.demoted,
            promoted: done.promoted,
        }
    }
}
