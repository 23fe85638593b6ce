//! An offloaded flow takes no more of a path than the algorithm that it runs allows.

use crate::support::{AT, MBIT, MS};
use floodway_core::congestion::Algorithm;
use floodway_core::offload::Config;
use floodway_sim::Duration;
use floodway_sim::cpu::{RoundRobin, VcpuSpec};
use floodway_sim::flow::Side;
use floodway_sim::hooks::offload::{OffloadConfig, SwitchOffload};
use floodway_sim::machine::{DriverConfig, MachineConfig, VmConfig};
use floodway_sim::net::{Builder, Link, Net, NicConfig, QueueConfig, SwitchConfig};
use floodway_sim::tcp::TcpConfig;
use floodway_sim::traffic::{Bulk, BulkFlow};
use floodway_sim::world::{AppId, World};

/// Host 0 receives behind a bottleneck; the others send, through access links with a jitter of one packet time, since without any
/// randomness flows fall into step with the drops of the queue.
fn net(seed: u64, mbit: u64, rtt: Duration, queue: u64, loss: f64, senders: u32) -> Net {
    let mut builder = Builder::new(seed);
    let centre = builder.switch(SwitchConfig::new(QueueConfig::bytes(queue)));
    let path = Link::ethernet(mbit * MBIT, rtt / 2);
    let receiver = builder.host(NicConfig::default());
    builder.connect(receiver, centre, path);
    for _ in 0..senders {
        let access = Link::ethernet(mbit.max(100) * 10 * MBIT, Duration::ZERO);
        let sender = builder.host(NicConfig::default());
        builder.connect(sender, centre, access.with_jitter(path.transmission(1500, 1)));
    }
    let mut net = builder.build();
    let port = net.ports_between(centre, receiver).next().unwrap();
    net.port_mut(port).link_mut().loss = loss;
    net
}

fn linux(algorithm: Algorithm) -> TcpConfig {
    TcpConfig { algorithm, gso_max: 65_160, gso_autosize: true, rack: true, ..TcpConfig::linux() }
}

/// Senders without end, the first a guest with transmit offload if `offloaded`; bytes of each that arrive within `seconds` after 20 s.
fn run(net: Net, algorithm: Algorithm, offloaded: bool, seconds: u64) -> Vec<f64> {
    let hosts = net.hosts() as u32;
    let mut world = World::new(net);
    let to = world.add_bare(0);
    let transfer = |n: u32, world: &mut World| {
        let from = if n == 1 && offloaded { guest(world, algorithm) } else { world.add_bare(n) };
        BulkFlow { from, to, bytes: None, start: MS(50) * (n - 1), stack: linux(algorithm) }
    };
    let flows = (1..hosts).map(|n| transfer(n, &mut world)).collect();
    let app = world.add_app(Bulk::new(flows));
    world.run(AT(20_000));
    let arrived = |world: &World| -> Vec<u64> {
        (0..hosts - 1).map(|n| delivered(world, app, n as usize)).collect()
    };
    let before = arrived(&world);
    world.run(AT(20_000 + seconds * 1000));
    let after = arrived(&world);
    after.iter().zip(&before).map(|(after, before)| (after - before) as f64).collect()
}

fn guest(world: &mut World, algorithm: Algorithm) -> floodway_sim::packet::Address {
    let config = MachineConfig {
        pcpus: 2,
        scheduler: Box::new(RoundRobin::new(2, MS(30))),
        switch_cost: Duration::ZERO,
        cache_cost: Duration::ZERO,
        driver: DriverConfig::new(VcpuSpec::pinned(1, 256)),
    };
    let port = Config { transmit: true, congestion: algorithm, ..Config::default() };
    let hook = Box::new(SwitchOffload::new(OffloadConfig::new(port), 1));
    let machine = world.add_machine(1, config, hook);
    world.add_vm(machine, &VmConfig::new(VcpuSpec::pinned(0, 256)))
}

fn delivered(world: &World, app: AppId, n: usize) -> u64 {
    let flow = world.app::<Bulk>(app).unwrap().flow(n).unwrap();
    let end = world.flows().get(flow).unwrap().end(Side::Server);
    end.connection.as_ref().unwrap().receiver().delivered()
}

/// Ratio of the first sender's bytes to the second's in a minute, over two seeds.
fn shares(algorithm: Algorithm, bdp: f64, offloaded: bool) -> f64 {
    let (mbit, rtt) = (10, MS(20));
    let queue = (mbit as f64 * 20.0 * 125.0 * bdp) as u64;
    let (mut first, mut second) = (0.0, 0.0);
    for seed in 1..=2 {
        let bytes = run(net(seed, mbit, rtt, queue, 0.0, 2), algorithm, offloaded, 60);
        (first, second) = (first + bytes[0], second + bytes[1]);
    }
    first / second
}

#[test]
fn beside_a_linux_flow_it_has_its_share() {
    for algorithm in [Algorithm::Reno, Algorithm::Cubic] {
        for bdp in [0.5, 2.0] {
            // Two equal senders first: what they have is chance and the queue.
            for offloaded in [false, true] {
                let ratio = shares(algorithm, bdp, offloaded);
                assert!((0.8..1.25).contains(&ratio), "{algorithm} {bdp} {offloaded}: {ratio}");
            }
        }
    }
}

/// RFC 3649 section 2: 1.2 / sqrt(p) segments; CUBIC's Reno-friendly region (RFC 9438 section 4.3) is sqrt(1.5 / p).
#[test]
fn alone_at_random_loss_it_follows_the_response_function() {
    let (p, rtt, seconds) = (0.01_f64, MS(20), 120);
    for (algorithm, constant) in [(Algorithm::Reno, 1.2), (Algorithm::Cubic, 1.5_f64.sqrt())] {
        let expected = constant / p.sqrt() * 1448.0 / rtt.as_secs_f64() * seconds as f64;
        let [linux, offloaded] = [false, true].map(|offloaded| {
            let net = net(1, 1000, rtt, 10_000_000, p, 1);
            run(net, algorithm, offloaded, seconds)[0]
        });
        assert!(
            (0.8..1.3).contains(&(offloaded / expected)),
            "{algorithm}: {offloaded} {expected}"
        );
        assert!(offloaded / linux <= 1.3, "{algorithm}: {offloaded} {linux}");
    }
}
