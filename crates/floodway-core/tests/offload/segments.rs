//! Single segments, and what the rules say of them.

use floodway_core::offload::{Edit, Reason, Refusal, TxState, Verdict};
use floodway_core::seq::Seq;
use floodway_core::time::Duration;
use floodway_wire::tcp::Flags;

use crate::harness::packet::Packet;
use crate::harness::{Setup, World};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn connected(name: &'static str) -> World {
    let mut world = World::new(Setup { name, ..Setup::default() });
    world.connect();
    world.run_for(MS(50));
    world.transfer_some(10_000, 10_000);
    world
}

#[test]
fn what_was_not_granted_is_refused() {
    let mut world = connected("beyond");
    let granted = world.switch.summary(&world.flow).unwrap().granted;
    let mut packet = world.guest_segment(i64::from(granted) - 99, 100);
    let verdict = world.guest_packet(&packet);
    assert_eq!(verdict, Verdict::Drop(Refusal::BeyondGrant));
    packet = world.guest_segment(i64::from(granted) - 100, 100);
    assert_eq!(world.guest_packet(&packet), Verdict::Absorb);
}

/// Linux looks whether the bytes of a GSO packet fit into the window; their FIN then lies beyond it.
#[test]
fn a_fin_right_behind_the_grant_takes_no_room() {
    let mut world = connected("fin");
    let granted = world.switch.summary(&world.flow).unwrap().granted;
    let mut fin = |at| {
        let mut packet = world.guest_segment(at, 100);
        packet.segment.flags = packet.segment.flags.with(Flags::FIN);
        world.guest_packet(&packet)
    };
    assert_eq!(fin(i64::from(granted) - 99), Verdict::Drop(Refusal::BeyondGrant));
    assert_eq!(fin(i64::from(granted) - 100), Verdict::Absorb);
}

#[test]
fn blind_acks_of_what_was_never_sent_are_refused() {
    let mut world = connected("unsent");
    for ahead in [1, 1000, 1 << 30] {
        let mut packet = world.blind(1 << 29);
        packet.segment.flags = Flags::ACK;
        packet.segment.ack += ahead;
        assert_eq!(world.network_packet(&packet), Verdict::Drop(Refusal::AcksUnsent));
    }
    assert_eq!(world.switch.summary(&world.flow).unwrap().tx, TxState::Active);
}

#[test]
fn acks_of_what_only_the_guest_can_have_sent_pass() {
    let mut world = connected("unseen");
    world.to_peer.config.loss = 1000;
    world.guest.write(300_000, world.now);
    world.send_from_guest();
    let summary = world.switch.summary(&world.flow).unwrap();
    assert!(summary.held > 0);
    let mut packet = world.blind(0);
    packet.segment.flags = Flags::ACK;
    let una = packet.segment.ack;
    // What we know nothing of.
    packet.segment.ack = una + 400_000;
    assert_eq!(world.network_packet(&packet), Verdict::PASS);
    assert_eq!(world.switch.summary(&world.flow).unwrap().tx, TxState::Active);
    // What is held here.
    packet.segment.ack = una + summary.in_flight + 1;
    assert_eq!(world.network_packet(&packet), Verdict::PASS);
    let summary = world.switch.summary(&world.flow).unwrap();
    assert_eq!((summary.tx, summary.reason), (TxState::Offline, Reason::Gap));
    assert_eq!(world.switch.offload.used().0, 0);
}

#[test]
fn urgent_data_is_not_acknowledged_for_the_guest() {
    // R7.
    let mut world = connected("urgent");
    let acks = world.switch.offload.counters().acks_sent;
    let mut packet = world.peer_segment(100);
    packet.segment.flags = packet.segment.flags.with(Flags::URG);
    assert!(matches!(world.network_packet(&packet), Verdict::Pass(_)));
    world.flush();
    assert_eq!(world.switch.offload.counters().acks_sent, acks);
}

#[test]
fn data_in_order_is_acknowledged_at_once_and_only_in_the_window() {
    let mut world = connected("in-order");
    let acks = world.switch.offload.counters().acks_sent;
    let packet = world.peer_segment(1000);
    world.network_packet(&packet);
    world.flush();
    assert_eq!(world.switch.offload.counters().acks_sent, acks + 1);
    assert!(world.switch.offload.used().1 >= 1000);
    // R2: what is beyond the guest's window is not.
    let mut setup = Setup { name: "window", ..Setup::default() };
    setup.guest.buffer = 3000;
    let mut world = World::new(setup);
    world.connect();
    world.run_for(MS(50));
    let acks = world.switch.offload.counters().acks_sent;
    let packet = world.peer_segment(4000);
    world.network_packet(&packet);
    world.flush();
    assert_eq!(world.switch.offload.counters().acks_sent, acks);
}

