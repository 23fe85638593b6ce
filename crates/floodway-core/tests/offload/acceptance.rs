//! What of the network's segments may change a flow: RFC 9293 section 3.10.7.4, RFC 5961, RFC 7323 section 5.

use floodway_core::offload::{FlowSummary, Refusal, TxState, Verdict};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::tcp::Flags;
use floodway_wire::tcp::options::Timestamps;
use proptest::prelude::*;

use crate::harness::cases::check;
use crate::harness::packet::Packet;
use crate::harness::tcp::State;
use crate::harness::{CpuConfig, Setup, World};

const MS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;
const MSS: u32 = 1448;
/// The largest window that the peers of these tests advertise.
const WINDOW: u32 = 60_032;

/// A connection that has carried more than a window in both directions, with 4 ms of round trip.
fn connected(name: &'static str) -> World {
    connected_with(Setup { name, ..Setup::default() })
}

fn connected_with(mut setup: Setup) -> World {
    setup.peer.buffer = WINDOW;
    (setup.to_peer.delay, setup.to_guest.delay) = (MS(2), MS(2));
    let mut world = World::new(setup);
    world.connect();
    world.run_for(MS(100));
    world.transfer_some(200_000, 200_000);
    world
}

/// One of which a window of the guest's data is on its way, and none of it acknowledged.
fn sending(name: &'static str) -> World {
    let mut world = connected(name);
    world.guest.write(300_000, world.now);
    world.run_for(MS(1));
    assert!(summary(&world).in_flight >= 10 * MSS);
    world
}

fn summary(world: &World) -> FlowSummary {
    world.switch.summary(&world.flow).unwrap()
}

/// What the peer has acknowledged.
fn una(world: &World) -> Seq {
    world.guest.seq(world.guest.tx.una)
}

/// A pure ACK that somebody forges, without an error yet.
fn forged(world: &World, len: u32) -> Packet {
    let mut packet = world.peer_segment(len);
    packet.segment.ack = una(world);
    // Bytes that the peer never wrote.
    packet.at += 1 << 40;
    packet
}

fn edit(verdict: Verdict) -> floodway_core::offload::Edit {
    let Verdict::Pass(edit) = verdict else { panic!("{verdict:?} is not passed") };
    edit
}

/// The flow is as it was before, and nothing was sent anywhere.
fn changes_nothing(world: &mut World, packet: &Packet) -> Verdict {
    let before = (summary(world), world.switch.offload.used(), world.switch.offload.next_timeout());
    let sent = (world.passed_to_network(), world.passed_to_guest());
    let acknowledged = world.switch.offload.counters().acknowledged_bytes;
    let verdict = world.forged_packet(packet, false);
    let after = (summary(world), world.switch.offload.used(), world.switch.offload.next_timeout());
    assert_eq!(after, before, "the flow is the same");
    assert_eq!((world.passed_to_network(), world.passed_to_guest()), sent, "nothing was sent");
    assert_eq!(world.switch.offload.counters().acknowledged_bytes, acknowledged);
    verdict
}

#[test]
fn data_whose_ack_is_too_old_is_neither_acknowledged_nor_made_acceptable() {
    let mut world = connected("old-ack");
    for age in [WINDOW + 1, WINDOW + 1000, 1 << 20, 1 << 29, (1 << 31) - 1] {
        let mut packet = forged(&world, 1000);
        packet.segment.ack = packet.segment.ack - age;
        let edit = edit(changes_nothing(&mut world, &packet));
        let ack = edit.ack.unwrap_or(packet.segment.ack);
        assert!(ack.before(una(&world) - WINDOW), "{age}: the guest sees it too, {edit:?}");
        // The guest refuses it with an ACK of its own, which the peer hears.
        let heard = world.passed_to_network();
        world.forged_packet(&packet, true);
        world.run_for(MS(10));
        assert_eq!(world.passed_to_network(), heard + 1, "{age}: a challenge ACK");
    }
    world.transfer(100_000, 100_000, SECONDS(5));
    world.check_i7();
}

#[test]
fn data_whose_ack_is_a_window_old_is_taken() {
    let mut world = connected("window-old-ack");
    world.peer.write(1000, world.now);
    let mut packet = world.peer.take_out().pop().unwrap();
    packet.segment.ack = una(&world) - WINDOW;
    world.network_packet(&packet);
    world.flush();
    assert_eq!(world.switch.offload.counters().acknowledged_bytes, 201_000);
    world.run_for(MS(50));
    world.check_received(200_000, 201_000);
}

