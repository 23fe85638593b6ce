//! Which frames get where.

use std::net::SocketAddr;

use floodway_switch::api::status::{PortState, Status};
use floodway_switch::testing::frames::{ipv4, mac, number_of, numbered, partial, pattern, tcp};
use floodway_switch::testing::{GuestConfig, wait_until};
use floodway_wire::build::{Ip, Link, udp};
use floodway_wire::notice::GuestNonce;
use floodway_wire::{MacAddr, arp, ethernet, notice};

use crate::net::{Net, port};

fn broadcast(src: u8, number: u32) -> Vec<u8> {
    let mut frame = numbered(src, 0, number, 64);
    frame[..6].copy_from_slice(&MacAddr::BROADCAST.0);
    frame
}

#[test]
fn unknown_destinations_are_flooded_and_known_ones_are_not() {
    let unlearned = |n| floodway_switch::config::PortConfig { mac: None, ..port(n) };
    let net = Net::start((1..=3).map(unlearned).collect());
    let [mut a, mut b, mut c] = [1, 2, 3].map(|n| net.boot(n, GuestConfig::default()));

    let flooded = numbered(1, 2, 0, 100);
    a.send(&flooded);
    b.expect(&flooded);
    c.expect(&flooded);

    let reply = numbered(2, 1, 1, 100);
    b.send(&reply);
    a.expect(&reply);

    let known = numbered(1, 2, 2, 100);
    a.send(&known);
    b.expect(&known);

    // Had `reply` or `known` been flooded, VM 3 would see them before these.
    for (vm, number) in [(&mut a, 3), (&mut b, 4)] {
        let frame = broadcast(vm.n, number);
        vm.send(&frame);
        c.expect(&frame);
    }
}

#[test]
fn nothing_passes_between_an_isolated_port_and_others() {
    let isolated = floodway_switch::config::PortConfig { isolate: true, ..port(1) };
    let net = Net::start(vec![isolated, port(2), port(3)]);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|n| net.boot(n, GuestConfig::default()));
    a.send(&numbered(1, 2, 0, 100));
    a.send(&broadcast(1, 1));
    wait_until("the drops", || {
        net.tx_drops(1, "isolated") == 1 && net.tx_drops(1, "no_destination") == 1
    });
    b.send(&numbered(2, 1, 2, 100));
    wait_until("the drop", || net.tx_drops(2, "isolated") == 1);
    let all = broadcast(2, 3);
    b.send(&all);
    c.expect(&all);
    let other = numbered(3, 2, 4, 100);
    c.send(&other);
    b.expect(&other);
    assert_eq!((net.port(1).rx().packets, net.port(1).rx().dropped()), (0, 0));
}

#[test]
fn configured_addresses_are_known_from_the_start_and_broadcasts_come_to_all() {
    let net = Net::of(3);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|n| net.boot(n, GuestConfig::default()));
    let unicast = numbered(1, 2, 0, 1000);
    let to_all = broadcast(1, 1);
    a.send(&unicast);
    a.send(&to_all);
    b.expect(&unicast);
    b.expect(&to_all);
    c.expect(&to_all);
    let back = numbered(2, 1, 2, 10);
    b.send(&back);
    // A sender does not get its own broadcast.
    a.expect(&back);
}

#[test]
fn frames_to_the_senders_own_port_are_counted() {
    let net = Net::of(2);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    a.send(&numbered(1, 1, 0, 64));
    let fence = numbered(1, 2, 1, 64);
    a.send(&fence);
    b.expect(&fence);
    wait_until("counters", || net.tx_drops(1, "hairpin") == 1);
}

#[test]
fn spoofed_sources_are_dropped() {
    let restricted = floodway_switch::config::PortConfig { ips: vec![ipv4(1)], ..port(1) };
    let net = Net::start(vec![restricted, port(2)]);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));

    let mut wrong_mac = numbered(1, 2, 0, 64);
    wrong_mac[6..12].copy_from_slice(&mac(9).0);
    a.send(&wrong_mac);

    let mut wrong_ip = numbered(3, 2, 1, 64);
    wrong_ip[6..12].copy_from_slice(&mac(1).0);
    a.send(&wrong_ip);

    let as_somebody_else = arp::Packet {
        operation: arp::REPLY,
        sender_mac: mac(1),
        sender_ip: "10.0.0.9".parse().unwrap(),
        target_mac: mac(2),
        target_ip: "10.0.0.2".parse().unwrap(),
    };
    a.send(&Link::new(mac(1), mac(2)).arp(&as_somebody_else));

    let honest = numbered(1, 2, 2, 64);
    a.send(&honest);
    b.expect(&honest);
    wait_until("counters", || {
        net.tx_drops(1, "spoofed_mac") == 1 && net.tx_drops(1, "spoofed_ip") == 2
    });
}

