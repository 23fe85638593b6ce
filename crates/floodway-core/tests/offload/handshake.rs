//! What the SYNs decide: which flows are offloaded at all, and with what.

use floodway_core::offload::{Ecn, Edit, LocalFlows, RxState, TxState, Verdict};
use floodway_core::time::Duration;
use floodway_wire::tcp::Flags;

use crate::harness::packet::Packet;
use crate::harness::{Setup, World};

const MS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;

const NONE: Flags = Flags(0);

fn counter(world: &World, name: &str) -> u64 {
    let found = world.switch.offload.counters().iter().find(|&(found, ..)| found == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).2
}

fn reason(world: &World) -> &'static str {
    world.switch.summary(&world.flow).expect("the flow is known").reason.name()
}

/// Nothing of the flow was edited, stored, absorbed or acknowledged, and the module has heard nothing of it.
fn assert_untouched(world: &World) {
    let counters = world.switch.offload.counters();
    assert_eq!((world.absorbed, world.refused, world.monitor.passed_edited), (0, 0, 0));
    assert_eq!(
        (counters.stored_frames, counters.acknowledged_bytes, counters.acks_sent),
        (0, 0, 0)
    );
    assert_eq!((world.named.len(), world.heartbeats), (0, 0));
    assert_eq!(world.switch.offload.used(), (0, 0));
}

/// Runs a connection that must not be offloaded.
fn excluded(setup: Setup, passive: bool, why: &str) -> World {
    let mut world = World::new(setup);
    if passive {
        world.accept();
    } else {
        world.connect();
    }
    world.transfer_some(200_000, 200_000);
    assert_eq!(reason(&world), why);
    assert_eq!(counter(&world, "flows_excluded"), 1);
    assert_untouched(&world);
    world
}

#[test]
fn a_flow_whose_syn_or_syn_ack_has_an_unknown_option_passes_untouched() {
    for (guest, peer) in [(true, false), (false, true), (true, true)] {
        for passive in [false, true] {
            let mut setup = Setup { name: "unknown-option", ..Setup::default() };
            setup.guest.unknown_option = (guest, guest);
            setup.peer.unknown_option = (peer, peer);
            let mut world = excluded(setup, passive, "unknown_option");
            world.transfer(50_000, 50_000, SECONDS(5));
            assert_untouched(&world);
            assert!(world.switch.offload.is_empty(), "a closed connection is forgotten");
        }
    }
}

#[test]
fn an_unknown_option_in_a_repeated_syn_excludes_as_well() {
    let mut world = World::new(Setup { name: "unknown-again", ..Setup::default() });
    world.to_peer.drop_next = vec![0];
    world.peer.listen();
    world.guest.connect(world.now);
    world.run_for(MS(100));
    world.guest.config.unknown_option.0 = true;
    world.run_until(SECONDS(10), |w| w.guest.is_established() && w.peer.is_established());
    world.transfer_some(100_000, 100_000);
    assert_eq!(reason(&world), "unknown_option");
    assert_untouched(&world);
}

#[test]
fn another_connection_of_the_same_ports_is_not_excluded_by_the_one_before() {
    let mut setup = Setup { name: "unknown-then-not", ..Setup::default() };
    setup.guest.unknown_option = (true, true);
    for passive in [false, true] {
        let mut world = excluded(setup.clone(), passive, "unknown_option");
        world.guest.config.unknown_option = (false, false);
        world.guest.config.mss = 1448;
        world.restart(1);
        if passive {
            world.accept();
        } else {
            world.connect();
        }
        world.run_for(MS(50));
        let summary = world.switch.summary(&world.flow).unwrap();
        assert_eq!(summary.tx, TxState::Active);
        world.transfer(100_000, 100_000, SECONDS(5));
    }
}

#[test]
fn a_blind_syn_does_not_end_an_exclusion() {
    let mut setup = Setup { name: "unknown-blind", ..Setup::default() };
    setup.guest.unknown_option = (true, true);
    setup.peer.unknown_option = (true, true);
    let mut world = excluded(setup, false, "unknown_option");
    let mut syn = world.blind(1 << 20);
    syn.segment.flags = Flags::SYN;
    syn.segment.options.unknown = false;
    assert_eq!(world.network_packet(&syn), Verdict::PASS);
    world.run_for(MS(50));
    world.transfer_some(200_000, 200_000);
    assert_untouched(&world);
}