#[test]
fn an_ack_whose_sequence_number_is_off_frees_nothing() {
    let mut world = sending("blind-ack");
    let window = world.guest.rx.edge - world.guest.rx.nxt;
    let beyond = window as u32 + 1;
    for len in [0, 1, 1000] {
        let before = 0_u32.wrapping_sub(len + 1);
        for distance in [beyond, 1 << 30, 1 << 31, 3 << 30, before, before - 1] {
            let mut packet = forged(&world, len);
            packet.segment.seq += distance;
            packet.segment.ack += 10 * MSS;
            packet.segment.window *= 2;
            changes_nothing(&mut world, &packet);
        }
    }
    world.transfer(0, 0, SECONDS(5));
    world.check_i7();
}

#[test]
fn segments_without_an_ack_are_not_taken() {
    let mut world = connected("no-ack");
    for flags in [Flags::PSH, Flags::FIN, Flags::default()] {
        let mut packet = forged(&world, 100);
        packet.segment.flags = flags;
        assert_eq!(changes_nothing(&mut world, &packet), Verdict::PASS);
    }
    world.transfer(10_000, 10_000, SECONDS(5));
}

#[test]
fn an_ack_with_a_clock_of_the_past_frees_nothing() {
    let mut world = sending("stale");
    for age in [1, 1000, 1 << 30, 1 << 31] {
        for len in [0, 1000] {
            let mut packet = forged(&world, len);
            packet.segment.ack += 10 * MSS;
            let clock = packet.segment.options.timestamps.as_mut().unwrap();
            clock.value = world.guest.rx.ts_recent.wrapping_sub(age);
            let edit = edit(changes_nothing(&mut world, &packet));
            assert_eq!(edit.timestamps, None, "it stays as old as it is");
        }
    }
    world.transfer(0, 0, SECONDS(5));
    world.check_i7();
}

#[test]
fn a_clock_is_not_judged_where_none_was_agreed() {
    let mut setup = Setup { name: "no-clock", ..Setup::default() };
    setup.peer.timestamps = false;
    let mut world = connected_with(setup);
    let mut packet = forged(&world, 0);
    packet.segment.options.timestamps = Some(Timestamps { value: 1 << 30, echo: 0 });
    world.forged_packet(&packet, true);
    packet.segment.options.timestamps = Some(Timestamps { value: 7, echo: 0 });
    world.guest.write(10_000, world.now);
    world.run_for(MS(1));
    packet.segment.ack += 1;
    let before = summary(&world).in_flight;
    world.forged_packet(&packet, true);
    assert_eq!(summary(&world).in_flight, before - 1);
}

#[test]
fn what_is_refused_is_refused_still() {
    // Beyond what was sent: nobody can tell whether the guest would take it.
    let mut world = sending("unsent");
    let mut packet = forged(&world, 0);
    packet.segment.ack = una(&world) + 200_000;
    packet.segment.seq += 1 << 30;
    assert_eq!(changes_nothing(&mut world, &packet), Verdict::Drop(Refusal::AcksUnsent));
    let mut packet = forged(&world, 0);
    packet.segment.ack = una(&world) + 200_000;
    packet.segment.options.timestamps.as_mut().unwrap().value = world.guest.rx.ts_recent - 1;
    assert_eq!(changes_nothing(&mut world, &packet), Verdict::Drop(Refusal::AcksUnsent));
    // Nor does its data count.
    let mut packet = forged(&world, 100);
    packet.segment.ack = una(&world) + (1 << 29);
    assert_eq!(changes_nothing(&mut world, &packet), Verdict::PASS);
}

#[test]
fn keepalives_and_window_probes_of_the_peer_are_answered_while_data_is_under_way() {
    for garbage in [false, true] {
        let mut world = sending("peer-keepalive");
        let before = summary(&world);
        let sent = world.passed_to_network();
        world.peer.keepalive(garbage, world.now);
        let packet = world.peer.take_out().pop().unwrap();
        let verdict = world.network_packet(&packet);
        assert!(matches!(verdict, Verdict::Pass(_)), "{verdict:?}");
        assert_eq!(summary(&world), before, "it is no duplicate ACK");
        world.run_for(Duration::from_micros(10));
        assert_eq!(world.passed_to_network(), sent + 1, "the guest's answer");
        world.transfer(0, 0, SECONDS(5));
        world.check_i7();
    }
}

