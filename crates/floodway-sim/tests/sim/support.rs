//! Scenarios that several tests share.

#![allow(dead_code, reason = "each test uses some of it")]

use floodway_sim::cpu::{Credit, CreditConfig, VcpuSpec};
use floodway_sim::flow::Side;
use floodway_sim::machine::{DriverConfig, MachineConfig};
use floodway_sim::net::{Dumbbell, Link, Net, NicConfig, QueueConfig, SwitchConfig, dumbbell};
use floodway_sim::tcp::{Sender, TcpConfig};
use floodway_sim::traffic::{Bulk, BulkFlow};
use floodway_sim::world::{AppId, World};
use floodway_sim::{Duration, Instant};

pub const US: fn(u64) -> Duration = Duration::from_micros;
pub const MS: fn(u64) -> Duration = Duration::from_millis;
pub const AT: fn(u64) -> Instant = Instant::from_millis;
pub const MBIT: u64 = 1_000_000;

/// Pairs of hosts around a bottleneck: one pair per access delay, each way.
pub fn pairs(seed: u64, bottleneck: Link, queue: QueueConfig, delays: &[Duration]) -> Net {
    jittered(seed, bottleneck, queue, delays, Duration::ZERO)
}

/// The same, with jitter at the senders.
pub fn jittered(
    seed: u64,
    bottleneck: Link,
    queue: QueueConfig,
    delays: &[Duration],
    jitter: Duration,
) -> Net {
    let fast = bottleneck.rate * 10;
    let access = |&delay: &Duration| Link::ethernet(fast, delay).with_jitter(jitter);
    let near = |_: &Duration| Link::ethernet(fast, Duration::ZERO);
    dumbbell(
        seed,
        &Dumbbell {
            left: delays.iter().map(access).collect(),
            right: delays.iter().map(near).collect(),
            bottleneck,
            switch: SwitchConfig::new(queue),
            nic: NicConfig::default(),
        },
    )
}

/// Endless transfers from left to right, one per pair, 10 ms apart.
pub fn bulk_pairs(net: Net, stack: TcpConfig, bytes: Option<u64>) -> (World, AppId) {
    let pairs = net.hosts() / 2;
    let mut world = World::new(net);
    let hosts: Vec<_> = (0..2 * pairs as u32).map(|host| world.add_bare(host)).collect();
    let transfer = |n: usize| BulkFlow {
        from: hosts[n],
        to: hosts[pairs + n],
        bytes,
        start: MS(10) * n as u32,
        stack,
    };
    let app = world.add_app(Bulk::new((0..pairs).map(transfer).collect()));
    (world, app)
}

/// The sender of a transfer that is under way.
pub fn sender(world: &World, app: AppId, transfer: usize) -> &Sender {
    let flow = world.app::<Bulk>(app).unwrap().flow(transfer).expect("the transfer is under way");
    let end = world.flows().get(flow).unwrap().end(Side::Client);
    end.connection.as_ref().unwrap().sender()
}

/// Bytes acknowledged to the sender of a transfer.
pub fn acknowledged(world: &World, app: AppId, transfer: usize) -> u64 {
    sender(world, app, transfer).acknowledged()
}

/// Bytes acknowledged to each transfer between two times.
pub fn progress(
    world: &mut World,
    app: AppId,
    transfers: usize,
    from: Instant,
    to: Instant,
) -> Vec<u64> {
    world.run(from);
    let before: Vec<_> = (0..transfers).map(|n| acknowledged(world, app, n)).collect();
    world.run(to);
    (0..transfers).map(|n| acknowledged(world, app, n) - before[n]).collect()
}

/// A machine with one processor, scheduled as by Xen 4.2.
pub fn xen_machine() -> MachineConfig {
    MachineConfig {
        pcpus: 1,
        scheduler: Box::new(Credit::new(1, CreditConfig::xen_4_2())),
        switch_cost: US(2),
        cache_cost: Duration::ZERO,
        driver: DriverConfig::new(VcpuSpec::free(256)),
    }
}
