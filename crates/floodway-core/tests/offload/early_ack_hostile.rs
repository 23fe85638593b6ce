//! Guests and peers that mean harm, and early acknowledgement.

use floodway_core::offload::{Config, EarlyAck, Segment, Verdict};
use floodway_core::seq::Seq;
use floodway_core::time::{Duration, Instant};
use floodway_wire::tcp::Flags;

use crate::harness::packet::Packet;
use crate::harness::switch::{Action, Switch};
use crate::harness::{Setup, World, flow};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn connected(name: &'static str) -> World {
    let mut setup = Setup { name, module: false, ..Setup::default() };
    setup.offload.early_ack = EarlyAck::Always;
    let mut world = World::new(setup);
    world.record();
    world.connect();
    world.run_for(MS(50));
    world.transfer_some(20_000, 0);
    world
}

/// A guest that takes no notice of what is acknowledged, and sends all of it again: nobody else gets it twice.
#[test]
fn a_guest_that_never_hears_an_acknowledgement_costs_the_network_nothing() {
    let mut world = connected("early-deaf");
    let first = world.guest_segment(0, 10_000);
    world.guest_packet(&first);
    world.flush();
    world.run_for(MS(100));
    let (passed, frames) = (world.passed_to_network(), world.switch.offload.counters());
    for _ in 0..10_000 {
        assert_eq!(world.guest_packet(&first), Verdict::Absorb);
        world.flush();
    }
    assert_eq!(world.passed_to_network(), passed);
    let now = world.switch.offload.counters();
    assert_eq!(now.stored_frames, frames.stored_frames);
    assert_eq!(world.switch.offload.owed(), 0);
}

/// T4: however much a guest sends to a peer that never reads, the switch owes no more than the budget, and what it has to say about it is bounded.
#[test]
fn a_peer_that_never_reads_is_owed_no_more_than_the_budget() {
    let mut world = connected("early-never-reads");
    world.peer.rx.paused = true;
    for _ in 0..50 {
        world.guest.write(200_000, world.now);
        world.run_for(MS(200));
        let (used, _) = world.switch.offload.used();
        assert!(used <= world.switch.offload.config().budget);
        assert!(world.switch.offload.owed() <= used.into());
    }
    let passed = world.passed_to_network();
    world.run_for(Duration::from_secs(600));
    // Probes of the closed window, of both: backed off.
    assert!(world.passed_to_network() - passed < 200, "{}", world.passed_to_network() - passed);
    assert!(world.guest.is_established());
}

fn segment(flags: Flags, seq: u32, ack: u32, len: u32) -> Packet {
    let (seq, ack, window) = (Seq(seq), Seq(ack), u16::MAX);
    Packet { segment: Segment { flags, seq, ack, len, window, ..Segment::default() }, at: 0 }
}

/// A connection that is open, with `port` as the guest's, has sent `len` bytes, and its peer is silent. Returns how often the guest was told of something.
fn owe(switch: &mut Switch, now: Instant, port: u16, len: u32) -> usize {
    let flow = flow(port);
    switch.guest_sends(now, &flow, &segment(Flags::SYN, 0, 0, 0));
    let answer = segment(Flags::SYN.with(Flags::ACK), 100, 1, 0);
    switch.peer_sends(now + MS(1), &flow, &answer);
    switch.guest_sends(now + MS(1), &flow, &segment(Flags::ACK, 1, 101, 0));
    switch.flush(now + MS(1));
    switch.take_actions();
    switch.guest_sends(now + MS(2), &flow, &segment(Flags::ACK, 1, 101, len));
    switch.flush(now + MS(2));
    let told = |action: &Action| matches!(action, Action::ToGuest(_));
    switch.take_actions().iter().filter(|action| told(action)).count()
}

/// As many flows as the largest budget has room for owe bytes to peers that say nothing: each repairs at intervals that double, and what the port does in a call is bounded.
#[test]
fn flows_that_owe_bytes_to_silent_peers_cost_a_bounded_number_of_calls_and_frames() {
    const FLOWS: u16 = 16_000;
    let config = Config {
        transmit: true,
        early_ack: EarlyAck::Always,
        budget: 1 << 30,
        early_ack_min_rtt: Duration::ZERO,
        ..Config::default()
    };
    let mut switch = Switch::new(config);
    let mut now = Instant::from_millis(10);
    let told: usize = (0..FLOWS).map(|n| owe(&mut switch, now, 1 + n, 1000)).sum();
    assert_eq!(told, usize::from(FLOWS), "one early ACK each");
    assert_eq!(switch.offload.owed(), u64::from(FLOWS) * 999);
    let mut frames = 0;
    for _ in 0..60 {
        now += Duration::from_secs(1);
        let mut calls = 0;
        while switch.offload.next_timeout() <= now {
            switch.on_time(now);
            let done = switch.take_actions().len();
            assert!(done <= 200, "{done} actions in a call");
            (calls, frames) = (calls + 1, frames + done);
        }
        assert!(calls <= usize::from(FLOWS), "{calls}");
    }
    // Time-outs from 100 ms or a second on that double: ten in a minute at most, and a probe.
    assert!(frames <= 30 * usize::from(FLOWS), "{frames}");
    assert_eq!(switch.offload.owed(), u64::from(FLOWS) * 999);
}