#[test]
fn acks_out_of_order_and_window_updates_are_taken() {
    let mut world = connected("disorder");
    world.peer.rx.paused = true;
    world.guest.write(200_000, world.now);
    world.run_for(MS(100));
    assert!(summary(&world).held > 0, "the peer's window is closed");
    world.peer.resume(world.now);
    world.run_for(MS(100));
    assert_eq!(world.peer.rx.bytes(), 400_000);
    // The guest's data and the peer's cross, and the paths reorder.
    world.to_guest.config.reorder = 300;
    world.to_guest.config.reorder_by = MS(1);
    world.transfer(300_000, 300_000, SECONDS(20));
    world.check_i7();
}

#[test]
fn a_reset_ends_a_flow_only_with_the_number_that_the_guest_expects() {
    let mut setup = Setup { name: "reset", ..Setup::default() };
    setup.cpu = CpuConfig { runs: (MS(1), MS(1)), away: (MS(200), MS(200)) };
    let mut world = connected_with(setup);
    world.run_until(SECONDS(1), |w| !w.guest.has_output());
    world.peer.write(20_000, world.now);
    world.run_until(SECONDS(1), |w| summary(w).kept >= 20_000);
    let next = world.peer_segment(0).segment.seq;
    let acked = world.peer.seq(world.guest.rx.nxt);
    assert!(acked.before(next), "the guest has not acknowledged what the switch has");
    for seq in [acked, acked + 1, next - 1, next + 1, next + 20_000, next + (1 << 30)] {
        let mut packet = forged(&world, 0);
        packet.segment.flags = Flags::RST;
        packet.segment.seq = seq;
        assert_eq!(changes_nothing(&mut world, &packet), Verdict::PASS, "{seq:?}");
    }
    let mut packet = world.peer_segment(0);
    packet.segment.flags = Flags::RST;
    assert_eq!(world.forged_packet(&packet, true), Verdict::PASS);
    assert!(world.switch.offload.is_empty());
    world.run_for(SECONDS(1));
    assert_eq!((world.guest.state, world.guest.rx.bytes()), (State::Reset, 220_000));
}

/// A host whose application ends while data comes sends a FIN, and answers what comes after it with resets, whose number is the
/// acknowledgement number of what they answer.
#[test]
fn a_reset_that_answers_the_switch_ends_a_flow_whose_fin_the_guest_has_not_acknowledged() {
    let mut setup = Setup { name: "reset-behind-fin", ..Setup::default() };
    setup.offload.receive = false;
    let mut world = connected_with(setup);
    world.guest.write(300_000, world.now);
    world.run_for(MS(1));
    assert!(summary(&world).in_flight >= 10 * MSS);
    let mut fin = world.peer_segment(0);
    fin.segment.flags = Flags::ACK.with(Flags::FIN);
    assert!(matches!(world.forged_packet(&fin, true), Verdict::Pass(_)));
    let mut reset = fin.clone();
    reset.segment.flags = Flags::RST;
    assert_eq!(world.forged_packet(&reset, true), Verdict::PASS);
    assert!(world.switch.offload.is_empty(), "nothing else would end it");
}

#[test]
fn syns_of_an_established_connection_change_nothing() {
    let mut world = sending("late-syn");
    for flags in [Flags::SYN, Flags::SYN.with(Flags::ACK)] {
        for distance in [0, 0_u32.wrapping_sub(1), 1 << 30] {
            let mut packet = forged(&world, 0);
            packet.segment.flags = flags;
            packet.segment.seq += distance;
            let edit = edit(changes_nothing(&mut world, &packet));
            assert_eq!((edit.seq, edit.ack), (None, None));
        }
    }
    world.transfer(0, 0, SECONDS(5));
    world.check_i7();
}

