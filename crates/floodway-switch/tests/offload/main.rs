//! TCP offload between two real TCP stacks: one is behind a TAP uplink, the other behind a guest's
//! virtqueues. Needs root and ip(8).

mod captured;
mod forwarded;
mod moved;
mod named;
#[path = "../netns/mod.rs"]
mod netns;
mod replaced;
mod scene;
mod stopped;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use floodway_core::offload::Config as OffloadConfig;
use floodway_switch::Switch;
use floodway_switch::api::control::{FlowKey, FlowQuery, OffloadChange};
use floodway_switch::testing::memory::memfd;
use floodway_switch::testing::message::SET_FEATURES;
use floodway_switch::testing::{Frontend, Guest, GuestConfig, wait, wait_until};
use floodway_switch::vhost::features;

use scene::{config, with_scene};

fn offload(transmit: bool, receive: bool) -> OffloadConfig {
    OffloadConfig { transmit, receive, ..OffloadConfig::default() }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Sends `len` bytes, which must arrive as they are.
fn transfer(from: &mut TcpStream, to: &mut TcpStream, len: usize) {
    let data = bytes(len);
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(&data).expect("write"));
        let mut got = vec![0; len];
        to.read_exact(&mut got).expect("read");
        assert!(got == data, "the bytes differ from what was sent");
    });
}

/// Both directions, both address families, with and without checksum and segmentation offload.
fn bytes_arrive(transmit: bool, receive: bool) {
    let all = features::offered(1);
    let none = all
        & !(features::CSUM | features::HOST_TSO4 | features::HOST_TSO6)
        & !(features::GUEST_CSUM | features::GUEST_TSO4 | features::GUEST_TSO6)
        & !(features::HOST_ECN | features::GUEST_ECN);
    for (features, len) in [(all, 4 << 20), (none, 1 << 20)] {
        with_scene(features, offload(transmit, receive), |scene| {
            for v6 in [false, true] {
                let (mut guest, mut host) = scene.connection(v6);
                transfer(&mut guest, &mut host, len);
                transfer(&mut host, &mut guest, len);
                transfer(&mut guest, &mut host, len);
            }
            assert_eq!(scene.counter("flows_opened"), 2);
            assert_eq!(scene.counter("stored_bytes") > 0, transmit);
            assert_eq!(scene.counter("acknowledged_bytes") > 0, receive);
            assert_eq!(scene.counter("timeouts"), 0);
            wait_until("all memory to be free", || {
                scene.operator.status().ports[0].offload.stored_bytes == 0
            });
        });
    }
}

#[test]
fn bytes_arrive_with_transmit_offload() {
    bytes_arrive(true, false);
}

#[test]
fn bytes_arrive_with_receive_offload() {
    bytes_arrive(false, true);
}

#[test]
fn bytes_arrive_with_both() {
    bytes_arrive(true, true);
}

#[test]
fn a_port_without_offload_knows_no_flows() {
    with_scene(features::offered(1), offload(false, false), |scene| {
        for v6 in [false, true] {
            let (mut guest, mut host) = scene.connection(v6);
            transfer(&mut guest, &mut host, 1 << 20);
        }
        assert!(scene.flows().is_empty());
        assert_eq!((scene.counter("flows_opened"), scene.seen.heartbeats.load(Relaxed)), (0, 0));
    });
}

/// Nothing happens but timers: the port's worker is asleep between them.
#[test]
fn timers_wake_a_sleeping_worker() {
    with_scene(features::offered(1), offload(true, false), |scene| {
        let (mut guest, mut host) = scene.connection(false);
        transfer(&mut guest, &mut host, 1 << 20);
        let heartbeats = || scene.seen.heartbeats.load(Relaxed);
        let sleeps = || scene.operator.status().workers[0].sleeps;
        let (before, slept) = (heartbeats(), sleeps());
        wait_until("the guest to hear heartbeats", || heartbeats() >= before + 10);
        assert!(sleeps() >= slept + 5, "the worker did not sleep in between");
        assert!(scene.seen.managed.load(Relaxed) > 0);
        assert_ne!(scene.seen.epoch.load(Relaxed), 0);
    });
}

