//! Receivers that stall, and peers that are dead: what the guest hears of them.

use floodway_core::offload::TxState;
use floodway_core::time::Duration;

use crate::harness::tcp::{State, TcpConfig};
use crate::harness::{Setup, World};

const MS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;
const BUFFER: i64 = 50_000;

/// A guest that gives up after 12.6 s without progress, and a peer with a buffer of [`BUFFER`] whose application has
/// stopped to read.
fn stalled(name: &'static str, change: impl FnOnce(&mut Setup)) -> World {
    let mut setup = Setup { name, ..Setup::default() };
    (setup.guest.retries2, setup.peer.buffer) = (5, BUFFER as u32);
    change(&mut setup);
    let mut world = World::new(setup);
    world.connect();
    world.peer.rx.paused = true;
    world
}

/// The application reads again: all comes, and the guest is none the wiser.
fn resumes(mut world: World, bytes: i64) -> World {
    assert!(world.guest.is_established(), "{:?}", world.guest.state);
    world.peer.resume(world.now);
    world.transfer(0, 0, SECONDS(120));
    world.check_received(bytes, 0);
    assert_eq!(world.wire_repeats() as u64, world.switch.offload.counters().retransmitted);
    world
}

#[test]
fn a_guest_that_gives_up_soon_outlives_a_closed_window() {
    type Change = fn(&mut TcpConfig);
    let kinds: [(&str, Change); 7] = [
        ("stall-plain", |_| ()),
        ("stall-no-sack", |c| c.sack = false),
        ("stall-no-timestamps", |c| c.timestamps = false),
        ("stall-no-scale", |c| c.scale = None),
        ("stall-large-scale", |c| c.scale = Some(9)),
        ("stall-tlp", |c| c.tlp = true),
        ("stall-small-mss", |c| c.mss = 200),
    ];
    for (n, (name, change)) in kinds.into_iter().enumerate() {
        let mut world = stalled(name, |setup| {
            change(&mut setup.guest);
            change(&mut setup.peer);
            setup.guest.retries2 = [3, 5, 8][n % 3];
        });
        world.guest.write(400_000, world.now);
        world.run_for(SECONDS(900));
        let counters = world.switch.offload.counters();
        // It is probed once a minute, and whenever the guest asks.
        assert!((15..60).contains(&counters.window_probes), "{name} {counters:?}");
        assert_eq!(world.switch.offload.online(), 1);
        resumes(world, 400_000);
    }
}

/// Linux measures `tcp_retries2` from the first repeat of a recovery: one that lasts for several stalls leaves no second timeout in a row.
#[test]
fn a_guest_outlives_several_stalls_in_one_recovery() {
    for reads in [500, 1_000, 2_000, 4_000] {
        let mut world = stalled("stall-again", |setup| {
            setup.to_peer.rate = Some(50);
            (setup.guest.mss, setup.peer.sack) = (200, false);
        });
        world.guest.write(1_000_000, world.now);
        for stall in 0..4 {
            world.run_for(SECONDS(20));
            assert!(world.guest.is_established(), "read for {reads} ms, stall {stall}");
            world.peer.resume(world.now);
            world.run_for(MS(reads));
            world.peer.rx.paused = true;
        }
        resumes(world, 1_000_000);
    }
}

#[test]
fn the_guest_is_told_the_truth_when_the_window_opens() {
    let mut world = stalled("stall-truth", |_| ());
    world.guest.write(200_000, world.now);
    world.run_for(SECONDS(100));
    let peer_has = world.peer.rx.nxt;
    assert!(world.guest.tx.una < peer_has, "something is withheld");
    assert!(world.guest.tx.una > peer_has - 4096);
    world.peer.resume(world.now);
    world.run_for(MS(1));
    assert!(world.guest.tx.una >= peer_has, "all is disclosed at once");
    let world = resumes(world, 200_000);
    assert!(world.dsacks_to_guest() > 0, "what it repeated came twice");
}

#[test]
fn bytes_that_are_sent_into_a_closed_window_are_waited_for_as_well() {
    // All that was sent is acknowledged, and the guest is silent when the window closes.
    for scale in [0, 7] {
        let mut world = stalled("stall-later", |setup| setup.peer.scale = Some(scale));
        world.guest.write(BUFFER, world.now);
        world.run_for(SECONDS(20));
        assert_eq!(world.peer.rx.bytes(), BUFFER);
        for _ in 0..10 {
            world.guest.write(1000, world.now);
            world.run_for(SECONDS(200));
        }
        resumes(world, BUFFER + 10_000);
    }
}