#[test]
fn a_syn_with_data_excludes_and_says_so() {
    let mut world = World::new(Setup { name: "syn-data", ..Setup::default() });
    world.guest.connect(world.now);
    let mut syn = world.guest.take_out().remove(0);
    syn.segment.len = 100;
    assert_eq!(world.guest_packet(&syn), Verdict::PASS);
    assert_eq!(reason(&world), "syn_data");
    assert_eq!(counter(&world, "flows_excluded"), 1);
}

#[test]
fn a_handshake_of_which_the_switch_missed_a_part_excludes_and_says_so() {
    let mut world = World::new(Setup { name: "partial", ..Setup::default() });
    world.guest.listen();
    world.peer.connect(world.now);
    let syn = world.peer.take_out().remove(0);
    world.network_packet(&syn);
    world.guest.on_packet(&syn, world.now);
    // The ACK of the guest's SYN goes past the switch; what comes next acknowledges data, too.
    let mut syn_ack = world.guest.take_out();
    assert_eq!(syn_ack.len(), 1);
    world.guest_packet(&syn_ack.remove(0));
    let mut later = world.blind(0);
    later.segment.seq = syn.segment.end();
    later.segment.ack = world.guest.seq(101);
    later.segment.flags = Flags::ACK;
    assert_eq!(world.network_packet(&later), Verdict::PASS);
    assert_eq!(reason(&world), "partial_handshake");
    assert_eq!(counter(&world, "flows_excluded"), 1);
}

#[test]
fn a_flow_that_the_guest_forwards_passes_untouched_unless_the_port_wants_any() {
    for passive in [false, true] {
        let mut setup = Setup { name: "forwarded", ..Setup::default() };
        setup.guest.forwarded = true;
        excluded(setup.clone(), passive, "forwarded");
        setup.offload.local = LocalFlows::Any;
        let mut world = World::new(setup);
        if passive {
            world.accept();
        } else {
            world.connect();
        }
        world.run_for(MS(50));
        assert_eq!(world.switch.summary(&world.flow).unwrap().tx, TxState::Active);
        world.transfer(100_000, 100_000, SECONDS(5));
    }
}

/// A flow that is online and quiet.
pub(crate) fn online(name: &'static str) -> World {
    let mut world = World::new(Setup { name, ..Setup::default() });
    world.connect();
    world.run_for(MS(50));
    world.transfer_some(10_000, 10_000);
    let summary = world.switch.summary(&world.flow).unwrap();
    assert_eq!((summary.tx, summary.rx), (TxState::Active, RxState::Active));
    world
}

fn with_unknown(mut packet: Packet) -> Packet {
    packet.segment.options.unknown = true;
    packet
}

#[test]
fn an_ack_of_the_guest_with_an_unknown_option_is_not_absorbed() {
    let mut world = online("unknown-guest-ack");
    // The peer has heard of it from the switch, so its like is absorbed.
    let data = world.peer_segment(1000);
    world.network_packet(&data);
    world.flush();
    let mut ack = world.guest_segment(0, 0);
    ack.segment.ack = data.segment.end();
    let mut with = with_unknown(ack.clone());
    with.segment.ack = data.segment.seq + 500;
    assert!(matches!(world.guest_packet(&with), Verdict::Pass(_)));
    assert_eq!(world.guest_packet(&ack), Verdict::Absorb);
}

#[test]
fn an_ack_of_the_peer_with_an_unknown_option_is_not_absorbed() {
    let mut world = online("unknown-peer-ack");
    let ack = world.peer_segment(0);
    let repeated = |world: &mut World, packet: &Packet| world.network_packet(packet);
    assert_eq!(repeated(&mut world, &ack), Verdict::Absorb, "it repeats another");
    assert!(matches!(repeated(&mut world, &with_unknown(ack)), Verdict::Pass(_)));
    // A duplicate, and one that is merged with the next.
    world.to_peer.config.loss = 1000;
    world.guest.write(200_000, world.now);
    world.send_from_guest();
    let mut ack = world.blind(0);
    ack.segment.flags = Flags::ACK;
    assert_eq!(world.network_packet(&ack), Verdict::Absorb, "a duplicate");
    assert!(matches!(world.network_packet(&with_unknown(ack.clone())), Verdict::Pass(_)));
    ack.segment.ack += 1448;
    assert_eq!(world.network_packet(&ack), Verdict::Absorb, "merged");
    ack.segment.ack += 1448;
    assert!(matches!(world.network_packet(&with_unknown(ack)), Verdict::Pass(_)));
    assert_eq!(world.switch.summary(&world.flow).unwrap().tx, TxState::Active);
}

