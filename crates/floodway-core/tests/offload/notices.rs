//! How often the guest's module is told which flows are managed.

use floodway_core::offload::{Config, Counters, EarlyAck, FlowNotice, Offload};
use floodway_core::time::Duration;

use crate::harness::tcp::TcpConfig;
use crate::harness::{Setup, World};

const SECONDS: fn(u64) -> Duration = Duration::from_secs;

fn managed(world: &World) -> usize {
    world.named.iter().filter(|&&naming| naming == FlowNotice::Managed).count()
}

#[test]
fn a_flow_in_use_is_named_again_and_ever_more_rarely() {
    // A module that missed the first notices, or was installed later, would never know of the flow.
    let mut world = World::new(Setup { name: "named-again", ..Setup::default() });
    world.connect();
    let mut per_minute = Vec::new();
    for _ in 0..4 {
        let before = managed(&world);
        for _ in 0..60 {
            world.guest.write(20_000, world.now);
            world.run_for(SECONDS(1));
        }
        per_minute.push(managed(&world) - before);
    }
    assert!(per_minute[0] > 8, "{per_minute:?}");
    assert!(per_minute[1..].iter().all(|&notices| (1..=2).contains(&notices)), "{per_minute:?}");
}

#[test]
fn an_idle_flow_is_not_named_again() {
    let mut world = World::new(Setup { name: "idle-named", ..Setup::default() });
    world.connect();
    world.transfer_some(20_000, 0);
    // What was scheduled when the last ACK came.
    world.run_for(SECONDS(1));
    let before = managed(&world);
    world.run_for(SECONDS(300));
    assert_eq!(managed(&world), before);
}

/// A guest that reads names in SYN-ACKs.
fn reader(setup: Setup) -> World {
    let mut world = World::new(setup);
    world.switch.offload.name_in_syn_acks(true);
    world
}

fn counters(world: &World) -> Counters {
    world.switch.offload.counters()
}

#[test]
fn a_syn_ack_bears_the_name_in_place_of_a_notice() {
    let mut world = reader(Setup { name: "named-inside", ..Setup::default() });
    world.connect();
    assert!(world.guest.tx.managed);
    world.run_for(SECONDS(1));
    // Nothing is repeated to a guest that has acknowledged the SYN-ACK, but heartbeats come, as after a notice.
    assert_eq!((counters(&world).named_in_syn_ack, managed(&world)), (1, 0));
    assert!(world.heartbeats >= 9, "{}", world.heartbeats);
    // A flow in use is named again, ever more rarely.
    for _ in 0..60 {
        world.guest.write(20_000, world.now);
        world.run_for(SECONDS(1));
    }
    assert!((3..=10).contains(&managed(&world)), "{}", managed(&world));
    assert_eq!(counters(&world).named_in_syn_ack, 1);
    world.check_i7();
}

#[test]
fn a_notice_is_sent_where_the_name_has_no_room_or_is_not_read() {
    let peer = TcpConfig { full_options: true, ..Setup::default().peer };
    let full = reader(Setup { name: "no-room", peer, ..Setup::default() });
    let older = World::new(Setup { name: "reads-no-names", ..Setup::default() });
    for mut world in [full, older] {
        world.connect();
        assert!(world.guest.tx.managed);
        assert_eq!(counters(&world).named_in_syn_ack, 0, "{}", world.name);
        assert_eq!(managed(&world), 1, "{}", world.name);
    }
}

#[test]
fn a_server_is_told_by_notices() {
    let mut world = reader(Setup { name: "server", ..Setup::default() });
    world.accept();
    assert!(world.guest.tx.managed);
    assert_eq!((counters(&world).named_in_syn_ack, managed(&world)), (0, 1));
}

#[test]
fn a_syn_ack_that_comes_again_bears_the_name_again() {
    let mut world = reader(Setup { name: "again", queue_drops: 1000, ..Setup::default() });
    world.peer.listen();
    world.guest.connect(world.now);
    world.run_until(SECONDS(1), |world| counters(world).named_in_syn_ack == 1);
    assert!(!world.guest.is_established());
    world.queue_drops = 0;
    world.run_until(SECONDS(10), |world| world.guest.is_established());
    assert_eq!(counters(&world).named_in_syn_ack, 2);
}

#[test]
fn who_is_acknowledged_early_is_told_nothing() {
    let offload = Config { early_ack: EarlyAck::Always, ..Setup::default().offload };
    let mut world = reader(Setup { name: "early", offload, module: false, ..Setup::default() });
    world.connect();
    assert_eq!((counters(&world).named_in_syn_ack, managed(&world)), (0, 0));
}

#[test]
fn an_excluded_connection_bears_no_name() {
    let peer = TcpConfig { unknown_option: (true, false), ..Setup::default().peer };
    let mut world = reader(Setup { name: "excluded", peer, ..Setup::default() });
    world.connect();
    assert_eq!((counters(&world).flows_excluded, counters(&world).named_in_syn_ack), (1, 0));
}

/// A guest whose switch was started again while it had a connection.
fn of_another_switch(name: &'static str, offload: Config) -> World {
    let mut world = World::new(Setup { name, offload, ..Setup::default() });
    world.connect();
    world.transfer_some(20_000, 20_000);
    world.monitor.off = true;
    world.guest.tx.managed = false;
    world.switch.offload = Offload::new(world.switch.offload.config().clone(), 0x5eed);
    world.resume_guest();
    world.heartbeats = 0;
    world
}

#[test]
fn a_guest_that_sends_for_a_switch_that_is_gone_hears_of_the_new_one() {
    let mut world = of_another_switch("greeted", Setup::default().offload);
    world.run_for(SECONDS(1));
    assert_eq!(world.heartbeats, 0, "not before it sends");
    world.guest.write(20_000, world.now);
    world.run_for(SECONDS(1));
    assert_eq!(world.heartbeats, 1, "it is asked for its nonce, once");
    world.hear_module(true);
    assert_eq!(world.heartbeats, 2, "and hears what it believes");
    world.guest.write(20_000, world.now);
    world.run_for(SECONDS(1));
    assert_eq!(world.heartbeats, 2);
    // Its rings start again.
    world.resume_guest();
    world.guest.write(20_000, world.now);
    world.run_for(SECONDS(1));
    assert_eq!(world.heartbeats, 3, "the nonce is known");
}

#[test]
fn a_guest_whose_module_is_not_used_is_not_greeted() {
    let default = Setup::default().offload;
    let agentless = Config { early_ack: EarlyAck::Always, ..default.clone() };
    for offload in [agentless, Config { transmit: false, ..default }] {
        let mut world = of_another_switch("not-greeted", offload);
        world.guest.write(20_000, world.now);
        world.run_for(SECONDS(1));
        assert_eq!(world.heartbeats, 0);
    }
}