#[test]
fn a_receiver_that_stalls_again_and_again() {
    let mut world = stalled("stall-again", |setup| setup.to_peer.rate = Some(5_000));
    world.guest.write(8_000_000, world.now);
    for round in 0..100 {
        world.run_for(MS(round * 1_300 % 40_000));
        world.peer.resume(world.now);
        world.run_for(MS(round % 4));
        world.peer.rx.paused = true;
    }
    assert!(world.peer.rx.bytes() < 8_000_000, "it stalled to the end");
    resumes(world, 8_000_000);
}

#[test]
fn a_receiver_that_reads_a_byte_now_and_then() {
    for (name, silly, scale) in
        [("stall-bytes", false, 7), ("stall-silly", true, 0), ("stall-silly-scale", true, 7)]
    {
        let mut world = stalled(name, |setup| {
            (setup.peer.silly, setup.peer.scale) = (silly, Some(scale));
        });
        world.guest.write(200_000, world.now);
        world.run_for(SECONDS(1));
        for _ in 0..150 {
            world.peer.rx.read += 1;
            world.run_for(SECONDS(7));
        }
        resumes(world, 200_000);
    }
}

#[test]
fn a_guest_that_closes_at_a_closed_window_is_waited_for() {
    let mut world = stalled("stall-fin", |_| ());
    world.guest.write(BUFFER + 5_000, world.now);
    world.guest.close(world.now);
    world.run_for(SECONDS(600));
    resumes(world, BUFFER + 5_000);
}

#[test]
fn what_is_withheld_is_disclosed_when_all_is_acknowledged() {
    // The last bytes and the FIN leave the window closed.
    let mut world = stalled("stall-end", |setup| setup.peer.scale = Some(0));
    world.guest.write(BUFFER - 1, world.now);
    world.guest.close(world.now);
    world.run_for(SECONDS(1));
    assert!(world.guest.tx.is_done(), "{} of {}", world.guest.tx.una, world.guest.tx.end());
    world.check_i7();
    resumes(world, BUFFER - 1);
}

#[test]
fn a_flow_that_is_drained_at_a_closed_window_lasts_and_goes_offline() {
    let mut world = stalled("stall-drain", |_| ());
    world.guest.write(200_000, world.now);
    world.run_for(SECONDS(30));
    world.drain(true);
    world.run_for(SECONDS(600));
    assert_eq!(world.switch.summary(&world.flow).unwrap().tx, TxState::Leaving);
    world.peer.resume(world.now);
    world.run_until(SECONDS(120), |w| w.switch.offload.is_drained());
    world.run_for(MS(1));
    assert_eq!(world.guest.tx.una, world.peer.rx.nxt, "offline is told the truth");
    resumes(world, 200_000);
}

#[test]
fn a_drained_flow_that_has_nothing_stored_goes_offline_with_the_truth() {
    let mut world = stalled("stall-drain-idle", |setup| setup.peer.scale = Some(0));
    world.guest.write(BUFFER, world.now);
    world.run_for(SECONDS(1));
    assert!(world.guest.tx.una < world.peer.rx.nxt, "something is withheld");
    world.drain(true);
    world.run_for(SECONDS(1));
    assert!(world.switch.offload.is_drained());
    assert_eq!(world.guest.tx.una, world.peer.rx.nxt);
    resumes(world, BUFFER);
}

/// How long a guest waits for a peer that has died, after a stall of `closed` seconds.
fn time_to_give_up(offload: bool, retries2: u32, closed: u64) -> Duration {
    let mut world = stalled("stall-dead", |setup| {
        (setup.offload.transmit, setup.offload.receive) = (offload, offload);
        (setup.guest.retries2, setup.module) = (retries2, offload);
    });
    if closed > 0 {
        world.guest.write(200_000, world.now);
        world.run_for(SECONDS(closed));
    }
    assert!(world.guest.is_established());
    world.to_peer.config.loss = 1000;
    world.guest.write(20_000, world.now);
    let start = world.now;
    world.run_until(SECONDS(7_200), |w| w.guest.state == State::TimedOut);
    world.now.since(start)
}

#[test]
fn a_dead_peer_is_given_up_in_the_time_of_plain_tcp() {
    for retries2 in [5, 15] {
        let (plain, ours) =
            (time_to_give_up(false, retries2, 0), time_to_give_up(true, retries2, 0));
        assert!(ours <= plain * 11 / 10 && plain <= ours * 11 / 10, "{plain:?}, {ours:?} with us");
        // A plain sender counts probes of the window, which are further apart than timeouts after such a stall.
        let (plain, ours) =
            (time_to_give_up(false, retries2, 600), time_to_give_up(true, retries2, 600));
        assert!(ours <= plain, "{plain:?} without, {ours:?} with us");
    }
}
