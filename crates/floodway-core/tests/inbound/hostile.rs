//! Whoever sends what nobody asked for gains nothing.

use floodway_core::inbound::{Config, Sink, Verdict, WindowClamp};
use floodway_core::offload::{Edit, Segment};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::tcp::{Flags, OptionSummary};
use proptest::prelude::*;

use crate::network::tuple;

struct Nowhere;

impl Sink<Segment> for Nowhere {
    fn send(&mut self, _: &Segment, _: &Edit) {}
}

const SYN_ACK: Flags = Flags::SYN.with(Flags::ACK);

fn port() -> WindowClamp<Segment> {
    let config = Config { capacity: 1_000_000, max_connections: 64, ..Config::default() };
    let mut port = WindowClamp::new(config, 1);
    port.set_rate(1_000_000, Instant::ZERO);
    port
}

fn options(mss: Option<u16>, window_scale: Option<u8>) -> OptionSummary {
    let mut options = OptionSummary::default();
    (options.mss, options.window_scale) = (mss, window_scale);
    options
}

fn segment(seq: u32, ack: u32, flags: Flags) -> Segment {
    let options = options(Some(1460), Some(7));
    Segment { seq: Seq(seq), ack: Seq(ack), window: 1000, flags, options, ..Segment::default() }
}

#[test]
fn a_flood_of_syns_counts_for_nothing_and_locks_nobody_out() {
    let mut port = port();
    for number in 0..10_000 {
        let (now, flow) = (Instant::from_micros(number as u64), tuple(0, number));
        port.tcp_from_network(now, &flow.reversed(), &segment(5, 0, Flags::SYN), 78);
        let _ = port.from_vm(now, &flow, &segment(100, 6, SYN_ACK), || None, &mut Nowhere);
        // The answer of somebody who did not see ours.
        port.tcp_from_network(now, &flow.reversed(), &segment(6, 4711, Flags::ACK), 78);
    }
    assert_eq!((port.active(), port.connections()), (0, 64));
    let (now, flow) = (Instant::from_millis(100), tuple(0, 20_000));
    port.tcp_from_network(now, &flow.reversed(), &segment(5, 0, Flags::SYN), 78);
    let _ = port.from_vm(now, &flow, &segment(100, 6, SYN_ACK), || None, &mut Nowhere);
    port.tcp_from_network(now, &flow.reversed(), &segment(6, 101, Flags::ACK), 78);
    assert_eq!(port.active(), 1);
    // A reset that does not know where the connection is ends nothing; one that does ends it.
    port.tcp_from_network(now, &flow.reversed(), &segment(9999, 0, Flags::RST), 78);
    assert_eq!(port.active(), 1);
    port.tcp_from_network(now, &flow.reversed(), &segment(6, 101, Flags::RST), 78);
    assert_eq!(port.active(), 0);
}

/// SYN-ACKs that wait are lost when others need the room of their connections, and when these are reset.
#[test]
fn syn_acks_that_are_lost_while_they_wait_are_counted() {
    let mut port = port();
    let now = Instant::from_millis(1);
    let mut kept = 0;
    for number in 0..200 {
        let flow = tuple(0, number);
        port.tcp_from_network(now, &flow.reversed(), &segment(5, 0, Flags::SYN), 78);
        let syn_ack = segment(100, 6, SYN_ACK);
        let keep = || Some(syn_ack);
        let verdict = port.from_vm(now, &flow, &syn_ack, keep, &mut Nowhere);
        kept += u64::from(verdict == Verdict::Absorb);
    }
    let lost = |port: &WindowClamp<Segment>| port.counters().waiting_lost;
    assert_eq!(port.counters().syn_acks_held, kept);
    assert_eq!((port.connections(), lost(&port)), (64, kept - 64), "all but those that are known");
    let flow = tuple(0, 199);
    port.tcp_from_network(now, &flow.reversed(), &segment(6, 101, Flags::RST.with(Flags::ACK)), 78);
    assert_eq!((port.connections(), lost(&port)), (63, kept - 63), "its caller has gone");
}