/// A guest believes only notices that bear the number that it has told its switch.
#[test]
fn notices_bear_the_guests_nonce_once_it_has_said_so() {
    with_scene(features::offered(1), offload(true, false), |scene| {
        let (mut guest, mut host) = scene.connection(false);
        transfer(&mut guest, &mut host, 1 << 20);
        wait_until("notices with the nonce", || scene.seen.authentic.load(Relaxed) >= 5);
        // All that were under way when the guest said so, and none since.
        let before = scene.seen.unauthentic.load(Relaxed);
        assert!(before > 0, "the switch cannot know it before");
        let more = scene.seen.authentic.load(Relaxed) + 5;
        wait_until("more of them", || scene.seen.authentic.load(Relaxed) >= more);
        assert_eq!(scene.seen.unauthentic.load(Relaxed), before);
    });
}

#[test]
fn flows_are_shown_and_drained() {
    with_scene(features::offered(1), offload(true, false), |scene| {
        let mut pairs: Vec<_> = (0..3).map(|_| scene.connection(false)).collect();
        for (guest, host) in &mut pairs {
            transfer(guest, host, 100_000);
        }
        let flows = scene.flows();
        assert_eq!(flows.len(), 3);
        for (flow, (guest, host)) in flows.iter().map(|flow| {
            let owner = pairs.iter().find(|(guest, _)| {
                guest.local_addr().expect("an address").to_string() == flow.guest
            });
            (flow, owner.expect("a connection of ours"))
        }) {
            assert_eq!(flow.peer, host.local_addr().expect("an address").to_string());
            assert_eq!(flow.guest, host.peer_addr().expect("an address").to_string());
            assert_eq!((flow.port.as_str(), flow.tx.as_str()), ("vm1", "ACTIVE"), "{guest:?}");
            assert!(flow.cwnd > 0 && flow.srtt_us.is_some(), "{flow:?}");
            let ends = |guest: &str, peer: &str| {
                let (guest, peer) = (guest.parse().unwrap(), peer.parse().unwrap());
                scene.operator.flow("vm1", &FlowKey { guest, peer, vlan: None })
            };
            assert_eq!(ends(&flow.guest, &flow.peer).expect("the same").guest, flow.guest);
            let error = ends(&flow.peer, &flow.guest).expect_err("the other direction");
            assert!(error.to_string().contains("has no connection"), "{error}");
            assert!(ends("10.9.0.2:1", "[fd00:9::1]:1").is_err(), "two families");
        }
        // Page by page it is the same.
        let mut paged = Vec::new();
        let mut query = FlowQuery { limit: Some(1), ..FlowQuery::default() };
        loop {
            let page = scene.operator.flows(&query).expect("flows");
            assert!(page.flows.len() <= 1);
            paged.extend(page.flows.into_iter().map(|flow| flow.guest));
            query.cursor = page.next;
            if query.cursor.is_none() {
                break;
            }
        }
        assert_eq!(paged, flows.iter().map(|flow| flow.guest.clone()).collect::<Vec<_>>());

        assert!(scene.operator.drain("vm1", Some(true)).expect("a port").draining);
        wait_until("the drain", || scene.operator.drain("vm1", None).expect("a port").drained);
        assert!(scene.flows().iter().all(|flow| flow.tx == "OFFLINE"), "{:?}", scene.flows());
        assert!(scene.seen.offline.load(Relaxed) >= 3);
        for (guest, host) in &mut pairs {
            transfer(guest, host, 100_000);
        }
        assert!(!scene.operator.drain("vm1", Some(false)).expect("a port").draining);
        for (guest, host) in &mut pairs {
            transfer(guest, host, 100_000);
        }
        wait_until("a flow to come back", || {
            let (guest, host) = &mut pairs[0];
            transfer(guest, host, 1000);
            scene.flows().iter().any(|flow| flow.tx == "ACTIVE")
        });
    });
}

