//! Events per second: ten endless transfers over a dumbbell, 1 Gbit/s in the middle.
//!
//! An iteration is 100 ms of virtual time in steady state. The second figure has the transfers' senders in VMs.

#![allow(missing_docs, reason = "criterion's macros generate public functions")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use floodway_sim::cpu::{Credit, CreditConfig, VcpuSpec};
use floodway_sim::machine::{DriverConfig, MachineConfig, PassThrough, VmConfig};
use floodway_sim::net::{Dumbbell, Link, Net, NicConfig, QueueConfig, SwitchConfig, dumbbell};
use floodway_sim::packet::Address;
use floodway_sim::tcp::TcpConfig;
use floodway_sim::traffic::{Bulk, BulkFlow};
use floodway_sim::world::World;
use floodway_sim::{Duration, Instant};

const FLOWS: usize = 10;
const STEP: Duration = Duration::from_millis(100);

fn net() -> Net {
    let gigabit = Link::ethernet(1_000_000_000, Duration::from_micros(20));
    let fast = Link::ethernet(10_000_000_000, Duration::from_micros(10));
    dumbbell(
        1,
        &Dumbbell {
            left: vec![fast; FLOWS],
            right: vec![fast; FLOWS],
            bottleneck: gigabit,
            switch: SwitchConfig::new(QueueConfig::bytes(300_000)),
            nic: NicConfig::default(),
        },
    )
}

fn bulk(world: &mut World, from: &[Address], to: &[Address]) {
    let transfer = |(&from, &to)| BulkFlow {
        from,
        to,
        bytes: None,
        start: Duration::ZERO,
        stack: TcpConfig::linux(),
    };
    world.add_app(Bulk::new(from.iter().zip(to).map(transfer).collect()));
}

fn bare() -> World {
    let mut world = World::new(net());
    let hosts: Vec<_> = (0..2 * FLOWS as u32).map(|host| world.add_bare(host)).collect();
    bulk(&mut world, &hosts[..FLOWS], &hosts[FLOWS..]);
    world
}

fn virtual_machines() -> World {
    let mut world = World::new(net());
    let senders: Vec<_> = (0..FLOWS as u32)
        .map(|host| {
            let config = MachineConfig {
                pcpus: 2,
                scheduler: Box::new(Credit::new(2, CreditConfig::xen_4_2())),
                switch_cost: Duration::from_micros(2),
                cache_cost: Duration::ZERO,
                driver: DriverConfig::new(VcpuSpec::pinned(1, 256)),
            };
            let machine = world.add_machine(host, config, Box::new(PassThrough));
            world.add_vm(machine, &VmConfig::new(VcpuSpec::pinned(0, 256)))
        })
        .collect();
    let receivers: Vec<_> =
        (FLOWS as u32..2 * FLOWS as u32).map(|host| world.add_bare(host)).collect();
    bulk(&mut world, &senders, &receivers);
    world
}

fn measure(c: &mut Criterion, name: &str, make: fn() -> World) {
    let mut world = make();
    // Until slow start and its losses are over.
    world.run(Instant::from_millis(2_000));
    let before = world.events();
    world.run(world.now() + STEP * 10);
    let events = (world.events() - before) / 10;
    let mut group = c.benchmark_group("dumbbell of 10 flows");
    group.throughput(Throughput::Elements(events));
    group.bench_function(name, |b| {
        b.iter(|| {
            let end = world.now() + STEP;
            world.run(end);
        });
    });
    group.finish();
}

fn all(c: &mut Criterion) {
    measure(c, "bare machines", bare);
    measure(c, "senders in VMs", virtual_machines);
}

criterion_group!(benches, all);
criterion_main!(benches);
