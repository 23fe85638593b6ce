//! Topologies, queues and traffic models.

use crate::support::{AT, MBIT, MS, US};
use floodway_core::congestion::Algorithm;
use floodway_sim::Duration;
use floodway_sim::flow::{Flow, FlowId, Side};
use floodway_sim::net::{
    FatTree, Link, Net, NicConfig, Node, QueueConfig, Star, SwitchConfig, fat_tree, one_link, star,
};
use floodway_sim::packet::Address;
use floodway_sim::tcp::TcpConfig;
use floodway_sim::traffic::{
    Aggregate, AggregateConfig, Arrivals, Bulk, BulkFlow, Echo, EchoConfig, Pairing, Poisson,
    PoissonConfig, Queries, QueryConfig, Record, Samples, Sizes,
};
use floodway_sim::world::{App, Ctx, World};

const HIGH: u8 = 46;

/// The fat tree of the small-flows paper: 128 hosts in 4 pods.
fn paper_tree(seed: u64) -> Net {
    let queue = QueueConfig::bytes(150_000).with_high(HIGH);
    let latency =
        |ns| SwitchConfig { latency: Duration::from_nanos(ns), ..SwitchConfig::new(queue) };
    fat_tree(
        seed,
        &FatTree {
            pods: 4,
            edges: 4,
            aggregations: 4,
            cores: 8,
            hosts: 8,
            access: Link::ethernet(1000 * MBIT, Duration::ZERO),
            fabric: Link::ethernet(10_000 * MBIT, Duration::ZERO),
            edge_switch: latency(25_000),
            fabric_switch: latency(14_200),
            nic: NicConfig::default(),
        },
    )
}

fn ping(net: Net, from: u32, to: u32, bytes: u32) -> Duration {
    let mut world = World::new(net);
    let hosts: Vec<_> = (0..world.net().hosts() as u32).map(|host| world.add_bare(host)).collect();
    let config = EchoConfig {
        from: hosts[from as usize],
        to: hosts[to as usize],
        bytes,
        gap: MS(1),
        random: false,
        count: 1,
        seed: 1,
    };
    let app = world.add_app(Echo::new(config));
    world.run(AT(10));
    assert_eq!(world.packets(), 0);
    world.app::<Echo>(app).unwrap().records()[0].time()
}

#[test]
fn a_fat_tree_has_the_latencies_of_its_tiers() {
    // Frames of 84 bytes: 672 ns at 1 Gbit/s, 67.2 ns (rounded up) at 10.
    let (slow, fast, edge, other) = (672, 68, 25_000, 14_200);
    let expected = [
        (1, 2 * (2 * slow + edge)),
        (9, 2 * (2 * slow + 2 * fast + 2 * edge + other)),
        (127, 2 * (2 * slow + 4 * fast + 2 * edge + 3 * other)),
    ];
    for (to, ns) in expected {
        let got = ping(paper_tree(1), 0, to, 1);
        assert_eq!(got, Duration::from_nanos(ns), "to host {to}");
    }
}

#[test]
fn equal_ways_are_used_equally_and_each_flow_keeps_its_own() {
    let mut world = World::new(paper_tree(3));
    let hosts: Vec<_> = (0..128).map(|host| world.add_bare(host)).collect();
    // Every host of the first pod sends to every host of the last one.
    let transfer = |n: usize| BulkFlow {
        from: hosts[n % 32],
        to: hosts[96 + n / 32],
        bytes: Some(20_000),
        start: US(100) * n as u32,
        stack: TcpConfig::plain(Algorithm::NewReno),
    };
    let app = world.add_app(Bulk::new((0..1024).map(transfer).collect()));
    world.run(AT(2_000));
    let records = world.app::<Bulk>(app).unwrap().records();
    assert!(records.iter().all(Option::is_some));
    let sent = |port: &&floodway_sim::net::Port| port.stats().packets;
    let core = |node| matches!(node, Node::Switch(n) if n < 8);
    let down: Vec<_> = world.net().ports().iter().filter(|p| core(p.from())).collect();
    let used: Vec<_> = down.iter().map(sent).filter(|&n| n > 0).collect();
    // Eight ways there and eight back, none with more than twice its share.
    assert_eq!(used.len(), 16);
    let total: u64 = used.iter().sum();
    assert!(used.iter().all(|&n| n < total / 8), "{used:?}");
    assert_eq!((world.packets(), world.flows().len()), (0, 0));
}