/// Whether it is the first of a batch, of which nothing is known yet, or not.
#[test]
fn a_frame_of_zeros_is_from_nobody() {
    let with_ips = floodway_switch::config::PortConfig { ips: vec![ipv4(1)], ..port(1) };
    for sender in [with_ips, port(1)] {
        let net = Net::start(vec![sender, port(2)]);
        let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
        let mut zeros = numbered(1, 2, 0, 64);
        zeros[..12].fill(0);
        (0..2).for_each(|_| a.send(&zeros));
        let honest = numbered(1, 2, 1, 64);
        a.send(&honest);
        b.expect(&honest);
        wait_until("the drops", || net.tx_drops(1, "spoofed_mac") == 2);
    }
}

/// The pipeline hands the policy enough of the frame, and names what it drops.
#[test]
fn what_only_routers_and_dhcp_servers_send_is_dropped() {
    let guarded = floodway_switch::config::PortConfig {
        ips: vec![ipv4(1)],
        allow_router: false,
        allow_dhcp_server: false,
        ..port(1)
    };
    let net = Net::start(vec![guarded, port(2)]);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    let link = Link::new(mac(1), MacAddr::BROADCAST);
    let all_nodes = "ff02::1".parse().unwrap();
    let advertisement = [&[134, 0, 0, 0, 64, 0, 7, 8][..], &[0; 8]].concat();
    let mut ip = Ip::new(mac(1).to_link_local().into(), all_nodes);
    ip.ttl = 255;
    a.send(&ip.frame(&link, 58, &advertisement));
    let server = SocketAddr::new(ipv4(1), 67);
    let everybody = SocketAddr::new("255.255.255.255".parse().unwrap(), 68);
    a.send(&udp(&link, server, everybody, &[2, 1, 6, 0]));
    let honest = numbered(1, 2, 2, 64);
    a.send(&honest);
    b.expect(&honest);
    wait_until("counters", || {
        net.tx_drops(1, "router_guard") == 1 && net.tx_drops(1, "dhcp_guard") == 1
    });
}

#[test]
fn a_guest_without_an_address_of_its_own_cannot_take_one_that_is_in_use() {
    let any = |n| floodway_switch::config::PortConfig { mac: None, ..port(n) };
    let net = Net::start(vec![port(1), any(2), any(3)]);
    let [mut a, mut b, mut thief] = [1, 2, 3].map(|n| net.boot(n, GuestConfig::default()));
    let first = numbered(2, 1, 0, 64);
    b.send(&first);
    a.expect(&first);
    // One that is learned, and one that is configured.
    thief.send(&numbered(2, 1, 1, 64));
    thief.send(&numbered(1, 2, 2, 64));
    let own = numbered(3, 1, 3, 64);
    thief.send(&own);
    a.expect(&own);
    wait_until("counters", || {
        net.tx_drops(3, "mac_in_use") == 1 && net.tx_drops(3, "spoofed_mac") == 1
    });
    let to_b = numbered(1, 2, 4, 64);
    a.send(&to_b);
    b.expect(&to_b);
}

/// As after a move from another host, or when a virtual address changes hands.
#[test]
fn a_guest_that_may_take_addresses_over_does() {
    let any = |n, allow_mac_takeover| floodway_switch::config::PortConfig {
        mac: None,
        allow_mac_takeover,
        ..port(n)
    };
    let net = Net::start(vec![port(1), any(2, false), any(3, true)]);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|n| net.boot(n, GuestConfig::default()));
    for (number, vm) in (0..).zip([&mut b, &mut c]) {
        let frame = numbered(2, 1, number, 64);
        vm.send(&frame);
        a.expect(&frame);
    }
    let frame = numbered(1, 2, 2, 64);
    a.send(&frame);
    c.expect(&frame);
    // A configured address is nobody else's all the same.
    c.send(&numbered(1, 2, 3, 64));
    wait_until("the drop", || net.tx_drops(3, "spoofed_mac") == 1);
}