#[test]
fn data_of_the_peer_with_an_unknown_option_is_left_to_the_guest() {
    let mut world = online("unknown-peer-data");
    let acks = counter(&world, "acks_sent");
    let data = with_unknown(world.peer_segment(1000));
    assert!(matches!(world.network_packet(&data), Verdict::Pass(_)));
    world.flush();
    assert_eq!(counter(&world, "acks_sent"), acks, "it was acknowledged for the guest");
    assert_eq!(world.switch.offload.used().1, 0);
    assert_eq!(world.switch.summary(&world.flow).unwrap().rx, RxState::UnexpectedSeq);
    // The guest acknowledges, and all is as before.
    world.peer.tx.nxt += 1000;
    world.peer.tx.written += 1000;
    world.run_for(MS(50));
    assert_eq!(world.switch.summary(&world.flow).unwrap().rx, RxState::Active);
    let data = world.peer_segment(1000);
    world.network_packet(&data);
    world.flush();
    assert_eq!(counter(&world, "acks_sent"), acks + 1);
    // Once more, with an option: the guest has to see it.
    assert!(matches!(world.network_packet(&with_unknown(data)), Verdict::Pass(_)));
}

#[test]
fn data_of_the_guest_keeps_its_unknown_option_while_it_is_stored() {
    let mut world = online("unknown-guest-data");
    world.to_peer.config.rate = Some(1_000);
    world.guest.config.unknown_option.1 = true;
    let bare = |packet: &Packet| packet.segment.len > 0 && !packet.segment.options.unknown;
    let (before, bare_before) = (world.peer.rx.bytes(), world.count_on_wire(bare));
    world.guest.write(300_000, world.now);
    world.send_from_guest();
    world.flush();
    assert!(world.switch.summary(&world.flow).unwrap().held > 0);
    world.run_until(SECONDS(20), |w| w.peer.rx.bytes() == before + 300_000);
    assert_eq!(world.count_on_wire(bare), bare_before, "data of the guest has lost its option");
    world.check_i7();
}

#[test]
fn a_first_flight_is_no_larger_than_both_ends_and_rfc_6928_allow() {
    // MSS of guest and peer, initial window in segments, bytes: min(n MSS, max(2 MSS, n 1460)) of RFC 6928.
    let cases = [
        (1448, 1448, 10, 14_480),
        (1448, 8949, 10, 14_480),
        (8949, 1448, 10, 14_480),
        (8949, 8949, 10, 17_898),
        (4000, 4000, 10, 14_600),
        (536, 1448, 10, 5_360),
        (8949, 8949, 1, 8_949),
        (1448, 1448, 32, 46_336),
        (8949, 8949, 32, 46_720),
    ];
    for (guest, peer, window, bytes) in cases {
        for passive in [false, true] {
            let mut setup = Setup { name: "first-flight", ..Setup::default() };
            (setup.guest.mss, setup.peer.mss) = (guest, peer);
            setup.offload.initial_window = window;
            (setup.to_peer.delay, setup.to_guest.delay) = (MS(20), MS(20));
            let mut world = World::new(setup);
            if passive {
                world.accept();
            } else {
                world.connect();
            }
            world.run_for(MS(100));
            world.guest.write(300_000, world.now);
            world.run_for(MS(10));
            let flight = world.switch.summary(&world.flow).unwrap().in_flight;
            assert!(flight <= bytes, "{flight} bytes in flight: {guest} {peer} {window} {passive}");
            // What does not fit a whole segment stays behind.
            assert!(flight + u32::from(guest.min(peer)) > bytes, "{flight} of {bytes}");
        }
    }
}

