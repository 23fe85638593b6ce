//! The same seed gives the same history, whatever the number of threads.

use std::num::NonZeroUsize;

use crate::support::{AT, MBIT, MS, US, xen_machine};
use floodway_sim::Duration;
use floodway_sim::cpu::{LoadConfig, VcpuSpec};
use floodway_sim::engine::sweep;
use floodway_sim::machine::{PassThrough, VmConfig};
use floodway_sim::net::{FatTree, Link, NicConfig, QueueConfig, SwitchConfig, fat_tree};
use floodway_sim::packet::Address;
use floodway_sim::tcp::TcpConfig;
use floodway_sim::traffic::{Empirical, Pairing, Poisson, PoissonConfig, Sizes};
use floodway_sim::world::World;

/// A fat tree with loss and jitter; two of its hosts run VMs with loads.
fn run(seed: u64) -> (u64, u64, Vec<(u64, Duration)>) {
    let switch = SwitchConfig {
        latency: US(2),
        queue: QueueConfig::bytes(100_000).with_marking(60_000),
        shared: Some((300_000, 1.0)),
    };
    let link = Link::ethernet(1000 * MBIT, US(1));
    let net = fat_tree(
        seed,
        &FatTree {
            pods: 2,
            edges: 2,
            aggregations: 2,
            cores: 4,
            hosts: 2,
            access: link.with_loss(0.0005).with_jitter(US(3)),
            fabric: link,
            edge_switch: switch,
            fabric_switch: switch,
            nic: NicConfig::default(),
        },
    );
    let mut world = World::new(net);
    world.fingerprint();
    let mut all: Vec<Address> = (2..8).map(|host| world.add_bare(host)).collect();
    for host in 0..2 {
        let config = xen_machine();
        let machine = world.add_machine(host, config, Box::new(PassThrough));
        let load = Some(LoadConfig::duty_cycle(60, MS(30)));
        let vm = VmConfig { load, ..VmConfig::new(VcpuSpec::free(256)) };
        (0..3).for_each(|_| all.push(world.add_vm(machine, &vm)));
    }
    let app = world.add_app(Poisson::new(PoissonConfig {
        senders: all.clone(),
        receivers: all,
        gap: MS(20),
        sizes: Sizes::Empirical(Empirical::data_mining()),
        pairing: Pairing::Fresh,
        until: MS(900),
        stack: TcpConfig { ecn: true, ..TcpConfig::linux() },
        seed,
    }));
    world.run(AT(1_000));
    let records = world.app::<Poisson>(app).unwrap().records();
    assert!(records.len() > 100);
    let records = records.iter().map(|r| (r.bytes, r.time())).collect();
    (world.digest().unwrap(), world.events(), records)
}

#[test]
fn same_seed_same_history() {
    let seeds = [1, 2, 1, 3, 2, 1];
    let one = NonZeroUsize::MIN;
    let alone = sweep(&seeds, one, |&seed| run(seed), |_| ());
    let together = sweep(&seeds, NonZeroUsize::new(3).unwrap(), |&seed| run(seed), |_| ());
    assert_eq!(alone, together);
    assert_eq!(alone[0], alone[2]);
    assert_eq!(alone[1], alone[4]);
    assert_ne!(alone[0].0, alone[1].0);
    assert_ne!(alone[1].0, alone[3].0);
}
