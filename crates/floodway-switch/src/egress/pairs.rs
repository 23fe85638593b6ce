//! The control socket's view: pairs of guests and destinations, and the state of the queues.

use floodway_core::egress::meter::{Counters, Meter, PairSummary};
use floodway_core::egress::qdisc::Class;
use floodway_core::time::Instant;

use super::Egress;
use crate::operate::{MAX_PAGE, OperateError, PairPage, PairQuery, PairStatus};
use crate::status::{ClassStatus, EgressStatus, MeterStatus};
use crate::switch::Shared;
use crate::uplink::slot::UplinkSlot;

/// Pairs in a page if nobody says how many.
const PAGE: usize = 100;
/// Places of a table that are looked at under one hold of an uplink's lock: the packet path waits meanwhile.
const PLACES_AT_ONCE: u32 = 64;

/// Where a listing is: uplink, guest among those asked for, place in its table.
#[derive(Clone, Copy, Default)]
struct Cursor {
    uplink: usize,
    guest: usize,
    place: u32,
}

impl Cursor {
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split('.');
        let cursor = Self {
            uplink: numbers.next()?.parse().ok()?,
            guest: numbers.next()?.parse().ok()?,
            place: numbers.next()?.parse().ok()?,
        };
        numbers.next().is_none().then_some(cursor)
    }
}

/// A page of pairs.
///
/// # Errors
/// There is no such port, or the cursor is none.
pub fn page(shared: &Shared, query: &PairQuery) -> Result<PairPage, OperateError> {
    let limit = query.limit.unwrap_or(PAGE).clamp(1, MAX_PAGE);
    let only = query.port.as_deref().map(|name| shared.port(name)).transpose()?;
    let mut at = match &query.cursor {
        None => Cursor::default(),
        Some(text) => Cursor::parse(text)
            .ok_or_else(|| OperateError::BadCursor(text.chars().take(64).collect()))?,
    };
    let mut pairs = Vec::new();
    while let Some(uplink) = shared.uplinks.get(at.uplink) {
        let Some(port) = shared.ports.get(at.guest) else {
            at = Cursor { uplink: at.uplink + 1, ..Cursor::default() };
            continue;
        };
        let next = match only {
            Some(only) if only.id != port.id => None,
            _ => {
                let places = PLACES_AT_ONCE.min((limit - pairs.len()) as u32);
                let now = shared.now();
                let (found, next) = uplink.pairs(at.guest, at.place, places, now);
                let names = (port.config.name.as_str(), uplink.config.name.as_str());
                pairs.extend(found.iter().map(|pair| pair_status(names, pair)));
                next
            }
        };
        at = match next {
            Some(place) => Cursor { place, ..at },
            None => Cursor { guest: at.guest + 1, place: 0, ..at },
        };
        if pairs.len() >= limit {
            break;
        }
    }
    let more = at.uplink < shared.uplinks.len();
    let next = more.then(|| format!("{}.{}.{}", at.uplink, at.guest, at.place));
    Ok(PairPage { pairs, next })
}

fn pair_status((port, uplink): (&str, &str), pair: &PairSummary) -> PairStatus {
    PairStatus {
        port: port.to_owned(),
        uplink: uplink.to_owned(),
        destination: pair.destination.map(|address| address.to_string()),
        class: pair.class.name().to_owned(),
        rate_bps: pair.rate.saturating_mul(8),
        tokens: pair.tokens,
        idle_ms: pair.idle.as_millis() as u64,
    }
}

impl UplinkSlot {
    /// Pairs of a guest in `limit` places from `from` on, and where to go on.
    fn pairs(
        &self,
        guest: usize,
        from: u32,
        limit: u32,
        now: Instant,
    ) -> (Vec<PairSummary>, Option<u32>) {
        self.egress().with(|egress| match egress.tagger.meter_of(guest) {
            None => (Vec::new(), None),
            Some(meter) => {
                let (pairs, next) = meter.pairs(from, limit, now);
                (pairs.collect(), next)
            }
        })
    }
}

impl Egress {
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
        let mut sum = MeterStatus::default();
        for meter in self.tagger.meters() {
            let Counters { high, low, refused, capped, demoted, promoted } = *meter.counters();
            sum.pairs += u64::from(Meter::len(meter));
            sum.high_packets += high;
            sum.low_packets += low;
            sum.refused_packets += refused;
            sum.capped_packets += capped;
            sum.demoted += demoted;
            sum.promoted += promoted;
        }
        sum
    }
}