#[test]
fn after_an_idle_time_the_window_is_that_of_rfc_6928_again() {
    let mut setup = Setup { name: "restart-window", ..Setup::default() };
    (setup.guest.mss, setup.peer.mss) = (8949, 8949);
    (setup.to_peer.delay, setup.to_guest.delay) = (MS(20), MS(20));
    let mut world = World::new(setup);
    world.connect();
    world.transfer_some(500_000, 0);
    world.run_for(SECONDS(10));
    world.guest.write(300_000, world.now);
    world.run_for(MS(10));
    let flight = world.switch.summary(&world.flow).unwrap().in_flight;
    assert!(flight <= 17_898, "{flight} bytes in flight");
}

/// AE and the other ECN bits of a SYN or SYN-ACK by their number, as in the table of RFC 9768 section 3.1.2.
fn ecn_bits(number: u8) -> (bool, Flags) {
    let bit = |mask: u8, flag| if number & mask != 0 { flag } else { NONE };
    (number & 4 != 0, bit(2, Flags::CWR).with(bit(1, Flags::ECE)))
}

/// A connection whose SYN and SYN-ACK have these ECN bits; the peer answers, or asks.
fn with_ecn_bits(syn: u8, syn_ack: u8, passive: bool) -> World {
    let mut setup = Setup { name: "ecn-bits", ..Setup::default() };
    let (guest, peer) = if passive { (syn_ack, syn) } else { (syn, syn_ack) };
    setup.guest.syn_ecn = Some(ecn_bits(guest));
    setup.peer.syn_ecn = Some(ecn_bits(peer));
    let mut world = World::new(setup);
    if passive {
        world.accept();
    } else {
        world.connect();
    }
    world.run_for(MS(50));
    world
}

#[test]
fn a_flow_that_agrees_on_accurate_ecn_passes_untouched() {
    // RFC 9768 section 3.1.2; 0b101 is reserved, and means AccECN (section 3.1.3).
    for syn_ack in [0b010, 0b011, 0b100, 0b101, 0b110] {
        for passive in [false, true] {
            let mut world = with_ecn_bits(0b111, syn_ack, passive);
            world.transfer_some(100_000, 100_000);
            assert_eq!(reason(&world), "accurate_ecn", "{syn_ack:03b} {passive}");
            assert_eq!(counter(&world, "flows_excluded"), 1);
            assert_untouched(&world);
        }
    }
}

#[test]
fn ecn_is_what_syn_and_syn_ack_agree_on() {
    // Classic ECN or none, whoever asked for more; a SYN-ACK that reflects the SYN is broken.
    let cases = [
        (0b111, 0b001, true),
        (0b111, 0b000, false),
        (0b111, 0b111, false),
        (0b011, 0b001, true),
        (0b011, 0b000, false),
        (0b011, 0b011, false),
        (0b000, 0b001, false),
        (0b000, 0b000, false),
    ];
    for (syn, syn_ack, ecn) in cases {
        for passive in [false, true] {
            let mut world = with_ecn_bits(syn, syn_ack, passive);
            let summary = world.switch.summary(&world.flow).unwrap();
            assert_eq!(summary.tx, TxState::Active, "{syn:03b} {syn_ack:03b}");
            // ECT leaves only if it was agreed.
            let mut packet = world.guest_segment(0, 1000);
            packet.segment.ecn = Ecn(2);
            world.guest_packet(&packet);
            let left = world.count_on_wire(|packet| packet.segment.ecn != Ecn::NOT_ECT);
            assert_eq!(left, u64::from(ecn), "{syn:03b} {syn_ack:03b} {passive}");
        }
    }
}

/// A flow with classic ECN whose guest echoes as DCTCP does, or until CWR comes. The guest runs now and then.
fn marked(name: &'static str, dctcp: bool, mark: u32) -> World {
    let mut setup = Setup { name, cpu: crate::transfers::contended(), ..Setup::default() };
    (setup.guest.ecn, setup.peer.ecn) = (true, true);
    setup.guest.dctcp = dctcp;
    setup.to_guest.mark = mark;
    // A receiver that delays ACKs by bytes of any number of segments would be another test.
    setup.peer.gso = 1448;
    let mut world = World::new(setup);
    world.connect();
    world.run_for(MS(50));
    world
}

