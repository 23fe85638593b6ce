//! Several queue pairs.

use std::net::SocketAddr;

use floodway_switch::config::PortConfig;
use floodway_switch::testing::frames::{ipv4, mac, number_of, numbered};
use floodway_switch::testing::{Frontend, Guest, GuestConfig, wait, wait_until};
use floodway_switch::vhost::features;
use floodway_wire::build::{self, Link};
use floodway_wire::vnet::VnetHdr;

use crate::net::{Net, Vm, port};

const OFFERED: u16 = 4;

fn net() -> Net {
    Net::start((1..=2).map(|n| PortConfig { queue_pairs: OFFERED, ..port(n) }).collect())
}

fn guest(queue_pairs: u16) -> GuestConfig {
    GuestConfig { queue_pairs, features: features::offered(OFFERED), ..GuestConfig::default() }
}

/// A numbered frame of flow `flow`.
fn of_flow(flow: u16, number: u32) -> Vec<u8> {
    let (from, to) = (SocketAddr::new(ipv4(1), 2000 + flow), SocketAddr::new(ipv4(2), 9));
    let payload = [number.to_be_bytes(), u32::from(flow).to_be_bytes()].concat();
    build::udp(&Link::new(mac(1), mac(2)), from, to, &payload)
}

/// Sends 64 flows over all queues of `a`; answers the queues of `b` on which each arrived.
fn spread(a: &mut Vm, b: &mut Vm) -> Vec<usize> {
    let (flows, rounds) = (64u16, 8u32);
    for number in 0..rounds {
        for flow in 0..flows {
            let queue = usize::from(flow) % a.guest.pairs.len();
            a.send_on(queue, &VnetHdr::default(), &of_flow(flow, number));
        }
    }
    let mut queue_of = vec![None; usize::from(flows)];
    let mut next = vec![0; usize::from(flows)];
    for _ in 0..u32::from(flows) * rounds {
        let pairs = 0..b.guest.pairs.len();
        let (queue, frame) = wait("a frame on any queue", || {
            pairs.clone().find_map(|q| b.guest.recv(q).map(|(_, frame)| (q, frame)))
        });
        let flow = usize::from(frame[49]);
        assert_eq!(*queue_of[flow].get_or_insert(queue), queue, "a flow stays on its queue");
        assert_eq!(number_of(&frame), Some(next[flow]), "and in order");
        next[flow] += 1;
    }
    queue_of.into_iter().flatten().collect()
}

#[test]
fn flows_are_spread_over_all_queues() {
    let net = net();
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, guest(OFFERED)));
    let queues = spread(&mut a, &mut b);
    for queue in 0..usize::from(OFFERED) {
        assert!(queues.contains(&queue), "no flow of 64 on queue {queue}");
    }
    assert_eq!(net.port(2).queue_pairs_enabled, OFFERED);
}

#[test]
fn only_queues_that_the_guest_uses_are_used() {
    let net = net();
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, guest(2)));
    let queues = spread(&mut a, &mut b);
    assert!(queues.iter().all(|&q| q < 2));
    assert_eq!(net.port(2).queue_pairs_enabled, 2);
}

#[test]
fn queues_that_are_set_up_and_disabled_get_nothing() {
    let net = net();
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, guest(OFFERED)));
    // As a guest does by VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET: one pair stays.
    for ring in 2..2 * u32::from(OFFERED) {
        b.frontend().set_vring_enable(ring, false).unwrap();
    }
    assert!(spread(&mut a, &mut b).iter().all(|&q| q == 0));
    for ring in 2..2 * u32::from(OFFERED) {
        b.frontend().set_vring_enable(ring, true).unwrap();
    }
    assert!(spread(&mut a, &mut b).iter().any(|&q| q != 0));
    assert_eq!(net.port(2).rx().dropped(), 0);
}

#[test]
fn a_disabled_transmit_queue_is_emptied_and_counted() {
    let net = net();
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, guest(2)));
    a.frontend().set_vring_enable(3, false).unwrap();
    a.send_on(1, &VnetHdr::default(), &numbered(1, 2, 0, 64));
    wait_until("the descriptors", || a.guest.transmitting(1) == 0);
    wait_until("counters", || net.tx_drops(1, "port_down") == 1);
    let fence = numbered(1, 2, 1, 64);
    a.send(&fence);
    let frame = wait("the fence", || (0..2).find_map(|q| b.guest.recv(q)));
    assert!(frame.1 == fence);
}

#[test]
fn a_guest_without_mq_uses_one_pair_of_many() {
    let net = net();
    let one = GuestConfig::default();
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, one.clone()));
    assert!(spread(&mut a, &mut b).iter().all(|&q| q == 0));
}

#[test]
fn more_rings_than_offered_are_refused() {
    let net = Net::of(1);
    let config = GuestConfig { queue_pairs: 2, ..GuestConfig::default() };
    let guest = Guest::new(config);
    let mut frontend = Frontend::connect(&net.socket(1));
    assert!(frontend.set_up(&guest).is_err());
    drop(frontend);
    let mut vm = net.boot(1, GuestConfig::default());
    vm.send(&numbered(1, 2, 0, 64));
    vm.wait_sent();
}