#[test]
fn the_high_class_does_not_wait_for_the_low_one() {
    let time = |dscp: u8| {
        let (mut world, hosts) = around(4, QueueConfig::bytes(300_000).with_high(HIGH));
        let stack = TcpConfig::plain(Algorithm::NewReno);
        let bulk = |from| BulkFlow { from, to: hosts[2], bytes: None, start: MS(0), stack };
        world.add_app(Bulk::new(vec![bulk(hosts[0]), bulk(hosts[3])]));
        let config = EchoConfig {
            from: hosts[1],
            to: hosts[2],
            bytes: 56,
            gap: MS(1),
            random: true,
            count: 1000,
            seed: 1,
        };
        let app = world.add_app(Tagged { echo: Echo::new(config), dscp });
        world.run(AT(3_000));
        let records = world.app::<Tagged>(app).unwrap().echo.records();
        records.iter().map(Record::time).collect::<Samples>()
    };
    let (low, high) = (time(0), time(HIGH));
    // 150 to 300 KB wait in front of the low one; at most the packet on the wire in front of the other.
    assert!(low.quantile(0.5).unwrap() > MS(1), "{:?}", low.quantile(0.5));
    assert!(high.quantile(1.0).unwrap() < US(22 + 2 * 13), "{:?}", high.quantile(1.0));
    assert_eq!(high.len(), 1000);
}

/// An echo whose requests carry a code point.
struct Tagged {
    echo: Echo,
    dscp: u8,
}

impl App for Tagged {
    fn start(&mut self, ctx: &mut Ctx<'_>) {
        self.echo.start(ctx);
    }
    fn on_timer(&mut self, tag: u32, ctx: &mut Ctx<'_>) {
        let flow = ctx.flows().iter().find(|f| f.end(Side::Client).connection.is_none());
        if let Some(id) = flow.map(Flow::id) {
            ctx.set_dscp(id, Side::Client, self.dscp);
        }
        self.echo.on_timer(tag, ctx);
    }
    fn on_datagram(&mut self, flow: FlowId, side: Side, tag: u32, ctx: &mut Ctx<'_>) {
        self.echo.on_datagram(flow, side, tag, ctx);
    }
}

#[test]
fn a_gso_packet_is_on_the_wire_what_its_segments_are() {
    let sent = |gso_max| {
        let net = one_link(1, Link::ethernet(1000 * MBIT, US(50)), NicConfig::default());
        let mut world = World::new(net);
        let (a, b) = (world.add_bare(0), world.add_bare(1));
        let stack = TcpConfig { gso_max, ..TcpConfig::linux() };
        let transfer = BulkFlow { from: a, to: b, bytes: Some(1_000_000), start: MS(0), stack };
        let app = world.add_app(Bulk::new(vec![transfer]));
        world.run(AT(1_000));
        let stats = *world.net().port(world.uplink(0)).stats();
        let record = world.app::<Bulk>(app).unwrap().records()[0].unwrap();
        (stats.packets, stats.bytes, record.time())
    };
    let (single, frames) = (sent(0), sent(65_535));
    assert_eq!((single.0, single.1), (frames.0, frames.1));
    assert!(single.2.abs_diff(frames.2) < US(300), "{single:?} {frames:?}");
}

#[test]
fn poisson_transfers_offer_the_load_that_they_should() {
    for pairing in [Pairing::Fresh, Pairing::Permanent] {
        let (mut world, hosts) = around(8, QueueConfig::bytes(500_000));
        let sizes = Sizes::Fixed(50_000);
        let app = world.add_app(Poisson::new(PoissonConfig {
            senders: hosts.clone(),
            receivers: hosts,
            gap: MS(2),
            sizes,
            pairing,
            until: MS(5_000),
            stack: TcpConfig::linux(),
            seed: 1,
        }));
        world.run(AT(8_000));
        let poisson = world.app::<Poisson>(app).unwrap();
        assert_eq!(poisson.pending(), 0);
        // 8 senders, 5 s, every 2 ms: 20000, with a standard deviation of 141.
        assert!(poisson.records().len().abs_diff(20_000) < 600, "{}", poisson.records().len());
        let flows = if pairing == Pairing::Fresh { 0 } else { 56 };
        assert_eq!(world.flows().len(), flows);
        let times: Samples = poisson.records().iter().map(Record::time).collect();
        // A pair's connection is busy for half a millisecond of 14.
        let behind = poisson.ahead().iter().filter(|&&ahead| ahead > 0).count();
        let expected = if pairing == Pairing::Fresh { 0..=0 } else { 500..=2_000 };
        assert!(expected.contains(&behind), "{behind}");
        // 35 segments at 1 Gbit/s are 430 us.
        assert!(times.quantile(0.0).unwrap() > US(430) && times.quantile(0.5).unwrap() < MS(2));
    }
}

