//! Long transfers over bad paths, byte for byte, with the offload on all the time or going on and off.
//!
//! `cargo test -p floodway-core --release --test offload -- --ignored` moves 5 GB, more than there are sequence
//! numbers.

use floodway_core::time::Duration;

use crate::harness::tcp::Digest;
use crate::harness::{CpuConfig, Setup, World};

const MS: fn(u64) -> Duration = Duration::from_millis;
const MB: i64 = 1_000_000;
/// What every run of the tests moves.
const SOME: i64 = 24 * MB;
const FIVE_GB: i64 = 5_000 * MB;
/// 100 Mbit/s, in bytes per millisecond: slow enough for many changes on the way.
const RATE: u64 = 12_500;

/// 1 % loss, reordering and duplication each in both directions, between ends that are busy.
fn bad_paths(name: &'static str) -> Setup {
    let cpu = CpuConfig { runs: (MS(1), MS(20)), away: (MS(1), MS(20)) };
    let mut setup = Setup { name, cpu, ..Setup::default() };
    for path in [&mut setup.to_peer, &mut setup.to_guest] {
        (path.loss, path.reorder, path.duplicate) = (10, 10, 10);
        path.rate = Some(RATE);
    }
    setup
}

/// Half of `bytes` each way; `meanwhile` is called every 100 ms. The digests at both ends are equal.
fn move_bytes(setup: Setup, bytes: i64, mut meanwhile: impl FnMut(&mut World, u64)) -> World {
    let half = bytes / 2;
    let mut world = World::new(setup);
    world.connect();
    for end in [&mut world.guest, &mut world.peer] {
        end.rx.digest = Some(Digest::default());
        end.write(half, world.now);
        end.close(world.now);
    }
    // A tenth of what the paths can carry.
    let limit = 100 + 10 * bytes as u64 / RATE / 100;
    for n in 0.. {
        if world.guest.is_closed() && world.peer.is_closed() {
            break;
        }
        assert!(n < limit, "up {} down {}", world.peer.rx.bytes(), world.guest.rx.bytes());
        world.run_for(MS(100));
        meanwhile(&mut world, n);
    }
    world.check_received(half, half);
    let sent = Some(Digest::of_stream(half));
    assert_eq!((world.guest.rx.digest, world.peer.rx.digest), (sent, sent));
    assert!(world.to_peer.dropped > 0 && world.to_guest.dropped > 0);
    world
}

fn with_both_offloads(bytes: i64) {
    let world = move_bytes(bad_paths("long"), bytes, |_, _| {});
    let counters = world.switch.offload.counters();
    assert!(counters.stored_bytes >= bytes as u64 / 2, "all of it went through the store");
    assert!(counters.acknowledged_bytes > 0 && counters.retransmitted > 0);
}

/// Each half of the offload goes on and off every 100 ms, not at the same time.
fn with_flips(bytes: i64) {
    let world = move_bytes(bad_paths("flips"), bytes, |world, n| {
        world.configure(|c| (c.transmit, c.receive) = (n % 2 == 0, n % 4 < 2));
    });
    let counters = world.switch.offload.counters();
    assert!(counters.went_offline > 1 && counters.went_online > 1, "{counters:?}");
    assert!(counters.stored_bytes > 0 && counters.acknowledged_bytes > 0, "{counters:?}");
}

#[test]
fn every_byte_arrives_over_bad_paths() {
    with_both_offloads(SOME);
}

#[test]
fn every_byte_arrives_while_the_offload_goes_on_and_off() {
    with_flips(SOME);
}

#[test]
#[ignore = "takes minutes"]
fn five_gigabytes_arrive_over_bad_paths() {
    with_both_offloads(FIVE_GB);
}

#[test]
#[ignore = "takes minutes"]
fn five_gigabytes_arrive_while_the_offload_goes_on_and_off() {
    with_flips(FIVE_GB);
}

#[test]
fn a_digest_knows_where_each_byte_belongs() {
    let whole = Digest::of_stream(1000);
    assert_ne!(whole, Digest::of_stream(999));
    assert_ne!(whole, Digest::default());
}