#[test]
fn data_beyond_the_window_moves_nothing() {
    let mut world = connected("beyond");
    world.guest.rx.paused = true;
    world.peer.write(2 << 20, world.now);
    world.run_for(SECONDS(3));
    assert_eq!(world.guest.rx.nxt, world.guest.rx.edge, "the guest's window is closed");
    (world.guest.tolerant, world.monitor.off) = (true, true);
    world.guest.expects_forgeries = true;
    // As BSD probes a closed window, and as no sender does: one byte after the other.
    for n in 0..5000 {
        let mut packet = world.peer_segment(1);
        packet.at += n;
        packet.segment.seq += n as u32;
        changes_nothing(&mut world, &packet);
    }
    // What the switch makes is still what the guest takes.
    world.guest.write(300_000, world.now);
    world.run_for(MS(500));
    assert_eq!(world.peer.rx.bytes(), 500_000);
    world.guest.resume(world.now);
    world.transfer(0, 0, SECONDS(20));
    world.check_i7();
}

#[test]
fn a_blind_ack_brings_no_flow_online() {
    let mut setup = Setup { name: "online", ..Setup::default() };
    setup.offload.budget = 1000;
    let mut world = connected_with(setup);
    assert_eq!(summary(&world).tx, TxState::Offline);
    world.configure(|config| config.budget = 1 << 20);
    let mut packet = forged(&world, 0);
    packet.segment.seq += 1 << 30;
    assert_eq!(changes_nothing(&mut world, &packet), Verdict::PASS);
    let mut packet = forged(&world, 0);
    packet.segment.ack = packet.segment.ack - WINDOW - 1;
    assert_eq!(changes_nothing(&mut world, &packet), Verdict::PASS);
    let packet = forged(&world, 0);
    world.forged_packet(&packet, true);
    assert_eq!(summary(&world).tx, TxState::Active);
}

#[test]
fn blind_segments_do_not_keep_a_flow_alive() {
    let mut setup = Setup { name: "unused", ..Setup::default() };
    setup.offload.idle = SECONDS(10);
    let mut world = connected_with(setup);
    for _ in 0..100 {
        let mut packet = forged(&world, 0);
        packet.segment.seq += 1 << 30;
        world.forged_packet(&packet, false);
        packet.segment.flags = Flags::RST;
        world.forged_packet(&packet, false);
        packet.segment.flags = Flags::SYN.with(Flags::ACK);
        world.forged_packet(&packet, false);
        world.run_for(MS(500));
    }
    assert!(world.switch.offload.is_empty());
}

#[test]
fn a_handshake_is_ended_by_nobody_who_guesses() {
    // The guest connects: a SYN-ACK that acknowledges another SYN.
    let mut world = World::new(Setup { name: "blind-syn-ack", ..Setup::default() });
    world.peer.listen();
    world.guest.connect(world.now);
    world.send_from_guest();
    for distance in [1_u32, 1 << 30, 0_u32.wrapping_sub(1)] {
        let mut packet = world.blind(5);
        packet.segment.flags = Flags::SYN.with(Flags::ACK);
        packet.segment.ack = world.guest.seq(1) + distance;
        assert_eq!(world.forged_packet(&packet, false), Verdict::PASS);
    }
    world.run_until(SECONDS(1), |w| w.guest.is_established() && w.peer.is_established());
    assert_eq!(summary(&world).tx, TxState::Active);
    world.transfer(100_000, 100_000, SECONDS(5));

    // It listens: the third segment of the handshake has a wrong number or acknowledges too much.
    let mut world = World::new(Setup { name: "blind-third", ..Setup::default() });
    world.guest.listen();
    world.peer.connect(world.now);
    world.to_peer.config.delay = MS(50);
    world.run_for(MS(20));
    assert_eq!(world.guest.state, State::SynReceived);
    let (seq, ack) = (world.peer.seq(1), world.guest.seq(1));
    for (seq, ack) in [(seq + (1 << 30), ack), (seq, ack + (1 << 20)), (seq - 2, ack)] {
        let mut packet = world.blind(0);
        (packet.segment.flags, packet.segment.seq, packet.segment.ack) = (Flags::ACK, seq, ack);
        assert_eq!(changes_nothing(&mut world, &packet), Verdict::PASS);
    }
    world.run_until(SECONDS(1), |w| w.guest.is_established() && w.peer.is_established());
    assert_eq!(summary(&world).tx, TxState::Active);
    assert!(summary(&world).srtt.is_some_and(|srtt| srtt >= MS(50)), "no round trip of a forgery");
    world.transfer(100_000, 100_000, SECONDS(5));
}