#[test]
fn the_echo_of_a_dctcp_receiver_stays_exact() {
    for mark in [1, 10, 100, 500, 1000] {
        let mut world = marked("dctcp-echo", true, mark);
        world.transfer_some(0, 3_000_000);
        // And with data of its own, that carries acknowledgements.
        world.transfer_some(1_000_000, 1_000_000);
        let marked = world.monitor.ce_bytes_to_guest;
        assert!(marked > 0 || mark == 1, "nothing was marked");
        assert_eq!(world.peer.tx.echoed_bytes, marked, "marked {mark} of 1000");
    }
}

#[test]
fn a_mark_is_echoed_until_cwr_comes_whoever_acknowledges() {
    let mut world = marked("classic-echo", false, 0);
    let rx = |world: &World| world.switch.summary(&world.flow).unwrap().rx;
    let mut data = world.peer_segment(1000);
    data.segment.ecn = Ecn::CE;
    let acks = counter(&world, "acks_sent");
    assert!(matches!(world.network_packet(&data), Verdict::Pass(_)));
    world.flush();
    assert_eq!((counter(&world, "acks_sent"), rx(&world)), (acks, RxState::UnexpectedSeq));
    world.peer.tx.nxt += 1000;
    world.peer.tx.written += 1000;
    world.run_for(MS(200));
    // The guest has echoed it, and goes on with that: so do we.
    assert_eq!(rx(&world), RxState::Active);
    assert!(world.monitor.ece_from_switch > 0);
    let send = |world: &mut World, flags| {
        let mut data = world.peer_segment(1000);
        data.segment.flags = data.segment.flags.with(flags);
        data.segment.ecn = Ecn(2);
        world.network_packet(&data);
        world.flush();
        world.peer.tx.nxt += 1000;
        world.peer.tx.written += 1000;
    };
    // No mark after a mark is a change, which might end the echo.
    send(&mut world, NONE);
    assert_eq!(counter(&world, "acks_sent"), acks);
    world.run_for(MS(200));
    let echoed = world.monitor.ece_from_switch;
    send(&mut world, NONE);
    assert_eq!(counter(&world, "acks_sent"), acks + 1);
    assert_eq!(world.monitor.ece_from_switch, echoed + 1);
    world.run_for(MS(200));
    // CWR: the guest ends its echo, and says so itself.
    let acks = counter(&world, "acks_sent");
    send(&mut world, Flags::CWR);
    assert_eq!(counter(&world, "acks_sent"), acks);
    world.run_for(MS(200));
    let echoed = world.monitor.ece_from_switch;
    send(&mut world, NONE);
    assert_eq!(counter(&world, "acks_sent"), acks + 1);
    world.run_for(MS(200));
    assert_eq!(world.monitor.ece_from_switch, echoed);
}

#[test]
fn an_echo_of_the_guest_is_never_absorbed() {
    let mut world = marked("echo-passes", false, 0);
    let data = world.peer_segment(1000);
    world.network_packet(&data);
    world.flush();
    // The peer has the number from us, and not the echo.
    let mut ack = world.guest_segment(0, 0);
    ack.segment.ack = data.segment.end();
    ack.segment.flags = Flags::ACK.with(Flags::ECE);
    assert_eq!(world.guest_packet(&ack), Verdict::Pass(Edit::default()));
    assert_eq!(world.guest_packet(&ack), Verdict::Pass(Edit::default()), "a duplicate");
    ack.segment.flags = Flags::ACK;
    assert_eq!(world.guest_packet(&ack), Verdict::Pass(Edit::default()), "the end of the echo");
}

#[test]
fn ce_means_nothing_where_ecn_was_not_agreed() {
    let mut world = online("ce-without-ecn");
    let acks = counter(&world, "acks_sent");
    let mut data = world.peer_segment(1000);
    data.segment.ecn = Ecn::CE;
    world.network_packet(&data);
    world.flush();
    assert_eq!(counter(&world, "acks_sent"), acks + 1);
    assert_eq!(world.monitor.ece_from_switch, 0);
}