/// Two segments at a time never fill a window of ten.
#[test]
fn a_window_that_is_not_used_grows_only_if_nobody_asks() {
    let windows = |validate_window| {
        let (mut world, hosts) = around(2, QueueConfig::bytes(500_000));
        world.add_app(Poisson::new(PoissonConfig {
            senders: hosts.clone(),
            receivers: hosts,
            gap: MS(5),
            sizes: Sizes::Fixed(2_000),
            pairing: Pairing::Permanent,
            until: MS(1_000),
            stack: TcpConfig { validate_window, idle_restart: false, ..TcpConfig::linux() },
            seed: 1,
        }));
        world.run(AT(1_100));
        let client = |flow: &Flow| flow.end(Side::Client).connection.clone();
        let all = world.flows().iter().filter_map(client);
        all.map(|connection| connection.sender().window().cwnd / 1448).collect::<Vec<_>>()
    };
    assert_eq!(windows(true), [10, 10]);
    assert!(windows(false).iter().all(|&segments| segments > 100));
}

fn around(hosts: usize, queue: QueueConfig) -> (World, Vec<Address>) {
    let links = vec![Link::ethernet(1000 * MBIT, US(5)); hosts];
    let switch = SwitchConfig::new(queue);
    let mut world = World::new(star(1, &Star { links, switch, nic: NicConfig::default() }));
    let hosts = (0..hosts as u32).map(|host| world.add_bare(host)).collect();
    (world, hosts)
}

#[test]
fn closed_queries_follow_each_other() {
    let (mut world, hosts) = around(5, QueueConfig::bytes(500_000));
    let app = world.add_app(Queries::new(QueryConfig {
        clients: hosts[1..].to_vec(),
        server: hosts[0],
        request: 100,
        response: Sizes::Fixed(1_000),
        service: US(500),
        arrivals: Arrivals::Closed(MS(1)),
        stack: TcpConfig::linux(),
        seed: 1,
    }));
    world.run(AT(10_000));
    let records = world.app::<Queries>(app).unwrap().records();
    // Each takes 1 ms of thought, 0.5 ms of service, and some 50 us on the way.
    let expected = 4.0 * 10.0 / 1.55e-3;
    assert!((records.len() as f64 / expected - 1.0).abs() < 0.03, "{}", records.len());
    let times: Samples = records.iter().map(Record::time).collect();
    assert!((US(530)..US(600)).contains(&times.quantile(0.5).unwrap()));
}

#[test]
fn incast_overflows_a_small_buffer_and_waits_for_the_timer() {
    let run = |buffer| {
        let (mut world, hosts) = around(41, QueueConfig::bytes(buffer));
        let app = world.add_app(Aggregate::new(AggregateConfig {
            aggregator: hosts[0],
            workers: hosts[1..].to_vec(),
            request: 200,
            response: 20_000,
            service: Duration::ZERO,
            pause: MS(5),
            stack: TcpConfig { idle_restart: false, ..TcpConfig::linux() },
            seed: 1,
        }));
        world.run(AT(20_000));
        let records = world.app::<Aggregate>(app).unwrap().records();
        let times: Samples = records.iter().map(Record::time).collect();
        times.quantile(0.9).unwrap()
    };
    // 800 KB at 1 Gbit/s are 6.7 ms.
    let (large, small) = (run(2_000_000), run(100_000));
    assert!((MS(6)..MS(8)).contains(&large), "{large:?}");
    assert!(small > MS(200), "{small:?}");
}
