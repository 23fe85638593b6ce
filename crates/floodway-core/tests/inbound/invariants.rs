//! Whatever the network is like, what leaves the clamp keeps the invariants, which [`crate::network`] asserts for
//! each ACK.

use floodway_core::inbound::{Config, Policy};
use floodway_core::time::{Duration, Instant};
use proptest::prelude::*;

use crate::network::{Network, Scene};

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

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_network(scene in scenes(), closes in proptest::collection::vec(1_u64..300, 24)) {
        let mut network = Network::new(scene.clone());
        for (number, close) in closes.iter().enumerate().take(scene.connections.len()) {
            network.open(number, Instant::from_millis(number as u64 * 5));
            if close % 3 == 0 {
                network.close(number, Instant::from_millis(number as u64 * 5 + close));
            }
        }
        network.run(Instant::from_millis(400));
        let rates: u64 = network.allocator.rates().iter().sum();
        prop_assert_eq!(rates, scene.config.capacity, "N4");
    }

    /// The link runs at another speed than the clamp believes, and edges still only advance; nothing stalls.
    #[test]
    fn nothing_stalls(scene in scenes(), pause in 1_u64..500) {
        // Where nothing is lost, everybody goes on receiving.
        let mut network = Network::new(Scene { buffer: u64::MAX / 2, ..scene.clone() });
        for (number, connection) in network.connections.iter_mut().enumerate() {
            if number % 2 == 0 {
                connection.paused_until = Instant::from_millis(pause);
            }
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
            // Who paused when its only ACK came has nothing that wakes it in this model.
            prop_assert!(bytes > 0 || number % 2 == 0, "{number} of {received:?}");
        }
    }
}
