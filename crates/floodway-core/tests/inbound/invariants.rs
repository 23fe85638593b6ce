//! Whatever the network is like, what leaves the clamp keeps the invariants, which [`crate::network`] asserts for
//! each ACK.

use floodway_core::inbound::{Config, Policy};
use floodway_core::time::{Duration, Instant};
use proptest::prelude::*;

use crate::cases::check_at_least;
use crate::network::{Network, Scene};

/// Cases of each property that every run of the tests has.
const CASES: u64 = 64;

fn scenes() -> impl Strategy<Value = Scene> {
    let vms = 1_usize..4;
    let connections = proptest::collection::vec((0_usize..3, 20_u64..30_000), 1..24);
    let policy = prop_oneof![Just(Policy::Connections), Just(Policy::Fixed), Just(Policy::Share)];
    let numbers = (1_000_000_u64..1_000_000_000, 10_000_u64..500_000, 4_000_u32..500_000);
    let guests = (0_u64..20_000, 0_u8..15, any::<u64>());
    (vms, connections, policy, numbers, guests).prop_map(
        |(vms, connections, policy, (link, buffer, burst), (guest_us, scale, seed))| {
            let connections = connections.into_iter().map(|(vm, rtt)| (vm % vms, rtt)).collect();
            let config = Config { capacity: link, burst, policy, ..Config::default() };
            Scene { config, link, buffer, connections, vms, guest_us, scale, seed }
        },
    )
}

#[test]
fn whatever_the_network() {
    let case = (scenes(), proptest::collection::vec(1_u64..300, 24));
    check_at_least(CASES, case, |(scene, closes)| {
        let mut network = Network::new(scene.clone());
        for (number, close) in closes.iter().enumerate().take(scene.connections.len()) {
            network.open(number, Instant::from_millis(number as u64 * 5));
            if close % 3 == 0 {
                network.close(number, Instant::from_millis(number as u64 * 5 + close));
            }
        }
        network.run(Instant::from_millis(400));
        let rates: u64 = network.allocator.rates().iter().sum();
        assert_eq!(rates, scene.config.capacity, "N4");
    });
}

/// The link runs at another speed than the clamp believes, and edges still only advance; nothing stalls, whether a sender
/// pauses or not: what it finds when it goes on, the clamp has decided.
#[test]
fn nothing_stalls() {
    check_at_least(CASES, (scenes(), 1_u64..500), |(scene, pause)| {
        // Where nothing is lost, everybody goes on receiving.
        let mut network = Network::new(Scene { buffer: u64::MAX / 2, ..scene.clone() });
        for number in (0..scene.connections.len()).step_by(2) {
            network.pause(number, Instant::from_millis(pause));
        }
        for number in 0..scene.connections.len() {
            network.open(number, Instant::from_millis(1));
        }
        let end = Instant::from_millis(600);
        network.run(end);
        network.take_received();
        network.run(end + Duration::from_millis(400));
        let received = network.take_received();
        for (number, &bytes) in received.iter().enumerate() {
            assert!(bytes > 0, "{number} of {received:?}");
        }
    });
}