#[test]
fn a_clock_that_was_not_heard_for_24_days_is_not_judged() {
    // The peer keeps the connection alive and says nothing else: its clock overtakes the last one by half a turn.
    for days in [26, 225] {
        let mut setup = Setup { name: "long-idle", ..Setup::default() };
        setup.offload.idle = SECONDS(7200);
        let mut world = connected_with(setup);
        for _ in 0..days * 24 {
            world.now += SECONDS(3600);
            world.peer.keepalive(false, world.now);
            world.run_for(MS(10));
        }
        assert_ne!(summary(&world).tx, TxState::Offline, "it is still offloaded");
        world.transfer(100_000, 100_000, SECONDS(5));
        world.check_i7();
    }
}

#[test]
fn wild_numbers_of_a_guest_harm_nobody_else() {
    let mut world = connected("wild-guest");
    let (used, kept) = world.switch.offload.used();
    let mut now = world.now;
    let other = crate::harness::flow(50_000);
    let mut syn = world.guest_segment(0, 0);
    syn.segment.flags = Flags::SYN;
    world.switch.guest_sends(now, &other, &syn);
    let mut answer = syn.clone();
    answer.segment.flags = Flags::SYN.with(Flags::ACK);
    answer.segment.ack = syn.segment.seq + 1;
    world.switch.peer_sends(now, &other, &answer);
    for n in 0..10_000_u32 {
        let mut packet = world.guest_segment(0, n % 3000);
        let wild = n.wrapping_mul(2_654_435_761);
        packet.segment.seq = if n % 2 == 0 { syn.segment.seq + 1 } else { Seq(wild) };
        packet.segment.ack =
            if n % 3 == 0 { syn.segment.seq + 1 } else { Seq(wild.rotate_left(9)) };
        packet.segment.window = wild as u16;
        world.switch.guest_sends(now, &other, &packet);
        let mut packet = world.peer_segment(1000);
        packet.segment.seq = syn.segment.seq + 1;
        packet.segment.ack = syn.segment.seq + 1;
        world.switch.peer_sends(now, &other, &packet);
        world.switch.flush(now);
        now += Duration::from_micros(10);
        let config = world.switch.offload.config();
        let limits = (config.budget, config.receive_budget);
        let (used, kept) = world.switch.offload.used();
        assert!(used <= limits.0 && kept <= limits.1);
    }
    world.switch.take_actions();
    let mut reset = syn.clone();
    reset.segment.flags = Flags::RST;
    world.switch.guest_sends(now, &other, &reset);
    assert_eq!(world.switch.offload.used(), (used, kept), "all is given back");
    world.switch.take_actions();
    world.monitor.note_counters(&world.switch.offload.counters());
    world.now = now;
    world.transfer(100_000, 100_000, SECONDS(5));
}

/// How a forgery is wrong.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Sequence(u32),
    AckBeforeWindow(u32),
    AckBeyondSent(u32),
    Clock(u32),
}

/// A segment in the middle of a transfer that nobody has sent who can see it.
#[derive(Clone, Debug)]
struct Forgery {
    after: Duration,
    wrong: Wrong,
    len: u32,
    ahead: u32,
    acked: u32,
    window: u16,
    fin: bool,
}

fn forgery() -> impl Strategy<Value = Forgery> {
    let far = || prop_oneof![1 => 0..10_000_u32, 2 => 0..(1_u32 << 30)];
    let wrong = prop_oneof![
        far().prop_map(Wrong::Sequence),
        far().prop_map(Wrong::AckBeforeWindow),
        far().prop_map(Wrong::AckBeyondSent),
        far().prop_map(Wrong::Clock),
    ];
    let len = prop_oneof![1 => Just(0), 1 => 1..3000_u32];
    (0..4000_u64, wrong, len, 0..20_000_u32, 0..40_000_u32, any::<u16>(), any::<bool>()).prop_map(
        |(after, wrong, len, ahead, acked, window, fin)| Forgery {
            after: Duration::from_micros(after),
            wrong,
            len,
            ahead,
            acked,
            window,
            fin,
        },
    )
}

