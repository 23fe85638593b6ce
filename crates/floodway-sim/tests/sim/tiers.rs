//! The multi-tier application against what queueing theory says of closed networks.

use crate::support::{MBIT, MS, US};
use floodway_sim::cpu::{RoundRobin, VcpuSpec};
use floodway_sim::machine::{DriverConfig, MachineConfig, PassThrough, VmConfig};
use floodway_sim::net::{Link, NicConfig, one_link};
use floodway_sim::tcp::TcpConfig;
use floodway_sim::traffic::{Call, Operation, Request, Sizes, Tier, Tiers, TiersConfig};
use floodway_sim::world::{AppId, World};
use floodway_sim::{Duration, Instant};

const SECONDS: u64 = 400;

fn operation(service: Duration, calls: Vec<Call>) -> Operation {
    let request = Request { bytes: 200, service, calls, response: Sizes::Fixed(1000) };
    Operation { weight: 1.0, requests: vec![request] }
}

fn call(wait: Duration, service: Duration) -> Call {
    Call { tier: 0, request: 100, wait, service, response: Sizes::Fixed(500) }
}

/// Front and tier are VMs of one machine, each with a core of its own, as is the driver domain.
fn world(change: impl FnOnce(&mut TiersConfig)) -> (World, AppId) {
    let mut world =
        World::new(one_link(1, Link::ethernet(1000 * MBIT, US(20)), NicConfig::default()));
    let machine = MachineConfig {
        pcpus: 3,
        scheduler: Box::new(RoundRobin::new(3, MS(30))),
        switch_cost: Duration::ZERO,
        cache_cost: Duration::ZERO,
        driver: DriverConfig::new(VcpuSpec::pinned(2, 256)),
    };
    let machine = world.add_machine(0, machine, Box::new(PassThrough));
    let [front, tier] =
        [0, 1].map(|core| world.add_vm(machine, &VmConfig::new(VcpuSpec::pinned(core, 256))));
    let visitors = world.add_bare(1);
    let mut config = TiersConfig {
        visitors_at: vec![visitors],
        visitors: 10,
        think: MS(100),
        keep_alive: true,
        front,
        workers: 100,
        tiers: vec![Tier { address: tier, fresh: false }],
        operations: vec![operation(MS(12), Vec::new())],
        stack: TcpConfig::linux(),
        seed: 7,
    };
    change(&mut config);
    let app = world.add_app(Tiers::new(config));
    (world, app)
}

/// Operations per second.
fn rate(change: impl FnOnce(&mut TiersConfig)) -> f64 {
    let (mut world, app) = world(change);
    world.run(Instant::ZERO + Duration::from_secs(SECONDS));
    let app = world.app::<Tiers>(app).unwrap();
    assert_eq!(app.failed(), 0);
    app.records().len() as f64 / SECONDS as f64
}

/// Exact mean value analysis (Reiser and Lavenberg): stations with one server each, by their demands in seconds.
fn expected(visitors: u32, think: f64, demands: &[f64]) -> f64 {
    let mut queues = vec![0.0; demands.len()];
    let mut rate = 0.0;
    for n in 1..=visitors {
        let times: Vec<f64> = demands.iter().zip(&queues).map(|(d, q)| d * (1.0 + q)).collect();
        rate = f64::from(n) / (think + times.iter().sum::<f64>());
        queues = times.iter().map(|time| rate * time).collect();
    }
    rate
}

fn assert_near(rate: f64, expected: f64) {
    assert!((rate / expected - 1.0).abs() < 0.03, "{rate} instead of {expected}");
}

#[test]
fn one_server_is_a_machine_with_repairman() {
    for visitors in [1, 5, 20] {
        assert_near(rate(|c| c.visitors = visitors), expected(visitors, 0.1, &[0.012]));
    }
}

#[test]
fn two_servers_agree_with_mean_value_analysis() {
    let calls = || vec![call(Duration::ZERO, MS(10))];
    for fresh in [false, true] {
        let rate = rate(|c| {
            c.operations = vec![operation(MS(8), calls())];
            c.tiers[0].fresh = fresh;
        });
        assert_near(rate, expected(10, 0.1, &[0.008, 0.010]));
    }
}

#[test]
fn workers_bound_what_is_under_way() {
    // Nobody thinks and nothing but a disk takes time: as many operations as workers, each as long as the disk.
    let slow = |workers| {
        rate(|c| {
            c.think = Duration::ZERO;
            c.workers = workers;
            c.operations = vec![operation(Duration::ZERO, vec![call(MS(50), Duration::ZERO)])];
        })
    };
    for workers in [1, 3] {
        // A little less: packets take time, too.
        let share = slow(workers) * 0.05 / f64::from(workers);
        assert!((0.93..1.01).contains(&share), "{workers}: {share}");
    }
    let all = slow(100) * 0.05 / 10.0;
    assert!((0.93..1.01).contains(&all), "{all}");
}

#[test]
fn operations_come_as_often_as_they_weigh_and_in_order() {
    let (mut world, app) = world(|c| {
        let two = vec![operation(MS(1), Vec::new()).requests[0].clone(); 2];
        c.operations = vec![operation(MS(1), Vec::new()), Operation { weight: 3.0, requests: two }];
        c.keep_alive = false;
    });
    world.run(Instant::ZERO + Duration::from_secs(SECONDS));
    let app = world.app::<Tiers>(app).unwrap();
    let second = app.records().iter().filter(|(place, _)| *place == 1).count();
    let share = second as f64 / app.records().len() as f64;
    assert!((share - 0.75).abs() < 0.01, "{share}");
    let bytes = |place| app.records().iter().find(|r| r.0 == place).unwrap().1.bytes;
    assert_eq!((bytes(0), bytes(1)), (1000, 2000));
    assert!(app.busy_workers() <= 10);
}
