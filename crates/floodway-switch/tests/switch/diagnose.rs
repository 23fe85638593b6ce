//! What an operator learns of a port's front-end.

use std::os::fd::AsRawFd;

use floodway_switch::api::diagnosis::{Diagnosis, RingState, Severity};
use floodway_switch::api::status::PortState;
use floodway_switch::testing::{GuestConfig, message, wait_until};

use crate::net::Net;

fn diagnosis(net: &Net, n: u8) -> Diagnosis {
    let operator = net.switch.as_ref().expect("the switch runs").operator();
    operator.diagnose(&format!("vm{n}")).unwrap()
}

#[test]
fn a_running_port_shows_its_peer_its_memory_and_its_rings() {
    let net = Net::of(1);
    let vm = net.boot(1, GuestConfig::default());
    let found = diagnosis(&net, 1);
    assert_eq!((found.state, found.severity()), (PortState::Running, Severity::Ok));
    let peer = found.peer.expect("a peer");
    assert_eq!(peer.pid, i32::try_from(std::process::id()).unwrap());
    let shared: u64 = found.memory.iter().map(|region| region.size).sum();
    assert!(shared > 0 && found.memory.is_sorted_by_key(|region| region.address));
    let states: Vec<_> = found.rings.iter().map(|ring| ring.state).collect();
    assert_eq!(states, [RingState::Running; 2]);
    assert!(found.rings.iter().all(|ring| ring.size > 0 && ring.kick && ring.call && ring.enabled));
    assert!(found.protocol_features.contains(&"REPLY_ACK".to_owned()), "{found:?}");
    assert!(found.features.contains(&"VERSION_1".to_owned()), "{found:?}");

    drop(vm);
    wait_until("the port to be down", || diagnosis(&net, 1).state == PortState::Down);
    let found = diagnosis(&net, 1);
    assert_eq!((found.peer, found.memory.len()), (None, 0));
    assert_eq!(found.severity(), Severity::Warning);
}

#[test]
fn the_last_refused_request_is_named_until_another_front_end_comes() {
    let net = Net::of(1);
    let mut vm = net.boot(1, GuestConfig::default());
    let file = tempfile::tempfile().unwrap();
    let ring = 0u64.to_ne_bytes();
    vm.frontend().request(message::SET_VRING_CALL, &ring, &[file.as_raw_fd()]).unwrap_err();
    let found = diagnosis(&net, 1);
    let last = found.last_error.clone().expect("an error");
    assert!(last.error.starts_with("SET_VRING_CALL: "), "{last:?}");
    assert!(last.current && found.severity() == Severity::Warning, "{found:?}");
    assert_eq!(found.command(), Some("journalctl -u floodway --grep vm1"));

    vm.reconnect(&net);
    let found = diagnosis(&net, 1);
    assert!(!found.last_error.expect("it stays").current);
    assert_eq!(found.findings, []);
}

#[test]
fn packed_rings_are_refused_in_words() {
    let net = Net::of(1);
    let mut vm = net.boot(1, GuestConfig::default());
    let features = vm.guest.config.features | (1 << 34);
    vm.frontend().request(message::SET_FEATURES, &features.to_ne_bytes(), &[]).unwrap_err();
    let found = diagnosis(&net, 1);
    let last = found.last_error.clone().expect("an error");
    assert_eq!(last.error, "SET_FEATURES: the port does not offer RING_PACKED (bit 34)");
    assert!(last.current && found.severity() == Severity::Warning, "{found:?}");
    // The rings that there were go on as they are.
    assert!(found.rings.iter().all(|ring| ring.state == RingState::Running), "{found:?}");
}

#[test]
fn a_ring_that_the_guest_breaks_is_an_error() {
    let net = Net::of(1);
    let vm = net.boot(1, GuestConfig::default());
    vm.guest.pairs[0].tx.driver.set_avail_idx(1000);
    vm.guest.pairs[0].tx.kick.write(1).unwrap();
    wait_until("the ring to break", || diagnosis(&net, 1).rings[1].state == RingState::Broken);
    assert_eq!(diagnosis(&net, 1).severity(), Severity::Error);
}