/// A peer gives each connection data, which the VM acknowledges while there is no credit, and resets it while that waits.
#[test]
fn connections_that_are_reset_while_they_wait_leave_nothing_behind() {
    let mut port = port();
    let now = Instant::from_millis(1);
    for number in 0..10_000 {
        let flow = tuple(0, number);
        let syn = Segment { window: 65_535, ..segment(100, 0, Flags::SYN) };
        let _ = port.from_vm(now, &flow, &syn, || None, &mut Nowhere);
        port.tcp_from_network(now, &flow.reversed(), &segment(5, 101, SYN_ACK), 78);
        let data = Segment { len: 2 * 1460, ..segment(6, 101, Flags::ACK) };
        port.tcp_from_network(now, &flow.reversed(), &data, 3076);
        let ack =
            Segment { options: options(None, None), ..segment(101, 6 + 2 * 1460, Flags::ACK) };
        let _ = port.from_vm(now, &flow, &ack, || Some(ack), &mut Nowhere);
        port.tcp_from_network(now, &flow.reversed(), &segment(6 + 2 * 1460, 101, Flags::RST), 78);
        assert_eq!(port.connections(), 0);
        assert!(port.waiting() <= 128, "{} wait of {number} that are gone", port.waiting());
    }
    assert!(port.counters().held > 9000, "they have waited");
}

#[test]
fn what_was_met_in_mid_stream_is_counted_and_not_changed() {
    let mut port = port();
    let (now, flow) = (Instant::from_millis(1), tuple(0, 1));
    let data =
        Segment { len: 1000, options: OptionSummary::default(), ..segment(5000, 1, Flags::ACK) };
    // Nobody has asked for it.
    port.tcp_from_network(now, &flow.reversed(), &data, 1078);
    assert_eq!((port.active(), port.connections()), (0, 0));
    let ack = Segment { options: OptionSummary::default(), ..segment(1, 6000, Flags::ACK) };
    for at in 0..3 {
        let data = Segment { seq: data.seq + 1000 * at, ..data };
        port.tcp_from_network(now, &flow.reversed(), &data, 1078);
        let ack = Segment { ack: data.end(), ..ack };
        let verdict = port.from_vm(now, &flow, &ack, || None, &mut Nowhere);
        assert_eq!(verdict, Verdict::Pass(Edit::default()), "N6");
    }
    assert_eq!(port.active(), 1);
    let later = now + Duration::from_millis(300);
    port.handle_timeout(later, &mut Nowhere);
    assert_eq!(port.active(), 0, "idle");
}

#[test]
fn udp_passes_and_is_policed_if_that_is_wanted() {
    let mut port = port();
    let config = Config { capacity: 1_000_000, burst: 10_000, ..Config::default() };
    port.configure(config.clone(), Instant::ZERO);
    assert!((0..1000).all(|_| port.other_from_network(Instant::ZERO, true, 1500)));
    port.configure(Config { police_udp: true, ..config }, Instant::ZERO);
    port.set_rate(500_000, Instant::ZERO);
    let passed =
        (0..1000).filter(|&ms| port.other_from_network(Instant::from_millis(ms), true, 1500));
    // 10 KB at once, and 500 bytes each millisecond.
    assert!((330..=340).contains(&passed.count()));
    assert!(port.other_from_network(Instant::from_millis(999), false, 1500), "not UDP");
    assert!(port.counters().policed > 600);
}

fn any_segment() -> impl Strategy<Value = Segment> {
    let numbers = prop_oneof![Just(0_u32), 0_u32..10_000, any::<u32>()];
    let lens = prop_oneof![Just(0_u32), 1_u32..1500, 0_u32..65_535];
    (numbers.clone(), numbers, any::<u8>(), any::<u16>(), lens, proptest::option::of(any::<u8>()))
        .prop_map(|(seq, ack, flags, window, len, scale)| {
            let options = options(scale.map(u16::from), scale);
            Segment {
                seq: Seq(seq),
                ack: Seq(ack),
                flags: Flags(flags),
                window,
                len,
                options,
                ..Segment::default()
            }
        })
}

proptest! {
    /// Any segments from both sides: no panic, bounded state, no window that is larger than the VM's.
    #[test]
    fn anything_goes(
        steps in proptest::collection::vec((any_segment(), 0_usize..4, 0_u8..4, 0_u64..200_000), 1..300),
    ) {
        let mut port = port();
        let mut now = Instant::ZERO;
        for (segment, number, what, us) in steps {
            now += Duration::from_micros(us);
            let flow = tuple(0, number);
            match what {
                0 => port.tcp_from_network(now, &flow.reversed(), &segment, u64::from(segment.len) + 78),
                1 | 2 => {
                    let verdict = port.from_vm(now, &flow, &segment, || Some(segment), &mut Nowhere);
                    if let Verdict::Pass(edit) = verdict {
                        prop_assert!(edit.window.is_none_or(|window| window < segment.window));
                    }
                }
                _ => port.handle_timeout(now, &mut Nowhere),
            }
            prop_assert!(port.active() <= port.connections() && port.connections() <= 4);
            prop_assert!(port.waiting() <= 64);
        }
    }
}
