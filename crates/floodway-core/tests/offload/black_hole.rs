//! Paths that drop what is too large and do not say so.

use floodway_core::offload::Verdict;
use floodway_core::time::Duration;

use crate::harness::{Setup, World};

const MS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;
const MB: i64 = 1 << 20;

/// A connection whose path, of a round trip of 4 ms, drops segments of more than `largest` bytes from now on.
fn world(name: &'static str, largest: Option<u32>, change: impl FnOnce(&mut Setup)) -> World {
    let mut setup = Setup { name, ..Setup::default() };
    (setup.to_peer.delay, setup.to_guest.delay) = (MS(2), MS(2));
    change(&mut setup);
    let mut world = World::new(setup);
    world.connect();
    world.transfer_some(100_000, 0);
    (world.to_peer.largest, world.to_peer.silent) = (largest, true);
    world
}

/// How long the guest's bytes take.
fn time(world: &mut World, bytes: i64) -> Duration {
    let (all, start) = (world.peer.rx.bytes() + bytes, world.now);
    world.guest.write(bytes, start);
    world.run_until(SECONDS(1_000), |w| w.peer.rx.bytes() >= all);
    world.now.since(start)
}

#[test]
fn what_is_too_large_becomes_smaller() {
    // Below 1280 bytes it is the guest that says so.
    for (largest, probing, limit) in [
        (1400, [false, true], MS(900)),
        (1240, [false, true], MS(900)),
        (1000, [true; 2], MS(7_000)),
        (512, [true; 2], MS(7_000)),
    ] {
        let [off, on] = probing;
        for (mtu_probing, sack, timestamps) in
            [(off, true, true), (on, true, true), (off, false, true), (off, true, false)]
        {
            let mut world = world("black-hole", Some(largest), |setup| {
                setup.guest.mtu_probing = mtu_probing;
                (setup.peer.sack, setup.peer.timestamps) = (sack, timestamps);
            });
            let took = time(&mut world, MB / 2);
            let counters = world.switch.offload.counters();
            let what = format!("{largest} {mtu_probing} {sack}: {took:?} {counters:?}");
            assert!(took < limit, "{what}");
            assert!(counters.mss_fallbacks > 0 && counters.mss_restored == 0, "{what}");
            // From now on it is known: at most one segment in ten minutes is too large.
            let dropped = world.to_peer.dropped;
            assert!(time(&mut world, 2 * MB) < SECONDS(3), "{what}");
            assert!(world.to_peer.dropped <= dropped + 1, "{what}");
            assert_eq!(world.switch.offload.counters().timeouts, counters.timeouts, "{what}");
            world.transfer(0, 0, SECONDS(10));
        }
    }
}

#[test]
fn a_guest_that_repeats_in_smaller_segments_says_what_comes_through() {
    let mut world = world("black-hole-learnt", Some(700), |setup| setup.guest.tlp = false);
    world.guest.write(30_000, world.now);
    // The switch has timed out once.
    world.run_until(SECONDS(1), |w| w.switch.offload.counters().timeouts == 1);
    let una = world.guest.tx.una - world.guest.tx.nxt;
    let fallbacks = |world: &World| world.switch.offload.counters().mss_fallbacks;
    // As large as what was sent: it says nothing. Nor does what is not the first.
    for (from, len) in [(0, 1448), (1448, 700), (0, 3000)] {
        let packet = world.guest_segment(una + from, len);
        assert_eq!(world.guest_packet(&packet), Verdict::Absorb);
        assert_eq!(fallbacks(&world), 0, "{from} {len}");
    }
    let packet = world.guest_segment(una, 700);
    assert_eq!(world.guest_packet(&packet), Verdict::Absorb);
    assert_eq!(fallbacks(&world), 1);
    // The next timeout is the last.
    world.run_until(MS(500), |w| w.peer.rx.bytes() == 130_000);
    assert_eq!(world.switch.offload.counters().timeouts, 2);
}

#[test]
fn small_repeats_of_what_was_small_say_nothing() {
    let mut world = world("black-hole-small", None, |_| ());
    world.to_peer.config.loss = 1000;
    for _ in 0..20 {
        world.guest.write(300, world.now);
        world.run_for(MS(1));
    }
    world.run_for(SECONDS(20));
    assert!(world.switch.offload.counters().timeouts > 4);
    assert_eq!(world.switch.offload.counters().mss_fallbacks, 0);
    world.to_peer.config.loss = 0;
    world.transfer(0, 0, SECONDS(60));
}

#[test]
fn an_outage_takes_nothing_from_a_path_that_is_as_large_as_before() {
    for outage in [500, 2_000, 20_000] {
        let mut world = world("outage", None, |_| ());
        world.to_peer.config.loss = 1000;
        world.guest.write(MB, world.now);
        world.run_for(MS(outage));
        let counters = world.switch.offload.counters();
        assert!(counters.mss_fallbacks > 0, "it looks like a black hole: {counters:?}");
        world.to_peer.config.loss = 0;
        world.run_until(SECONDS(60), |w| w.peer.rx.bytes() == 100_000 + MB);
        let counters = world.switch.offload.counters();
        assert_eq!(counters.mss_restored, 1, "{counters:?}");
        // All segments are as large as before.
        let sent = world.to_peer.sent();
        time(&mut world, MB);
        assert!(world.to_peer.sent() - sent <= (MB / 1448) as u64 + 20, "{outage}");
        world.transfer(0, 0, SECONDS(10));
    }
}

#[test]
fn the_full_size_is_tried_again_after_ten_minutes() {
    let mut world = world("black-hole-gone", Some(1300), |setup| {
        setup.offload.idle = SECONDS(3600);
    });
    time(&mut world, MB);
    world.to_peer.largest = None;
    time(&mut world, MB);
    assert_eq!(world.switch.offload.counters().mss_restored, 0);
    world.run_for(SECONDS(600));
    time(&mut world, MB);
    assert_eq!(world.switch.offload.counters().mss_restored, 1);
    world.transfer(0, 0, SECONDS(10));
}
