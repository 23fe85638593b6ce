//! TCP against what is known of it.

use crate::support::{AT, MBIT, MS, US, bulk_pairs, jittered, pairs, progress, sender};
use floodway_core::congestion::Algorithm;
use floodway_sim::net::{Link, NicConfig, QueueConfig, one_link};
use floodway_sim::tcp::TcpConfig;
use floodway_sim::traffic::{Bulk, BulkFlow};
use floodway_sim::world::World;
use floodway_sim::{Duration, Instant};

/// Payload of full segments at a link's rate, in bytes per second.
fn goodput(link: &Link, mss: u32, headers: u32) -> f64 {
    let time = link.transmission(mss + headers, 1);
    f64::from(mss) / time.as_secs_f64()
}

#[test]
fn every_algorithm_fills_a_bottleneck() {
    for algorithm in Algorithm::ALL {
        let link = Link::ethernet(100 * MBIT, MS(5));
        // One bandwidth-delay product of buffer: 10 ms at 100 Mbit/s.
        let net = pairs(1, link, QueueConfig::bytes(125_000), &[Duration::ZERO]);
        let (mut world, app) = bulk_pairs(net, TcpConfig::plain(algorithm), None);
        let bytes = progress(&mut world, app, 1, AT(3_000), AT(13_000))[0];
        let share = bytes as f64 / 10.0 / goodput(&link, 1460, 40);
        assert!((0.97..1.001).contains(&share), "{algorithm}: {share}");
        assert_eq!(sender(&world, app, 0).stats().timeouts, 0, "{algorithm}");
    }
}

#[test]
fn guests_of_today_and_of_the_papers_fill_a_gigabit() {
    for stack in [
        TcpConfig::linux(),
        TcpConfig::linux_2_6(),
        TcpConfig { gso_max: 65_535, ..TcpConfig::linux() },
    ] {
        let link = Link::ethernet(1000 * MBIT, US(100));
        let net = pairs(1, link, QueueConfig::bytes(300_000), &[Duration::ZERO]);
        let (mut world, app) = bulk_pairs(net, stack, None);
        let bytes = progress(&mut world, app, 1, AT(1_000), AT(2_000))[0];
        let share = bytes as f64 / goodput(&link, 1448, 52);
        assert!((0.97..1.001).contains(&share), "{stack:?}: {share}");
    }
}

#[test]
fn without_sack_it_recovers_too() {
    for algorithm in [Algorithm::Reno, Algorithm::NewReno, Algorithm::Cubic] {
        let stack = TcpConfig { sack: false, ..TcpConfig::plain(algorithm) };
        let link = Link::ethernet(100 * MBIT, MS(5));
        let net = pairs(1, link, QueueConfig::bytes(125_000), &[Duration::ZERO]);
        let (mut world, app) = bulk_pairs(net, stack, None);
        let bytes = progress(&mut world, app, 1, AT(5_000), AT(25_000))[0];
        let share = bytes as f64 / 20.0 / goodput(&link, 1460, 40);
        assert!(share > 0.9, "{algorithm}: {share} {:?}", sender(&world, app, 0).stats());
        assert!(sender(&world, app, 0).stats().recoveries > 0);
    }
}

#[test]
fn two_flows_share_fairly() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp] {
        let link = Link::ethernet(100 * MBIT, MS(5));
        let queue = match algorithm {
            Algorithm::Dctcp => QueueConfig::bytes(250_000).with_marking(30_000),
            _ => QueueConfig::bytes(125_000),
        };
        let stack = TcpConfig { ecn: algorithm == Algorithm::Dctcp, ..TcpConfig::plain(algorithm) };
        // Without jitter, shares depend on the phases of round trips.
        let net = jittered(1, link, queue, &[US(0), US(37)], MS(1));
        let (mut world, app) = bulk_pairs(net, stack, None);
        let bytes = progress(&mut world, app, 2, AT(20_000), AT(80_000));
        // Jain's index.
        let [a, b] = [bytes[0] as f64, bytes[1] as f64];
        let jain = (a + b).powi(2) / (2.0 * (a * a + b * b));
        assert!(jain > 0.95, "{algorithm}: {bytes:?}");
        let share = (a + b) / 60.0 / goodput(&link, 1460, 40);
        assert!(share > 0.97, "{algorithm}: {share}");
        if algorithm == Algorithm::Dctcp {
            let stats = sender(&world, app, 0).stats();
            assert!(stats.marks > 100 && stats.recoveries <= 1, "{stats:?}");
        }
    }
}

