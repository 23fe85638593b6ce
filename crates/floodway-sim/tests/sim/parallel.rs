//! One network in parts: the same history for any number of threads, and what the whole world does.

use std::num::NonZeroUsize;

use proptest::prelude::*;

use crate::support::{AT, MBIT, MS, US, bulk_pairs, pairs, xen_machine};
use floodway_sim::engine::Rng;
use floodway_sim::machine::PassThrough;
use floodway_sim::net::{
    Builder, FatTree, Link, Net, NicConfig, NoDelay, Node, PortStats, QueueConfig, SwitchConfig,
    fat_tree,
};
use floodway_sim::packet::Address;
use floodway_sim::parallel::Parallel;
use floodway_sim::tcp::{SenderStats, TcpConfig};
use floodway_sim::traffic::{
    Empirical, Entry, Pairing, Poisson, PoissonConfig, Record, Replay, Sizes, Work,
};
use floodway_sim::world::{CannotDivide, World};
use floodway_sim::{Duration, Instant};

const END: Instant = Instant::from_millis(150);

/// 16 hosts in four pods, with loss, jitter, marks and memory that ports share.
fn tree(seed: u64) -> Net {
    let switch = SwitchConfig {
        latency: US(2),
        queue: QueueConfig::bytes(60_000).with_marking(40_000),
        shared: Some((150_000, 1.0)),
    };
    let link = Link::ethernet(1000 * MBIT, US(3));
    fat_tree(
        seed,
        &FatTree {
            pods: 4,
            edges: 2,
            aggregations: 2,
            cores: 4,
            hosts: 2,
            access: link.with_loss(0.001).with_jitter(US(3)),
            fabric: link,
            edge_switch: switch,
            fabric_switch: switch,
            nic: NicConfig::default(),
        },
    )
}

/// 12 hosts below three switches below one, so that there is one way to each. Delays are random: hardly two events are at the
/// same nanosecond.
fn untied(seed: u64) -> Net {
    let mut rng = Rng::new(seed, "delays", 0);
    let mut link = |loss| {
        let delay = Duration::from_nanos(5_000 + rng.below(20_000));
        Link::ethernet(1_000 * MBIT + rng.below(MBIT), delay).with_loss(loss).with_jitter(US(1))
    };
    let mut builder = Builder::new(seed);
    let switch = SwitchConfig::new(QueueConfig::packets(30));
    let root = builder.switch(switch);
    for _ in 0..3 {
        let edge = builder.switch(switch);
        builder.connect(root, edge, link(0.0));
        for _ in 0..4 {
            let host = builder.host(NicConfig::default());
            builder.connect(host, edge, link(0.001));
        }
    }
    builder.build()
}

fn traffic(hosts: usize, pairing: Pairing, seed: u64) -> PoissonConfig {
    let all: Vec<_> = (0..hosts as u32).map(Address).collect();
    PoissonConfig {
        senders: all.clone(),
        receivers: all,
        gap: MS(2),
        sizes: Sizes::Empirical(Empirical::data_mining()),
        pairing,
        until: MS(60),
        stack: TcpConfig { ecn: true, gso_max: 20_000, ..TcpConfig::linux() },
        seed,
    }
}

/// What became of a run.
#[derive(Debug, PartialEq)]
struct History {
    records: Vec<Option<Record>>,
    ports: Vec<PortStats>,
    senders: Vec<SenderStats>,
    packets: usize,
}

/// A scenario that can be run in both ways.
struct Scene {
    net: fn(u64) -> Net,
    pairing: Pairing,
    seed: u64,
}

impl Scene {
    fn entries(&self) -> Vec<Entry> {
        traffic((self.net)(self.seed).hosts(), self.pairing, self.seed).entries()
    }

    fn world(&self) -> World {
        let mut world = World::new((self.net)(self.seed));
        world.fingerprint();
        (0..world.net().hosts() as u32)
            .for_each(|host| assert_eq!(world.add_bare(host), Address(host)));
        world
    }

    fn whole(&self) -> History {
        let (mut world, entries) = (self.world(), self.entries());
        let count = entries.len();
        let app = world.add_app(Replay::new(entries, traffic(2, self.pairing, 0).stack));
        world.run(END);
        let replay = world.app::<Replay>(app).unwrap();
        History {
            records: (0..count).map(|n| replay.record(n)).collect(),
            ports: world.net().ports().iter().map(|port| *port.stats()).collect(),
            senders: (0..world.net().hosts() as u32)
                .map(|n| world.sender_stats(Address(n)))
                .collect(),
            packets: world.packets(),
        }
    }

    /// Runs up to each of these times and answers with the digest, too.
    fn parallel(&self, parts: usize, threads: usize, stops: &[Instant]) -> (History, u64) {
        let (mut world, entries) = (self.world(), self.entries());
        let (count, hosts) = (entries.len(), world.net().hosts() as u32);
        let app = world.add_app(Replay::new(entries, traffic(2, self.pairing, 0).stack));
        let mut parallel = Parallel::new(world, parts).unwrap();
        for &stop in stops {
            parallel.run(stop, NonZeroUsize::new(threads).unwrap());
            assert_eq!(parallel.now(), stop);
        }
        let record = |n| parallel.app::<Replay>(app).find_map(|replay| replay.record(n));
        let history = History {
            records: (0..count).map(record).collect(),
            ports: parallel.ports().map(|port| *port.stats()).collect(),
            senders: (0..hosts).map(|n| parallel.sender_stats(Address(n))).collect(),
            packets: parallel.packets(),
        };
        if self.pairing == Pairing::Fresh && history.packets == 0 {
            assert_eq!(parallel.flows(), 0, "both halves of a flow go when it ends");
        }
        (history, parallel.digest().unwrap())
    }
}

