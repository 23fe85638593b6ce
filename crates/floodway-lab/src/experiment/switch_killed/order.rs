//! When a sender's TCP sent what a capture at its card has.
//!
//! A capture sees a segment when the card takes it. With a dead switch behind the card, segments wait in the guest's queues
//! for a second and more; what counts is when TCP sent them. The timestamp that they carry (RFC 7323, 1 ms on Linux) says so: a
//! segment that the card took much later than its timestamp says is moved back to that time.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::capture::Segment;

/// Tick of the clock in timestamps.
const TICK_NS: i64 = 1_000_000;
/// A segment that left this much later than the one that left soonest was held up below TCP.
const HELD_UP_NS: i64 = 4 * TICK_NS;

/// Returns the same segments, those of the sender at the time when its TCP sent them.
pub fn in_order_of_sending(segments: &[Segment], address: Ipv4Addr) -> Vec<Segment> {
    let own = |segment: &&Segment| segment.source.0 == address;
    // By port: the clock of the first segment, and when that clock stood at 0.
    let mut zeros: BTreeMap<u16, (u32, i64)> = BTreeMap::new();
    for segment in segments.iter().filter(own) {
        let Some(clock) = segment.clock else { continue };
        let (first, zero) = zeros.entry(segment.source.1).or_insert((clock, i64::MAX));
        *zero = (*zero).min(segment.at_ns - elapsed_ns(*first, clock));
    }
    let mut ordered = segments.to_vec();
    let mut latest: BTreeMap<u16, i64> = BTreeMap::new();
    for segment in ordered.iter_mut().filter(|segment| segment.source.0 == address) {
        let zero = zeros.get(&segment.source.1).zip(segment.clock);
        let Some((&(first, zero), clock)) = zero else { continue };
        let latest_ns = latest.entry(segment.source.1).or_insert(i64::MIN);
        // The clock stood so until its next tick; later rather than sooner, or it would come before the ACK that let it go.
        let sent_ns = zero + elapsed_ns(first, clock) + TICK_NS;
        if segment.at_ns - sent_ns > HELD_UP_NS {
            // Below TCP nothing overtakes what is of the same connection.
            segment.at_ns = sent_ns.max(*latest_ns);
        }
        *latest_ns = segment.at_ns;
    }
    ordered.sort_by_key(|segment| segment.at_ns);
    ordered
}

/// From one stand of a clock to another, which may have wrapped.
fn elapsed_ns(from: u32, to: u32) -> i64 {
    i64::from(to.wrapping_sub(from).cast_signed()) * TICK_NS
}

#[cfg(test)]
mod tests {
    use floodway_wire::tcp::Flags;

    use super::*;

    const GUEST: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 0, 0, 1), 5000);

    /// Taken by the card at `at_ms`, with its number in the place of the sequence.
    fn taken(at_ms: i64, clock: u32, number: u32) -> Segment {
        Segment {
            at_ns: at_ms * TICK_NS,
            source: GUEST,
            destination: (Ipv4Addr::new(10, 0, 0, 2), 80),
            sequence: number,
            acknowledgment: 0,
            flags: Flags::ACK,
            window: 1000,
            window_scale: None,
            mss: None,
            clock: Some(clock),
            sack: Vec::new(),
            len: 10,
        }
    }

    fn ordered(segments: &[Segment]) -> Vec<(u32, i64)> {
        let ordered = in_order_of_sending(segments, GUEST.0);
        ordered.iter().map(|segment| (segment.sequence, segment.at_ns / TICK_NS)).collect()
    }

    #[test]
    fn what_waited_below_tcp_counts_when_it_was_sent() {
        // The clock wraps; the fourth was sent at 3 ms and left at 900 ms.
        let seen = ordered(&[
            taken(0, u32::MAX, 1),
            taken(1, 0, 2),
            taken(3, 2, 3),
            taken(900, 2, 4),
            taken(900, 899, 5),
        ]);
        assert_eq!(seen, [(1, 0), (2, 1), (3, 3), (4, 4), (5, 900)]);
    }

    #[test]
    fn a_burst_of_one_tick_that_the_card_takes_slowly_stays_in_order() {
        let burst: Vec<Segment> =
            (0..10).map(|number| taken(10 + i64::from(number), 10, number)).collect();
        let seen = ordered(&[vec![taken(0, 0, 99)], burst].concat());
        let numbers: Vec<u32> = seen.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [99, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(seen.iter().all(|(_, at_ms)| *at_ms <= 15), "{seen:?}");
    }
}