/// Mathis, Semke, Mahdavi, Ott, "The macroscopic behavior of the TCP congestion avoidance algorithm", 1997: with
/// random loss `p`, an ACK per segment and SACK, the rate is `MSS / RTT * sqrt(3/2) / sqrt(p)`.
#[test]
fn random_loss_follows_the_mathis_curve() {
    for p in [0.0003, 0.001, 0.003, 0.01] {
        let rtt = MS(50);
        let link = Link::ethernet(10_000 * MBIT, rtt / 2).with_loss(p);
        let mut net = pairs(7, link, QueueConfig::packets(100_000), &[Duration::ZERO]);
        // ACKs are not lost.
        let back = net.ports().iter().position(|port| {
            port.link().loss > 0.0 && port.from() == floodway_sim::net::Node::Switch(1)
        });
        net.port_mut(floodway_sim::net::PortId(back.unwrap() as u32)).link_mut().loss = 0.0;
        let stack =
            TcpConfig { delayed_ack: Duration::ZERO, ..TcpConfig::plain(Algorithm::NewReno) };
        let (mut world, app) = bulk_pairs(net, stack, None);
        let seconds = 300.0;
        let bytes = progress(&mut world, app, 1, AT(10_000), AT(310_000))[0];
        let rate = bytes as f64 / seconds;
        let expected = 1460.0 / rtt.as_secs_f64() * (1.5_f64 / p).sqrt();
        let ratio = rate / expected;
        assert!(
            (0.85..1.15).contains(&ratio),
            "p = {p}: {ratio} {:?}",
            sender(&world, app, 0).stats()
        );
    }
}

#[test]
fn a_longer_round_trip_gets_less() {
    let link = Link::ethernet(100 * MBIT, MS(5));
    let net = pairs(1, link, QueueConfig::bytes(125_000), &[MS(0), MS(20)]);
    let (mut world, app) = bulk_pairs(net, TcpConfig::plain(Algorithm::NewReno), None);
    let bytes = progress(&mut world, app, 2, AT(20_000), AT(80_000));
    let ratio = bytes[0] as f64 / bytes[1] as f64;
    // Round trips of 10 and 50 ms, and up to 10 ms of queue: between their ratio and its square.
    assert!((2.0..25.0).contains(&ratio), "{bytes:?}");
}

/// A transfer without loss, step by step: 1 ms each way, no serialisation to speak of.
#[test]
fn slow_start_takes_the_round_trips_that_it_should() {
    // Segments, initial window, round trips of data until the last byte has arrived.
    let cases = [
        (1, 10, 1),
        (10, 10, 1),
        (11, 10, 2),
        (30, 10, 2),
        (31, 10, 3),
        (3, 3, 1),
        (9, 3, 2),
        (21, 3, 3),
    ];
    for (segments, initial_window, trips) in cases {
        let net = one_link(1, Link::raw(1 << 50, MS(1)), NicConfig::default());
        let mut world = World::new(net);
        let (a, b) = (world.add_bare(0), world.add_bare(1));
        let stack = TcpConfig {
            initial_window,
            delayed_ack: Duration::ZERO,
            ..TcpConfig::plain(Algorithm::NewReno)
        };
        let bytes = Some(segments * 1460);
        let transfer = BulkFlow { from: a, to: b, bytes, start: MS(0), stack };
        let app = world.add_app(Bulk::new(vec![transfer]));
        world.run(AT(1_000));
        let record = world.app::<Bulk>(app).unwrap().records()[0].unwrap();
        // SYN there and back, then data: the last trip is one way.
        let expected = MS(2) + MS(2) * (trips - 1) + MS(1);
        let late = record.time() - expected;
        assert!(late < US(1), "{segments} segments: {:?}", record.time());
        assert!(world.flows().is_empty(), "both ends have closed");
        assert_eq!(world.packets(), 0);
    }
}

#[test]
fn with_a_limit_an_ack_of_two_segments_widens_the_window_by_one() {
    // Windows of 4, then 8 or, by two ACKs of two segments each, 6.
    for (slow_start_limit, trips) in [(0, 2), (1, 3)] {
        let net = one_link(1, Link::raw(1 << 50, MS(1)), NicConfig::default());
        let mut world = World::new(net);
        let (a, b) = (world.add_bare(0), world.add_bare(1));
        let plain = TcpConfig::plain(Algorithm::Reno);
        let stack = TcpConfig { initial_window: 4, slow_start_limit, ..plain };
        let transfer = BulkFlow { from: a, to: b, bytes: Some(12 * 1460), start: MS(0), stack };
        let app = world.add_app(Bulk::new(vec![transfer]));
        world.run(AT(1_000));
        let time = world.app::<Bulk>(app).unwrap().records()[0].unwrap().time();
        assert!(time - (MS(3) + MS(2) * (trips - 1)) < US(1), "{slow_start_limit}: {time:?}");
    }
}

#[test]
fn a_lost_tail_waits_for_the_timer_and_its_minimum_can_be_set() {
    for min in [200, 10, 1] {
        // Ten segments into a queue that holds five beside the one on the wire.
        let link = Link::raw(10 * MBIT, MS(1));
        let net = pairs(1, link, QueueConfig::packets(5), &[Duration::ZERO]);
        let mut stack =
            TcpConfig { delayed_ack: Duration::ZERO, ..TcpConfig::plain(Algorithm::NewReno) };
        stack.rto.min = MS(min);
        let (mut world, app) = bulk_pairs(net, stack, Some(10 * 1460));
        world.run(AT(5_000));
        let time = world.app::<Bulk>(app).unwrap().records()[0].unwrap().time();
        assert!(time > MS(min), "{min}: {time:?}");
        assert!(time < MS(min + 50), "{min}: {time:?}");
    }
}