#[test]
fn the_number_of_threads_makes_no_difference() {
    for pairing in [Pairing::Fresh, Pairing::Permanent] {
        let scene = Scene { net: tree, pairing, seed: 1 };
        let one = scene.parallel(8, 1, &[END]);
        let done = one.0.records.iter().flatten().count();
        assert!(done > 300, "{done}");
        assert!(one.0.ports.iter().any(|port| port.lost > 0));
        for threads in [2, 4, 8, 9] {
            assert_eq!(scene.parallel(8, threads, &[END]), one, "{threads} threads, {pairing:?}");
        }
        let other = Scene { seed: 2, ..scene };
        assert_ne!(other.parallel(8, 1, &[END]).1, one.1);
    }
}

#[test]
fn parts_do_what_the_whole_does() {
    for seed in 1..4 {
        for pairing in [Pairing::Fresh, Pairing::Permanent, Pairing::Opened(US(500))] {
            let scene = Scene { net: untied, pairing, seed };
            let whole = scene.whole();
            let (parts, digest) = scene.parallel(3, 2, &[END]);
            assert_eq!(parts, whole, "seed {seed}, {pairing:?}");
            let stops = [AT(3), AT(20), AT(20), END];
            assert_eq!(scene.parallel(3, 2, &stops), (parts, digest), "seed {seed}, {pairing:?}");
        }
    }
}

#[test]
fn a_list_of_poisson_arrivals_is_what_the_application_does() {
    for pairing in [Pairing::Fresh, Pairing::Permanent, Pairing::Opened(US(500))] {
        let scene = Scene { net: untied, pairing, seed: 3 };
        let mut world = scene.world();
        let app = world.add_app(Poisson::new(traffic(12, pairing, 3)));
        world.run(END);
        let mut expected = world.app::<Poisson>(app).unwrap().records().to_vec();
        let mut got: Vec<_> = scene.whole().records.into_iter().flatten().collect();
        let order = |record: &Record| (record.done, record.begun, record.bytes);
        expected.sort_unstable_by_key(order);
        got.sort_unstable_by_key(order);
        assert!(got.len() > 200, "{}", got.len());
        assert_eq!(got, expected, "{pairing:?}");
    }
}

#[test]
fn what_cannot_run_in_parts_is_refused() {
    let entry = |from, to| Entry {
        start: MS(1),
        from: Address(from),
        to: Address(to),
        work: Work::Transfer(1000),
    };
    let replay = || Replay::new(vec![entry(0, 1)], TcpConfig::linux());
    // A bottleneck without delay between the sides of a dumbbell.
    let net = |delay| pairs(1, Link::ethernet(MBIT, delay), QueueConfig::packets(9), &[US(1); 2]);
    let world = |delay| {
        let mut world = World::new(net(delay));
        (0..4).for_each(|host| assert_eq!(world.add_bare(host), Address(host)));
        world.add_app(replay());
        world
    };
    let refused = |world, parts| Parallel::new(world, parts).err();
    let link = NoDelay { from: Node::Switch(0), to: Node::Switch(1) };
    assert_eq!(refused(world(Duration::ZERO), 2), Some(CannotDivide::NoDelay(link)));
    assert_eq!(refused(world(Duration::ZERO), 1), None);
    assert_eq!(refused(world(US(1)), 2), None);

    let mut begun = world(US(1));
    begun.run(AT(1));
    assert_eq!(refused(begun, 2), Some(CannotDivide::Begun));

    let (bulk, _) = bulk_pairs(net(US(1)), TcpConfig::linux(), None);
    assert_eq!(refused(bulk, 2), Some(CannotDivide::App(0)));

    let mut machines = World::new(net(US(1)));
    machines.add_machine(0, xen_machine(), Box::new(PassThrough));
    assert_eq!(refused(machines, 2), Some(CannotDivide::Machines));
}

#[test]
fn a_network_without_links_between_parts_runs_to_the_end_at_once() {
    let scene = Scene { net: untied, pairing: Pairing::Fresh, seed: 5 };
    let (history, _) = scene.parallel(1, 3, &[END]);
    assert_eq!(history, scene.whole());
}

#[test]
fn a_run_for_ever_ends_when_nothing_is_left() {
    for (parts, threads) in [(1, 1), (4, 1), (4, 3)] {
        let scene = Scene { net: tree, pairing: Pairing::Fresh, seed: 5 };
        let mut world = scene.world();
        let small = |entry: Entry| Entry { work: Work::Transfer(20_000), ..entry };
        let entries = scene.entries().into_iter().take(50).map(small).collect();
        world.add_app(Replay::new(entries, traffic(2, scene.pairing, 0).stack));
        let mut parallel = Parallel::new(world, parts).unwrap();
        parallel.run(Instant::NEVER, NonZeroUsize::new(threads).unwrap());
        assert_eq!(parallel.packets(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn any_seed_parts_and_threads(
        seed: u64,
        parts in 1_usize..10,
        threads in 2_usize..6,
        stop in 1_u64..100,
    ) {
        let scene = Scene { net: tree, pairing: Pairing::Fresh, seed };
        let stops = [AT(stop), END];
        let one = scene.parallel(parts, 1, &stops);
        prop_assert_eq!(scene.parallel(parts, threads, &stops), one);
    }
}