/// A front-end that wants to know of each page that is written is about to move its guest.
#[test]
fn a_port_drains_by_itself_while_its_guest_migrates() {
    with_scene(features::offered(1) & !features::LOG_ALL, offload(true, true), |scene| {
        let (mut guest, mut host) = scene.connection(false);
        transfer(&mut guest, &mut host, 100_000);
        let modes = || scene.flows().into_iter().map(|flow| flow.tx).collect::<Vec<_>>();
        assert_eq!(modes(), ["ACTIVE"]);
        let log = memfd(1 << 16);
        let request = |features: u64| {
            let mut frontend = scene.vm.frontend();
            let frontend = frontend.as_mut().expect("a front-end");
            frontend.request(SET_FEATURES, &features.to_ne_bytes(), &[]).expect("offered");
        };
        let negotiated = scene.vm.guest().config.features;
        for _ in 0..2 {
            let set =
                scene.vm.frontend().as_mut().expect("a front-end").set_log_base(&log, 1 << 16);
            set.expect("the switch takes the log");
            request(negotiated | features::LOG_ALL);
            wait_until("the drain", || scene.operator.drain("vm1", None).expect("a port").drained);
            assert_eq!(modes(), ["OFFLINE"]);
            transfer(&mut guest, &mut host, 100_000);
            transfer(&mut host, &mut guest, 100_000);
            // What an operator says of the port has no effect on that.
            assert!(scene.operator.drain("vm1", Some(false)).expect("a port").draining);
            // It stays.
            request(negotiated);
            wait_until("the end of the drain", || {
                !scene.operator.drain("vm1", None).expect("a port").draining
            });
            wait_until("the flow to come back", || {
                transfer(&mut guest, &mut host, 1000);
                modes() == ["ACTIVE"]
            });
        }
    });
}

#[test]
fn offload_is_switched_while_bytes_flow() {
    with_scene(features::offered(1), offload(false, false), |scene| {
        let operator = &scene.operator;
        let set = |transmit: bool, receive| {
            let change = OffloadChange {
                transmit: Some(transmit.into()),
                receive: Some(receive),
                ..OffloadChange::default()
            };
            operator.offload("vm1", &change).expect("a good change");
        };
        set(true, true);
        let (mut guest, mut host) = scene.connection(false);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0u32.. {
                    if over.load(Relaxed) {
                        break;
                    }
                    set(i & 1 == 0, i & 2 == 0);
                    thread::sleep(Duration::from_millis(20));
                }
            });
            let _over = netns::SetWhenDropped(&over);
            for _ in 0..4 {
                transfer(&mut guest, &mut host, 4 << 20);
                transfer(&mut host, &mut guest, 4 << 20);
            }
        });
    });
}

/// A guest that goes takes its flows along, and the next one hears of another epoch.
#[test]
fn a_guest_that_goes_is_forgotten() {
    with_scene(features::offered(1), offload(true, true), |scene| {
        let (mut guest, mut host) = scene.connection(false);
        transfer(&mut guest, &mut host, 100_000);
        assert_eq!(scene.flows().len(), 1);
    });
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = config(dir.path(), offload(true, true));
    config.uplinks.clear();
    let switch = Switch::start(&config).expect("start the switch");
    let guest = Guest::new(GuestConfig::default());
    let frontend = Frontend::attach(&config.ports[0].socket, &guest);
    let operator = switch.operator();
    assert!(operator.drain("vm1", Some(true)).expect("a port").draining);
    drop(frontend);
    let draining = || operator.drain("vm1", None).expect("a port").draining;
    wait("the drain to end with its guest", || (!draining()).then_some(()));
}