#[test]
fn everything_arrives_whatever_is_lost() {
    for (n, loss) in [0.01, 0.05, 0.2, 0.4].into_iter().enumerate() {
        for sack in [true, false] {
            let net = one_link(
                n as u64,
                Link::ethernet(100 * MBIT, MS(2)).with_loss(loss),
                NicConfig::default(),
            );
            let mut world = World::new(net);
            let (a, b) = (world.add_bare(0), world.add_bare(1));
            let mut stack = TcpConfig { sack, ..TcpConfig::linux() };
            stack.rto.max = MS(1_000);
            stack.retries = 100;
            let transfer =
                |from, to| BulkFlow { from, to, bytes: Some(300_000), start: MS(0), stack };
            let app = world.add_app(Bulk::new(vec![transfer(a, b), transfer(b, a)]));
            world.run(AT(3_600_000));
            let records = world.app::<Bulk>(app).unwrap().records();
            assert!(records.iter().all(Option::is_some), "{loss} {sack}: {records:?}");
            assert!(world.flows().is_empty(), "{loss} {sack}");
            assert_eq!(world.packets(), 0);
        }
    }
}

#[test]
fn a_dead_path_is_given_up() {
    let net = one_link(1, Link::ethernet(100 * MBIT, MS(2)).with_loss(1.0), NicConfig::default());
    let mut world = World::new(net);
    let (a, b) = (world.add_bare(0), world.add_bare(1));
    let stack = TcpConfig { retries: 5, ..TcpConfig::linux() };
    world.add_app(Bulk::new(vec![BulkFlow {
        from: a,
        to: b,
        bytes: Some(1),
        start: MS(0),
        stack,
    }]));
    // 1 + 2 + 4 + 8 + 16 + 32 seconds.
    world.run(AT(62_999));
    assert_eq!(world.flows().len(), 1);
    world.run(AT(63_001));
    assert!(world.flows().is_empty());
    assert_eq!(world.now(), Instant::from_millis(63_001));
}

#[test]
fn the_receive_window_grows_with_the_path() {
    // 50 ms at 1 Gbit/s are 6 MB; the window starts at 64 KB. The largest is less than path and queue hold.
    let link = Link::ethernet(1000 * MBIT, MS(25));
    let net = || pairs(1, link, QueueConfig::bytes(6_000_000), &[Duration::ZERO]);
    let mut stack = TcpConfig::linux();
    (stack.receive.max, stack.send.max) = (10_000_000, 16 << 20);
    let (mut world, app) = bulk_pairs(net(), stack, None);
    let bytes = progress(&mut world, app, 1, AT(5_000), AT(10_000))[0];
    assert!(bytes as f64 / 5.0 / goodput(&link, 1448, 52) > 0.9, "{bytes}");
    assert_eq!(sender(&world, app, 0).stats().retransmissions, 0);
    stack.receive.max = 65_535;
    let (mut world, app) = bulk_pairs(net(), stack, None);
    let bytes = progress(&mut world, app, 1, AT(5_000), AT(10_000))[0];
    // A window per round trip.
    assert!((bytes as f64 / 5.0 / (65_535.0 / 0.05) - 1.0).abs() < 0.05, "{bytes}");
}

#[test]
fn small_queues_keep_a_burst_out_of_the_senders_own_queue() {
    // 4 MB may go at once. A card and its queue hold 1256 packets, 1 MiB is less.
    let burst = |limit_output| {
        let net = one_link(1, Link::ethernet(1000 * MBIT, US(100)), NicConfig::default());
        let mut world = World::new(net);
        let (from, to) = (world.add_bare(0), world.add_bare(1));
        let mut stack =
            TcpConfig { initial_window: 3_000, limit_output, ..TcpConfig::plain(Algorithm::Reno) };
        stack.gso_max = 0;
        let bytes = Some(4_000_000);
        let flow = BulkFlow { from, to, bytes, start: MS(0), stack };
        let app = world.add_app(Bulk::new(vec![flow]));
        world.run(AT(10_000));
        let dropped = world.net().port(world.uplink(0)).stats().dropped;
        let time = world.app::<Bulk>(app).unwrap().records()[0].expect("it ends").time();
        assert_eq!(world.packets(), 0);
        (dropped, world.sender_stats(from).retransmissions, time)
    };
    let (dropped, repeated, _) = burst(0);
    assert!(dropped > 1_000 && repeated >= dropped, "{dropped} {repeated}");
    let (dropped, repeated, time) = burst(1 << 20);
    assert_eq!((dropped, repeated), (0, 0));
    // The line is never idle: 4 MB with headers take 34 ms.
    assert!((MS(33)..MS(36)).contains(&time), "{time:?}");
}