#[test]
fn a_storm_is_limited_and_unicast_is_not() {
    let limited = floodway_switch::config::PortConfig { storm_pps: 1, ..port(1) };
    let net = Net::start(vec![limited, port(2)]);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    let total = 500;
    for number in 0..total {
        a.send(&broadcast(1, number));
    }
    a.send(&numbered(1, 2, total, 64));
    // A unicast frame may overtake broadcasts: count until all are accounted for.
    let (mut received, mut unicast) = (0, false);
    wait_until("all frames to be accounted for", || {
        while let Some((_, frame)) = b.guest.recv(0) {
            unicast |= number_of(&frame) == Some(total);
            received += 1;
        }
        received + net.tx_drops(1, "storm") == u64::from(total) + 1
    });
    assert!(unicast, "unicast is not limited");
    assert!(received > 1, "the burst passes");
    assert!(net.tx_drops(1, "storm") > 0, "a frame per second passed 500 at once");
}

#[test]
fn a_flooded_gso_packet_counts_as_its_segments() {
    let limited = floodway_switch::config::PortConfig { storm_pps: 50, ..port(1) };
    let net = Net::start(vec![limited, port(2)]);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    // To an address that nobody has: 43 segments.
    let bulk = tcp(1, 9, false).build_partial(&pattern(1, 60_000));
    for _ in 0..20 {
        a.send_with(&partial(&bulk, 1400), &bulk);
    }
    wait_until("all accounted for", || {
        let port = net.port(1);
        port.tx().packets + port.tx().drops["storm"] == 20
    });
    // A second brings one more, and the test takes less than ten.
    assert!((1..10).contains(&net.port(1).tx().packets), "{}", net.port(1).tx().packets);
    assert_eq!(b.recv().1.len(), bulk.len());
}

#[test]
fn frames_larger_than_the_receivers_mtu_are_dropped_unless_they_are_gso_packets() {
    let small = floodway_switch::config::PortConfig { mtu: 1400, ..port(2) };
    let net = Net::start(vec![port(1), small]);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    let ip_packet = |len: usize| numbered(1, 2, 0, len - 28);
    assert_eq!(ip_packet(1400).len(), 1400 + ethernet::HEADER_LEN);

    a.send(&ip_packet(1401));
    a.send(&ip_packet(1400));
    b.expect(&ip_packet(1400));

    let gso_packet = tcp(1, 2, false).build_partial(&[7; 20_000]);
    a.send_with(&partial(&gso_packet, 1300), &gso_packet);
    assert_eq!(b.recv().1, gso_packet);
    wait_until("counters", || net.rx_drops(2, "oversize") == 1);
}

#[test]
fn the_address_of_a_guest_that_is_gone_is_unknown() {
    // It may be on another host by now and silent: after a while the network has to hear of it.
    let net = Net::of(3);
    let [mut a, b, mut c] = [1, 2, 3].map(|n| net.boot(n, GuestConfig::default()));
    drop(b);
    wait_until("the port to go down", || net.port(2).state == PortState::Down);
    wait_until("the guest to be given up", || {
        net.status().l2.iter().all(|entry| entry.port != "vm2")
    });
    let frame = numbered(1, 2, 0, 64);
    a.send(&frame);
    c.expect(&frame);
}

#[test]
fn runts_are_dropped() {
    let net = Net::of(2);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    a.send(&[0x52; 13]);
    let shortest = numbered(1, 2, 0, 4)[..14].to_vec();
    a.send(&shortest);
    b.expect(&shortest);
    wait_until("counters", || net.tx_drops(1, "runt") == 1);
}