/// The forgery as a segment, wrong in the way that it says and right in all others.
fn forge(world: &World, forgery: &Forgery) -> Packet {
    let mut packet = forged(world, forgery.len);
    let segment = &mut packet.segment;
    if forgery.fin {
        segment.flags = segment.flags.with(Flags::FIN);
    }
    segment.window = forgery.window;
    // What the switch knows of, not the guest, which runs later.
    let sent = summary(world).in_flight;
    let acked = world.wire_una();
    segment.ack = acked + forgery.acked.min(sent);
    let edge = world.peer.seq(world.guest.rx.edge);
    let floor = world.peer.seq(world.guest.rx.acked);
    segment.seq += forgery.ahead.min(edge.since(segment.seq));
    match forgery.wrong {
        // A guest that takes what lies before it first may have moved its window on by then.
        Wrong::Sequence(n) if n % 2 == 0 => segment.seq = edge + world.guest.config.buffer + n,
        Wrong::Sequence(n) => segment.seq = floor - segment.seq_len() - 1 - n,
        Wrong::AckBeforeWindow(n) => {
            // The switch edits nothing for a guest that runs its own congestion control, and what the guest refuses takes its
            // acknowledgement along: there the guest decides, by what it has heard.
            let heard = world.guest.seq(world.guest.tx.una);
            let is_offline = summary(world).tx == TxState::Offline;
            let oldest = if is_offline { acked.min(heard) } else { acked };
            segment.ack = oldest - WINDOW - 1 - n;
        }
        // Nor what it has sent by then.
        Wrong::AckBeyondSent(n) => {
            segment.ack = world.guest.seq(world.guest.tx.nxt) + (4 << 20) + n;
        }
        Wrong::Clock(n) => {
            let value = world.peer.config.clock.wrapping_sub(1 + n);
            segment.options.timestamps = Some(Timestamps { value, echo: 0 });
        }
    }
    packet
}

/// Both directions of a transfer, with or without forgeries in it. `deliver`: the guest gets what is passed.
fn run(setup: &Setup, forgeries: &[Forgery], forge_them: bool, deliver: bool) -> World {
    let mut world = connected_with(setup.clone());
    // It does not take what it refuses for the peer's.
    world.guest.tolerant = true;
    world.guest.expects_forgeries = true;
    world.guest.write(300_000, world.now);
    world.peer.write(300_000, world.now);
    for forgery in forgeries {
        world.run_for(forgery.after);
        if forge_them {
            let packet = forge(&world, forgery);
            let before = summary(&world);
            world.forged_packet(&packet, deliver);
            assert_eq!(summary(&world), before, "{forgery:?}");
        }
    }
    world.transfer(0, 0, SECONDS(100));
    world
}

fn case() -> impl Strategy<Value = (Setup, Vec<Forgery>)> {
    let contended = (1..10_u64, 1..40_u64).prop_map(|(runs, away)| CpuConfig {
        runs: (Duration::from_micros(100), MS(runs)),
        away: (Duration::from_micros(100), MS(away)),
    });
    let cpu = prop_oneof![1 => Just(CpuConfig::ALWAYS), 2 => contended];
    let paths = (0..30_u32, 0..30_u32, any::<[bool; 4]>());
    (any::<u64>(), cpu, paths, prop::collection::vec(forgery(), 1..30)).prop_map(
        |(seed, cpu, (loss, reorder, [sack, transmit, receive, wraps]), forgeries)| {
            let mut setup = Setup { name: "forgeries", seed, cpu, ..Setup::default() };
            (setup.to_guest.loss, setup.to_peer.reorder) = (loss, reorder);
            setup.peer.sack = sack;
            setup.offload.transmit = transmit;
            setup.offload.receive = receive || !transmit;
            if wraps {
                (setup.guest.isn, setup.peer.isn) = (u32::MAX - 250_000, u32::MAX - 250_000);
                setup.peer.clock = u32::MAX - 200;
            }
            (setup, forgeries)
        },
    )
}

/// Nothing that comes of a forgery leaves the switch but the forgery itself.
#[test]
fn forgeries_change_nothing_that_anybody_sees() {
    check(case(), |(setup, forgeries)| {
        let (with, without) =
            (run(&setup, &forgeries, true, false), run(&setup, &forgeries, false, false));
        assert!(with.captures() == without.captures(), "somebody sees something else");
        assert_eq!(with.now, without.now);
    });
}

/// A guest that gets them takes none of their bytes, and of the connection they take nothing.
#[test]
fn a_guest_takes_nothing_of_what_is_forged() {
    check(case(), |(setup, forgeries)| {
        // The guest's stream is checked byte by byte as it comes.
        let world = run(&setup, &forgeries, true, true);
        assert_eq!(world.switch.offload.used(), (0, 0));
        assert!(world.now < Instant::ZERO + SECONDS(60));
    });
}
