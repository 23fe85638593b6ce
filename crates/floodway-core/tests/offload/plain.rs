//! Opening and closing connections.

use floodway_core::offload::{RxState, TxState};
use floodway_core::time::Duration;
use floodway_wire::tcp::Flags;

use crate::harness::tcp::State;
use crate::harness::{Setup, World, flow};

const SECONDS: fn(u64) -> Duration = Duration::from_secs;

fn world(name: &'static str) -> World {
    World::new(Setup { name, ..Setup::default() })
}

fn tx(world: &World) -> TxState {
    world.switch.summary(&world.flow).map_or(TxState::Offline, |s| s.tx)
}

#[test]
fn active_open() {
    let mut world = world("active-open");
    world.connect();
    assert_eq!(tx(&world), TxState::Active);
    assert!(world.guest.tx.managed);
    world.run_for(Duration::from_millis(10));
    let granted = world.guest.tx.edge;
    assert!(granted > 100_000, "the window update behind the SYN-ACK grants more: {granted}");
    world.transfer(100_000, 0, SECONDS(2));
    world.run_for(SECONDS(1));
    assert!(world.switch.offload.is_empty(), "a closed connection is forgotten");
    assert_eq!(world.switch.offload.used(), (0, 0));
}

#[test]
fn passive_open() {
    let mut world = world("passive-open");
    world.accept();
    world.run_for(Duration::from_millis(10));
    assert_eq!(tx(&world), TxState::Active);
    world.transfer(100_000, 10_000, SECONDS(2));
    world.run_for(SECONDS(1));
    assert!(world.switch.offload.is_empty());
}

#[test]
fn simultaneous_open() {
    let mut world = world("simultaneous-open");
    world.peer.connect(world.now);
    world.guest.connect(world.now);
    world.run_until(SECONDS(10), |w| w.guest.is_established() && w.peer.is_established());
    world.transfer(200_000, 200_000, SECONDS(5));
    world.check_i7();
    world.run_for(SECONDS(1));
    assert!(world.switch.offload.is_empty());
    assert!(world.switch.offload.counters().went_online > 0);
}

#[test]
fn syns_are_sent_again() {
    for (name, passive) in [("syn-lost", false), ("syn-ack-lost", true)] {
        let mut world = world(name);
        world.to_peer.drop_next = vec![0];
        world.to_guest.drop_next = vec![if passive { 0 } else { 1 }];
        if passive {
            world.accept();
        } else {
            world.connect();
        }
        world.transfer(100_000, 100_000, SECONDS(10));
        assert!(world.switch.offload.counters().went_online > 0);
    }
}

#[test]
fn the_guest_loses_a_syn_ack() {
    let mut setup = Setup { name: "syn-ack-queue", ..Setup::default() };
    setup.offload.budget = 64 << 10;
    let mut world = World::new(setup);
    world.queue_drops = 1000;
    world.peer.listen();
    world.guest.connect(world.now);
    world.run_for(Duration::from_millis(500));
    world.queue_drops = 0;
    world.run_until(SECONDS(10), |w| w.guest.is_established());
    world.transfer(300_000, 0, SECONDS(10));
    assert_eq!(world.refused, 0, "what the guest sends was granted");
    world.check_i7();
}

#[test]
fn close_from_both_sides() {
    for (name, first) in [("close-guest", true), ("close-peer", false)] {
        let mut world = world(name);
        world.connect();
        let now = world.now;
        world.guest.write(10_000, now);
        world.peer.write(10_000, now);
        if first {
            world.guest.close(now);
        } else {
            world.peer.close(now);
        }
        world.run_for(Duration::from_millis(300));
        let now = world.now;
        assert!(!world.switch.offload.is_empty(), "half closed is not closed");
        // The other side still has something to say.
        if first {
            world.peer.write(50_000, now);
        } else {
            world.guest.write(50_000, now);
        }
        if first {
            world.peer.close(now);
        } else {
            world.guest.close(now);
        }
        world.run_until(SECONDS(5), |w| w.guest.is_closed() && w.peer.is_closed());
        let (up, down) = if first { (10_000, 60_000) } else { (60_000, 10_000) };
        world.check_received(up, down);
        world.check_i7();
        world.run_for(SECONDS(1));
        assert!(world.switch.offload.is_empty());
    }
}