/// Every frame that a guest hands over is received or counted as dropped, and a receiver sees the
/// frames of a sender in order.
#[test]
fn nothing_is_lost_uncounted() {
    const FRAMES: u32 = 20_000;
    let workers = |n: u8| floodway_switch::config::PortConfig {
        worker: usize::from(n % 2),
        queue_bytes: 128 << 10,
        ..port(n)
    };
    let net = Net::start((1..=4).map(workers).collect());
    let mut vms = [1, 2, 3].map(|n| net.boot(n, GuestConfig::default()));
    // This one never reads.
    let _stuck = net.boot(4, GuestConfig { ring_size: 64, ..GuestConfig::default() });
    let mut sent_to = [0u64; 5];
    let mut received = [0u64; 5];
    let mut newest = [[None; 5]; 5];
    let mut collect = |vms: &mut [crate::net::Vm; 3]| {
        for vm in vms {
            while let Some((_, frame)) = vm.guest.recv(0) {
                let (from, to) = (usize::from(frame[11]), usize::from(vm.n));
                let number = number_of(&frame).unwrap();
                assert!(newest[from][to] < Some(number), "from {from} to {to} out of order");
                newest[from][to] = Some(number);
                received[to] += 1;
            }
        }
        received
    };
    for number in 0..FRAMES {
        let from = number as usize % 3;
        let to = 1 + (number / 3 % 4) as u8;
        let len = 10 + (number as usize * 7919) % 1400;
        if to != vms[from].n {
            vms[from].send(&numbered(vms[from].n, to, number, len));
            sent_to[usize::from(to)] += 1;
        }
        if number % 64 == 0 {
            collect(&mut vms);
        }
    }
    wait_until("all frames to be accounted for", || {
        let received = collect(&mut vms);
        (1..=4u8).all(|n| {
            let (rx, (waiting, _)) = (net.port(n).rx(), net.port(n).pending());
            let i = usize::from(n);
            (n == 4 || rx.packets == received[i])
                && rx.packets + rx.dropped() + waiting == sent_to[i]
        })
    });
    let status = net.status();
    let total: u64 = sent_to.iter().sum();
    assert_eq!(status.ports.iter().map(|p| p.tx().packets).sum::<u64>(), total);
    let stuck = net.port(4);
    assert_eq!(stuck.rx().packets, 64);
    assert!(stuck.pending().0 > 0 && stuck.pending().1 <= 128 << 10);
    assert!(stuck.rx().drops["queue_full"] > 0);
    activity_agrees(&net, &status);
}

/// Activity has the sums of a status of the same moment, and names no reason for which nothing was dropped.
fn activity_agrees(net: &Net, status: &Status) {
    let activity = net.switch.as_ref().expect("the switch runs").status_source().activity();
    assert_eq!(activity.ports.len(), status.ports.len());
    for (port, now) in status.ports.iter().zip(&activity.ports) {
        let (rx, tx, waiting) = (port.rx(), port.tx(), port.pending());
        assert_eq!((&now.name, now.worker, now.state), (&port.name, port.worker, port.state));
        assert_eq!((now.rx.packets, now.rx.bytes), (rx.packets, rx.bytes));
        assert_eq!((now.tx.packets, now.tx.bytes), (tx.packets, tx.bytes));
        assert_eq!((now.rx.dropped(), now.tx.dropped()), (rx.dropped(), tx.dropped()));
        assert_eq!((now.pending_frames, now.pending_bytes), waiting);
        assert_eq!(now.front_end_pid, i32::try_from(std::process::id()).ok());
    }
    let stuck = &activity.ports[3].rx.drops;
    assert!(stuck["queue_full"] > 0 && stuck.values().all(|&n| n > 0), "{stuck:?}");
    let (was, now) = (&status.switch, &activity.switch);
    assert!(now.pid == was.pid && now.uptime_s >= was.uptime_s);
    assert!(activity.workers.iter().all(|worker| worker.polls >= worker.busy_polls));
}

/// Only the switch may speak to the congestion control inside a guest.
#[test]
fn notices_of_guests_are_dropped_and_counted() {
    let net = Net::of(2);
    let mut vm1 = net.boot(1, GuestConfig::default());
    let mut vm2 = net.boot(2, GuestConfig::default());
    let link = Link::new(mac(1), mac(2));
    let body = [0x46, 0x57, 1, 1, 0, 0, 0, 9, 1, 44, 0, 0].repeat(4);
    let tagged = link.clone().tagged(0x8100, 5).tagged(0x88a8, 6).tagged(0x9100, 7);
    vm1.send(&link.frame(notice::ETHERTYPE, &body));
    vm1.send(&tagged.frame(notice::ETHERTYPE, &body));
    let allowed = numbered(1, 2, 3, 40);
    vm1.send(&allowed);
    vm2.expect(&allowed);
    vm1.wait_sent();
    assert_eq!(net.tx_drops(1, "forged_notice"), 2);
}

/// The nonce is a secret between a guest and the switch.
#[test]
fn a_guests_nonce_goes_to_nobody_else() {
    let net = Net::of(2);
    let [mut a, mut b] = [1, 2].map(|n| net.boot(n, GuestConfig::default()));
    let mut frame = [0; notice::MAX_FRAME_LEN];
    GuestNonce { nonce: 7, reads_names: true }.write_frame(mac(1), &mut frame);
    a.send(&frame);
    // Under a tag it is not the module's, which sends none.
    a.send(&[&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat());
    let fence = numbered(1, 2, 0, 64);
    a.send(&fence);
    b.expect(&fence);
    wait_until("counters", || {
        net.tx_drops(1, "guest_nonce") == 1 && net.tx_drops(1, "forged_notice") == 1
    });
}
