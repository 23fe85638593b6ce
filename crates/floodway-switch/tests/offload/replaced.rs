//! Connections of a guest whose port is changed so that its front-end has to connect again.

use std::io::{ErrorKind, Read};
use std::thread;

use floodway_switch::testing::{Frontend, GuestConfig};

use crate::scene::{Scene, with_guest};
use crate::stopped::with_owed_bytes;
use crate::{offload, transfer};

/// Changes a key that takes a new connection, and lets the guest's front-end connect again.
fn replace(scene: &Scene, queue_bytes: usize) {
    let edit = |running: &floodway_switch::Config| {
        let mut config = running.clone();
        config.ports[0].queue_bytes = queue_bytes;
        Ok(config)
    };
    let plan = scene.operator.reconfigure(&edit, false).expect("the change");
    assert!(plan.to_string().ends_with("(its front-end connects again)"), "{plan}");
    let socket = scene.operator.configuration().expect("a configuration").ports[0].socket.clone();
    let mut frontend = scene.vm.frontend();
    *frontend = None;
    *frontend = Some(Frontend::attach(&socket, &scene.vm.guest()));
}

#[test]
fn connections_go_on_with_the_port_that_comes_back() {
    with_guest(GuestConfig::default(), offload(true, true), |scene| {
        let (mut guest, mut host) = scene.connection(false);
        let (mut guest_2, mut host_2) = scene.connection(false);
        transfer(&mut guest, &mut host, 100_000);
        thread::scope(|scope| {
            scope.spawn(|| transfer(&mut host, &mut guest, 30_000_000));
            scope.spawn(|| transfer(&mut guest_2, &mut host_2, 30_000_000));
            for change in 1..=3 {
                replace(scene, (1 << 20) + change);
            }
        });
        assert_eq!(scene.operator.status().removed.ports, 3);
        transfer(&mut guest, &mut host, 100_000);
        let (mut guest, mut host) = scene.connection(false);
        transfer(&mut guest, &mut host, 100_000);
        assert!(scene.counter("stored_bytes") > 0, "a new connection is offloaded");
    });
}

#[test]
fn a_connection_that_is_owed_bytes_is_reset_and_does_not_hang() {
    with_owed_bytes(|scene, _guest, mut host| {
        replace(scene, 1 << 20);
        let error = host.read(&mut [0]).expect_err("no data comes");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    });
}