#[test]
fn a_reset_of_the_guest_ends_it() {
    let mut world = world("rst-guest");
    world.to_peer.config.rate = Some(1_000);
    world.connect();
    world.run_for(Duration::from_millis(5));
    world.guest.write(200_000, world.now);
    world.run_for(Duration::from_millis(30));
    let held = world.switch.summary(&world.flow).unwrap().held;
    assert!(held > 0, "something is stored when the reset comes");
    world.guest.abort(world.now);
    world.send_from_guest();
    assert!(world.switch.offload.is_empty());
    assert_eq!(world.switch.offload.used(), (0, 0));
    // It overtook what was stored, so it has the number that the peer accepts.
    world.run_until(SECONDS(5), |w| w.peer.state == State::Reset);
}

#[test]
fn a_reset_of_the_peer_ends_it() {
    let mut world = world("rst-peer");
    world.connect();
    world.transfer_some(10_000, 10_000);
    world.peer.abort(world.now);
    world.run_until(SECONDS(1), |w| w.guest.state == State::Reset);
    assert!(world.switch.offload.is_empty());
}

#[test]
fn blind_resets_and_syns_change_nothing() {
    let mut world = world("blind");
    world.connect();
    world.transfer_some(10_000, 10_000);
    let online = world.switch.offload.online();
    for distance in [1, 1_000, 100_000, 1 << 30] {
        let mut packet = world.blind(distance);
        packet.segment.flags = Flags::RST;
        world.network_packet(&packet);
        packet.segment.flags = Flags::SYN;
        world.network_packet(&packet);
        packet.segment.flags = Flags::SYN.with(Flags::ACK);
        world.network_packet(&packet);
        packet.segment.flags = Flags::FIN.with(Flags::ACK);
        packet.segment.seq += 2_000_000;
        world.network_packet(&packet);
    }
    // A clock far ahead, out of the window: it must not get into what we make.
    let mut packet = world.blind(1 << 29);
    let clock = packet.segment.options.timestamps.as_mut().unwrap();
    clock.value = clock.value.wrapping_add(1 << 30);
    packet.segment.flags = Flags::ACK;
    world.network_packet(&packet);
    assert_eq!(world.switch.offload.online(), online);
    world.transfer(300_000, 300_000, SECONDS(5));
    world.check_i7();
}

#[test]
fn a_connection_whose_syn_has_data_is_left_alone() {
    let mut world = world("fast-open");
    world.connect();
    let mut syn = world.blind(0);
    syn.segment = floodway_core::offload::Segment {
        flags: Flags::SYN,
        seq: floodway_core::seq::Seq(7),
        len: 100,
        ..syn.segment
    };
    let other = flow(50_000);
    let (now, switch) = (world.now, &mut world.switch);
    switch.guest_sends(now, &other, &syn);
    let mut answer = syn.clone();
    answer.segment.flags = Flags::SYN.with(Flags::ACK);
    answer.segment.len = 0;
    answer.segment.ack = floodway_core::seq::Seq(108);
    switch.peer_sends(now, &other, &answer);
    let mut data = syn.clone();
    data.segment.flags = Flags::ACK;
    data.segment.seq = floodway_core::seq::Seq(108);
    let verdict = switch.guest_sends(now, &other, &data);
    assert_eq!(verdict, floodway_core::offload::Verdict::PASS);
    let summary = switch.summary(&other).unwrap();
    assert_eq!((summary.tx, summary.rx), (TxState::Offline, RxState::Offline));
    switch.take_actions();
}

#[test]
fn ports_are_used_again() {
    // Both ways of ending, and both sides that may begin anew.
    for (name, reset) in [("port-reuse", false), ("port-reuse-reset", true)] {
        let mut world = world(name);
        for round in 0..3_u32 {
            if round % 2 == 0 {
                world.connect();
            } else {
                world.accept();
            }
            world.transfer_some(50_000, 50_000);
            if reset {
                // The guest crashes without a word; the switch has a flow, the guest none.
                assert!(round > 0 || !world.switch.offload.is_empty());
            } else {
                world.transfer(1, 1, SECONDS(5));
            }
            world.check_i7();
            world.run_for(Duration::from_millis(200));
            world.restart(round + 1);
        }
    }
}