#[test]
fn a_syn_that_its_answer_overtakes_is_no_new_connection() {
    let mut world = World::new(Setup { name: "overtaken", ..Setup::default() });
    world.connect();
    world.run_for(MS(50));
    let online = |world: &World| world.switch.summary(&world.flow).map(|flow| flow.tx);
    assert_eq!(online(&world), Some(TxState::Active));
    let mut syn = world.guest_segment(0, 0);
    (syn.at, syn.segment.seq, syn.segment.ack) = (0, syn.segment.seq - 1, Seq(0));
    syn.segment.flags = Flags::SYN;
    assert_eq!(world.guest_packet(&syn), Verdict::PASS);
    assert_eq!(online(&world), Some(TxState::Active));
    // Another first number is another connection.
    syn.segment.seq += 1000;
    assert_eq!(world.guest_packet(&syn), Verdict::PASS);
    assert_ne!(online(&world), Some(TxState::Active));
}

#[test]
fn what_lies_behind_a_chunk_that_a_segment_spans_comes_again() {
    let mut world = connected("spans");
    let (before, base) = (world.peer.rx.bytes(), world.guest_segment(0, 0));
    let at = |offset: i64, len| {
        let mut packet = Packet { at: base.at + offset, ..base.clone() };
        packet.segment.seq += offset as u32;
        packet.segment.len = len;
        packet
    };
    // Its end is not stored, so what follows it is no next segment in order.
    for (offset, len) in [(0, 100), (200, 100), (100, 300), (400, 100), (300, 100)] {
        assert_eq!(world.guest_packet(&at(offset, len)), Verdict::Absorb, "{offset}");
    }
    world.run_until(Duration::from_secs(1), |world| world.peer.rx.bytes() == before + 500);
}

#[test]
fn unknown_flows_pass() {
    let mut world = World::new(Setup { name: "unknown", ..Setup::default() });
    let mut packet = Packet { segment: floodway_core::offload::Segment::default(), at: 0 };
    packet.segment.len = 100;
    for flags in [Flags::ACK, Flags::ACK.with(Flags::FIN), Flags::RST, Flags(0), Flags(0xff)] {
        packet.segment.flags = flags;
        let (now, flow) = (world.now, world.flow);
        assert_eq!(world.switch.guest_sends(now, &flow, &packet), Verdict::PASS);
        assert_eq!(world.switch.peer_sends(now, &flow, &packet), Verdict::PASS);
    }
    world.switch.take_actions();
    assert!(world.switch.offload.is_empty());
}

#[test]
fn without_memory_nothing_is_promised() {
    let mut world = connected("no-memory");
    world.switch.no_memory = true;
    let packet = world.guest_segment(0, 100);
    assert!(matches!(world.guest_packet(&packet), Verdict::Drop(_)));
    let acks = world.switch.offload.counters().acks_sent;
    let packet = world.peer_segment(100);
    assert!(matches!(world.network_packet(&packet), Verdict::Pass(_)));
    world.flush();
    assert_eq!(world.switch.offload.counters().acks_sent, acks);
}

#[test]
fn a_pure_ack_that_overtakes_what_is_held_has_the_released_number() {
    let mut world = connected("overtake");
    world.to_peer.config.rate = Some(100);
    world.guest.write(300_000, world.now);
    world.send_from_guest();
    let held = world.switch.summary(&world.flow).unwrap().held;
    assert!(held > 0);
    let mut packet = world.guest_segment(0, 0);
    packet.segment.window /= 2;
    packet.segment.window += 1000;
    packet.segment.options.set_sack_blocks(&[floodway_wire::tcp::options::SackBlock {
        left: packet.segment.ack.0.wrapping_add(1000),
        right: packet.segment.ack.0.wrapping_add(2000),
    }]);
    let Verdict::Pass(Edit { seq: Some(seq), .. }) = world.guest_packet(&packet) else {
        panic!("SACK blocks have to pass, with another number")
    };
    assert_eq!(packet.segment.seq.since(seq), held);
    assert!(seq != Seq(0));
}

/// A guest whose congestion control is its own needs every ACK, also one that comes with data that was acknowledged for it.
#[test]
fn a_repeat_that_acknowledges_more_reaches_a_guest_that_runs_its_own_congestion_control() {
    let mut setup = Setup { name: "repeat-with-news", ..Setup::default() };
    (setup.offload.transmit, setup.offload.receive) = (false, true);
    let mut world = World::new(setup);
    world.connect();
    world.transfer_some(10_000, 100_000);
    let (now, flow) = (world.now, world.flow);
    let sent = world.guest_segment(0, 1000);
    world.switch.guest_sends(now, &flow, &sent);
    let data = world.peer_segment(1000);
    let before = world.switch.offload.counters().acknowledged_bytes;
    assert!(matches!(world.switch.peer_sends(now, &flow, &data), Verdict::Pass(_)));
    world.switch.flush(now);
    assert_eq!(world.switch.offload.counters().acknowledged_bytes, before + 1000);
    assert_eq!(world.switch.peer_sends(now, &flow, &data), Verdict::Absorb, "it says nothing new");
    let mut again = data;
    again.segment.ack += 1000;
    assert!(matches!(world.switch.peer_sends(now, &flow, &again), Verdict::Pass(_)));
    assert_eq!(world.switch.peer_sends(now, &flow, &again), Verdict::Absorb, "it has been passed");
    again.segment.window += 1;
    assert!(matches!(world.switch.peer_sends(now, &flow, &again), Verdict::Pass(_)), "a window");
}
