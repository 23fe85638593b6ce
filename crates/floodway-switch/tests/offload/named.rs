//! Names of flows in SYN-ACKs, as the guest's kernel gets them.

use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use floodway_switch::testing::wait_until;
use floodway_switch::vhost::features;
use floodway_wire::FiveTuple;

use crate::scene::{Scene, with_scene};
use crate::{offload, transfer};

/// Guests that take partial checksums, and guests that take none.
fn guests() -> [u64; 2] {
    let all = features::offered(1);
    let checksums = features::CSUM | features::HOST_TSO4 | features::HOST_TSO6 | features::HOST_ECN;
    let of_guest = features::GUEST_CSUM | features::GUEST_TSO4 | features::GUEST_TSO6;
    [all, all & !checksums & !of_guest & !features::GUEST_ECN]
}

/// Whether a flow of these is that of the guest's end `stream`.
fn has(flows: &Mutex<Vec<FiveTuple>>, stream: &TcpStream) -> bool {
    let port = stream.local_addr().expect("an address").port();
    flows.lock().expect("flows").iter().any(|flow| flow.src_port == port)
}

/// Waits until so many more heartbeats have come.
fn hear(scene: &Scene, more: u64) {
    let heard = || scene.seen.heartbeats.load(Relaxed);
    let before = heard();
    wait_until("heartbeats", || heard() >= before + more);
}

/// A guest whose module knows the switch.
fn introduce(scene: &Scene) -> (TcpStream, TcpStream) {
    let first = scene.connection(false);
    wait_until("notices with the nonce", || scene.seen.authentic.load(Relaxed) >= 2);
    first
}

#[test]
fn a_syn_ack_bears_the_name_for_a_guest_that_reads_it() {
    for features in guests() {
        with_scene(features, offload(true, true), |scene| {
            scene.seen.reads_names.store(true, Relaxed);
            let (first, _host) = introduce(scene);
            assert!(has(&scene.seen.named, &first), "the switch was not known yet");
            assert_eq!(scene.counter("named_in_syn_ack"), 0);
            for (n, v6) in [(1, false), (2, true)] {
                let (mut guest, mut host) = scene.connection(v6);
                assert!(has(&scene.seen.named_inside, &guest));
                assert_eq!(scene.counter("named_in_syn_ack"), n);
                // Longer than quick repetitions of a notice would take.
                hear(scene, 3);
                assert!(!has(&scene.seen.named, &guest), "there was a notice as well");
                assert_eq!(scene.counter("went_online"), n + 1);
                transfer(&mut guest, &mut host, 1 << 20);
                transfer(&mut host, &mut guest, 1 << 20);
                wait_until("a notice of a flow in use", || {
                    transfer(&mut guest, &mut host, 1000);
                    has(&scene.seen.named, &guest)
                });
            }
        });
    }
}

#[test]
fn a_guest_that_reads_no_names_gets_none() {
    with_scene(features::offered(1), offload(true, false), |scene| {
        let _first = introduce(scene);
        for v6 in [false, true] {
            let (guest, _host) = scene.connection(v6);
            wait_until("the notice", || has(&scene.seen.named, &guest));
        }
        assert_eq!(scene.counter("named_in_syn_ack"), 0);
        assert!(scene.seen.named_inside.lock().expect("flows").is_empty());
    });
}
